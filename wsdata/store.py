"""The object store: a folder on a laptop, S3 on a cluster, one protocol.

Objects are immutable: a key is put once, and a second put of the same key is no change.
What belongs elsewhere: which keys exist and what they mean (`catalog`, `orders`).
"""

import functools
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from wsdata.buffers import ReadWatch, num_bytes, pread_into
from wsdata.errors import ObjectMissing, StoreError, StoreFull, is_disk_full
from wsdata.open_files import OpenFiles
from wsdata.s3_client import S3Bucket, parse_s3_address
from wsdata.s3_store import S3Store

_TEMP_PREFIX = ".tmp-"
_FICLONE = 0x40049409  # linux/fs.h
_COPY_BYTES = 1 << 20
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_RELATIVE = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")


class BlobStore(Protocol):
    """Immutable objects under string keys."""

    address: str

    def put(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken. Return whether it was written."""
        ...

    def put_file(self, key: str, path: Path) -> bool:
        """As `put`, from a file that nobody writes any more; the file itself stays."""
        ...

    def get(self, key: str) -> bytes:
        """Return a whole object. Raises ObjectMissing."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`. Raises ObjectMissing, StoreError."""
        ...

    def read_into(
        self,
        key: str,
        offset: int,
        buffers: Sequence[memoryview],
        *,
        watch: ReadWatch | None = None,
    ) -> None:
        """Fill writable buffers, one after the other, with the bytes from `offset` on.

        Where it fails they hold anything. `watch` lets another thread give the read up, and is
        told of retries.

        Raises:
            ObjectMissing: There is no such object.
            StoreUnavailable: The store failed for longer than reads wait.
            StoreError: The object is shorter, or cannot be read.
        """
        ...

    def reopen(self, key: str) -> None:
        """Read an object anew, where another may have been put in its place by hand."""
        ...

    def fetch(self, key: str, path: Path) -> int:
        """Copy an object to a file; return its size in bytes. Raises ObjectMissing, StoreError.

        Where it fails nothing is left at `path`.
        """
        ...

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None where there is none."""
        ...

    def age_s(self, key: str) -> float:
        """Return the seconds since an object was put. Raises ObjectMissing."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every object under a prefix, sorted by key."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; no error where there is none."""
        ...


class FolderStore:
    """A folder as object store. Writers never see or leave half an object under a key."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = f"file://{root.absolute()}"
        self._files = OpenFiles()
        self._base = str(root)

    def _path(self, key: str) -> Path:
        _check_key(key)
        return self.root / key

    def path_of(self, key: str) -> Path:
        """Where the object lies on disk, for readers that map files."""
        return self._path(key)

    def put(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken. Return whether it was written."""
        return self._publish(key, lambda temp: temp.write_bytes(data))

    def put_file(self, key: str, path: Path) -> bool:
        """As `put`, from a file that nobody writes any more; the file itself stays."""
        return self._publish(key, lambda temp: shutil.copyfile(path, temp))

    def _publish(self, key: str, write) -> bool:  # noqa: ANN001
        path = self._path(key)
        if path.exists():
            return False
        temp = path.parent / f"{_TEMP_PREFIX}{secrets.token_hex(8)}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temp)
            with temp.open("rb") as handle:
                os.fsync(handle.fileno())
            os.link(temp, path)  # fails where the key exists: the first writer wins
        except FileExistsError:
            return False
        except OSError as error:
            if is_disk_full(error):
                raise StoreFull(
                    f"no space left in {self.root} while writing {key}: free some and run again; "
                    "nothing half written was left"
                ) from error
            raise
        finally:
            temp.unlink(missing_ok=True)
        return True

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise self._missing(key) from None
        except OSError as error:
            raise StoreError(f"{key} in {self.address} cannot be read: {error}") from error

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        try:
            with self._path(key).open("rb") as handle:
                data = os.pread(handle.fileno(), length, offset)
        except FileNotFoundError:
            raise self._missing(key) from None
        if len(data) != length:
            raise StoreError(
                f"{key}: wanted {length} bytes at {offset}, got {len(data)}: the object is shorter"
            )
        return data

    def read_into(
        self,
        key: str,
        offset: int,
        buffers: Sequence[memoryview],
        *,
        watch: ReadWatch | None = None,
    ) -> None:
        """Fill buffers with the bytes from `offset` on; files stay open between reads."""
        _check_key(key)
        path = f"{self._base}/{key}"
        wanted = num_bytes(buffers)
        found = self._read_open(key, path, offset, buffers, wanted, watch)
        if found != wanted:
            self._files.drop(path)  # a whole one may lie there by now
            found = self._read_open(key, path, offset, buffers, wanted, watch)
        if found != wanted:
            raise StoreError(
                f"{key}: wanted {wanted} bytes at {offset}, got {found}: the object is shorter"
            )

    def _read_open(
        self,
        key: str,
        path: str,
        offset: int,
        buffers: Sequence[memoryview],
        wanted: int,
        watch: ReadWatch | None,
    ) -> int:
        """Fill buffers; return the bytes read, fewer than wanted at the object's end."""
        try:
            file = self._files.acquire(path)
            try:
                if watch is None or not watch.is_racing:
                    return pread_into(file.descriptor, buffers, offset, wanted)
                with watch.writing():
                    return pread_into(file.descriptor, buffers, offset, wanted)
            finally:
                self._files.release(file)
        except FileNotFoundError:
            raise self._missing(key) from None
        except OSError as error:
            self._files.drop(path)  # a network file system may have lost the handle
            raise StoreError(f"{key} in {self.address} cannot be read: {error}") from error

    def held(self, keys: Sequence[str]) -> AbstractContextManager[list[int]]:
        """Hold objects' files open, and yield their descriptors. Raises OSError."""
        for key in keys:
            _check_key(key)
        return self._files.held([f"{self._base}/{key}" for key in keys])

    def reopen(self, key: str) -> None:
        """Open an object's file anew for the next read."""
        _check_key(key)
        self._files.drop(f"{self._base}/{key}")

    def fetch(self, key: str, path: Path) -> int:
        """Copy an object to a file, sharing its blocks where the file system can."""
        try:
            source = self._path(key).open("rb")
        except FileNotFoundError:
            raise self._missing(key) from None
        temp = path.with_name(f"{_TEMP_PREFIX}{secrets.token_hex(8)}")
        try:
            with source, temp.open("wb") as target:
                if not _share_blocks(source.fileno(), target.fileno()):
                    shutil.copyfileobj(source, target, _COPY_BYTES)
            temp.rename(path)
        finally:
            temp.unlink(missing_ok=True)
        return path.stat().st_size

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None where there is none."""
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{key} in {self.address} cannot be read: {error}") from error

    def age_s(self, key: str) -> float:
        """Return the seconds since an object was put."""
        try:
            return time.time() - self._path(key).stat().st_mtime
        except FileNotFoundError:
            raise self._missing(key) from None

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every object under a prefix, sorted by key."""
        base = self.root / prefix.rpartition("/")[0]
        found = [
            (path.relative_to(self.root).as_posix(), path.stat().st_size)
            for path in base.rglob("*")
            if path.is_file() and "/." not in f"/{path.relative_to(self.root).as_posix()}"
        ]
        yield from sorted(entry for entry in found if entry[0].startswith(prefix))

    def delete(self, key: str) -> None:
        """Remove an object; no error where there is none."""
        path = self._path(key)
        path.unlink(missing_ok=True)
        self._files.drop(str(path))

    def _missing(self, key: str) -> ObjectMissing:
        return ObjectMissing(
            f"{key} is not in {self.address}: run `wsdata fsck`, then `wsdata run`"
        )


@functools.lru_cache(8192)  # readers of samples ask for the same shards, and often
def _check_key(key: str) -> None:
    if _RELATIVE.search(key):
        raise ValueError(f"object key {key!r}: empty or relative parts are not allowed")


def _share_blocks(source: int, target: int) -> bool:
    """Let one file be a copy of another without copying (Linux, and where the disk knows how)."""
    try:
        import fcntl

        fcntl.ioctl(target, _FICLONE, source)
    except (ImportError, OSError):
        return False
    return True


def open_store(address: str) -> BlobStore:
    """Open the store that an address names; nothing is contacted before its first use.

    Args:
        address: ``file:///folder``, a plain path, or ``s3://bucket/prefix``, where
            ``?endpoint=http://...`` names another server than Amazon's, and ``region=`` a region.

            Every character of a folder's path stands for itself, ``#``, ``?`` and ``%`` too.

    Raises:
        ValueError: Another scheme, a host before a folder, or an unknown option.
    """
    named = _SCHEME.match(address)
    scheme = named[1].lower() if named else ""
    if not scheme:
        return FolderStore(Path(address))
    if scheme == "file":
        return FolderStore(_folder_of(address, address[len("file:") :]))
    if scheme == "s3":
        return S3Store(S3Bucket(parse_s3_address(address)))
    raise ValueError(f"store address {address!r}: expected file:///folder or s3://bucket/prefix")


def _folder_of(address: str, rest: str) -> Path:
    """The folder that an address names behind its scheme."""
    if not rest.startswith("//"):
        return Path(rest)
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost") or not slash:
        raise ValueError(
            f"store address {address!r}: {host!r} stands where a host would, and a folder of "
            "another host cannot be opened: expected file:///folder with three slashes, or a plain "
            "path"
        )
    return Path(f"/{path}")
