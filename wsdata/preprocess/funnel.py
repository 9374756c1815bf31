"""Gates and tiers: the only code that drops clips, and how scores become a tier.

Being listed as unsafe, technical faults, unsafe content and being a copy stop a clip; all other
scores only tier it. A score that is missing is neither good nor bad: without the scores that the
gates read a clip stays out, as ``unscored`` or ``error`` and not as stopped by the filter, and
without those that tier it a clip is held below the tiers that such a score would have to earn.
What was never screened against a safety list (there is none, or no print says enough) is stopped
by none: the list only ever stops what it knows.

The gates of a drop are provisional. A cut evaluates the same functions again, with its own
thresholds, over stored scores.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess.savings import show_spared
from wsdata.recipe import TIERS, Gates, Recipe, Tiers

UNDECODABLE = ("quarantined", "failed", "empty")

# Filters that can stop a clip, by what they cost: the first two read rows alone. See `savings`.
GATING = ("safety_list", "technical", "safety")

_READ = (  # (filter, score) that gates and tiers look at
    ("safety_list", "asset_hits"),
    ("technical", "is_decodable"),
    ("technical", "rung_px"),
    ("technical", "duration_s"),
    ("technical", "error_share"),
    ("safety", "nsfw"),
    ("motion", "magnitude"),
    ("motion", "jitter"),
    ("overlay", "text_share"),
    ("quality", "quality"),
)
_SAID = ("safety_list.asset_hits", "technical.is_decodable")  # whose detail holds a reason
_RESULT = {
    "clip_id": pl.String, "passed": pl.Boolean, "stopped_by": pl.String, "reason": pl.String,
    "tier": pl.String, "quality_value": pl.Float64,
}  # fmt: skip


def _params(recipe: Recipe) -> dict[str, Any]:
    return {"gates": asdict(recipe.gates), "tiers": asdict(recipe.tiers)}


STEP = Step(
    stage="preprocess",
    name="gates",
    function="wsdata.preprocess.funnel:run",
    code_version="gates-3",
    partition="drop",
    assets={"gates": ("gates",)},
    inputs=(
        Input(table="clips"),
        Input(table="decode_status"),
        *(Input(table=f"{name}_scores") for name in tables.FILTERS),
        Input(table="match_pairs", scope="all", is_context=True),
        Input(table="asset_quality", scope="all", is_context=True),
        Input(table="decode_status", scope="all", is_context=True),
    ),
    params_of=_params,
    description="Which clips go on under the operating recipe, why the others do not, and tiers.",
)


def run(run: StepRun) -> StepResult:
    """Gate and tier every clip of a drop."""
    clips = run.read("clips")
    scores = pl.concat([run.read(f"{name}_scores") for name in tables.FILTERS])
    gates, tiers = Gates(**run.params["gates"]), Tiers(**run.params["tiers"])
    decided = stop_copies(evaluate_gates(scores, clips, gates, tiers), clips, _canonical(run))
    rows = decided.join(clips.select("clip_id", "asset_id"), on="clip_id").rename(
        {"tier": "provisional_tier"}
    )
    passed = rows.filter("passed").height
    return StepResult(
        tables={"gates": rows},
        metrics={"num_clips": rows.height, "num_passed": passed},
        display={
            "gates": {
                **_show(rows, clips, run.read("decode_status")),
                "spared": {"type": "md", "raw_value": show_spared(scores, clips, run.store)},
            }
        },
    )


def evaluate_gates(
    scores: pl.DataFrame, clips: pl.DataFrame, gates: Gates, tiers: Tiers
) -> pl.DataFrame:
    """Gate and tier clips from their scores. A pure function of its arguments' rows, in any order.

    Args:
        scores: Rows of any score tables, together. Where one clip has a score twice (two drops
            brought the same bytes), a measured one wins over others, then the larger version.
        clips: Rows of ``clips``; ``clip_id`` may repeat.
        gates: Thresholds that drop.
        tiers: Thresholds that tier.

    Returns:
        One row per clip, sorted by ``clip_id``: ``passed``; where not, ``stopped_by``
        (safety_list, technical, safety, unscored, error) and ``reason``; where passed, ``tier``
        and ``quality_value`` in [0, 1], null where the quality score is missing.
    """
    wide = _widen(scores, clips)
    decided = wide.with_columns(_stop(gates).alias("stop")).with_columns(
        pl.col("stop").struct.field("stopped_by"),
        pl.col("stop").struct.field("reason"),
        _quality_value(tiers).alias("quality_value"),
    )
    return (
        decided.with_columns(pl.col("stopped_by").is_null().alias("passed"))
        .with_columns(
            pl.when("passed").then(_tier(tiers)).alias("tier"),
            pl.when("passed").then("quality_value").alias("quality_value"),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in _RESULT.items())
        .sort("clip_id")
    )


def stops_so_far(scores: pl.DataFrame, clips: pl.DataFrame, gates: Gates) -> pl.DataFrame:
    """Clips that the scores that exist already stop, for later filters to spare themselves.

    A clip that lacks scores is not among them: what is unknown stops nothing here.

    Args:
        scores: Rows of the score tables of GATING that there are, together.
        clips: Rows of ``clips``.
        gates: Thresholds that drop.

    Returns:
        ``clip_id``, ``stopped_by`` and ``reason``, sorted.
    """
    wide = _widen(scores, clips).with_columns(_stop(gates).alias("stop"))
    return (
        wide.select("clip_id", pl.col("stop").struct.unnest())
        .filter(pl.col("stopped_by").is_in(GATING))
        .sort("clip_id")
    )


def stop_copies(
    decided: pl.DataFrame, clips: pl.DataFrame, canonical: Mapping[str, str]
) -> pl.DataFrame:
    """Stop clips of raw assets that are near-duplicates of a better copy.

    Args:
        decided: What `evaluate_gates` returned.
        clips: Rows of ``clips``.
        canonical: Asset -> the copy that stands for it, itself where it is the best.
    """
    copies = {asset: kept for asset, kept in canonical.items() if asset != kept}
    kept_by_clip = {
        clip_id: copies[asset_id]
        for clip_id, asset_id in clips.select("clip_id", "asset_id").iter_rows()
        if asset_id in copies
    }
    kept = pl.DataFrame(
        {"clip_id": list(kept_by_clip), "kept": list(kept_by_clip.values())},
        schema={"clip_id": pl.String, "kept": pl.String},
    )
    is_copy = pl.col("passed") & pl.col("kept").is_not_null()
    return (
        decided.join(kept, on="clip_id", how="left")
        .with_columns(
            pl.when(is_copy)
            .then(pl.lit("near_duplicate"))
            .otherwise("stopped_by")
            .alias("stopped_by"),
            pl.when(is_copy)
            .then(pl.format("a better copy is {}", pl.col("kept")))
            .otherwise("reason")
            .alias("reason"),
            pl.when(~is_copy).then("tier").alias("tier"),
            pl.when(~is_copy).then("quality_value").alias("quality_value"),
            (pl.col("passed") & ~is_copy).alias("passed"),
        )
        .drop("kept")
        .sort("clip_id")
    )


def _canonical(run: StepRun) -> dict[str, str]:
    from wsdata.ingest.neardup import canonical_copies

    pairs, quality = run.read_context("match_pairs"), run.read_context("asset_quality")
    status = run.read_context("decode_status")
    lost = status.filter(pl.col("status").is_in(UNDECODABLE) | (pl.col("num_clips") == 0))
    named = {*quality["asset_id"], *pairs["asset_a"], *pairs["asset_b"]}
    groups = canonical_copies(pairs, quality, named - set(lost["asset_id"]), status)
    return dict(groups.select("asset_id", "canonical_id").iter_rows())


# scores -> one row per clip ------------------------------------------------------------------


def _widen(scores: pl.DataFrame, clips: pl.DataFrame) -> pl.DataFrame:
    best = scores.sort(
        pl.col("status") != "ok", pl.col("model_version"), pl.col("score"), pl.col("reason"),
        descending=[False, True, True, True], nulls_last=True,
    )  # fmt: skip
    columns: list[pl.Expr] = []
    for filter_name, score_name in _READ:
        mine = (pl.col("filter") == filter_name) & (pl.col("score_name") == score_name)
        name = f"{filter_name}.{score_name}"
        columns += [
            pl.col(column).filter(mine).first().alias(name + suffix)
            for column, suffix in (("score", ""), ("status", ":status"), ("reason", ":reason"))
        ]
        if name in _SAID:
            why = pl.col("detail_json").filter(mine).first().str.json_path_match("$.why")
            columns.append(why.alias(name + ":why"))
    wide = best.group_by("clip_id").agg(columns)
    known = clips.select("clip_id", "media_kind", "width_px", "height_px").unique("clip_id")
    return known.join(wide, on="clip_id", how="left")


# gates ---------------------------------------------------------------------------------------


def _stop(gates: Gates) -> pl.Expr:
    """The first stop that applies: a struct of ``stopped_by`` and ``reason``, null for none."""
    is_video = pl.col("media_kind") == "video"
    duration, errors = pl.col("technical.duration_s"), pl.col("technical.error_share")
    nsfw = pl.col("safety.nsfw")
    rules: list[tuple[pl.Expr, str, pl.Expr]] = [
        (
            pl.col("safety_list.asset_hits") > 0,
            "safety_list",
            pl.format("listed: {}", pl.col("safety_list.asset_hits:why").fill_null("")),
        ),
        (
            pl.col("technical.is_decodable") < 1,
            "technical",
            pl.format("broken: {}", pl.col("technical.is_decodable:why").fill_null("undecodable")),
        ),
        (
            pl.col("technical.rung_px") < 1,
            "technical",
            pl.format("too small: {}x{} is below every rung", "width_px", "height_px"),
        ),
        (
            is_video & (duration < gates.min_duration_s),
            "technical",
            pl.format("too short: {} s of {}", duration.round(3), pl.lit(gates.min_duration_s)),
        ),
        (
            errors > gates.max_error_share,
            "technical",
            pl.format(
                "decoding errors: {} a frame, {} at most",
                errors.round(4),
                pl.lit(gates.max_error_share),
            ),
        ),
        *_unknown("technical.is_decodable"),
        *_unknown("technical.rung_px"),
        *_unknown("technical.error_share"),
        *_unknown("technical.duration_s", unless=~is_video),
        (
            nsfw >= gates.safety_max,
            "safety",
            pl.format("unsafe: {}, below {} passes", nsfw.round(4), pl.lit(gates.safety_max)),
        ),
        *_unknown("safety.nsfw"),
    ]
    chosen = pl.struct(
        pl.lit(None, pl.String).alias("stopped_by"), pl.lit(None, pl.String).alias("reason")
    )
    for applies, stopped_by, reason in reversed(rules):
        stop = pl.struct(pl.lit(stopped_by).alias("stopped_by"), reason.alias("reason"))
        chosen = pl.when(applies.fill_null(value=False)).then(stop).otherwise(chosen)
    return chosen


def _unknown(name: str, unless: pl.Expr | None = None) -> list[tuple[pl.Expr, str, pl.Expr]]:
    said = pl.col(f"{name}:reason").fill_null("never measured")
    reason = pl.format("{}: {}", pl.lit(name), said)
    failed = (pl.col(f"{name}:status") == "error").fill_null(value=False)
    missing = pl.col(name).is_null()
    if unless is not None:
        missing &= ~unless
    return [(missing & failed, "error", reason), (missing, "unscored", reason)]


# tiers ---------------------------------------------------------------------------------------


def _quality_value(tiers: Tiers) -> pl.Expr:
    """Quality, times a factor in [0.5, 1] each for motion, steadiness and text; unknown is 1."""
    return (pl.col("quality.quality") * _motion_factor(tiers) * _overlay_factor(tiers)).round(6)


def _motion_factor(tiers: Tiers) -> pl.Expr:
    magnitude, jitter = pl.col("motion.magnitude"), pl.col("motion.jitter")
    still = 0.5 + 0.5 * magnitude / tiers.motion_low
    fast = tiers.motion_high / magnitude
    moves = (
        pl.when(magnitude < tiers.motion_low)
        .then(still)
        .when(magnitude > tiers.motion_high)
        .then(pl.max_horizontal(fast, pl.lit(0.5)))
        .otherwise(1.0)
    )
    shakes = (
        pl.when(jitter > tiers.jitter_max)
        .then(pl.max_horizontal(tiers.jitter_max / jitter, pl.lit(0.5)))
        .otherwise(1.0)
    )
    return moves * shakes


def _overlay_factor(tiers: Tiers) -> pl.Expr:
    share = pl.col("overlay.text_share") / tiers.overlay_max_share
    return 1 - 0.5 * share.clip(0, 1).fill_null(0)


def _tier(tiers: Tiers) -> pl.Expr:
    value, is_video = pl.col("quality_value"), pl.col("media_kind") == "video"
    part_unknown = pl.col("overlay.text_share").is_null() | (
        is_video & pl.col("motion.magnitude").is_null()
    )
    return (
        pl.when(value.is_null())
        .then(pl.lit("T2"))
        .when((value >= tiers.t0_min) & ~part_unknown)
        .then(pl.lit("T0"))
        .when(value >= tiers.t1_min)
        .then(pl.lit("T1"))
        .when(value >= tiers.t2_min)
        .then(pl.lit("T2"))
        .otherwise(pl.lit("T3"))
    )


# what a person sees --------------------------------------------------------------------------


def _show(rows: pl.DataFrame, clips: pl.DataFrame, status: pl.DataFrame) -> dict[str, Any]:
    sources = clips.select("clip_id", "source", "media_kind")
    told = rows.join(sources, on="clip_id").with_columns(
        pl.coalesce("provisional_tier", pl.format("stopped by {}", "stopped_by")).alias("fate")
    )
    fates = told.group_by("source", "media_kind", "fate").len().sort("source", "media_kind", "fate")
    funnel = ["| source | kind | fate | clips |", "|---|---|---|---:|"]
    funnel += [f"| {' | '.join(map(str, fate))} |" for fate in fates.iter_rows()]
    stopped = told.filter(~pl.col("passed"))
    reasons = ["| clip | source | stopped by | reason |", "|---|---|---|---|"]
    reasons += [
        f"| {row['clip_id']} | {row['source']} | {row['stopped_by']} | {row['reason']} |"
        for row in stopped.sort("stopped_by", "clip_id").head(20).iter_rows(named=True)
    ]
    undecoded = status.filter(pl.col("status").is_in(UNDECODABLE)).height
    unknown = {
        name: stopped.filter(pl.col("stopped_by") == name).height for name in ("unscored", "error")
    }
    return {
        "clips": {"type": "int", "raw_value": rows.height},
        "passed": {"type": "int", "raw_value": rows.height - stopped.height},
        "stopped": {"type": "int", "raw_value": stopped.height - sum(unknown.values())},
        "out_as_unscored": {"type": "int", "raw_value": unknown["unscored"]},
        "out_as_error": {"type": "int", "raw_value": unknown["error"]},
        "assets_without_clips": {"type": "int", "raw_value": undecoded},
        "funnel": {"type": "md", "raw_value": "\n".join(funnel)},
        "reasons": {
            "type": "md",
            "raw_value": "\n".join(reasons) if stopped.height else "every clip passed",
        },
        "tiers": {"type": "md", "raw_value": _show_tiers(told.filter("passed"))},
    }


def _show_tiers(passed: pl.DataFrame) -> str:
    lines = ["| tier | clips | best | worst |", "|---|---:|---|---|"]
    for tier in TIERS:
        mine = passed.filter(pl.col("provisional_tier") == tier).sort(
            "quality_value", "clip_id", descending=[True, False], nulls_last=True
        )
        ends = ("", "") if mine.is_empty() else (mine["clip_id"][0], mine["clip_id"][-1])
        lines.append(f"| {tier} | {mine.height} | {ends[0]} | {ends[1]} |")
    return "\n".join(lines)
