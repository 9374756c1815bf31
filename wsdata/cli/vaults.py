"""``wsdata vault``: the eval list, and where its assets are. Bytes of members are never read."""

import argparse
from pathlib import Path
from typing import Any

from wsdata.cli.exports import holding_lines
from wsdata.cli.main import Answer
from wsdata.cli.opened import Opened, open_deployment, table
from wsdata.deployment import parse_eval_list
from wsdata.errors import WsdataError


def list_members(args: argparse.Namespace) -> Answer:
    """``vault list``."""
    from wsdata.ingest.exposure import listed_states

    opened = open_deployment(args)
    states = listed_states(opened.ledger, opened.store, opened.deployment.read_eval_sets())
    rows: list[list[object]] = [
        [
            each["asset_id"][:16],
            " ".join(each["sets"]),
            each["state"],
            "" if each["is_fit_for_eval"] else "unfit: synthetic",
            " ".join(sorted({row["drop"] for row in each["landed"]})),
        ]
        for each in states
    ]
    header = ["asset", "eval sets", "state", "fit", "drops"]
    return Answer(states, table(header, rows) if rows else ["no asset is listed"])


def add(args: argparse.Namespace) -> Answer:
    """``vault add``: append to the eval list; nothing is ever taken from it."""
    deployment = open_deployment(args).deployment
    path, name = Path(deployment.eval_list), args.set or ""
    if name and (name.split() != [name] or "#" in name):
        raise WsdataError(f"eval set {name!r}: expected a name without spaces or #")
    try:
        wanted = parse_eval_list(Path(args.file).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise WsdataError(
            f"{args.file} is no text ({error.reason} at byte {error.start}): expected a list of "
            "asset ids (the sha256 of each file), one a line"
        ) from error
    known = deployment.read_eval_sets()
    lines = [
        " ".join([asset_id, *new])
        for asset_id, names in wanted.items()
        if (
            new := [
                n
                for n in sorted({*names, *filter(None, [name])})
                if n not in known.get(asset_id, ())
            ]
        )
        or asset_id not in known
    ]
    if lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        gap = "\n" if text and not text.endswith("\n") else ""
        with path.open("a", encoding="utf-8") as handle:
            handle.write(gap + "".join(f"{line}\n" for line in lines))
    told = f"{len(lines)} of {len(wanted)} assets were added to {path}"
    hint = "run `wsdata vault exposure`: some may have been landed before"
    return Answer({"added": len(lines), "named": len(wanted), "eval_list": str(path)}, [told, hint])


def exposure(args: argparse.Namespace) -> Answer:
    """``vault exposure``: exit code 1 while something exposed has not been taken down."""
    from wsdata.ingest.exposure import exposures, listed_states

    opened = open_deployment(args)
    sets = opened.deployment.read_eval_sets()
    states = listed_states(opened.ledger, opened.store, sets)
    found = exposures(states, lambda asset_id: _uses(opened, asset_id))
    lines = [line for each in found for line in _lines(each)] or [
        f"none of {len(states)} listed assets lies outside the vault"
    ]
    is_open = any(each["state"] == "exposed" for each in found)
    return Answer({"listed": len(states), "exposed": found}, lines, code=1 if is_open else 0)


def _uses(opened: Opened, asset_id: str) -> dict[str, Any]:
    from wsdata.lifecycle.takedown import request_takedown
    from wsdata.lifecycle.tombstone import Criteria

    return request_takedown(
        opened.ledger,
        opened.store,
        Criteria(assets=(asset_id,)),
        reason="listed late",
        is_dry_run=True,
    )


def _lines(each: dict[str, Any]) -> list[str]:
    from wsdata.lifecycle.served_use import use_lines

    sets = ", ".join(each["sets"]) or "no set"
    drops = ", ".join(f"{row['drop']}/{row['path']}" for row in each["landed"])
    fit = "" if each["is_fit_for_eval"] else "; synthetic, unfit as eval material"
    state = each["state"].replace("_", " ")
    lines = [
        f"{each['asset_id']} ({sets}): {state}{fit}",
        f"  landed as {drops}; {len(each['clips'])} clips, {len(each['twins'])} twins",
    ]
    for use in each["versions"]:
        planned = (
            f"planned at {use['num_steps']} steps, first at {use['first_step']}"
            if use["num_steps"]
            else "planned at no step"
        )
        shards = ", ".join(str(shard) for shard in use["shards"])
        lines.append(f"  {use['version']}: {use['samples']} samples, {planned}; shards {shards}")
        told = use_lines(use["served"], by_version=False)
        lines += [f"    {line}" for line in told or ["no run has told that it was served it"]]
        lines += [f"    not known: {each}" for each in use["served_unknown"]]
    lines += holding_lines(each["exports"])
    return [*lines, *(f"  to do: {step}" for step in each["to_do"])]
