"""``wsdata capacity``: what a corpus and a run take, and how large the pools must be."""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from wsdata.cli.main import Answer
from wsdata.cli.opened import table
from wsdata.deployment import Deployment, load_deployment
from wsdata.observability.capacity import HOUR_S
from wsdata.observability.capacity_inputs import (
    STATED,
    Inputs,
    Origin,
    load_config,
    load_measured,
    reference_inputs,
    replace_inputs,
)
from wsdata.observability.capacity_report import (
    answer,
    figure_rows,
    helm_lines,
    helm_values,
    short,
    size_pools,
)

OPTIONS = {  # of the command line -> inputs of the model
    "tokens": "tokens",
    "raw_hours": "raw_hours",
    "days": "run_days",
    "accelerators": "accelerators",
    "weeks": "weeks",
    "encode_plan": "encode_plan",
}


def capacity(args: argparse.Namespace) -> Answer:
    """``capacity``."""
    taken = _taken(args)
    if args.helm_values:
        values = helm_values(size_pools(taken.inputs.values))
        return Answer(values, [f"# {note}" for note in taken.notes] + helm_lines(taken.inputs))
    data = answer(taken.inputs, taken.kill_rates)
    data |= {"speeds": taken.speeds, "notes": taken.notes}
    return Answer(data, _lines(data, is_long=args.long))


class _Taken(NamedTuple):
    """Inputs, what else the deployment says of itself, and what to tell of both."""

    inputs: Inputs
    kill_rates: list[Any]
    speeds: list[dict[str, Any]]
    notes: list[str]


def _taken(args: argparse.Namespace) -> _Taken:
    """The reference, then what the deployment says and has measured, files, options."""
    taken = _Taken(reference_inputs(), [], [], [])
    if not args.reference:
        deployment = load_deployment(Path(args.home) if args.home else None)
        inputs = replace_inputs(taken.inputs, _pool_inputs(deployment))
        taken = _measured(inputs, deployment, args)
    inputs = taken.inputs
    if args.measured:
        inputs = replace_inputs(inputs, load_measured(Path(args.measured)))
    if args.config:
        inputs = replace_inputs(inputs, load_config(Path(args.config)))
    stated = {
        name: (getattr(args, option), Origin(STATED, f"--{option.replace('_', '-')}"))
        for option, name in OPTIONS.items()
        if getattr(args, option) is not None
    }
    return taken._replace(inputs=replace_inputs(inputs, stated))


def _pool_inputs(deployment: Deployment) -> dict[str, tuple[Any, Origin]]:
    return {
        f"{name}_gpus_per_pod": (values["gpuCount"], Origin(STATED, "pools.json"))
        for name, values in deployment.pool_values().items()
        if name in ("nvdec", "vlm", "encode") and values.get("gpuCount")
    }


def _measured(inputs: Inputs, deployment: Deployment, args: argparse.Namespace) -> _Taken:
    """Take yields and bytes from the catalog, and speeds from workers, where there is enough."""
    from wsdata.observability.capacity_measure import measure
    from wsdata.observability.capacity_speeds import read_speeds, speed_inputs

    if "://" not in deployment.catalog and not Path(deployment.catalog).exists():
        return _Taken(inputs, [], [], [f"nothing measured: no catalog in {deployment.home}"])
    print("reading this deployment's catalog", file=sys.stderr)
    store = deployment.open_store()
    found = measure(deployment.open_ledger(), store)
    notes: list[str] = []
    shares: dict[str, float] = {}
    if found.raw_hours < args.min_hours or not found.values:
        notes.append(
            f"no yields that were measured are used: the catalog holds {found.raw_hours:.3g} "
            f"hours of raw video, fewer than --min-hours {args.min_hours:g}"
        )
    else:
        said = f"on {found.raw_hours:.3g} hours of raw video"
        notes.append(f"{len(found.values)} inputs are measured {said}")
        inputs, shares = replace_inputs(inputs, found.values), found.worked_shares
    speeds = read_speeds(store)
    timed = speed_inputs(speeds, args.min_worker_hours * HOUR_S, shares)
    least = f"--min-worker-hours {args.min_worker_hours:g}"
    for names, said in (
        (timed.values, "speeds measured by this deployment's own workers"),
        (timed.too_little, f"speeds not used, of less work than {least}"),
        (timed.without_gpu, "speeds of workers without a GPU, each of which stands for one GPU"),
    ):
        if names:
            notes.append(f"{len(names)} {said}: {', '.join(names)}")
    told = [speed.to_json() for speed in speeds]
    return _Taken(replace_inputs(inputs, timed.values), found.kill_rates, told, notes)


def _lines(data: dict[str, Any], *, is_long: bool) -> list[str]:
    lines = [*data["notes"], ""]
    inputs = [
        [name, short(each["value"]) if not isinstance(each["value"], str) else each["value"],
         each["origin"], each["note"]]
        for name, each in data["inputs"].items()
        if is_long or each["origin"] != "assumed"
    ]  # fmt: skip
    if inputs:
        lines += ["INPUTS", *table(["input", "value", "origin", "from"], inputs), ""]
    header = ["figure", "value", "unit", "section", "basis"]
    for section, found in data["figures"].items():
        lines += [section.upper(), *table(header, figure_rows(found)), ""]
    pools = [
        [name, short(each["work_hours"]), short(each["num_gpus"]), short(each["num_pods"]),
         each["basis"]]
        for name, each in data["pools"].items()
    ]  # fmt: skip
    weeks = data["inputs"]["weeks"]["value"]
    lines += [f"POOLS, for a build of {short(weeks)} weeks"]
    lines += table(["pool", "hours of work", "GPUs", "workers at once", "basis"], pools)
    if data["kill_rates"]:
        lines += ["", "KILL RATES, measured", *_kill_lines(data["kill_rates"])]
    if data["speeds"]:
        lines += ["", "SPEEDS, measured", *_speed_lines(data["speeds"])]
    if data["warnings"]:
        lines += ["", "WARNINGS", *(f"- {text}" for text in data["warnings"])]
    return [*lines, "", *_contradiction_lines(data["contradictions"], is_long=is_long)]


def _kill_lines(rates: list[dict[str, Any]]) -> list[str]:
    return table(
        ["filter", "saw", "stopped", "share", "typical"],
        [
            [r["filter"], r["num_in"], r["num_stopped"], f"{r['kill_share']:.1%}",
             "{:.0%} to {:.0%}".format(*r["typical"]) if r["typical"] else ""]
            for r in rates
        ],
    )  # fmt: skip


def _speed_lines(speeds: list[dict[str, Any]]) -> list[str]:
    def told(number: float | None) -> str:
        return short(number) if number else ""

    header = ["step", "unit", "code", "workers", "GPUs", "seconds", "units", "units/s",
              "x real time", "bytes/s"]  # fmt: skip
    return table(
        header,
        [
            [s["step"], s["kind"], s["code_version"], s["num_workers"], s["num_gpus"],
             short(s["worker_s"]), short(s["num_units"]), told(s["units_per_worker_s"]),
             told(s["realtime_factor"]), told(s["bytes_per_worker_s"])]
            for s in speeds
        ],
    )  # fmt: skip


def _contradiction_lines(found: list[dict[str, Any]], *, is_long: bool) -> list[str]:
    if not is_long:
        first = found[0]
        return [
            f"The reference design contradicts itself in {len(found)} places (--long tells all), "
            f"first of all in {first['sections']}: {first['stated']}. {first['found']}"
        ]
    lines = ["WHERE THE REFERENCE DESIGN CONTRADICTS ITSELF"]
    for each in found:
        lines += [f"- {each['sections']}: {each['stated']}", f"  {each['found']}"]
    return lines
