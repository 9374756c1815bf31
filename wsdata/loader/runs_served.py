"""The step that lists what training runs were served, and how their loaders kept up.

Rows follow from what the inbox told; see `inbox` and `served`. Nothing is planned here: a step
that no trainer reported is in no row.
"""

from typing import Any

import polars as pl

from wsdata import tables
from wsdata.loader import inbox, served
from wsdata.loader.rank_reports import ALL_RANKS, RunReports, hit_share
from wsdata.loader.served import Attempt, Told
from wsdata.orders import FactInput, Step, StepResult, StepRun

MAX_SHOWN = 50

STEP = Step(
    stage="loader",
    name="runs_served",
    function="wsdata.loader.runs_served:run",
    code_version="runs-served-1",
    partition="none",
    assets={"runs_served": ("runs_served",), "rank_telemetry": ("rank_telemetry",)},
    facts=(
        FactInput(kind=inbox.SERVED),
        FactInput(kind=inbox.TELEMETRY),
        FactInput(kind=inbox.REFUSED),
    ),
    description="Step ranges that training runs were served, and how their ranks' loaders did.",
)


def run(run: StepRun) -> StepResult:
    """List all that was told."""
    facts = run.order.facts
    runs = inbox.attempts_of_runs(facts[inbox.SERVED].values())
    rows = [row for name, attempts in runs.items() for row in served_rows(name, attempts)]
    told: list[dict[str, Any]] = []
    for name, body in sorted(facts[inbox.TELEMETRY].items()):
        kept = RunReports.from_bytes(run.store.get(body["key"]))
        told += kept.rows(name, last_start(runs.get(name, [])))
    ranges = tables.rows_of("runs_served", rows)
    ranks = tables.rows_of("rank_telemetry", told)
    refused = [f"- {key}: {body['reason']}" for key, body in facts[inbox.REFUSED].items()]
    return StepResult(
        tables={"runs_served": ranges, "rank_telemetry": ranks},
        metrics={"runs": float(len(runs)), "refused_reports": float(len(refused))},
        display={
            "runs_served": {
                "runs": {"type": "md", "raw_value": "\n".join(run_lines(ranges))},
                "refused": {"type": "md", "raw_value": "\n".join(refused[-MAX_SHOWN:]) or "none"},
            },
            "rank_telemetry": {
                "ranks": {"type": "md", "raw_value": "\n".join(rank_lines(ranks))},
            },
        },
    )


def served_rows(run: str, attempts: list[Attempt]) -> list[dict[str, Any]]:
    """Rows of table ``runs_served`` of one run."""
    of = {attempt.attempt: attempt for attempt in attempts}
    return [
        {
            "run": run,
            "attempt": each.attempt,
            "run_id": of[each.attempt].run_id,
            "world_size": of[each.attempt].world_size,
            **each.range._asdict(),
            "is_replayed": each.is_replayed,
            "is_reported": each.is_reported,
        }
        for each in served.settle(attempts)
    ]


def told_of(rows: pl.DataFrame) -> list[Told]:
    """Rows of one run as what was told, in order."""
    return [
        Told(
            row["attempt"],
            served.Range(**{name: row[name] for name in served.Range._fields}),
            is_replayed=row["is_replayed"],
            is_reported=row["is_reported"],
        )
        for row in rows.sort("first_step", "attempt").iter_rows(named=True)
    ]


def last_start(attempts: list[Attempt]) -> int:
    """First step of a run's last attempt; -1 where none is known."""
    if not attempts:
        return -1
    last = max(attempts, key=lambda attempt: attempt.attempt)
    return min(each.first_step for each in last.ranges)


def summary(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """One record for each run: what it was served, kept, replayed, and what is not known."""
    found: list[dict[str, Any]] = []
    for (name,), mine in rows.sort("run").group_by("run", maintain_order=True):
        told = told_of(mine)
        spans = served.kept_spans(told)
        found.append(
            {
                "run": name,
                "versions": mine["version"].unique().sort().to_list(),
                "first_step": spans[0][0],
                "end_step": spans[-1][1],
                "num_steps": sum(end - first for first, end in spans),
                "num_replayed": sum(t.range.end_step - t.range.first_step
                                    for t in told if t.is_replayed),
                "num_unreported": sum(t.range.end_step - t.range.first_step
                                      for t in told if not t.is_reported),
                "num_attempts": mine["attempt"].n_unique(),
                "holes": [list(hole) for hole in served.holes(spans)],
            }
        )  # fmt: skip
    return found


def run_lines(rows: pl.DataFrame) -> list[str]:
    """Summaries of the runs as a Markdown table."""
    lines = [
        "| run | versions | steps | served | replayed | by cursor alone | attempts | not known |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for each in summary(rows)[-MAX_SHOWN:]:
        unknown = ", ".join(f"{first}..{end}" for first, end in each["holes"]) or "none"
        lines.append(
            f"| {each['run']} | {', '.join(each['versions'])} "
            f"| {each['first_step']}..{each['end_step']} | {each['num_steps']} "
            f"| {each['num_replayed']} | {each['num_unreported']} | {each['num_attempts']} "
            f"| {unknown} |"
        )
    return lines


def rank_lines(rows: pl.DataFrame) -> list[str]:
    """The runs as wholes, then the slowest ranks, as a Markdown table."""
    lines = [
        "| run | rank | step | p50 ms | p99 ms | p99.9 ms | step s | stalls | stalled s | hits "
        "| keeps up |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    whole = rows.filter(pl.col("rank") == ALL_RANKS)
    slowest = rows.filter((pl.col("rank") != ALL_RANKS) & pl.col("is_current")).sort(
        "last_p999_s", descending=True, nulls_last=True
    )
    for row in [*whole.to_dicts(), *slowest.head(MAX_SHOWN).to_dicts()]:
        rank = "all" if row["rank"] == ALL_RANKS else row["rank"]
        hits = hit_share(row)
        lines.append(
            f"| {row['run']} | {rank} | {row['step']} | {_ms(row['fetch_p50_s'])} "
            f"| {_ms(row['fetch_p99_s'])} | {_ms(row['fetch_p999_s'])} "
            f"| {_told(row['step_s'], '.3f')} | {row['num_stalls']} | {row['stalled_s']:.1f} "
            f"| {_told(hits, '.1%')} | {'' if row['is_too_slow'] is None else _verdict(row)} |"
        )
    return lines


def _verdict(row: dict[str, Any]) -> str:
    return "NO" if row["is_too_slow"] else "yes"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def _told(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def slow_faults(rows: pl.DataFrame) -> list[str]:
    """No rank's slowest fetches outlast what its ring holds ready."""
    slow = rows.filter((pl.col("rank") != ALL_RANKS) & pl.col("is_current") & pl.col("is_too_slow"))
    return [
        f"run {row['run']} rank {row['rank']}: p99.9 of fetches is {row['last_p999_s']:.3g} s, "
        f"more than ring depth {row['ring_depth']} x {row['step_s']:.3g} s a step; it stalled "
        f"{row['num_stalls']} times, {row['stalled_s']:.0f} s in all: read ahead further "
        "(prefetch_depth), give the node a cache, or look at the store"
        for row in slow.sort("last_p999_s", descending=True).to_dicts()
    ]


def unknown_faults(rows: pl.DataFrame) -> list[str]:
    """Of every step up to a run's last one it is known what it served."""
    return [
        f"run {each['run']}: nobody told what steps {first}..{end} served, and no cursor accounts "
        "for them: what models were trained on is then not known"
        for each in summary(rows)
        for first, end in each["holes"]
    ]
