"""Where an export lies: what is asked of a folder and of a bucket alike.

A folder is `export_folder`, a bucket `export_bucket`; which files an export has, and what it says
of itself while it is written, is `export_target`. Paths are relative, with slashes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from wsdata.shard.export_bucket import BucketPlace
from wsdata.shard.export_folder import FolderPlace
from wsdata.store import BlobStore, FolderStore, open_store


class ExportPlace(Protocol):
    """A place that holds, or will hold, one export and nothing else.

    Attributes:
        kind: ``folder`` or ``prefix``, for people.
        name: As a person names it.
        address: As the ledger tells it.
        host: Whose place it is; None where the address means the same to every host.
    """

    kind: str
    name: str
    address: str
    host: str | None

    def lock(self) -> AbstractContextManager[None]:
        """Keep other exports out for a while, where they could do harm. Raises WsdataError."""
        ...

    def named(self, path: str) -> str:
        """Name a file of it, for people."""
        ...

    def is_within(self, store: BlobStore) -> bool:
        """Whether it lies among a store's own objects."""
        ...

    def some_names(self) -> list[str]:
        """Some of what lies there; empty where there is nothing but what a kill left behind."""
        ...

    def paths(self) -> Iterator[str]:
        """Yield the path of every file, whatever made it."""
        ...

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, or None where there is none."""
        ...

    def read(self, path: str, length: int | None = None) -> bytes | None:
        """Return a file's first bytes, or all; None where there is none."""
        ...

    def local(self, path: str) -> AbstractContextManager[Path]:
        """Give a file as one of this machine, for as long as it is looked at.

        Raises FileNotFoundError.
        """
        ...

    def is_whole(self, path: str, record: Mapping[str, Any]) -> bool:
        """Whether a file has the size and the sha256 that were noted of it."""
        ...

    def written(self, path: str) -> AbstractContextManager[Path]:
        """Give a new file of this machine, which takes the path's place once it is written.

        Nobody ever finds half of it there. Raises StoreFull where no space is left.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file; no error where there is none."""
        ...

    def sweep(self) -> None:
        """Remove what a kill left behind."""
        ...

    # What is noted while an export is being written: lines of bytes without line ends.

    def notes(self) -> list[bytes] | None:
        """Return what was noted, the first note first; None where nothing is being written."""
        ...

    def begin(self, notes: Iterable[bytes]) -> None:
        """Replace all notes, of which there is at least one."""
        ...

    def note(self, path: str, line: bytes) -> None:
        """Note one more line, about a file."""
        ...

    def end(self) -> None:
        """Remove all notes."""
        ...


def open_place(where: str | Path) -> ExportPlace:
    """Open the place that an address names; nothing is made, and nobody contacted.

    Args:
        where: A folder, or whatever `wsdata.store.open_store` takes.

    Raises:
        ValueError: No address of a store, or none at all.
    """
    if not str(where).strip():
        raise ValueError(
            f"{str(where)!r} names no place of an export: expected a folder, which may be '.', or "
            "s3://bucket/prefix"
        )
    store = FolderStore(where) if isinstance(where, Path) else open_store(where)
    return FolderPlace(store.root) if isinstance(store, FolderStore) else BucketPlace(store)
