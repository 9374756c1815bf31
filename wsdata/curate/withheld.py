"""What takedowns and safety lists withhold: raw assets, near duplicates, and what excerpts them.

Asked anew at every cut, over all match pairs: a copy that arrives in a later drop is withheld
under the request that named the original. Stating tombstones belongs to `lifecycle`.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

Tombstones = Mapping[str, Mapping[str, Any]]

_SHOWN = 24  # digits of a raw asset that its clips begin with


def withheld_assets(groups: pl.DataFrame, tombstones: Tombstones) -> pl.DataFrame:
    """Raw assets that are withheld whole, each once, sorted.

    Args:
        groups: As `neardup.canonical_copies` returns.
        tombstones: The present of facts ``tombstone``: raw asset -> body. One whose body lists
            ``clips`` withholds those alone, and has no copies.

    Returns:
        ``asset_id``; ``request_id``, "" where none is stated; ``copy_of``, the tombstoned raw
        asset that it shows, null for one that is itself tombstoned.
    """
    stones = _stones(tombstones)
    members = groups.join(stones, on="asset_id", how="inner").select(
        "canonical_id", pl.col("asset_id").alias("copy_of"), "request_id"
    )
    twins = (
        groups.join(members, on="canonical_id", how="inner")
        .join(stones, on="asset_id", how="anti")
        .sort("asset_id", "copy_of")
        .unique("asset_id", keep="first", maintain_order=True)
    )
    named = stones.with_columns(pl.lit(None, dtype=pl.String).alias("copy_of"))
    columns = ["asset_id", "request_id", "copy_of"]
    return pl.concat([named.select(columns), twins.select(columns)]).sort("asset_id")


def withheld_clips(
    clips: pl.DataFrame,
    groups: pl.DataFrame,
    match_pairs: pl.DataFrame,
    tombstones: Tombstones,
    *,
    by: str = "takedown",
) -> pl.DataFrame:
    """Clips that no dataset version may hold.

    Args:
        clips: ``clip_id, asset_id, start_s, end_s``.
        groups: As `neardup.canonical_copies` returns.
        match_pairs: Rows of ``match_pairs``. A clip that shares any part of a span with withheld
            material goes, the rest of its raw asset stays.
        tombstones: As for `withheld_assets`.
        by: What withholds them, for the detail.

    Returns:
        ``clip_id`` and ``detail``, which names the request; sorted, each clip once.
    """
    assets = withheld_assets(groups, tombstones)
    whole = clips.join(assets, on="asset_id", how="inner").select(
        "clip_id",
        pl.concat_str(
            _told(by), pl.format(", as a copy of {}", _short("copy_of")).fill_null("")
        ).alias("detail"),
    )
    listed = _listed(tombstones).join(clips, on=["clip_id", "asset_id"], how="semi")
    shared = (
        clips.join(_spans_of(assets, match_pairs), on="asset_id", how="inner")
        .filter(pl.min_horizontal("end_s", "to_s") > pl.max_horizontal("start_s", "from_s"))
        .sort("clip_id", "shows", "from_s")
        .select(
            "clip_id",
            pl.format("{}, as it shows part of {}", _told(by), _short("shows")).alias("detail"),
        )
    )
    found = pl.concat([whole, listed.select("clip_id", _told(by).alias("detail")), shared])
    return found.unique("clip_id", keep="first", maintain_order=True).sort("clip_id")


def _stones(tombstones: Tombstones) -> pl.DataFrame:
    rows = [
        (asset, str(body.get("request_id", "")))
        for asset, body in sorted(tombstones.items())
        if not body.get("clips")
    ]
    return pl.DataFrame(rows, schema={"asset_id": pl.String, "request_id": pl.String}, orient="row")


def _listed(tombstones: Tombstones) -> pl.DataFrame:
    rows = [
        (asset, clip, str(body.get("request_id", "")))
        for asset, body in sorted(tombstones.items())
        for clip in body.get("clips") or ()
    ]
    return pl.DataFrame(
        rows,
        schema={"asset_id": pl.String, "clip_id": pl.String, "request_id": pl.String},
        orient="row",
    )


def _spans_of(assets: pl.DataFrame, match_pairs: pl.DataFrame) -> pl.DataFrame:
    """Stretches of raw assets that they share with a withheld one: from either side."""
    spans = match_pairs.filter(pl.col("kind") == "span")
    sides = [
        spans.select(
            pl.col(f"asset_{mine}").alias("asset_id"),
            pl.col(f"asset_{other}").alias("shows"),
            pl.col(f"{mine}_start_s").alias("from_s"),
            pl.col(f"{mine}_end_s").alias("to_s"),
        )
        for mine, other in ("ab", "ba")
    ]
    held = assets.select(pl.col("asset_id").alias("shows"), "request_id")
    return pl.concat(sides).join(held, on="shows", how="inner")


def listed_assets(safety_list_scores: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Raw assets that match a safety list, in the form of tombstones; any drop's word counts.

    Args:
        safety_list_scores: Rows of that table of any drops.
    """
    hits = safety_list_scores.filter(
        (pl.col("score_name") == "asset_hits") & (pl.col("score") > 0)
    ).with_columns(why=pl.col("detail_json").str.json_path_match("$.why").fill_null("hit"))
    told = hits.group_by("asset_id").agg(pl.col("why").min()).sort("asset_id")
    return {asset: {"request_id": why} for asset, why in told.iter_rows()}


def _told(by: str) -> pl.Expr:
    return (
        pl.when(pl.col("request_id") != "")
        .then(pl.format("{} {}", pl.lit(by), "request_id"))
        .otherwise(pl.lit(by))
    )


def _short(column: str) -> pl.Expr:
    return pl.col(column).str.slice(0, _SHOWN)
