"""``wsdata capacity``: what a corpus and a run take, and how large the pools must be."""

import argparse
import sys
from pathlib import Path
from typing import Any

from wsdata.cli.main import Answer
from wsdata.cli.opened import table
from wsdata.deployment import Deployment, load_deployment
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
    inputs, kill_rates, notes = _inputs(args)
    if args.helm_values:
        values = helm_values(size_pools(inputs.values))
        return Answer(values, [f"# {note}" for note in notes] + helm_lines(inputs))
    data = answer(inputs, kill_rates)
    data["notes"] = notes
    return Answer(data, _lines(data, is_long=args.long))


def _inputs(args: argparse.Namespace) -> tuple[Inputs, list[Any], list[str]]:
    """The reference, then what the deployment says and has measured, files, options."""
    inputs, kill_rates, notes = reference_inputs(), [], []
    if not args.reference:
        deployment = load_deployment(Path(args.home) if args.home else None)
        inputs = replace_inputs(inputs, _pool_inputs(deployment))
        inputs, kill_rates, notes = _measured(inputs, deployment, args.min_hours)
    if args.measured:
        inputs = replace_inputs(inputs, load_measured(Path(args.measured)))
    if args.config:
        inputs = replace_inputs(inputs, load_config(Path(args.config)))
    stated = {
        name: (getattr(args, option), Origin(STATED, f"--{option.replace('_', '-')}"))
        for option, name in OPTIONS.items()
        if getattr(args, option) is not None
    }
    return replace_inputs(inputs, stated), kill_rates, notes


def _pool_inputs(deployment: Deployment) -> dict[str, tuple[Any, Origin]]:
    return {
        f"{name}_gpus_per_pod": (values["gpuCount"], Origin(STATED, "pools.json"))
        for name, values in deployment.pool_values().items()
        if name in ("nvdec", "vlm", "encode") and values.get("gpuCount")
    }


def _measured(
    inputs: Inputs, deployment: Deployment, min_hours: float
) -> tuple[Inputs, list[Any], list[str]]:
    """Take yields and bytes from the catalog, where it holds enough to go by."""
    from wsdata.observability.capacity_measure import measure

    if "://" not in deployment.catalog and not Path(deployment.catalog).exists():
        return inputs, [], [f"nothing measured: no catalog in {deployment.home}"]
    print("reading this deployment's catalog", file=sys.stderr)
    found = measure(deployment.open_ledger(), deployment.open_store())
    if found.raw_hours < min_hours or not found.values:
        note = (
            f"nothing measured is used: the catalog holds {found.raw_hours:.3g} hours of raw "
            f"video, fewer than --min-hours {min_hours:g}"
        )
        return inputs, found.kill_rates, [note]
    note = f"{len(found.values)} inputs are measured on {found.raw_hours:.3g} hours of raw video"
    return replace_inputs(inputs, found.values), found.kill_rates, [note]


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
