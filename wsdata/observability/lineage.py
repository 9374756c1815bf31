"""Lineage: everything behind a sample, and everything a raw asset became."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata import tables
from wsdata.catalog.locator import drops_of_asset, live_rows_of_subject, rows_of_subject
from wsdata.errors import CatalogError
from wsdata.ids import parse_clip_id
from wsdata.lifecycle.exported import exports_holding
from wsdata.lifecycle.served_use import ServedRuns, uses
from wsdata.lifecycle.tombstone import is_withheld
from wsdata.lifecycle.versions import all_versions, base_of, left_out_from, require_version
from wsdata.tables import FILTERS

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

_OF_CLIPS = ("clips", "provenance", "captions", *(f"{name}_scores" for name in FILTERS))
_OF_ASSETS = (*_OF_CLIPS, "raw_assets", "probes", "decode_status")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Behind:
    """Everything about one asset, and about all clips of it, that the catalog holds."""

    drops: list[str]
    rows: dict[str, pl.DataFrame]  # by table, of the asset's drops
    placements: pl.DataFrame
    manifests: dict[str, pl.DataFrame]  # by cut version
    exclusions: dict[str, pl.DataFrame]  # by cut version
    stated: dict[str, dict[str, Any]]  # fact ``dataset_version``
    versions: list[str]


def _behind(
    ledger: Ledger,
    store: BlobStore,
    drops: list[str],
    asset_prefix: str,
    names: tuple[str, ...] = _OF_CLIPS,
) -> _Behind:
    def live(table: str, partitions: set[str] | None = None) -> dict[str, pl.DataFrame]:
        return live_rows_of_subject(ledger, store, table, asset_prefix, partitions)

    manifests, assigned = live("manifests"), live("shard_assignments")
    placed = live("placements", _groups_placing(manifests, assigned))
    return _Behind(
        drops=drops,
        rows=rows_of_subject(ledger, store, names, drops, asset_prefix),
        placements=pl.concat(placed.values()) if placed else tables.empty("placements"),
        manifests=manifests,
        exclusions=live("exclusions"),
        stated=ledger.present("dataset_version"),
        versions=all_versions(ledger),
    )


def _groups_placing(
    manifests: dict[str, pl.DataFrame], assigned: dict[str, pl.DataFrame]
) -> set[str] | None:
    """Shard groups that the samples of an asset were assigned to; None where some are unknown."""
    known = {sample for rows in assigned.values() for sample in rows["sample_id"]}
    if not known.issuperset(sample for rows in manifests.values() for sample in rows["sample_id"]):
        return None
    return {group for rows in assigned.values() for group in rows["shard_group"]}


def lineage_clip(ledger: Ledger, store: BlobStore, clip_id: str) -> dict[str, Any]:
    """Tell everything behind one clip, and where it went.

    Returns:
        The fields that DESIGN 9 fixes for ``lineage clip``, and ``exports`` that hold it,
        the training runs that were ``served`` it, and patches that leave samples of it out
        from a step on (``patched``): what comes before that step may serve them.

    Raises:
        ValueError: Not a clip id.
        CatalogError: No such clip.
    """
    prefix = parse_clip_id(clip_id).asset_prefix
    drops = drops_of_asset(ledger, store, prefix)
    behind = _behind(ledger, store, drops, prefix)
    asset_ids = behind.rows["provenance"]["asset_id"].head(1).to_list()
    is_out = bool(asset_ids) and is_withheld(ledger, store, asset_ids[0])
    exports = exports_holding(ledger, store, [clip_id])
    told = _tell_clip(behind, clip_id, is_withheld=is_out, exports=exports)
    return told | _served(ServedRuns(ledger, store), clip_id)


def _tell_clip(
    behind: _Behind, clip_id: str, *, is_withheld: bool, exports: list[dict[str, Any]]
) -> dict[str, Any]:
    clips = _of_clip(behind, "clips", clip_id)
    if clips.is_empty():
        drops = ", ".join(behind.drops)
        raise CatalogError(
            f"no clip {clip_id!r}: "
            + (f"its asset is in {drops}" if drops else "its asset was never landed")
        )
    clip = clips.sort("drop").row(0, named=True)
    return {
        "clip_id": clip_id,
        "asset_id": clip["asset_id"],
        "drop": clip["drop"],
        "provenance": _provenance(behind),
        "span": {
            "start_s": clip["start_s"],
            "end_s": clip["end_s"],
            "start_pts": clip["start_pts"],
            "end_pts": clip["end_pts"],
            "time_base": clip["time_base"],
        },
        "scores": _scores(behind, clip_id),
        "captions": _of_clip(behind, "captions", clip_id)
        .select("captioner_version", "variant", "text", "status")
        .unique()
        .sort("captioner_version", "variant")
        .to_dicts(),
        "placements": _placements(behind, clip_id),
        "manifests": _manifests(behind, clip_id),
        "patched": _patched(behind, clip_id),
        "exclusions": _exclusions(behind, clip_id, clip["asset_id"]),
        "exports": exports,
        "tombstoned": is_withheld,
    }


def lineage_asset(ledger: Ledger, store: BlobStore, asset_prefix: str) -> dict[str, Any]:
    """Tell where a raw asset came from, and every clip it gave, each as `lineage_clip` does.

    Raises:
        CatalogError: No such asset, or several.
    """
    drops = drops_of_asset(ledger, store, asset_prefix)
    if not drops:
        raise CatalogError(f"no raw asset {asset_prefix!r} was ever landed")
    behind = _behind(ledger, store, drops, asset_prefix, _OF_ASSETS)
    raw = behind.rows["raw_assets"].row(0, named=True)
    asset_id = raw["asset_id"]
    clips = behind.rows["clips"]["clip_id"].unique().sort()
    probes = behind.rows["probes"].unique("asset_id")
    status = behind.rows["decode_status"].unique("asset_id")
    is_out, runs = is_withheld(ledger, store, asset_id), ServedRuns(ledger, store)
    return {
        "asset_id": asset_id,
        "drops": drops,
        "in_vault": raw["in_vault"],
        "provenance": _provenance(behind),
        "probe": probes.to_dicts()[0] if probes.height else None,
        "decode_status": status.to_dicts()[0] if status.height else None,
        "clips": [
            _tell_clip(
                behind,
                clip_id,
                is_withheld=is_out,
                exports=exports_holding(ledger, store, [clip_id]),
            )
            | _served(runs, clip_id)
            for clip_id in clips
        ],
        "tombstoned": is_out,
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


def _provenance(behind: _Behind) -> list[dict[str, Any]]:
    return behind.rows["provenance"].unique(["drop", "path"]).sort("drop", "path").to_dicts()


def _of_clip(behind: _Behind, table: str, clip_id: str) -> pl.DataFrame:
    return behind.rows[table].filter(pl.col("clip_id") == clip_id)


def _served(runs: ServedRuns, clip_id: str) -> dict[str, Any]:
    times, unknown = runs.times([clip_id])
    return {"served": uses(times), "served_unknown": unknown}


def _scores(behind: _Behind, clip_id: str) -> list[dict[str, Any]]:
    wanted = ["filter", "score_name", "score", "model_version", "status", "reason"]
    frames = [_of_clip(behind, f"{name}_scores", clip_id).select(wanted) for name in FILTERS]
    order = ["filter", "score_name", "model_version", "status", "score", "reason"]
    return pl.concat(frames).unique().sort(order).to_dicts()


def _exclusions(behind: _Behind, clip_id: str, asset_id: str) -> list[dict[str, Any]]:
    """Why versions leave a clip out, wholly or in part."""
    return [
        {"version": version, "reason": reason, "detail": detail}
        for version, rows in behind.exclusions.items()
        for reason, detail in rows.filter(pl.col("subject").is_in([clip_id, asset_id]))
        .sort("reason")
        .select("reason", "detail")
        .iter_rows()
    ]


def _placements(behind: _Behind, clip_id: str) -> list[dict[str, Any]]:
    rows = behind.placements.filter(pl.col("clip_id") == clip_id)
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


def _manifests(behind: _Behind, clip_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for version in behind.versions:
        rows = behind.manifests.get(base_of(version))
        if rows is None:
            continue
        left_out = behind.stated.get(version, {}).get("patch", {}).get("excluded", [])
        rows = rows.filter((pl.col("clip_id") == clip_id) & ~pl.col("sample_id").is_in(left_out))
        found += [
            {"version": version, "stream": stream, "tier": tier, "samples": samples}
            for stream, tier, samples in rows.group_by("stream", "tier")
            .agg(samples=pl.col("sample_id").sort())
            .sort("stream", "tier")
            .iter_rows()
        ]
    return found


def _patched(behind: _Behind, clip_id: str) -> list[dict[str, Any]]:
    """Patches that leave samples of a clip out, and from which step on."""
    found: list[dict[str, Any]] = []
    for version in behind.versions:
        rows = behind.manifests.get(base_of(version))
        out = left_out_from(behind.stated, version)
        if rows is None or not out:
            continue
        by_step: dict[int, list[str]] = {}
        for sample_id in rows.filter(pl.col("clip_id") == clip_id)["sample_id"].sort():
            if sample_id in out:
                by_step.setdefault(out[sample_id], []).append(sample_id)
        found += [
            {"version": version, "from_step": step, "samples": samples}
            for step, samples in sorted(by_step.items())
        ]
    return found
