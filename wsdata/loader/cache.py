"""A node's cache of byte ranges: files under one folder, bounded, shared by all ranks of a node.

A range is fetched into a temporary file, checked, then renamed; what is there is whole. Several
processes that want one range do one fetch. Locks are held by open files, so a killed process
leaves none behind, and nobody waits for another longer than WAIT_S. Whenever the cache cannot be
used (full disk, read-only folder, a stalled neighbour), the range is read directly. Only files
that the cache made are ever deleted.
"""

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from wsdata.digest import sha256_bytes

DEFAULT_MAX_BYTES = 64 * 2**30
WAIT_S = 10.0
_POLL_S = 0.01
_NUM_LOCKS = 64
_STALE_TEMP_S = 3600
_KEEP_SHARE = 0.9  # of the bound, after an eviction
_OURS = re.compile(r"[0-9a-f]{32}\.range")
_TEMP_PREFIX = ".filling-"


class NodeCache:
    """See the module docstring.

    Attributes:
        num_hits: Ranges served from disk by this object.
        num_misses: Ranges fetched by it, kept or not.
    """

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Open a cache; the folder is made where there is none, and may be shared."""
        if max_bytes < 1:
            raise ValueError(f"cache bound of {max_bytes} bytes: expected at least 1")
        self.folder = folder / "wsdata-ranges-1"
        self.max_bytes = max_bytes
        self.num_hits = self.num_misses = 0
        self.is_usable = True
        try:
            for name in ("locks", "ranges"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            with self._locked("usage") as is_mine:
                if is_mine:
                    self._remove_stale_temps()
                    self._set_usage(sum(size for _, size, _ in self._entries()))
        except OSError:
            self.is_usable = False

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        fetch: Callable[[], bytes],
        is_valid: Callable[[bytes], bool],
    ) -> bytes:
        """Return a range, from disk if it lies there whole, else fetched and kept.

        Args:
            key: Object of the store.
            offset: Start of the range in it, in bytes.
            length: Bytes of the range.
            fetch: Reads the range from the store.
            is_valid: Whether bytes are what was recorded; what is not is never kept, but returned
                for the caller to judge.
        """
        if not self.is_usable:
            self.num_misses += 1
            return fetch()
        name = sha256_bytes(f"{key}\0{offset}\0{length}".encode())[:32]
        kept = self._read_kept(name, is_valid)
        if kept is not None:
            return kept
        with self._locked(f"{int(name, 16) % _NUM_LOCKS:02d}") as is_mine:
            if is_mine:
                kept = self._read_kept(name, is_valid)  # a neighbour may have filled it meanwhile
                if kept is not None:
                    return kept
            self.num_misses += 1
            data = fetch()
            if is_mine and is_valid(data):
                self._keep(name, data)
            return data

    @property
    def size_bytes(self) -> int:
        """Bytes of ranges on disk."""
        return sum(size for _, size, _ in self._entries())

    def _read_kept(self, name: str, is_valid: Callable[[bytes], bool]) -> bytes | None:
        path = self._path(name)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if not is_valid(data):
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # least recently used goes first
        self.num_hits += 1
        return data

    def _keep(self, name: str, data: bytes) -> None:
        if len(data) > self.max_bytes:
            return
        path = self._path(name)
        temp = path.parent / f"{_TEMP_PREFIX}{secrets.token_hex(8)}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self._make_room(len(data)):
                return
            temp.write_bytes(data)
            temp.rename(path)
        except OSError:  # full or read-only disk: what was fetched is served all the same
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)

    def _make_room(self, num_bytes: int) -> bool:
        """Reserve bytes before they are written, so that the bound holds even for a moment."""
        with self._locked("usage") as is_mine:
            if not is_mine:
                return False
            used = self._usage() + num_bytes
            if used > self.max_bytes:
                used = self._evict(self.max_bytes - num_bytes) + num_bytes
            self._set_usage(used)
            return True

    def _evict(self, wanted_bytes: int) -> int:
        entries = sorted(self._entries())
        used = sum(size for _, size, _ in entries)
        target = min(wanted_bytes, int(self.max_bytes * _KEEP_SHARE))
        for _, size, path in entries:
            if used <= target:
                break
            path.unlink(missing_ok=True)
            used -= size
        return used

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        for path in (self.folder / "ranges").glob("*/*.range"):
            if _OURS.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    yield stat.st_mtime_ns, stat.st_size, path

    def _remove_stale_temps(self) -> None:
        for path in (self.folder / "ranges").glob(f"*/{_TEMP_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _STALE_TEMP_S:
                    path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / "ranges" / name[:2] / f"{name}.range"

    def _usage(self) -> int:
        text = (self.folder / "locks" / "usage").read_text().strip()
        return int(text) if text else 0

    def _set_usage(self, used: int) -> None:
        (self.folder / "locks" / "usage").write_text(f"{used}\n")

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[bool]:
        """Hold one of the cache's locks; yields False where that took longer than WAIT_S."""
        try:
            handle = os.open(self.folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            yield False
            return
        try:
            yield _lock_within(handle, WAIT_S)
        finally:
            os.close(handle)


def _lock_within(handle: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True
