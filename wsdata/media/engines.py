"""What decodes and encodes: the processor, or a GPU's fixed-function units with a way back.

A file that the GPU cannot do, by codec, profile, size or damage, is done again on the processor,
and so says its result. Opening files is `decode`'s, writing them `encode`'s.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsdata.coders import DECODERS, ENCODERS
from wsdata.errors import WsdataError

ENGINE_PARAMS = ("decoder", "encoder")
MAX_REASON_LENGTH = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Engines:
    """One of `DECODERS` and one of `ENCODERS`."""

    decoder: str = "cpu"
    encoder: str = "x264"

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder {self.decoder!r}: expected one of {DECODERS}")
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder {self.encoder!r}: expected one of {ENCODERS}")

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU is needed."""
        return self != PROCESSOR

    @property
    def names(self) -> str:
        """For people: both names, less what is the processor's."""
        return "+".join(one for one in (self.decoder, self.encoder) if one not in ("cpu", "x264"))

    def fallbacks(self) -> "Iterator[Engines]":
        """These engines, then the processor's where they are others."""
        yield self
        if self.uses_gpu:
            yield PROCESSOR

    def acceleration(self) -> Any | None:
        """Return PyAV's hardware acceleration, which never falls back unseen; None without."""
        if self.decoder != "nvdec":
            return None
        from av.codec.hwaccel import HWAccel

        return HWAccel(device_type="cuda", allow_software_fallback=False)


PROCESSOR = Engines()


def engine_params(decoder: str, encoder: str) -> dict[str, str]:
    """What of the engines belongs in a digest: nothing where both are the processor's."""
    engines = Engines(decoder=decoder, encoder=encoder)
    return {"decoder": decoder, "encoder": encoder} if engines.uses_gpu else {}


def path_with_engine(path: str, told: dict[str, Any]) -> str:
    """Name the way that a file went, with the GPU's part in it, from `with_fallback`'s result."""
    if told.get("fell_back"):
        return f"{path}, after {told['fell_back']}"
    return f"{path} {told['engine']}" if told.get("engine") else path


def clear_folder(folder: Path, kept: frozenset[str]) -> None:
    """Remove the files that an engine left before it gave up."""
    for file in folder.iterdir():
        if file.is_file() and file.name not in kept:
            file.unlink()


def with_fallback(
    engines: Engines, work: Callable[[Engines], dict[str, Any]], out_dir: Path
) -> dict[str, Any]:
    """Do the work with the engines asked for, and on the processor where a GPU fails it.

    A file in which a GPU found damage is done again too: what is salvaged, and why, must not
    depend on the engine.

    Args:
        engines: What to try first.
        work: Takes the engines; its result has a ``status``.
        out_dir: Where it leaves files; those of a failed try are removed.

    Returns:
        The result, with ``engine``: what made it, empty for the processor; and ``fell_back``: why
        not what was asked for, else null.
    """
    import av.error

    kept = frozenset(file.name for file in out_dir.iterdir()) if engines.uses_gpu else frozenset()
    reason: str | None = None
    for each in engines.fallbacks():
        if not each.uses_gpu:
            break
        try:
            told = work(each)
        except (WsdataError, av.error.FFmpegError, ValueError, OSError, RuntimeError) as error:
            reason = f"{each.names}: {type(error).__name__}: {error}"[:MAX_REASON_LENGTH]
        else:
            if told["status"] != "salvaged":
                return told | {"engine": each.names, "fell_back": None}
            reason = f"{each.names}: {told['reason']}"[:MAX_REASON_LENGTH]
        clear_folder(out_dir, kept)
    return work(PROCESSOR) | {"engine": "", "fell_back": reason}
