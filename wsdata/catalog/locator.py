"""Where a raw asset came: asset prefix -> drops. Derived from live objects, and never stale.

Segments tell quickly which objects of `raw_assets` may hold an asset (see `coverage`). An object
that no segment covers is read itself, and every drop that a segment names is looked up in its
live object, so an answer never rests on the segments alone: one that is lost or damaged is
forgotten, and its objects are covered anew.
"""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import polars as pl
import sqlalchemy as sa

from wsdata import tables
from wsdata.catalog.coverage import (
    TABLE,
    extend_locator,
    forget,
    is_live,
    segments,
    uncovered,
)
from wsdata.catalog.objects import read_rows, starts_with
from wsdata.catalog.schema import LOCATOR_OBJECTS, OBJECTS
from wsdata.catalog.segments import Segment, find_ordinals
from wsdata.errors import CatalogError, IntegrityError, ObjectMissing, StoreError
from wsdata.ids import ASSET_PREFIX_LENGTH

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wsdata.catalog.ledger import Ledger
    from wsdata.records import ObjectRef
    from wsdata.store import BlobStore

log = logging.getLogger(__name__)

_ASSET_PREFIX = re.compile("[0-9a-f]{8,64}")
_READERS = 16
_MANY = 1000  # partitions, above which all are asked for


def drops_of_asset(
    ledger: Ledger, store: BlobStore, asset_prefix: str, *, as_of: int | None = None
) -> list[str]:
    """Drops that brought an asset, sorted.

    Covers what is not covered yet first, where that is much.

    Args:
        ledger: The ledger.
        store: The store.
        asset_prefix: At least 8 hex digits from the start of an asset id.
        as_of: A commit, for the state after it. Without it, the present.

    Raises:
        CatalogError: The prefix is too short, or fits several assets.
    """
    if _ASSET_PREFIX.fullmatch(asset_prefix) is None:
        raise CatalogError(f"asset {asset_prefix!r}: give at least 8 hex digits, and at most 64")
    try:
        extend_locator(ledger, store)
    except StoreError as error:
        log.warning("locator: not extended, so more is read: %s", error)
    partitions = _partitions_to_ask(ledger, store, asset_prefix, as_of)
    refs = _live(ledger, TABLE, partitions, as_of)
    frames = read_rows(store, [(ref, starts_with("asset_id", asset_prefix)) for ref in refs])
    found = {ref.partition: set(rows["asset_id"]) for ref, rows in zip(refs, frames, strict=True)}
    num_assets = len(set().union(*found.values()))
    if num_assets > 1:
        raise CatalogError(f"asset {asset_prefix!r} fits {num_assets} assets: give more digits")
    return sorted(drop for drop, ids in found.items() if ids)


def rows_of_asset(
    ledger: Ledger,
    store: BlobStore,
    table: str,
    drops: list[str],
    asset_prefix: str,
    *,
    as_of: int | None = None,
) -> pl.DataFrame:
    """Rows of one asset in the live objects of a table, over some drops.

    The table must have a column ``asset_id``, or ``clip_id`` whose ids start with the prefix.
    """
    return rows_of_subject(ledger, store, [table], drops, asset_prefix, as_of=as_of)[table]


def rows_of_subject(
    ledger: Ledger,
    store: BlobStore,
    names: Sequence[str],
    partitions: Sequence[str],
    prefix: str,
    *,
    as_of: int | None = None,
) -> dict[str, pl.DataFrame]:
    """Rows that are about one subject in all live objects of some tables, over some partitions.

    One question to the ledger, and one plan over the store.

    Args:
        ledger: The ledger.
        store: The store.
        names: Tables.
        partitions: Drops, dataset versions or shard groups.
        prefix: Start of an asset id, a clip id or a sample id.
        as_of: A commit, for the state after it. Without it, the present.
    """
    order = {partition: number for number, partition in enumerate(partitions)}
    refs = [
        ref for ref in ledger.objects_of(list(partitions), as_of=as_of) if ref.table in set(names)
    ]
    refs.sort(key=lambda ref: order[ref.partition])  # stable: versions stay oldest first
    frames = read_rows(store, [(ref, _about(ref.table, prefix)) for ref in refs])
    found: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
    for ref, rows in zip(refs, frames, strict=True):
        found[ref.table].append(rows)
    return {
        name: pl.concat(parts) if parts else tables.empty(name) for name, parts in found.items()
    }


def live_rows_of_subject(
    ledger: Ledger,
    store: BlobStore,
    table: str,
    prefix: str,
    partitions: Collection[str] | None = None,
) -> dict[str, pl.DataFrame]:
    """Rows that are about one subject in the present live objects of a table.

    As `rows_of_subject`, but of each partition only the version committed last, and by partition,
    sorted. Without `partitions`, of all that have a live object.
    """
    refs = _live(ledger, table, partitions, None)
    frames = read_rows(store, [(ref, _about(table, prefix)) for ref in refs])
    return {ref.partition: rows for ref, rows in zip(refs, frames, strict=True)}


def _about(table: str, prefix: str) -> pl.Expr:
    """Condition on rows; its first part is on the column that sorts them, where that is an id."""
    spec = tables.TABLES[table]
    ids = [
        column
        for column in ("sample_id", "clip_id", "subject", "asset_id")
        if column in spec.columns
    ]
    leading = [column for column in ids if column == spec.key[0]] or ids[-1:]
    if not leading:
        raise ValueError(f"table {table} has no column of ids")
    if leading[0] == "asset_id" or len(prefix) <= ASSET_PREFIX_LENGTH or "-" in prefix:
        return starts_with(leading[0], prefix)
    in_short = starts_with(leading[0], prefix[:ASSET_PREFIX_LENGTH])
    return in_short & starts_with("asset_id", prefix) if "asset_id" in ids else in_short


def _partitions_to_ask(
    ledger: Ledger, store: BlobStore, asset_prefix: str, as_of: int | None
) -> set[str]:
    """Drops that segments name, and those that no segment covers."""
    while True:
        held = segments(ledger)
        hits = _hits(ledger, store, asset_prefix, held)
        found = _partitions_of(ledger, hits, as_of)
        found |= {row.partition for row in ledger.ask(uncovered(as_of))}
        if segments(ledger).keys() == held.keys():  # else somebody covered or merged meanwhile
            return found


def _hits(
    ledger: Ledger, store: BlobStore, asset_prefix: str, held: dict[int, Segment]
) -> set[tuple[int, int]]:
    """Segment and ordinal of objects that may hold an asset; broken segments are forgotten."""
    with ThreadPoolExecutor(_READERS) as readers:
        ask = partial(_ordinals_or_error, store, asset_prefix)
        answers = dict(zip(held, readers.map(ask, held.values()), strict=True))
    hits: set[tuple[int, int]] = set()
    for number, answer in answers.items():
        if isinstance(answer, list):
            hits |= {(number, ordinal) for ordinal in answer}
        else:
            forget(ledger, store, number, held[number])
    return hits


def _ordinals_or_error(
    store: BlobStore, asset_prefix: str, segment: Segment
) -> list[int] | ObjectMissing | IntegrityError:
    try:
        return find_ordinals(store, segment, asset_prefix)
    except (ObjectMissing, IntegrityError) as error:
        return error


def _partitions_of(ledger: Ledger, hits: set[tuple[int, int]], as_of: int | None) -> set[str]:
    if not hits:
        return set()
    query = (
        sa.select(OBJECTS.c.partition)
        .join(LOCATOR_OBJECTS, LOCATOR_OBJECTS.c.sha256 == OBJECTS.c.sha256)
        .where(
            is_live(as_of),
            sa.tuple_(LOCATOR_OBJECTS.c.segment_id, LOCATOR_OBJECTS.c.ordinal).in_(sorted(hits)),
        )
    )
    return {row.partition for row in ledger.ask(query)}


def _live(
    ledger: Ledger, table: str, partitions: Collection[str] | None, as_of: int | None
) -> list[ObjectRef]:
    if partitions is None or len(partitions) <= _MANY:
        return ledger.live(table, partitions, as_of=as_of)
    return [ref for ref in ledger.live(table, as_of=as_of) if ref.partition in partitions]
