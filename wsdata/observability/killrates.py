"""Kill rates: of each filter and source, what it saw, stopped, failed on and was spared.

Also histograms of its scores. Whether rates are what they used to be is told by `steadiness`.
"""

import polars as pl

from wsdata import tables
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess.savings import show_spared, spared
from wsdata.tables import FILTERS

NUM_BINS = 20

STEP = Step(
    stage="observability",
    name="kill_rates",
    function="wsdata.observability.killrates:run",
    code_version="kill-rates-3",
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
    clips = run.read("clips")
    return StepResult(
        tables={"kill_rates": rates, "score_histograms": histograms},
        metrics={"clips": float(clips.height), "num_spared": float(rates["num_spared"].sum())},
        display={
            "kill_rates": {
                "rates": {"type": "md", "raw_value": _show(rates)},
                "spared": {"type": "md", "raw_value": show_spared(scores, clips, run.store)},
            }
        },
    )


def _show(rates: pl.DataFrame) -> str:
    lines = [
        "| filter | source | in | stopped | errors | kill share | unscored | spared | saved |",
        "|---|---|" + "---:|" * 7,
    ]
    lines += [
        f"| {row['filter']} | {row['source']} | {row['num_in']} | {row['num_stopped']} "
        f"| {row['num_errors']} | {row['kill_share']:.1%} | {row['num_unscored']} "
        f"| {row['num_spared']} | {row['saved_scorings']} |"
        for row in rates.iter_rows(named=True)
    ]
    return "\n".join(lines)


def kill_rates(
    clips: pl.DataFrame, gates: pl.DataFrame, scores: pl.DataFrame, *, drop: str
) -> pl.DataFrame:
    """Count per filter and source.

    `num_in` are the clips that the filter looked at; `num_errors` those it failed on, which are
    not among the stopped; `num_spared` those that a gate had stopped before it, and
    `num_unscored` the rest. `saved_scorings` are the scorings of later filters that its own
    stops spared.
    """
    sources = clips.select("clip_id", "source")
    stopped = gates.filter(~pl.col("passed")).join(sources, on="clip_id", how="left")
    saved = spared(scores, clips)
    rows: list[dict] = []
    for source in sorted(clips["source"].unique()):
        is_source = pl.col("source") == source
        duration_s = float(clips.filter(is_source)["duration_s"].sum())
        of_source, saved_here = scores.filter(is_source), saved.filter(is_source)
        stopped_here = dict(
            stopped.filter(is_source).group_by("stopped_by").agg(pl.len()).iter_rows()
        )
        for name in FILTERS:
            counts = _counts(
                name,
                of_source.filter(pl.col("filter") == name),
                saved_here,
                num_stopped=stopped_here.get(name, 0),
            )
            rows.append(
                {"drop": drop, "source": source, "filter": name, "duration_s": duration_s, **counts}
            )
    return tables.rows_of("kill_rates", rows)


def _counts(
    name: str, mine: pl.DataFrame, saved: pl.DataFrame, *, num_stopped: int
) -> dict[str, float]:
    def clips_with(status: str) -> int:
        return mine.filter(pl.col("status") == status)["clip_id"].n_unique()

    num_in, num_errors = clips_with("ok"), clips_with("error")
    was_spared = saved.filter(pl.col("filter") == name)
    num_spared = int(was_spared["num_clips"].sum())
    return {
        "num_in": num_in,
        "num_stopped": num_stopped,
        "num_errors": num_errors,
        "kill_share": num_stopped / num_in if num_in else 0.0,
        "num_unscored": mine["clip_id"].n_unique() - num_in - num_errors - num_spared,
        "num_spared": num_spared,
        "spared_media_s": float(was_spared["media_s"].sum()),
        "saved_scorings": int(saved.filter(pl.col("gated_by") == name)["num_clips"].sum()),
    }


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
