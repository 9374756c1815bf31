"""Whether the store has what the ledger says is there: objects of rows, and blobs they name.

So here is the only notion of an order that is done: the live objects carry its digest, and the
store has them and the blobs that they name. What is live belongs to `ledger`; finding all that
is lost or damaged to `wsdata fsck`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from wsdata import tables
from wsdata.catalog.objects import read_object
from wsdata.records import Report, table_key
from wsdata.store import FolderStore

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.records import ObjectRef, Order
    from wsdata.store import BlobStore

ASKED_AT_ONCE = 16  # blobs that a bucket is asked for; more than a pool of connections holds
ONE_BY_ONE = 256  # objects of rows that a bucket is asked for singly, before their names are listed


class Presence:
    """What one pass has seen of the store: what was there is not asked for again.

    A pass over 10^4 drops asks for 10^5.5 objects of rows. One request for each would take a
    bucket's client minutes, so who asks for many is answered by listings, a thousand names a
    request: every object is looked for in every pass, and no pass has to trust what an earlier
    one saw. An object that was put after its listing is asked for singly, and what is lost is
    asked for each time, since a run may have put it back. A folder is asked singly, which costs
    it less than a listing. Several threads may use one.

    Args:
        store: The store.
        asks_blobs: Also ask for every blob that the rows of an object name.
    """

    def __init__(self, store: BlobStore, *, asks_blobs: bool = True) -> None:
        self._store, self._asks_blobs = store, asks_blobs
        self._whole: dict[str, set[str]] = {}  # table -> digests; tables name other blobs
        self._listed: dict[str, set[bytes]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._num_asked = 0

    def is_lost(self, ref: ObjectRef) -> bool:
        """Whether the store has lost an object of rows, or (if asked for) a blob of its rows."""
        whole = self._whole.setdefault(ref.table, set())
        if ref.sha256 in whole:
            return False
        if not self._has(ref) or (self._asks_blobs and _lost_blobs(self._store, ref)):
            return True
        whole.add(ref.sha256)
        return False

    def _has(self, ref: ObjectRef) -> bool:
        self._num_asked += 1
        if self._num_asked > ONE_BY_ONE and not isinstance(self._store, FolderStore):
            prefix = ref.key.rpartition("/")[0]
            if _in_short(ref.sha256) in self._names(prefix):
                return True
        return self._store.size(ref.key) is not None

    def _names(self, prefix: str) -> set[bytes]:
        """Digests of the objects under a prefix, when they were asked for first."""
        with self._locks.setdefault(prefix, threading.Lock()):
            if prefix not in self._listed:
                keys = (key for key, _ in self._store.list(f"{prefix}/"))
                names = ((key, key.rpartition("/")[2].partition(".")[0]) for key in keys)
                self._listed[prefix] = {
                    _in_short(name) for key, name in names if key == table_key(name)
                }
            return self._listed[prefix]


def _in_short(sha256: str) -> bytes:
    """A digest in half the memory: a pass may see 10^6 of them."""
    try:
        return bytes.fromhex(sha256)
    except ValueError:
        return sha256.encode()


def _lost_blobs(store: BlobStore, ref: ObjectRef) -> list[str]:
    columns = tables.TABLES[ref.table].blobs
    if not columns:
        return []
    rows = read_object(store, ref)
    keys = sorted({key for column in columns for key in rows[column].drop_nulls().unique()})
    if isinstance(store, FolderStore) or len(keys) < 2:
        return [key for key in keys if store.size(key) is None]
    with ThreadPoolExecutor(min(ASKED_AT_ONCE, len(keys))) as threads:
        sizes = threads.map(store.size, keys)
        return [key for key, size in zip(keys, sizes, strict=True) if size is None]


def finished(
    order: Order, ledger: Ledger, store: BlobStore, *, asks_blobs: bool = True
) -> Report | None:
    """Return the report of an earlier run of this very order, or None where work is left.

    Args:
        order: The order.
        ledger: What is live.
        store: Where it should be.
        asks_blobs: Also ask the store for every blob that the rows name.
    """
    made = made_by(order, ledger, Presence(store, asks_blobs=asks_blobs))
    if made is None:
        return None
    return Report(order_digest=order.digest, version_digest=order.version_digest, objects=made)


def made_by(order: Order, ledger: Ledger, presence: Presence) -> dict[str, ObjectRef] | None:
    """Return the live objects that this very order made, by table, or None where work is left."""
    objects: dict[str, ObjectRef] = {}
    order_digest = order.digest
    for table in order.tables:
        if ledger.order_digest_of(table, order.partition, order.code_version) != order_digest:
            return None
        (objects[table],) = ledger.live(table, order.partition, version=order.code_version)
    return None if any(presence.is_lost(ref) for ref in objects.values()) else objects
