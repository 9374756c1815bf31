"""Lineage: everything behind a sample, and everything a raw asset became."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata.catalog.locator import drops_of_asset, rows_of_asset
from wsdata.catalog.objects import read_object, read_table
from wsdata.errors import CatalogError
from wsdata.ids import ASSET_PREFIX_LENGTH, parse_clip_id
from wsdata.lifecycle.tombstone import is_withheld
from wsdata.lifecycle.versions import all_versions, base_of, left_out, require_version
from wsdata.tables import FILTERS

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


def lineage_clip(ledger: Ledger, store: BlobStore, clip_id: str) -> dict[str, Any]:
    """Tell everything behind one clip, and where it went.

    Returns:
        The fields that DESIGN 9 fixes for ``lineage clip``.

    Raises:
        ValueError: Not a clip id.
        CatalogError: No such clip.
    """
    prefix = parse_clip_id(clip_id).asset_prefix
    drops = drops_of_asset(ledger, store, prefix)
    clips = _of_clip(ledger, store, "clips", drops, clip_id)
    if clips.is_empty():
        raise CatalogError(
            f"no clip {clip_id!r}: "
            + (f"its asset is in {', '.join(drops)}" if drops else "its asset was never landed")
        )
    clip = clips.sort("drop").row(0, named=True)
    provenance = rows_of_asset(ledger, store, "provenance", drops, prefix).unique(["drop", "path"])
    return {
        "clip_id": clip_id,
        "asset_id": clip["asset_id"],
        "drop": clip["drop"],
        "provenance": provenance.sort("drop", "path").to_dicts(),
        "span": {
            "start_s": clip["start_s"],
            "end_s": clip["end_s"],
            "start_pts": clip["start_pts"],
            "end_pts": clip["end_pts"],
            "time_base": clip["time_base"],
        },
        "scores": _scores(ledger, store, drops, clip_id),
        "captions": _of_clip(ledger, store, "captions", drops, clip_id)
        .select("captioner_version", "variant", "text", "status")
        .unique()
        .sort("captioner_version", "variant")
        .to_dicts(),
        "placements": _placements(ledger, store, clip_id),
        "manifests": _manifests(ledger, store, clip_id),
        "exclusions": _exclusions(ledger, store, clip_id, clip["asset_id"]),
        "tombstoned": is_withheld(ledger, store, clip["asset_id"]),
    }


def lineage_asset(ledger: Ledger, store: BlobStore, asset_prefix: str) -> dict[str, Any]:
    """Tell where a raw asset came from, and every clip it gave, each as `lineage_clip` does.

    Raises:
        CatalogError: No such asset, or several.
    """
    drops = drops_of_asset(ledger, store, asset_prefix)
    if not drops:
        raise CatalogError(f"no raw asset {asset_prefix!r} was ever landed")
    raw = rows_of_asset(ledger, store, "raw_assets", drops, asset_prefix).row(0, named=True)
    asset_id = raw["asset_id"]
    clips = rows_of_asset(ledger, store, "clips", drops, asset_id)["clip_id"].unique().sort()
    probes = rows_of_asset(ledger, store, "probes", drops, asset_id).unique("asset_id")
    status = rows_of_asset(ledger, store, "decode_status", drops, asset_id).unique("asset_id")
    provenance = rows_of_asset(ledger, store, "provenance", drops, asset_id)
    return {
        "asset_id": asset_id,
        "drops": drops,
        "in_vault": raw["in_vault"],
        "provenance": provenance.unique(["drop", "path"]).sort("drop", "path").to_dicts(),
        "probe": probes.to_dicts()[0] if probes.height else None,
        "decode_status": status.to_dicts()[0] if status.height else None,
        "clips": [lineage_clip(ledger, store, clip_id) for clip_id in clips],
        "tombstoned": is_withheld(ledger, store, asset_id),
    }


def lineage_sample(ledger: Ledger, store: BlobStore, where: str) -> dict[str, Any]:
    """Tell everything behind ``VERSION:STEP:SLOT``.

    Raises:
        ValueError: Not of that form.
        CatalogError: No such version, or its plan has no such slot.
    """
    from wsdata.lifecycle.plans import load_plan

    parts = where.split(":")
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        raise ValueError(f"sample {where!r}: expected VERSION:STEP:SLOT, such as v1:17:3")
    version, step, slot = parts[0], int(parts[1]), int(parts[2])
    require_version(ledger, version)
    planned = load_plan(ledger, store, version).samples(step)
    if slot >= len(planned):
        raise CatalogError(f"step {step} of {version} has {len(planned)} slots, no slot {slot}")
    sample = planned[slot]
    return {
        "version": version,
        "step": step,
        "slot": slot,
        "sample_id": sample.sample_id,
        "stream": sample.stream,
        "epoch": sample.epoch,
        **lineage_clip(ledger, store, sample.clip_id),
    }


def _of_clip(
    ledger: Ledger, store: BlobStore, table: str, drops: list[str], clip_id: str
) -> pl.DataFrame:
    prefix = clip_id[:ASSET_PREFIX_LENGTH]
    rows = rows_of_asset(ledger, store, table, drops, prefix)
    return rows.filter(pl.col("clip_id") == clip_id)


def _scores(
    ledger: Ledger, store: BlobStore, drops: list[str], clip_id: str
) -> list[dict[str, Any]]:
    wanted = ["filter", "score_name", "score", "model_version", "status", "reason"]
    frames = [
        _of_clip(ledger, store, f"{name}_scores", drops, clip_id).select(wanted) for name in FILTERS
    ]
    order = ["filter", "score_name", "model_version", "status", "score", "reason"]
    return pl.concat(frames).unique().sort(order).to_dicts()


def _exclusions(
    ledger: Ledger, store: BlobStore, clip_id: str, asset_id: str
) -> list[dict[str, Any]]:
    """Why versions leave a clip out, wholly or in part."""
    found: list[dict[str, Any]] = []
    for ref in ledger.live("exclusions"):
        rows = read_object(store, ref).filter(pl.col("subject").is_in([clip_id, asset_id]))
        found += [
            {"version": ref.partition, "reason": reason, "detail": detail}
            for reason, detail in rows.sort("reason").select("reason", "detail").iter_rows()
        ]
    return found


def _placements(ledger: Ledger, store: BlobStore, clip_id: str) -> list[dict[str, Any]]:
    rows = read_table(ledger, store, "placements").filter(pl.col("clip_id") == clip_id)
    return [
        {
            "sample_id": row["sample_id"],
            "shard": row["shard"],
            "row": row["row"],
            "rung": row["bucket"].split("/")[0],
            "tokenizer": row["tokenizer_version"],
            "offset": row["offset"],
            "psnr_db": row["psnr_db"],
        }
        for row in rows.sort("sample_id").iter_rows(named=True)
    ]


def _manifests(ledger: Ledger, store: BlobStore, clip_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for version in all_versions(ledger):
        rows = read_table(ledger, store, "manifests", base_of(version)).filter(
            (pl.col("clip_id") == clip_id) & ~pl.col("sample_id").is_in(left_out(ledger, version))
        )
        found += [
            {"version": version, "stream": stream, "tier": tier, "samples": samples}
            for stream, tier, samples in rows.group_by("stream", "tier")
            .agg(samples=pl.col("sample_id").sort())
            .sort("stream", "tier")
            .iter_rows()
        ]
    return found
