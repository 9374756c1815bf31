"""A folder that an export lies in.

Files are written beside their name and renamed. While an export is being written its notes are in
``.wsdata-export.json``, one a line. Nothing that is not ours is overwritten or removed.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wsdata.errors import StoreFull, WsdataError, is_disk_full
from wsdata.store import BlobStore, FolderStore

STATE = ".wsdata-export.json"

_TEMP_PREFIX = ".wsdata-export-tmp-"
_STORES_TEMP = ".tmp-"  # what a store that was killed while it fetched leaves beside a file
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)


class FolderPlace:
    """A folder of this host, as `export_place.ExportPlace` tells; it may be absent or empty."""

    kind = "folder"

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.name = str(self.root)
        self.address = f"file://{self.root}"
        self.host: str | None = socket.gethostname()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder, and keep other exports out.

        Raises:
            WsdataError: One is in, or what lies there is no folder.
        """
        import fcntl

        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise WsdataError(
                f"{self.name} is no folder, or lies below what is none: name a folder that is new "
                "or empty, or that holds this very export"
            ) from error
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise WsdataError(
                    f"{self.name} is being written by another export: wait for it"
                ) from error
            yield
        finally:
            os.close(handle)

    def named(self, path: str) -> str:
        """Name a file of it, for people."""
        return str(self.root / path)

    def is_within(self, store: BlobStore) -> bool:
        """Whether it lies in a store's folder, or is it, whatever links lead there."""
        if not isinstance(store, FolderStore):
            return False
        # Path.resolve raises where links go round; such a folder cannot be made, and is told so.
        mine, its = (Path(os.path.realpath(root)) for root in (self.root, store.root))
        return mine.is_relative_to(its)

    def some_names(self) -> list[str]:
        """Names in the folder, but for what a kill left behind."""
        names = sorted(path.name for path in self.root.iterdir())
        return [name for name in names if not name.startswith(_TEMP_PREFIX)]

    def paths(self) -> Iterator[str]:
        """Yield the path of every file."""
        for path in self.root.rglob("*"):
            if path.is_file():
                yield path.relative_to(self.root).as_posix()

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, or None where there is none."""
        place = self.root / path
        return place.stat().st_size if place.is_file() else None

    def read(self, path: str, length: int | None = None) -> bytes | None:
        """Return a file's first bytes, or all; None where there is none."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(-1 if length is None else length)
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise

    @contextlib.contextmanager
    def local(self, path: str) -> Iterator[Path]:
        """Give a file where it lies. Raises FileNotFoundError."""
        place = self.root / path
        if not place.is_file():
            raise FileNotFoundError(f"{place}: there is no such file")
        yield place

    def is_whole(self, path: str, record: Mapping[str, Any]) -> bool:
        """Whether a file has the size and the sha256 that were noted of it."""
        return self.size(path) == record["bytes"] and (
            sha256_of(self.root / path) == record["sha256"]
        )

    @contextlib.contextmanager
    def written(self, path: str) -> Iterator[Path]:
        """Give a new path beside a file, which becomes the file's once it is written."""
        place = self.root / path
        temp = place.with_name(f"{_TEMP_PREFIX}{secrets.token_hex(8)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            yield temp
            with temp.open("rb") as file:
                os.fsync(file.fileno())
            temp.replace(place)
        except OSError as error:
            if is_disk_full(error):
                raise StoreFull(
                    f"no space left in {self.name} while writing {path}: free some and export "
                    "again; it goes on from there"
                ) from error
            raise
        finally:
            temp.unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        """Remove a file; no error where there is none."""
        (self.root / path).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove files that a kill left half written."""
        for pattern in (f"{_TEMP_PREFIX}*", f"{_STORES_TEMP}*"):
            for path in self.root.rglob(pattern):
                path.unlink()

    def notes(self) -> list[bytes] | None:
        """Return what was noted; a line that a kill cut short is taken away, as more may follow."""
        data = self.read(STATE)
        if data is None:
            return None
        *lines, rest = data.split(b"\n")
        if rest:
            self.begin(lines)
        return lines

    def begin(self, notes: Iterable[bytes]) -> None:
        """Replace all notes."""
        with self.written(STATE) as temp:
            temp.write_bytes(b"".join(line + b"\n" for line in notes))

    def note(self, path: str, line: bytes) -> None:
        """Note one more line."""
        with (self.root / STATE).open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def end(self) -> None:
        """Remove all notes."""
        self.remove(STATE)


def is_left_behind(path: str) -> bool:
    """Whether a file is what a killed export leaves, which the next one takes away."""
    name = path.rpartition("/")[2]
    return path == STATE or name.startswith((_TEMP_PREFIX, _STORES_TEMP))


def sha256_of(path: Path) -> str:
    """Digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
