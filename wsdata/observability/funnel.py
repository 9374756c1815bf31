"""The funnel: what came in, what is left, and why the rest is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.curate.losses import PARTIAL_REASONS
from wsdata.lifecycle.tombstone import copies
from wsdata.lifecycle.versions import base_of, latest_version, left_out, require_version
from wsdata.recipe import TIERS

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


def funnel(
    ledger: Ledger,
    store: BlobStore,
    *,
    drop: str | None = None,
    source: str | None = None,
    version: str | None = None,
) -> dict[str, Any]:
    """Count the funnel of all material, one drop or one source.

    Args:
        ledger: The ledger.
        store: The store.
        drop: Count one drop alone.
        source: Count one source alone.
        version: The dataset version whose cut is told; the newest without it.

    Returns:
        ``{"totals": {...}, "files": [...]}`` with the fields that DESIGN 9 fixes. Near
        duplicates are raw assets with clips, of which a better copy is there.

    Raises:
        CatalogError: No such version.
    """
    if version is not None:
        require_version(ledger, version)
    provenance = read_table(ledger, store, "provenance", drop)
    if source is not None:
        provenance = provenance.filter(pl.col("source") == source)
    assets = provenance["asset_id"].unique().to_list()
    status = _latest_rows(read_table(ledger, store, "decode_status", drop), "asset_id", assets)
    clips = _latest_rows(read_table(ledger, store, "clips", drop), "clip_id", assets)
    gates = _latest_rows(read_table(ledger, store, "gates", drop), "clip_id", assets)
    groups = copies(ledger, store).join(clips, on="asset_id", how="semi")
    version = version or latest_version(ledger)
    totals = {
        "raw_assets": len(assets),
        "vault": provenance.filter(pl.col("in_vault"))["asset_id"].n_unique(),
        "exact_duplicates": provenance.height - len(assets),
        "near_duplicates": groups.filter(pl.col("asset_id") != pl.col("canonical_id")).height,
        "quarantined": status.filter(pl.col("status") == "quarantined").height,
        "salvaged": status.filter(pl.col("status") == "salvaged").height,
        "clips": clips.height,
        "gated": dict(
            gates.filter(~pl.col("passed"))
            .group_by("stopped_by").len().sort("stopped_by").iter_rows()
        ),
        **_cut_totals(ledger, store, version, assets),
    }  # fmt: skip
    excluded = _exclusions(ledger, store, version).filter(pl.col("asset_id").is_in(assets))
    decoded = {ref.partition for ref in ledger.live("decode_status")}
    files = _files(provenance, status, clips, _reasons(excluded, clips), decoded)
    return {"version": version, "totals": totals, "files": files}


def _exclusions(ledger: Ledger, store: BlobStore, version: str | None) -> pl.DataFrame:
    return read_table(ledger, store, "exclusions", base_of(version) if version else "-")


def _reasons(exclusions: pl.DataFrame, clips: pl.DataFrame) -> dict[str, str]:
    """Why clips of each raw asset are not in a version, in words, by asset."""
    whole = exclusions.filter(~pl.col("reason").is_in(PARTIAL_REASONS))
    counts = whole.group_by("asset_id", "reason").agg(
        pl.col("subject").n_unique(), pl.col("detail").sort().first()
    )
    total = dict(clips.group_by("asset_id").len().iter_rows())
    said: dict[str, list[str]] = {}
    for asset_id, reason, num, detail in counts.sort("asset_id", "reason").iter_rows():
        words = f"{num} of {total.get(asset_id, num)} clips {reason}: {detail}"
        said.setdefault(asset_id, []).append(words)
    return {asset_id: "; ".join(words) for asset_id, words in said.items()}


def _latest_rows(rows: pl.DataFrame, key: str, assets: list[str]) -> pl.DataFrame:
    return rows.filter(pl.col("asset_id").is_in(assets)).unique(key, keep="first").sort(key)


def _cut_totals(
    ledger: Ledger, store: BlobStore, version: str | None, assets: list[str]
) -> dict[str, Any]:
    def of(table: str, column: str = "asset_id") -> pl.DataFrame:
        if version is None:
            return read_table(ledger, store, table, "-")
        return read_table(ledger, store, table, base_of(version)).filter(
            pl.col(column).is_in(assets)
        )

    exclusions = of("exclusions")  # "partly": clips of which frames or rungs are left out
    patched = left_out(ledger, version) if version else []
    manifest = of("manifests").filter(~pl.col("sample_id").is_in(patched))
    lost = read_table(ledger, store, "index_losses", base_of(version) if version else "-")
    prefixes = {asset[:24] for asset in assets}
    excluded = dict(exclusions.group_by("reason").agg(pl.col("subject").n_unique()).iter_rows())
    per_tier = dict(manifest.group_by("tier").agg(pl.col("clip_id").n_unique()).iter_rows())
    named = ("purged", "semantic_duplicate", "refused_rights", "tombstoned", *PARTIAL_REASONS)
    return {
        "purged": excluded.get("purged", 0),
        "semantic_duplicates": excluded.get("semantic_duplicate", 0),
        "refused_rights": excluded.get("refused_rights", 0),
        "tombstoned": excluded.get("tombstoned", 0),
        "excluded": {key: excluded[key] for key in sorted(excluded) if key not in named},
        "partly": {key: excluded[key] for key in PARTIAL_REASONS if key in excluded},
        "tiers": {tier: per_tier.get(tier, 0) for tier in TIERS},
        "in_manifest": manifest["clip_id"].n_unique(),
        "samples": manifest.height,
        "lost": lost.filter(pl.col("clip_id").str.slice(0, 24).is_in(prefixes)).height,
    }


def _files(
    provenance: pl.DataFrame,
    status: pl.DataFrame,
    clips: pl.DataFrame,
    reasons: dict[str, str],
    decoded_drops: set[str],
) -> list[dict[str, Any]]:
    by_asset = {row["asset_id"]: row for row in status.iter_rows(named=True)}
    num_clips = dict(clips.group_by("asset_id").len().iter_rows())
    first_seen: set[str] = set()
    files: list[dict[str, Any]] = []
    for row in provenance.sort("drop", "path").iter_rows(named=True):
        asset_id, decoded = row["asset_id"], by_asset.get(row["asset_id"])
        if row["in_vault"]:
            state, reason = "vault", "sealed for evaluation"
        elif asset_id in first_seen:
            state, reason = "duplicate", "the same bytes came before"
        elif decoded is None and row["drop"] not in decoded_drops:
            state, reason = "waiting", "not decoded yet: a run does it"
        elif decoded is None:
            state, reason = "failed", "its drop is decoded, and nothing is told of it: run again"
        else:
            told = (decoded["reason"], reasons.get(asset_id))
            state, reason = decoded["status"], "; ".join(word for word in told if word) or None
        first_seen.add(asset_id)
        files.append(
            {
                "path": row["path"],
                "drop": row["drop"],
                "asset_id": asset_id,
                "status": state,
                "reason": reason,
                "clips": num_clips.get(asset_id, 0) if state in ("ok", "salvaged") else 0,
            }
        )
    return files
