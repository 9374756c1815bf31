"""Move one object between stores: read, checked against its digest, put, and its size asked.

Small objects go through memory, large ones through a temporary file, range by range. Which
objects, and in which order, belongs to `sync`.
"""

import hashlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, StoreError, WsdataError
from wsdata.store import BlobStore

SPOOL_BYTES = 32 * 2**20  # what is larger goes through a temporary file
RANGE_BYTES = 8 * 2**20


class SyncStopped(WsdataError):
    """A sync was ended while this object was being moved; nothing of it was put."""


class Named(Protocol):
    """An object's key, and the sha256 that its bytes must have."""

    @property
    def key(self) -> str:
        """Where it lies, in both stores."""
        ...

    @property
    def sha256(self) -> str:
        """64 hex digits."""
        ...


def copy_object(
    source: BlobStore,
    target: BlobStore,
    wanted: Named,
    size: int,
    *,
    replace: bool,
    stop: threading.Event,
) -> None:
    """Copy one object. What has not the right digest is never put.

    Args:
        source: Where it lies.
        target: Where to.
        wanted: Its key and digest.
        size: Its size in the source, in bytes.
        replace: Whether other bytes lie under the key in the target, and go.
        stop: Once set, the copy ends between two ranges.

    Raises:
        IntegrityError: The source's bytes are not those that the digest names.
        ObjectMissing: The source has lost it.
        StoreError: A store failed, or the target has another size than what was put.
        SyncStopped: `stop` was set.
    """
    if size <= SPOOL_BYTES:
        data = source.get(wanted.key)
        _check(wanted, sha256_bytes(data), source)
        if replace:
            target.delete(wanted.key)
        target.put(wanted.key, data)
    else:
        with tempfile.TemporaryDirectory(prefix="wsdata-sync-") as folder:
            path = Path(folder) / "object"
            with path.open("wb") as file:
                found = _digest_ranges(source, wanted.key, size, stop, into=file.write)
            _check(wanted, found, source)
            if replace:
                target.delete(wanted.key)
            target.put_file(wanted.key, path)
    if (there := target.size(wanted.key)) != size:
        raise StoreError(
            f"{wanted.key}: {size} bytes were put into {target.address}, which now has {there}: "
            "sync again"
        )


def is_whole(store: BlobStore, wanted: Named, size: int, stop: threading.Event) -> bool:
    """Read an object range by range, and say whether it has the right digest."""
    return _digest_ranges(store, wanted.key, size, stop) == wanted.sha256


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    for offset in range(0, size, RANGE_BYTES):
        yield offset, min(RANGE_BYTES, size - offset)


def _digest_ranges(store: BlobStore, key: str, size: int, stop: threading.Event, into=None) -> str:  # noqa: ANN001
    content = hashlib.sha256()
    for offset, length in _ranges(size):
        if stop.is_set():
            raise SyncStopped(f"{key}: ended at byte {offset} of {size}")
        data = store.get_range(key, offset, length)
        content.update(data)
        if into is not None:
            into(data)
    return content.hexdigest()


def _check(wanted: Named, found: str, source: BlobStore) -> None:
    if found != wanted.sha256:
        raise IntegrityError(
            f"{wanted.key} of {source.address} has digest {found[:12]}, not {wanted.sha256[:12]} "
            "by which it is named"
        )
