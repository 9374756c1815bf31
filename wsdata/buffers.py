"""Reads that fill memory of the caller's: several buffers one after the other, in one go.

What is read from where belongs to `store`, `s3_read` and `loader.cache`.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from wsdata.errors import StoreError

MAX_VECTORS = 1024  # IOV_MAX of Linux
MAX_CALL_BYTES = 1 << 30  # one call reads less than 2 GiB


class ReadGivenUp(StoreError):
    """A read was given up by who had asked for it, since another was faster."""


class ReadWatch:
    """One read under way, as another thread sees it: told of retries, and can be given up.

    Once `give_up` has returned, nothing is written to the read's buffers any more.

    Attributes:
        num_retries: Requests beyond the first.
        is_racing: Whether it may be given up at all; only then stores look.
    """

    def __init__(self, *, is_racing: bool = False) -> None:
        self.num_retries = 0
        self.is_racing = is_racing
        self.is_given_up = False
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the buffers while writing to them. Raises ReadGivenUp."""
        with self._lock:
            self.check()
            yield

    def check(self) -> None:
        """Raise ReadGivenUp where nobody waits for this read any more."""
        if self.is_given_up:
            raise ReadGivenUp("the read was given up: another one was faster")

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Say how to end what blocks inside, which `give_up` then does."""
        with self._lock:
            self.check()
            self._interrupt = interrupt
        try:
            yield
        finally:
            with self._lock:
                self._interrupt = None

    def give_up(self) -> None:
        """End the read as soon as can be."""
        with self._lock:
            self.is_given_up = True
            if self._interrupt is not None:
                self._interrupt()


def num_bytes(buffers: Sequence[memoryview]) -> int:
    """Bytes of all buffers together."""
    return sum([buffer.nbytes for buffer in buffers])  # a list: this is asked of every read


def remaining(buffers: Sequence[memoryview], start: int) -> list[memoryview]:
    """The buffers, as bytes, without their first `start` bytes."""
    kept: list[memoryview] = []
    for buffer in buffers:
        if start >= buffer.nbytes:
            start -= buffer.nbytes
            continue
        flat = buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
        kept.append(flat[start:] if start else flat)
        start = 0
    return kept


def write_at(buffers: Sequence[memoryview], start: int, data: bytes | memoryview) -> None:
    """Copy bytes into the buffers from their byte `start` on."""
    source = memoryview(data)
    for buffer in remaining(buffers, start):
        length = min(len(source), len(buffer))
        buffer[:length] = source[:length]
        source = source[length:]
        if not source:
            return


def pread_into(
    descriptor: int, buffers: Sequence[memoryview], offset: int, wanted: int | None = None
) -> int:
    """Fill buffers from a file; return the bytes read, fewer than wanted at the file's end.

    Args:
        descriptor: The file.
        buffers: Where to.
        offset: First byte.
        wanted: `num_bytes` of the buffers, where that is known.
    """
    return _transfer(os.preadv, descriptor, buffers, offset, wanted)


def pwrite_from(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Write buffers to a file; return the bytes written, all of them unless the disk is full."""
    return _transfer(os.pwritev, descriptor, buffers, offset, None)


def _transfer(
    call: Callable[[int, Sequence[memoryview], int], int],
    descriptor: int,
    buffers: Sequence[memoryview],
    offset: int,
    wanted: int | None,
) -> int:
    wanted = num_bytes(buffers) if wanted is None else wanted
    if len(buffers) <= MAX_VECTORS and wanted <= MAX_CALL_BYTES:
        done = call(descriptor, buffers, offset)  # the usual case, in one call
    else:
        done = 0
    while done < wanted:
        moved = call(descriptor, _one_call(remaining(buffers, done)), offset + done)
        if not moved:
            break
        done += moved
    return done


def _one_call(buffers: list[memoryview]) -> list[memoryview]:
    fitting: list[memoryview] = []
    room = MAX_CALL_BYTES
    for buffer in buffers[:MAX_VECTORS]:
        fitting.append(buffer[:room])
        room -= len(fitting[-1])
        if not room:
            break
    return fitting
