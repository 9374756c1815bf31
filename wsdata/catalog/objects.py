"""Rows of live objects. Which objects are live belongs to `ledger`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wsdata.catalog.ledger import Ledger
    from wsdata.records import ObjectRef
    from wsdata.store import BlobStore


def read_object(store: BlobStore, ref: ObjectRef) -> pl.DataFrame:
    """Read the rows of one object.

    Raises:
        ObjectMissing: The store has lost it.
        IntegrityError: Its bytes are not what the ledger says.
    """
    data = store.get(ref.key)
    if (found := sha256_bytes(data)) != ref.sha256:
        raise IntegrityError(
            f"{ref.table} of {ref.partition} ({ref.key}): bytes have digest {found[:12]}, the "
            f"ledger says {ref.sha256[:12]}: delete the object and run again"
        )
    return tables.from_parquet(ref.table, data)


def read_objects(store: BlobStore, table: str, refs: Iterable[ObjectRef]) -> pl.DataFrame:
    """Read the rows of several objects of one table, in their order; none gives no rows."""
    frames = [read_object(store, ref) for ref in refs]
    return pl.concat(frames) if frames else tables.empty(table)


def read_table(
    ledger: Ledger,
    store: BlobStore,
    table: str,
    partition: str | None = None,
    *,
    version: str | None = None,
    as_of: int | None = None,
) -> pl.DataFrame:
    """Read live rows of a table, of one partition or all; see `Ledger.live`."""
    return read_objects(store, table, ledger.live(table, partition, version=version, as_of=as_of))
