"""A prefix of a bucket that an export lies in.

An object is there whole or not at all, so files are written on this machine and put. While an
export is being written the object ``.wsdata-export.json`` holds its first note, and one object
under ``.wsdata-export/`` each further one. Two hosts that write the same export put the same bytes
and the same notes, so none keeps the other out; another export finds the first note taken.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from wsdata.digest import sha256_bytes
from wsdata.errors import ObjectMissing, StoreError, StoreFull, is_disk_full
from wsdata.s3_store import S3Store
from wsdata.shard.export_folder import STATE, sha256_of
from wsdata.store import BlobStore

NOTES = ".wsdata-export/"

_FEW = 3  # names that tell a person what lies there


class BucketPlace:
    """What an object store holds, as `export_place.ExportPlace` tells; it may be empty."""

    kind = "prefix"

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.name = self.address = store.address
        self.host: str | None = None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Nothing is needed: see the module docstring."""
        yield

    def named(self, path: str) -> str:
        """Name an object of it, for people."""
        return f"{path} in {self.name}"

    def is_within(self, store: BlobStore) -> bool:
        """Whether it lies under a store's prefix, or is it."""
        if not isinstance(self.store, S3Store) or not isinstance(store, S3Store):
            return False
        mine, its = self.store.bucket.address, store.bucket.address
        return (mine.endpoint, mine.bucket) == (its.endpoint, its.bucket) and (
            mine.prefix.startswith(its.prefix)
        )

    def some_names(self) -> list[str]:
        """The keys that sort first."""
        return [key for key, _ in islice(self.store.list(""), _FEW)]

    def paths(self) -> Iterator[str]:
        """Yield every key."""
        return (key for key, _ in self.store.list(""))

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes, or None where there is none."""
        return self.store.size(path)

    def read(self, path: str, length: int | None = None) -> bytes | None:
        """Return an object's first bytes, or all; None where there is none."""
        try:
            if length is None:
                return self.store.get(path)
            size = self.store.size(path)
            return None if size is None else self.store.get_range(path, 0, min(length, size))
        except ObjectMissing:
            return None

    @contextlib.contextmanager
    def local(self, path: str) -> Iterator[Path]:
        """Give a copy of an object. Raises FileNotFoundError."""
        with _scratch(path) as copy:
            try:
                self.store.fetch(path, copy)
            except ObjectMissing as error:
                raise FileNotFoundError(f"{self.name}: there is no object {path}") from error
            yield copy

    def is_whole(self, path: str, record: Mapping[str, Any]) -> bool:
        """Whether an object has the size and the sha256 that were noted of it: it is read."""
        if self.store.size(path) != record["bytes"]:
            return False
        with self.local(path) as copy:
            return sha256_of(copy) == record["sha256"]

    @contextlib.contextmanager
    def written(self, path: str) -> Iterator[Path]:
        """Give a new file of this machine, which is put once it is written."""
        with _scratch(path) as made:
            yield made
            if self.store.put_file(path, made):
                return
            record = {"bytes": made.stat().st_size, "sha256": sha256_of(made)}
            if self.is_whole(path, record):
                return
            self.store.delete(path)
            if not self.store.put_file(path, made) and not self.is_whole(path, record):
                raise self._in_the_way(path)

    def remove(self, path: str) -> None:
        """Remove an object; no error where there is none."""
        self.store.delete(path)

    def sweep(self) -> None:
        """Nothing to do: a kill leaves no half object."""

    def notes(self) -> list[bytes] | None:
        """Return what was noted, the first note first."""
        first = self.read(STATE)
        if first is None:
            return None
        rest = (self.read(key) for key, _ in self.store.list(NOTES))
        return [first, *(line for line in rest if line is not None)]

    def begin(self, notes: Iterable[bytes]) -> None:
        """Replace all notes, but for a first one of another export, which stays."""
        first, *rest = notes
        for key, _ in list(self.store.list(NOTES)):
            self.store.delete(key)
        for line in rest:
            self.note(json.loads(line)["path"], line)
        if not self.store.put(STATE, first) and not _is_object(self.read(STATE)):
            self._replace(STATE, first)

    def note(self, path: str, line: bytes) -> None:
        """Note one more line, in place of another about the same file."""
        self._replace(f"{NOTES}{sha256_bytes(path.encode())[:32]}.json", line)

    def end(self) -> None:
        """Remove all notes."""
        for key, _ in list(self.store.list(NOTES)):
            self.store.delete(key)
        self.store.delete(STATE)

    def _replace(self, key: str, data: bytes) -> None:
        if self.store.put(key, data) or self.read(key) == data:
            return
        self.store.delete(key)
        if not self.store.put(key, data) and self.read(key) != data:
            raise self._in_the_way(key)

    def _in_the_way(self, key: str) -> StoreError:
        return StoreError(
            f"{key} in {self.name} is put by somebody else again and again: end what writes there "
            "beside this export, and export again"
        )


@contextlib.contextmanager
def _scratch(path: str) -> Iterator[Path]:
    """A file of this machine, which is gone afterwards, with the name of another."""
    try:
        with tempfile.TemporaryDirectory(prefix="wsdata-export-") as folder:
            yield Path(folder) / Path(path).name
    except OSError as error:
        if is_disk_full(error):
            raise StoreFull(
                f"no space left in {tempfile.gettempdir()} for {path}: free some, or set TMPDIR, "
                "and export again; it goes on from there"
            ) from error
        raise


def _is_object(data: bytes | None) -> bool:
    try:
        return isinstance(json.loads(data or b""), dict)
    except ValueError:
        return False
