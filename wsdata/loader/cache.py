"""A node's cache of byte ranges: files under one folder, bounded, shared by all ranks of a node.

A range is read from the store into the caller's memory, checked, and only then kept; what is kept
is checked again on every read. Ranks that want one range at a time do one read of the store. Locks
are held by open files, so a killed process leaves none behind, and nobody waits for another longer
than WAIT_S. Whenever the cache cannot be used (full disk, read-only folder, a stalled neighbour),
the range is read directly. Only files that the cache made are ever deleted, and each user has
files of their own. How bytes lie on disk is `cache_log`.
"""

import contextlib
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import xxhash

from wsdata.buffers import num_bytes
from wsdata.loader.cache_log import SegmentLog

DEFAULT_MAX_BYTES = 64 * 2**30
WAIT_S = 5.0
_FIRST_POLL_S, _POLL_S = 0.0005, 0.01
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_FLOCK = struct.Struct("hhqqi4x")  # Linux' struct flock: type, whence, start, length, pid


class Outcome(Enum):
    """How a range was come by: from disk; from the store; or from there, and it is wrong."""

    HIT = "hit"
    MISS = "miss"
    WRONG = "wrong"


class NodeCache:
    """See the module docstring. Safe to use from threads, processes, and after forks.

    Attributes:
        folder: Where this user's files lie.
        is_usable: False where the folder cannot be used, and all is read directly.
        num_hits: Ranges served from disk by this object.
        num_misses: Ranges fetched by it, kept or not.
        num_rotten: Ranges on disk that were found to be wrong.
    """

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Open a cache; the folder is made where there is none, and may be shared.

        Args:
            folder: On a disk of this host.
            max_bytes: Bound of all files of the cache together; at least 64 KiB.
        """
        self._opened = (folder, max_bytes)
        self.folder = folder / f"wsdata-cache-2-{os.getuid()}"
        self.num_hits = self.num_misses = self.num_rotten = 0
        self._log: SegmentLog | None = None
        try:
            _make_shared(folder)
            self._log = SegmentLog(self.folder, max_bytes)
        except OSError as error:
            logging.getLogger(__name__).warning(
                "cache folder %s cannot be used, so that all is read directly: %s", folder, error
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeCache, self._opened

    @property
    def is_usable(self) -> bool:
        """Whether the folder could be opened."""
        return self._log is not None

    @property
    def size_bytes(self) -> int:
        """Bytes of ranges on disk."""
        return self._log.size_bytes if self._log else 0

    def read_into(
        self,
        key: str,
        offset: int,
        buffers: Sequence[memoryview],
        *,
        fill: Callable[[], None],
        is_valid: Callable[[], bool],
    ) -> Outcome:
        """Fill buffers with a range, from disk if it lies there, else fetched and kept.

        Args:
            key: Object of the store.
            offset: Start of the range in it, in bytes.
            buffers: Writable, contiguous; the range is as long as all of them.
            fill: Reads the range from the store into the buffers; what it raises is passed on.
            is_valid: Whether the buffers hold what was recorded. Wrong bytes are never kept; those
                that `fill` brought stay in the buffers, for the caller to judge.
        """
        if self._log is None:
            return self._fetch(fill, is_valid)
        length = num_bytes(buffers)
        tag = _tag(key, offset, length)
        if self._is_found(self._log, tag, buffers, length, is_valid):
            return Outcome.HIT
        with self._fill_lock() as lock:
            is_mine = self._is_turn(lock, self._log, tag, buffers, length, is_valid)
            if is_mine is None:
                return Outcome.HIT
            outcome = self._fetch(fill, is_valid)
            if is_mine and outcome is Outcome.MISS:
                self._log.append(tag, buffers)
            return outcome

    @contextlib.contextmanager
    def held(self, ranges: Sequence[tuple[str, int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Hold open the files that ranges lie in; yield each one's descriptor and offset there.

        Args:
            ranges: Key of the object, offset and length of each.

        Yields:
            Of the first ones, until one that is to be fetched, or kept anew by `read_into`. What
            lies there is not known to be the range before it was checked.

        Raises:
            OSError: The segment of one of them has gone.
        """
        if self._log is None:
            yield []
            return
        with self._log.held([_tag(*each) for each in ranges]) as found:
            yield found

    def replace(self, key: str, offset: int, buffers: Sequence[memoryview]) -> None:
        """Keep a range in the place of what lies there under its name."""
        if self._log is not None:
            self._log.append(_tag(key, offset, num_bytes(buffers)), buffers)

    def _fetch(self, fill: Callable[[], None], is_valid: Callable[[], bool]) -> Outcome:
        self.num_misses += 1
        fill()
        return Outcome.MISS if is_valid() else Outcome.WRONG

    def _is_found(
        self,
        log: SegmentLog,
        tag: bytes,
        buffers: Sequence[memoryview],
        length: int,
        is_valid: Callable[[], bool],
    ) -> bool:
        place = log.load(tag, buffers, length)
        if place is None:
            return False
        if not is_valid():
            log.forget(tag, place)
            self.num_rotten += 1
            return False
        self.num_hits += 1
        if log.is_old(place):  # in use: append it again before its segment goes
            with self._fill_lock() as lock:
                if lock is not None and _is_locked(lock, tag) and log.find(tag) == place:
                    log.append(tag, buffers)
        return True

    def _is_turn(
        self,
        lock: int | None,
        log: SegmentLog,
        tag: bytes,
        buffers: Sequence[memoryview],
        length: int,
        is_valid: Callable[[], bool],
    ) -> bool | None:
        """Wait for whoever fetches the range; None once it lies on disk and was read.

        True where it is ours to fetch and to keep; False where we waited long enough.
        """
        deadline, pause_s = time.monotonic() + WAIT_S, _FIRST_POLL_S
        while lock is not None and time.monotonic() < deadline:
            is_mine = _is_locked(lock, tag)
            if self._is_found(log, tag, buffers, length, is_valid):
                return None
            if is_mine:
                return True
            time.sleep(pause_s)
            pause_s = min(_POLL_S, 2 * pause_s)
        return False

    @contextlib.contextmanager
    def _fill_lock(self) -> Iterator[int | None]:
        """Open the file that `_is_locked` takes its locks in; they end with it."""
        handle = None
        with contextlib.suppress(OSError):  # somebody deleted the folder
            handle = os.open(f"{self.folder}/fill.lock", _LOCK_FLAGS, 0o600)
        try:
            yield handle
        finally:
            if handle is not None:
                os.close(handle)


def _tag(key: str, offset: int, length: int) -> bytes:
    return xxhash.xxh3_128_digest(f"{key}\0{offset}\0{length}".encode())


def _is_locked(handle: int, tag: bytes) -> bool:
    """Become the one who fetches a range, unless another is.

    The lock is on one byte, by the tag, of a file that has none. An open file holds it, so that
    threads of one process exclude each other, too, and the kernel ends it with its holder.
    """
    at = int.from_bytes(tag[8:], "little") >> 2
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
    except OSError:
        return False
    return True


def _make_shared(folder: Path) -> None:
    """Make the folder so that every user of the host may have a cache in it, as in ``/tmp``."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            folder.chmod(0o1777)
