"""Files that stay open between reads, so that a read costs one system call and not three.

Bounded, and safe to use from threads and after a fork. Reading at an offset moves nothing that
readers share. What the files are belongs to `store` and `loader.cache`.
"""

import contextlib
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

MAX_OPEN = 128
LOOK_S = 0.5


class OpenFile:
    """A file that is held open, by its descriptor."""

    __slots__ = ("descriptor", "is_dropped", "looked_at_s", "num_users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.num_users = 1
        self.is_dropped = False
        self.looked_at_s = time.monotonic()


class OpenFiles:
    """Read-only descriptors by path, the least recently used closed first.

    A file that another process deleted is opened anew within LOOK_S, so that one put in its place
    is found, and none is told. A forked child begins without any.

    Args:
        max_open: How many idle ones are kept; at least 1.
        flags: Of ``os.open``, beside close-on-exec.
    """

    def __init__(self, max_open: int = MAX_OPEN, flags: int = os.O_RDONLY) -> None:
        if max_open < 1:
            raise ValueError(f"{max_open} open files: expected at least 1")
        self._max_open = max_open
        self._flags = flags | os.O_CLOEXEC
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        _watch(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._max_open, self._flags)

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self.close()

    def acquire(self, path: str) -> OpenFile:
        """Hold a file open until `release`. Raises what ``os.open`` does."""
        with self._lock:
            file = self._hold(path, time.monotonic())
        if file is not None:
            return file
        file = OpenFile(os.open(path, self._flags, 0o600))
        with self._lock:
            other = self._files.get(path)
            if other is not None:  # another thread was faster
                os.close(file.descriptor)
                other.num_users += 1
                return other
            self._files[path] = file
            while len(self._files) > self._max_open:
                _retire(self._files.popitem(last=False)[1])
        return file

    def release(self, file: OpenFile) -> None:
        """Need it no more."""
        with self._lock:
            self._free(file)

    def _hold(self, path: str, now_s: float) -> OpenFile | None:
        """The open file, where there is one; the lock is the caller's, here and in `_free`."""
        file = self._files.get(path)
        if file is None:
            return None
        if now_s - file.looked_at_s >= LOOK_S:
            file.looked_at_s = now_s
            if not os.fstat(file.descriptor).st_nlink:  # deleted: another may lie in its place
                _retire(self._files.pop(path))
                return None
        self._files.move_to_end(path)
        file.num_users += 1
        return file

    def _free(self, file: OpenFile) -> None:
        file.num_users -= 1
        if file.is_dropped and not file.num_users:
            os.close(file.descriptor)

    @contextlib.contextmanager
    def held(self, paths: Sequence[str]) -> Iterator[list[int]]:
        """Hold several files open, and yield their descriptors. Raises what ``os.open`` does."""
        files: list[OpenFile] = []
        try:
            with self._lock:
                now = time.monotonic()
                while len(files) < len(paths):
                    file = self._hold(paths[len(files)], now)
                    if file is None:
                        break
                    files.append(file)
            while len(files) < len(paths):  # one is not open yet
                files.append(self.acquire(paths[len(files)]))
            yield [file.descriptor for file in files]
        finally:
            with self._lock:
                for file in files:
                    self._free(file)

    def drop(self, path: str) -> None:
        """Open the file anew the next time."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                _retire(file)

    def close(self) -> None:
        """Close what nobody reads from, and the rest when its reads end."""
        with self._lock:
            while self._files:
                _retire(self._files.popitem()[1])

    def _begin_anew(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
        files, self._files = self._files, OrderedDict()
        for file in files.values():
            os.close(file.descriptor)


def _retire(file: OpenFile) -> None:
    file.is_dropped = True
    if not file.num_users:
        os.close(file.descriptor)


_WATCHED: weakref.WeakSet[OpenFiles] = weakref.WeakSet()
_registered: list[bool] = []


def _watch(files: OpenFiles) -> None:
    if not _registered:
        _registered.append(True)
        os.register_at_fork(after_in_child=_begin_all_anew)
    _WATCHED.add(files)


def _begin_all_anew() -> None:
    for files in list(_WATCHED):
        files._begin_anew()
