"""Rows of live objects. Which objects are live belongs to `ledger`.

Steps read whole objects, whose digest is checked. Questions about one subject read of large
objects only the parts that can hold it; the rows of every table are sorted by its key.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import polars as pl

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError
from wsdata.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wsdata.catalog.ledger import Ledger
    from wsdata.records import ObjectRef
    from wsdata.store import BlobStore


log = logging.getLogger(__name__)

WHOLE_ROWS = tables.MIN_GROUP_ROWS  # up to here there is nothing to leave out


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


def read_matching(
    store: BlobStore, table: str, refs: Iterable[ObjectRef], wanted: pl.DataFrame, on: list[str]
) -> pl.DataFrame:
    """Read the rows that some row of `wanted` equals in columns `on`, object by object.

    What all objects of a table hold grows with every version that was ever made; memory here is
    that of the rows that match, and of one object.

    Raises:
        ObjectMissing: The store has lost an object.
        IntegrityError: The bytes of one are not what the ledger says.
    """
    keys = wanted.select(on).unique()
    matching = (read_object(store, ref).join(keys, on=on, how="semi") for ref in refs)
    return pl.concat([tables.empty(table), *matching])


def read_rows(store: BlobStore, wanted: Sequence[tuple[ObjectRef, pl.Expr]]) -> list[pl.DataFrame]:
    """Read the rows that meet a condition, of several objects at once.

    Of large objects only the row groups are read that can hold such rows, so their digest as a
    whole is not checked; a small object's is.

    Args:
        store: The store.
        wanted: Of each question the object, and the condition; see `starts_with`.

    Raises:
        ObjectMissing: The store has lost an object.
        IntegrityError: The bytes of one are not what the ledger says.
    """
    found: list[pl.DataFrame | None] = [None] * len(wanted)
    plans = {
        number: _scan(store, ref).filter(condition)
        for number, (ref, condition) in enumerate(wanted)
        if ref.num_rows > WHOLE_ROWS
    }
    try:
        for number, rows in zip(plans, pl.collect_all(plans.values()), strict=True):
            found[number] = rows
    except (OSError, pl.exceptions.PolarsError) as error:
        # Lost, damaged, or of older columns: reading all tells which, or works.
        log.debug("%d objects cannot be scanned (%s): each is read whole", len(plans), error)
    return [
        rows if rows is not None else read_object(store, ref).filter(condition)
        for rows, (ref, condition) in zip(found, wanted, strict=True)
    ]


def scan_matching(
    store: BlobStore, ref: ObjectRef, wanted: pl.DataFrame, on: str, columns: Sequence[str]
) -> pl.DataFrame:
    """Read some columns of the rows of one object that some row of `wanted` equals in column `on`.

    Of a large object no other column is read, so its digest as a whole is not checked; a small
    object's is. Rows come in no order.

    Raises:
        ObjectMissing: The store has lost it.
        IntegrityError: Its bytes are not what the ledger says.
    """
    keys = wanted.select(on).unique()
    if ref.num_rows > WHOLE_ROWS:
        scan = _scan(store, ref).select({on: None, **dict.fromkeys(columns)}.keys())
        try:
            found = scan.join(keys.lazy(), on=on, how="semi").collect(engine="streaming")
            return found.select(columns)
        except (OSError, pl.exceptions.PolarsError) as error:
            log.debug("%s cannot be scanned (%s): it is read whole", ref.key, error)
    return read_object(store, ref).join(keys, on=on, how="semi").select(columns)


def starts_with(column: str, prefix: str) -> pl.Expr:
    """Condition that an id starts with a prefix; ids are ASCII.

    It is two comparisons, because row groups tell their least and their greatest value.
    """
    return (pl.col(column) >= prefix) & (pl.col(column) < prefix + "\x7f")


def _scan(store: BlobStore, ref: ObjectRef) -> pl.LazyFrame:
    schema = tables.TABLES[ref.table].columns
    if isinstance(store, FolderStore):
        source, options = str(store.path_of(ref.key)), None
    else:
        source, options = _s3_source(store.address, ref.key)
    return pl.scan_parquet(
        source, schema=schema, missing_columns="insert", extra_columns="ignore",
        storage_options=options, glob=False,
    )  # fmt: skip


def _s3_source(address: str, key: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(address)
    endpoint = parse_qs(parts.query).get("endpoint", [None])[0]
    options = {} if endpoint is None else {"aws_endpoint_url": endpoint, "aws_allow_http": "true"}
    path = "/".join(part for part in (parts.path.strip("/"), key) if part)
    return f"{parts.scheme}://{parts.netloc}/{path}", options


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
