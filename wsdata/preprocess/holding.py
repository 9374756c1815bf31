"""Frames held until it is known which clip they belong to, in bounded memory.

The newest stay as they are; beyond a budget pixels go to nameless files beside the output, and
come back when asked for. How long a frame is held is told by `shots` and `windows`.
"""

import ctypes
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import VideoFrame

MEMORY_BYTES = 7 << 20
_M_MMAP_THRESHOLD = -3  # as malloc.h has it
_LARGE_BYTES = 256 << 10
FILE_BYTES = 1 << 30  # a sandboxed child may write no file larger than twice this


def return_freed_pictures() -> None:
    """Let this process give memory of pictures and encoders back as soon as it is freed.

    The C library learns from the first large block that is freed to keep the next ones, and then
    a child grows with every clip. For sandboxed children; a C library without the call is left
    as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


class FrameHold:
    """Keeps yuv420p frames by the key that they are put under.

    Args:
        folder: Where pixels may be written. What is written has no name, and is gone with the
            process, however that ends.
        memory_bytes: Frames beyond this are written.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._held: dict[int, VideoFrame] = {}
        self._held_bytes = 0
        self._spilled: dict[int, tuple[Any, int, int, int]] = {}  # (file, offset, width, height)
        self._free: dict[int, list[tuple[Any, int]]] = {}  # by size in bytes
        self._file: Any = None
        self._end = FILE_BYTES

    def put(self, key: int, frame: "VideoFrame") -> None:
        """Keep a frame under a key that is not in use."""
        size = _size(frame.width, frame.height)
        if self._held_bytes + size <= self._memory_bytes:
            self._held[key] = frame
            self._held_bytes += size
            return
        file, offset = self._slot(size)
        at = offset
        for pixels in _planes(frame):
            at += os.pwrite(file.fileno(), pixels.tobytes(), at)
        if at != offset + size:
            raise OSError(f"{at - offset} of {size} bytes of a held frame were written")
        self._spilled[key] = file, offset, frame.width, frame.height

    def take(self, key: int) -> "VideoFrame | None":
        """Give a frame back, and forget it; None for a key that has none."""
        from av import VideoFrame

        frame = self._held.pop(key, None)
        if frame is not None:
            self._held_bytes -= _size(frame.width, frame.height)
            return frame
        if key not in self._spilled:
            return None
        file, offset, width, height = self._spilled.pop(key)
        self._free.setdefault(_size(width, height), []).append((file, offset))
        frame = VideoFrame(width, height, "yuv420p")
        for pixels in _planes(frame):
            data = os.pread(file.fileno(), pixels.size, offset)
            offset += len(data)
            pixels[:] = np.frombuffer(data, np.uint8).reshape(pixels.shape)
        return frame

    def drop(self, key: int) -> None:
        """Forget a frame, if there is one."""
        frame = self._held.pop(key, None)
        if frame is not None:
            self._held_bytes -= _size(frame.width, frame.height)
        elif key in self._spilled:
            file, offset, width, height = self._spilled.pop(key)
            self._free.setdefault(_size(width, height), []).append((file, offset))

    def _slot(self, size: int) -> tuple[Any, int]:
        if free := self._free.get(size):
            return free.pop()
        if self._end + size > FILE_BYTES:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            self._end = 0
        self._end += size
        return self._file, self._end - size


def _size(width: int, height: int) -> int:
    return width * height * 3 // 2


def _planes(frame: "VideoFrame") -> list[NDArray[np.uint8]]:
    """Views of the pixels of each plane, without what pads its lines."""
    planes: list[Any] = list(frame.planes)
    return [
        np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in planes
    ]
