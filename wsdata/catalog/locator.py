"""Where a raw asset came: asset prefix -> drops. Derived from live objects, so never stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_object
from wsdata.errors import CatalogError

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


def drops_of_asset(ledger: Ledger, store: BlobStore, asset_prefix: str) -> list[str]:
    """Drops that brought an asset, sorted.

    Args:
        ledger: The ledger.
        store: The store.
        asset_prefix: At least 8 hex digits from the start of an asset id.

    Raises:
        CatalogError: The prefix is too short, or fits several assets.
    """
    if len(asset_prefix) < 8:
        raise CatalogError(f"asset {asset_prefix!r}: give at least 8 hex digits")
    drops: list[str] = []
    found: set[str] = set()
    for ref in ledger.live("raw_assets"):
        ids = read_object(store, ref)["asset_id"]
        hits = ids.filter(ids.str.starts_with(asset_prefix))
        if len(hits):
            drops.append(ref.partition)
            found |= set(hits)
    if len(found) > 1:
        raise CatalogError(f"asset {asset_prefix!r} fits {len(found)} assets: give more digits")
    return drops


def rows_of_asset(
    ledger: Ledger, store: BlobStore, table: str, drops: list[str], asset_prefix: str
) -> pl.DataFrame:
    """Rows of one asset in the live objects of a table, over some drops.

    The table must have a column ``asset_id``, or ``clip_id`` whose ids start with the prefix.
    """
    column = "asset_id" if "asset_id" in tables.TABLES[table].columns else "clip_id"
    frames = [
        read_object(store, ref).filter(pl.col(column).str.starts_with(asset_prefix))
        for drop in drops
        for ref in ledger.versions(table, drop)
    ]
    return pl.concat(frames) if frames else tables.empty(table)
