"""Drift: the score distribution of the frozen reference slice under each model version.

The slice is chosen by clip hash alone, unfiltered, so the same clips are in it whatever any
recipe says; what changes between two model versions is then the model.
"""

import hashlib

import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_object
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.tables import FILTERS

SLICE_SHARE = 0.25  # of a small corpus; the reference slice of a large one is listed instead

STEP = Step(
    stage="observability",
    name="drift",
    function="wsdata.observability.drift:run",
    code_version="drift-1",
    partition="none",
    assets={"drift": ("drift",)},
    inputs=tuple(Input(table=f"{name}_scores", scope="all") for name in FILTERS),
    description="Scores of a frozen slice of clips under every model version, and their shift.",
)


def in_reference_slice(clip_id: str) -> bool:
    """Whether a clip belongs to the reference slice."""
    first = int.from_bytes(hashlib.sha256(clip_id.encode()).digest()[:8], "big")
    return first < SLICE_SHARE * 2**64


def run(run: StepRun) -> StepResult:
    """Summarize the slice, over all live versions of all filters."""
    frames = [
        read_object(run.store, ref)
        for name in FILTERS
        for drop in [ref.partition for ref in run.ledger.live(f"{name}_scores")]
        for ref in run.ledger.versions(f"{name}_scores", drop)
    ]
    rows = drift_rows(pl.concat(frames) if frames else tables.empty("motion_scores"))
    lines = [
        "| filter | score | model | clips | mean | p50 | shift |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r['filter']} | {r['score_name']} | {r['model_version']} | {r['num_clips']} "
        f"| {r['mean']:.4f} | {r['p50']:.4f} | {r['shift']:+.4f} |"
        for r in rows.iter_rows(named=True)
    ]
    return StepResult(
        tables={"drift": rows},
        metrics={"rows": rows.height},
        display={"drift": {"reference_slice": {"type": "md", "raw_value": "\n".join(lines)}}},
    )


def drift_rows(scores: pl.DataFrame) -> pl.DataFrame:
    """Summarize the slice by filter, score and model; `shift` is against the oldest-named model."""
    known = scores.filter(pl.col("status") == "ok").filter(
        pl.col("clip_id").map_elements(in_reference_slice, return_dtype=pl.Boolean)
    )
    subject = ["clip_id", "filter", "score_name", "model_version"]
    known = known.sort(*subject, "score").unique(subject, keep="first")
    summary = (
        known.group_by("filter", "score_name", "model_version")
        .agg(
            num_clips=pl.col("clip_id").n_unique(),
            mean=pl.col("score").sort().mean(),
            p10=pl.col("score").quantile(0.1, "nearest"),
            p50=pl.col("score").quantile(0.5, "nearest"),
            p90=pl.col("score").quantile(0.9, "nearest"),
        )
        .sort("filter", "score_name", "model_version")
        .with_columns(shift=pl.col("mean") - pl.col("mean").first().over("filter", "score_name"))
    )
    return tables.conform("drift", summary)
