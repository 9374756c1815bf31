"""Kill rates: of each filter and source, what it saw, stopped and failed on; histograms too."""

import polars as pl

from wsdata import tables
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.tables import FILTERS

NUM_BINS = 20

STEP = Step(
    stage="observability",
    name="kill_rates",
    function="wsdata.observability.killrates:run",
    code_version="kill-rates-2",
    partition="drop",
    assets={"kill_rates": ("kill_rates", "score_histograms")},
    inputs=(
        Input(table="clips"),
        Input(table="gates"),
        *(Input(table=f"{name}_scores") for name in FILTERS),
    ),
    description="Per filter and source: clips seen, stopped, failed; score histograms.",
)


def run(run: StepRun) -> StepResult:
    """Count one drop."""
    scores = pl.concat([run.read(f"{name}_scores") for name in FILTERS])
    rates = kill_rates(run.read("clips"), run.read("gates"), scores, drop=run.order.partition)
    histograms = score_histograms(scores)
    lines = [
        "| filter | source | in | stopped | errors | kill share |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['filter']} | {row['source']} | {row['num_in']} | {row['num_stopped']} "
        f"| {row['num_errors']} | {row['kill_share']:.1%} |"
        for row in rates.iter_rows(named=True)
    ]
    return StepResult(
        tables={"kill_rates": rates, "score_histograms": histograms},
        metrics={"clips": float(run.read("clips").height)},
        display={"kill_rates": {"rates": {"type": "md", "raw_value": "\n".join(lines)}}},
    )


def kill_rates(
    clips: pl.DataFrame, gates: pl.DataFrame, scores: pl.DataFrame, *, drop: str
) -> pl.DataFrame:
    """Count per filter and source.

    `num_in` are the clips that the filter looked at, `num_errors` those it failed on, which are
    not among the stopped.
    """
    sources = clips.select("clip_id", "source")
    stopped = gates.filter(~pl.col("passed")).join(sources, on="clip_id", how="left")
    rows: list[dict] = []
    for source in sorted(clips["source"].unique()):
        duration_s = float(clips.filter(pl.col("source") == source)["duration_s"].sum())
        of_source = scores.filter(pl.col("source") == source)
        for name in FILTERS:
            mine = of_source.filter(pl.col("filter") == name)
            num_in = mine.filter(pl.col("status") == "ok")["clip_id"].n_unique()
            num_errors = mine.filter(pl.col("status") == "error")["clip_id"].n_unique()
            num_stopped = stopped.filter(
                (pl.col("source") == source) & (pl.col("stopped_by") == name)
            ).height
            rows.append(
                {
                    "drop": drop,
                    "source": source,
                    "filter": name,
                    "num_in": num_in,
                    "num_stopped": num_stopped,
                    "num_errors": num_errors,
                    "kill_share": num_stopped / num_in if num_in else 0.0,
                    "duration_s": duration_s,
                }
            )
    return tables.rows_of("kill_rates", rows)


def score_histograms(scores: pl.DataFrame) -> pl.DataFrame:
    """Histogram of every score by source and model version.

    Bins are `NUM_BINS` of one width over [0, 1], wider where a score lies outside.
    """
    known = scores.filter(pl.col("status") == "ok")
    keys = ["filter", "score_name", "source", "model_version"]
    rows: list[dict] = []
    for values, group in sorted(known.group_by(keys), key=lambda each: each[0]):
        bottom = min(0.0, *group["score"].bottom_k(1))
        width = (max(1.0, *group["score"].top_k(1)) - bottom) / NUM_BINS
        bins = ((group["score"] - bottom) / width).floor().clip(0, NUM_BINS - 1).cast(pl.Int64)
        counts = bins.value_counts().sort(bins.name).rows()
        rows += [
            {
                **dict(zip(keys, values, strict=True)),
                "bin": index,
                "low": bottom + index * width,
                "high": bottom + (index + 1) * width,
                "num_clips": count,
            }
            for index, count in counts
        ]
    return tables.rows_of("score_histograms", rows)
