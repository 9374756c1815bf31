"""Move one object between stores: read, checked against its digest, put, and its size asked.

Small objects go through memory, large ones through a temporary file. Which objects, and in which
order, belongs to `sync`.
"""

import hashlib
import tempfile
import threading
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
        stop: Once set, nothing more is put.

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
            source.fetch(wanted.key, path)
            with path.open("rb") as file:
                _check(wanted, hashlib.file_digest(file, "sha256").hexdigest(), source)
            if stop.is_set():
                raise SyncStopped(f"{wanted.key}: ended before it was put")
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
    content = hashlib.sha256()
    for offset in range(0, size, RANGE_BYTES):
        if stop.is_set():
            raise SyncStopped(f"{wanted.key}: ended at byte {offset} of {size}")
        content.update(store.get_range(wanted.key, offset, min(RANGE_BYTES, size - offset)))
    return content.hexdigest() == wanted.sha256


def _check(wanted: Named, found: str, source: BlobStore) -> None:
    if found != wanted.sha256:
        raise IntegrityError(
            f"{wanted.key} of {source.address} has digest {found[:12]}, not {wanted.sha256[:12]} "
            "by which it is named"
        )
