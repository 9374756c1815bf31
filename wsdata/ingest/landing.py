"""The landing zone: where deliveries lie as folders of files, on a disk or in a bucket.

What a good delivery is belongs to `delivery`; this only lists, reads, purges and puts. Nothing
here looks at a folder's files but `files`, so that a zone of many drops is walked cheaply.
"""

import hashlib
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from heapq import nsmallest
from os import scandir
from pathlib import Path
from typing import NamedTuple, Protocol

from wsdata.errors import ObjectMissing, StoreFull, WsdataError, is_disk_full
from wsdata.ids import DropKey

MARKER = "_READY"
PAGE_FOLDERS = 1000
BLOCK_BYTES = 1 << 20
MAX_SEQUENCE = 1_000_000


class LandedFile(NamedTuple):
    """One file of a drop. `path` is within the drop, with slashes."""

    path: str
    size_bytes: int
    is_link: bool = False


class LandingZone(Protocol):
    """Folders of delivered files. Files of a drop are named by their path within it."""

    address: str

    def folders(self, *, after: str = "", limit: int = PAGE_FOLDERS) -> list[str]:
        """Names of at most `limit` folders after a name, in the order of the keys in them.

        That is, names sort as if a slash ended them.
        """
        ...

    def marker(self, drop: str) -> str | None:
        """What tells one ``_READY`` marker of a folder from the next, or None without one."""
        ...

    def files(self, drop: str) -> list[LandedFile]:
        """All files of a folder, sorted by the parts of their paths; none where it is absent."""
        ...

    def read(self, drop: str, path: str) -> bytes | None:
        """A small file's bytes, or None where there is none."""
        ...

    def fetch(self, drop: str, path: str, target: Path) -> tuple[str, int]:
        """Copy a file, once; return the sha256 of its bytes and their number.

        Raises:
            ObjectMissing: There is no such file.
        """
        ...

    def purge(self, drop: str, path: str) -> None:
        """Remove a file, with all that is kept of it; no error where there is none."""
        ...

    def rewrite(self, drop: str, path: str, data: bytes) -> None:
        """Put other bytes in a small file's place, and keep nothing of the old ones."""
        ...

    def claim(self, stem: str, files: Mapping[str, Path | bytes]) -> DropKey:
        """Put a new folder ``<stem>.<seq>``, without a marker, under the first free number.

        Raises:
            WsdataError: No number is free.
        """
        ...

    def mark(self, drop: str, data: bytes) -> None:
        """Write the marker: the drop is complete."""
        ...

    def discard(self, drop: str) -> None:
        """Remove a folder that has no marker."""
        ...

    def place(self, drop: str) -> str:
        """Where a folder lies, for people."""
        ...


class FolderLanding:
    """A landing zone on a disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = str(root)

    def folders(self, *, after: str = "", limit: int = PAGE_FOLDERS) -> list[str]:
        """Names of at most `limit` folders that sort after a name, sorted."""
        start = f"{after}/" if after else ""
        try:
            with scandir(self.root) as entries:
                names = (f"{e.name}/" for e in entries if e.is_dir())
                found = nsmallest(limit, (name for name in names if name > start))
        except FileNotFoundError:
            return []
        return [name[:-1] for name in found]

    def marker(self, drop: str) -> str | None:
        """The marker's time, in nanoseconds."""
        try:
            return str((self.root / drop / MARKER).stat().st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def files(self, drop: str) -> list[LandedFile]:
        """All files of a folder, links too, sorted by the parts of their paths."""
        folder = self.root / drop
        return [
            LandedFile(
                path.relative_to(folder).as_posix(),
                path.lstat().st_size,
                is_link=path.is_symlink(),
            )
            for path in sorted(folder.rglob("*"))
            if path.is_symlink() or path.is_file()
        ]

    def read(self, drop: str, path: str) -> bytes | None:
        """A small file's bytes, or None where there is none."""
        file = self.root / drop / path
        return file.read_bytes() if file.is_file() else None

    def fetch(self, drop: str, path: str, target: Path) -> tuple[str, int]:
        """Copy a file, hashing it on the way. Raises ObjectMissing."""
        source = self.root / drop / path
        if not source.is_file():
            raise ObjectMissing(f"{path} is not in {self.place(drop)}")
        with source.open("rb") as reader:
            return write_hashing(iter(lambda: reader.read(BLOCK_BYTES), b""), target)

    def purge(self, drop: str, path: str) -> None:
        """Remove a file; no error where there is none."""
        (self.root / drop / path).unlink(missing_ok=True)

    def rewrite(self, drop: str, path: str, data: bytes) -> None:
        """Put other bytes in a file's place, whole or not at all."""
        temp = self.root / drop / f".{path}"
        temp.write_bytes(data)
        temp.rename(self.root / drop / path)

    def claim(self, stem: str, files: Mapping[str, Path | bytes]) -> DropKey:
        """Put a new folder under the first free number, whole or not at all."""
        making = self.root / f".making-{secrets.token_hex(6)}"
        making.mkdir(parents=True)
        try:
            for name, content in files.items():
                target = making / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    shutil.copyfile(content, target)
                else:
                    target.write_bytes(content)
            return self._publish(making, stem)
        except OSError as error:
            if is_disk_full(error):
                raise StoreFull(
                    f"no space left in {self.root}: free some and make the drop again; nothing "
                    "half made was left"
                ) from error
            raise
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def _publish(self, making: Path, stem: str) -> DropKey:
        for key in drop_keys(stem):
            folder = self.root / key
            if folder.exists():
                continue
            making.rename(folder)
            return key
        raise no_free_number(stem)

    def mark(self, drop: str, data: bytes) -> None:
        """Write the marker: the drop is complete."""
        self.rewrite(drop, MARKER, data)

    def discard(self, drop: str) -> None:
        """Remove a folder."""
        shutil.rmtree(self.root / drop)

    def place(self, drop: str) -> str:
        """The folder's path."""
        return str(self.root / drop)


def open_landing(address: str | Path) -> LandingZone:
    """Open the landing zone that an address names; nothing is contacted before its first use.

    Args:
        address: A path, ``file:///folder``, or ``s3://bucket/prefix?endpoint=http://...``.

    Raises:
        ValueError: Another scheme, or an unknown option.
    """
    from wsdata.ingest.landing_s3 import S3Landing
    from wsdata.s3_client import S3Bucket, parse_s3_address

    scheme, is_stated, rest = str(address).partition("://")
    if not is_stated:
        return FolderLanding(Path(address))
    if scheme == "file":
        return FolderLanding(Path(rest))
    if scheme == "s3":
        return S3Landing(S3Bucket(parse_s3_address(str(address))))
    raise ValueError(f"landing zone {address!r}: expected a folder or s3://bucket/prefix")


def ready_drops(
    zone: LandingZone,
    *,
    known: Collection[str] = (),
    after: str = "",
    limit: int | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield (name, stamp of its marker) of folders with a marker, in order, page by page.

    Args:
        zone: The landing zone.
        known: Names that are left out, and not looked at: those landed, say.
        after: Only names after this one.
        limit: At most this many folders are listed, known or not, with a marker or without.
    """
    left = limit
    while left is None or left > 0:
        asked = PAGE_FOLDERS if left is None else min(PAGE_FOLDERS, left)
        names = zone.folders(after=after, limit=asked)
        for name in names:
            if name not in known and (stamp := zone.marker(name)) is not None:
                yield name, stamp
        if len(names) < asked:
            return
        after, left = names[-1], None if left is None else left - len(names)


def write_hashing(blocks: Iterator[bytes], target: Path) -> tuple[str, int]:
    """Write blocks to a file; return the sha256 of them all and the number of bytes."""
    hasher, size_bytes = hashlib.sha256(), 0
    with target.open("wb") as writer:
        for block in blocks:
            hasher.update(block)
            writer.write(block)
            size_bytes += len(block)
    return hasher.hexdigest(), size_bytes


def drop_keys(stem: str) -> Iterator[DropKey]:
    """Yield the keys that a drop of a stem ``<tier>.<source>.<date>`` may take, in order."""
    for sequence in range(1, MAX_SEQUENCE):
        yield DropKey(f"{stem}.{sequence:03d}")


def no_free_number(stem: str) -> WsdataError:
    """The error that every number of a stem is taken."""
    return WsdataError(f"no free sequence number for {stem}: deliver under another date")
