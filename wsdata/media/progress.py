"""How far a sandboxed job is, told to its watchdog through a page that both see.

Jobs call `advance` for each frame; what they read of their source is counted for them. Outside
the sandbox nobody listens, and nothing happens. What is done about a job that stands still
belongs to `watchdog`.
"""

import mmap
from dataclasses import dataclass

SIZE_BYTES = 16  # two counters of 64 bits: frames, bytes read
_FRAMES, _BYTES = 0, 1


@dataclass(slots=True)
class _Shown:
    counters: memoryview | None = None


_shown = _Shown()


def attach(descriptor: int) -> None:
    """Show progress of this process in a shared page from now on; in the child alone."""
    _shown.counters = memoryview(mmap.mmap(descriptor, SIZE_BYTES)).cast("Q")


def advance(num_frames: int = 1) -> None:
    """Tell that so many frames more are done."""
    if _shown.counters is not None:
        _shown.counters[_FRAMES] += num_frames


def advance_bytes(num_bytes: int) -> None:
    """Tell that so many bytes more of the source were read."""
    if _shown.counters is not None:
        _shown.counters[_BYTES] += num_bytes
