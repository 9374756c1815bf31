"""The order that training runs were really served: is it mixed, and has each stream its share?

Measured over what trainers told, patches and replays included, and never over the plan alone. Of
a long run the samples of some windows are looked at; counts are exact over all of it. Rows and
words are made here, the maths of mixing is `loader.realised`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wsdata import tables
from wsdata.digest import short_digest
from wsdata.errors import WsdataError
from wsdata.loader.runs_served import told_of
from wsdata.loader.version import open_version
from wsdata.observability.realised_counts import Stretches
from wsdata.observability.realised_mixing import mixing_rows
from wsdata.orders import Input, Step, StepResult, StepRun

if TYPE_CHECKING:
    import polars as pl

    from wsdata.loader.served import Range
    from wsdata.shard.plan import StepPlan

MAX_SHOWN = 40
BAR = 40  # characters of a chart
TRAITS = ("source", "cluster")

STEP = Step(
    stage="observability",
    name="realised_order",
    function="wsdata.observability.realised_order:run",
    code_version="realised-order-1",
    partition="none",
    assets={"realised_order": ("realised_order",)},
    inputs=(
        Input(table="runs_served", scope="all"),
        Input(table="dataset_index", scope="all", is_context=True),
    ),
    description="Autocorrelation, stream shares, epochs and buckets of what runs were served.",
)

Row = dict[str, Any]


def run(run: StepRun) -> StepResult:
    """Measure every run; one that was served nothing new since is not measured again."""
    rows: list[Row] = []
    plans = _Plans(run)
    served = run.read("runs_served")
    names = served["run"].unique().sort().to_list()
    for number, name in enumerate(names):
        kept = [each.range for each in told_of(served.filter(run=name)) if not each.is_replayed]
        subject = f"{name}-{short_digest([list(each) for each in kept])}"
        made = run.unit(subject, lambda name=name, kept=kept: {"rows": plans.measure(name, kept)})
        rows += made["rows"]
        run.progress(number + 1, len(names), name)
    frame = tables.rows_of("realised_order", rows)
    return StepResult(
        tables={"realised_order": frame},
        metrics={"runs": float(len(names)), "off": float(frame["is_off"].sum())},
        display={"realised_order": _display(frame)},
    )


class _Plans:
    """Opens plans by version and seed, once each."""

    def __init__(self, run: StepRun) -> None:
        self._run = run
        self._plans: dict[tuple[str, int], StepPlan | None] = {}

    def measure(self, name: str, kept: list[Range]) -> list[Row]:
        """All rows of one run.

        Args:
            name: The run.
            kept: What it was served and did not replay, ascending.
        """
        known = [(each, plan) for each in kept if (plan := self._plan(each)) is not None]
        asked = sum(each.end_step - each.first_step for each in kept)
        told = sum(each.end_step - each.first_step for each, _ in known)
        rows: list[Row] = [
            {
                "part": "all",
                "measure": "coverage",
                "subject": "steps of known plans",
                "value": told / asked if asked else 1.0,
                "target": 1.0,
                "bound": 0.0,
                "is_off": told != asked,
                "num_samples": None,
            }
        ]
        if known:
            rows += Stretches(known).rows()
            rows += mixing_rows(self._run, name, known, TRAITS)
        return [{"run": name, **row} for row in rows]

    def _plan(self, served: Range) -> StepPlan | None:
        key = served.version, served.seed
        if key not in self._plans:
            try:
                self._plans[key] = open_version(self._run.store, key[0], seed=key[1]).plan
            except WsdataError:
                self._plans[key] = None
        plan = self._plans[key]
        return plan if plan is not None and plan.plan_id == served.plan_id else None


def order_faults(rows: pl.DataFrame) -> list[str]:
    """What runs were served is mixed beyond the global batch, its shares within their bounds."""
    return [
        f"run {row['run']}, {row['part']}: {_words(row)}"
        for row in rows.filter("is_off").sort("run", "measure", "subject").to_dicts()
    ]


def _words(row: Row) -> str:
    measure, subject, value = row["measure"], row["subject"], row["value"]
    if measure == "coverage":
        return (
            f"only {value:.1%} of its steps were served by plans that are still published as they "
            "were: the others cannot be looked at"
        )
    if measure == "counts":
        return f"{value:.0f} windows hold other samples than their plan counts: tell the developers"
    if measure == "autocorrelation":
        trait, _, lag = subject.partition("@")
        return (
            f"samples of one {trait} follow each other {lag} slots apart: correlation {value:.4f}, "
            f"chance gives up to {row['bound']:.4f}"
        )
    what = {"stream_share": "of the latent tokens", "bucket_share": "of the steps"}[measure]
    return (
        f"{subject} got {value:.3%} {what}, due are {row['target']:.3%} within {row['bound']:.3%}"
    )


def _display(rows: pl.DataFrame) -> dict[str, Any]:
    newest = rows.sort("run").to_dicts()
    shares = [
        "| run | part | what | which | served | due | within | |",
        "|---|---|---|---|--:|--:|--:|---|",
    ]
    shares += [
        f"| {row['run']} | {row['part']} | {row['measure']} | {row['subject']} "
        f"| {row['value']:.3%} | {row['target']:.3%} | {row['bound']:.3%} | {_mark(row)} |"
        for row in newest
        if row["measure"] in ("stream_share", "bucket_share")
    ]
    epochs = ["| run | part | stream | repeats of the most repeated pool |", "|---|---|---|--:|"]
    epochs += [
        f"| {row['run']} | {row['part']} | {row['subject']} | {row['value']:.2f} |"
        for row in newest
        if row["measure"] == "epochs"
    ]
    return {
        "off": {
            "type": "md",
            "raw_value": "\n".join(f"- {f}" for f in order_faults(rows)) or "none",
        },
        "shares": {"type": "md", "raw_value": "\n".join(shares[: MAX_SHOWN + 2])},
        "epochs": {"type": "md", "raw_value": "\n".join(epochs[: MAX_SHOWN + 2])},
        "autocorrelation": {"type": "md", "raw_value": "\n".join(_chart(newest))},
    }


def _mark(row: Row) -> str:
    return "OFF" if row["is_off"] else ""


def _chart(rows: list[Row]) -> list[str]:
    """Bars of the correlations by run, trait and lag; beyond the batch, what chance gives too."""
    lines = ["```"]
    told = [row for row in rows if row["measure"] == "autocorrelation"]
    for row in sorted(told, key=lambda row: (row["run"], *_trait_and_lag(row)))[: 4 * MAX_SHOWN]:
        trait, lag = _trait_and_lag(row)
        bar = "#" * min(BAR, round(abs(row["value"]) * BAR))
        chance = "" if row["bound"] is None else f"  chance {row['bound']:.4f} {_mark(row)}"
        line = f"{row['run'][:20]:20} {trait:8} {lag:>8} {row['value']:+.4f} |{bar:{BAR}}|{chance}"
        lines.append(line.rstrip())
    return [*lines, "```"]


def _trait_and_lag(row: Row) -> tuple[str, int]:
    trait, _, lag = row["subject"].partition("@")
    return trait, int(lag)
