"""``wsdata served``: what training runs were really served, as they told it."""

import argparse
from typing import Any

from wsdata.cli.main import Answer
from wsdata.cli.opened import Opened, open_deployment, table
from wsdata.errors import CatalogError

MAX_LINES = 200


def list_runs(args: argparse.Namespace) -> Answer:
    """``served list``: runs, and of one run every range."""
    from wsdata import tables
    from wsdata.loader.inbox import SERVED, attempts_of_runs, refused_reports
    from wsdata.loader.runs_served import served_rows, summary

    opened = open_deployment(args)
    runs = attempts_of_runs(opened.ledger.present(SERVED).values())
    if args.run and args.run not in runs:
        raise CatalogError(f"no run {args.run!r} told anything: there are {_named(runs)}")
    rows = tables.rows_of(
        "runs_served",
        [
            row
            for name, attempts in runs.items()
            if args.run in (None, name)
            for row in served_rows(name, attempts)
        ],
    )
    found = summary(rows)
    lines = _run_lines(found)
    if args.run:
        lines += ["", *_range_lines(rows.sort("first_step", "attempt").to_dicts())]
    waiting = _waiting_lines(opened)
    refused = refused_reports(opened.ledger, opened.store)
    lines += [*waiting, *(f"refused: {key}: {reason}" for key, reason in refused.items())]
    ranges = rows.to_dicts() if args.run else []
    return Answer({"runs": found, "ranges": ranges, "refused": refused}, lines)


def where(args: argparse.Namespace) -> Answer:
    """``served where``: steps of runs that served a clip."""
    from wsdata.ids import parse_clip_id
    from wsdata.lifecycle.served_use import ServedRuns, time_records, use_lines, uses

    opened = open_deployment(args)
    parse_clip_id(args.clip)
    served = ServedRuns(opened.ledger, opened.store, args.run)
    times, unknown = served.times([args.clip])
    found = uses(times)
    lines = use_lines(found) or [f"no run that told what it served was served {args.clip}"]
    lines += table(
        ["run", "step", "version", "plan step", "slot", "epoch", "replayed"],
        [
            [t.run, t.step, t.version, t.plan_step, t.slot, t.epoch, t.is_replayed or None]
            for t in times[:MAX_LINES]
        ],
    )
    if len(times) > MAX_LINES:
        lines.append(f"and {len(times) - MAX_LINES} more: --json tells all")
    lines += [f"not known: {each}" for each in unknown]
    data = {"clip_id": args.clip, "runs": found, "times": time_records(times), "unknown": unknown}
    return Answer(data, [*lines, *_waiting_lines(opened)])


def _run_lines(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return ["no run has told what it was served: give PlanDataset report_to and run"]
    header = ["run", "versions", "steps", "served", "replayed", "by cursor alone", "attempts",
              "not known"]  # fmt: skip
    return table(
        header,
        [
            [
                each["run"],
                " ".join(each["versions"]),
                f"{each['first_step']}..{each['end_step']}",
                each["num_steps"],
                each["num_replayed"],
                each["num_unreported"],
                each["num_attempts"],
                " ".join(f"{first}..{end}" for first, end in each["holes"]),
            ]
            for each in found
        ],
    )


def _range_lines(rows: list[dict[str, Any]]) -> list[str]:
    header = ["steps", "version", "plan", "seed", "plan step", "attempt", "ranks", "what"]
    return table(
        header,
        [
            [
                f"{row['first_step']}..{row['end_step']}",
                row["version"],
                row["plan_id"][:12],
                row["seed"],
                row["plan_step"],
                row["attempt"],
                row["world_size"],
                "replayed since" if row["is_replayed"]
                else "served" if row["is_reported"] else "by cursor alone",
            ]
            for row in rows
        ],
    )  # fmt: skip


def _waiting_lines(opened: Opened) -> list[str]:
    from wsdata.loader.inbox import num_waiting

    waiting = num_waiting(opened.store)
    return [f"{waiting} reports lie in the inbox: `wsdata run` takes them in"] if waiting else []


def _named(runs: Any) -> str:
    return ", ".join(runs) or "none"
