"""Tombstones: which raw assets a request takes out, and their twins with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.errors import CatalogError
from wsdata.ingest.neardup import canonical_copies

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Criteria:
    """What a request names. At least one field; each may hold several."""

    assets: tuple[str, ...] = ()  # ids, or their first 8 digits and more
    urls: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.assets or self.urls or self.sources or self.licenses):
            raise CatalogError("a takedown names assets, URLs, sources or licences: none was given")


def named_assets(ledger: Ledger, store: BlobStore, criteria: Criteria) -> list[str]:
    """Raw assets that the criteria name, sorted.

    Raises:
        CatalogError: A criterion names nothing that was ever landed, or an id is too short.
    """
    provenance = read_table(ledger, store, "provenance")
    found: set[str] = set()
    for column, values in (
        ("crawl_url", criteria.urls),
        ("source", criteria.sources),
        ("license_id", criteria.licenses),
    ):
        for value in values:
            hits = provenance.filter(pl.col(column) == value)["asset_id"]
            found |= _some(set(hits), f"{column} {value!r}")
    for prefix in criteria.assets:
        if len(prefix) < 8:
            raise CatalogError(f"asset {prefix!r}: give at least 8 hex digits")
        hits = provenance.filter(pl.col("asset_id").str.starts_with(prefix))["asset_id"]
        found |= _some(set(hits), f"asset {prefix!r}")
    return sorted(found)


def _some(hits: set[str], what: str) -> set[str]:
    if not hits:
        raise CatalogError(f"{what} names nothing that was landed: check it, nothing was excluded")
    return hits


def copies(ledger: Ledger, store: BlobStore) -> pl.DataFrame:
    """Groups of near duplicates among all that is live, as the next cut will find them.

    Returns:
        ``asset_id`` and ``canonical_id``; see `neardup.canonical_copies`.
    """
    return canonical_copies(
        read_table(ledger, store, "match_pairs"),
        read_table(ledger, store, "asset_quality"),
        read_table(ledger, store, "clips")["asset_id"].unique(),
        read_table(ledger, store, "decode_status"),
    )


def twins_of(ledger: Ledger, store: BlobStore, assets: list[str]) -> list[str]:
    """Near duplicates of some assets that are not among them, sorted."""
    groups = copies(ledger, store)
    touched = groups.filter(pl.col("asset_id").is_in(assets))["canonical_id"].unique()
    members = groups.filter(pl.col("canonical_id").is_in(touched.to_list()))["asset_id"]
    return sorted(set(members) - set(assets))


def is_withheld(ledger: Ledger, store: BlobStore, asset_id: str) -> bool:
    """Whether a raw asset is tombstoned, or a near duplicate of one that is."""
    stones = set(ledger.present("tombstone"))
    return bool(stones) and (
        asset_id in stones or not stones.isdisjoint(twins_of(ledger, store, [asset_id]))
    )
