"""``wsdata dataset export``: samples for other loaders, and where they went."""

import argparse
import time
from dataclasses import asdict
from typing import Any

from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment, table
from wsdata.cli.progress import progress_line

_NUM_NAMED = 20


def export(args: argparse.Namespace) -> Answer:
    """``dataset export``."""
    from wsdata.lifecycle.export import export_version
    from wsdata.lifecycle.export_choice import ExportOptions

    options = ExportOptions(
        format=args.format,
        order=args.order,
        steps=_steps(args.steps),
        seed=args.seed,
        bucket=args.bucket,
        max_bytes=args.max_bytes,
    )
    opened = open_deployment(args)
    started_s = time.monotonic()
    done = export_version(
        opened.ledger, opened.store, _version(args.version), args.out, options,
        num_threads=args.threads, is_linked=args.link,
        progress=progress_line("samples", "exported"),
    )  # fmt: skip
    whole = f", {done.num_whole_shards} of them whole shards" if options.format == "mds" else ""
    lines = [
        f"{done.version} as {done.format} in {done.where}: {done.num_samples:,} samples, "
        f"{done.num_files:,} files{whole}, {done.num_bytes:,} bytes, "
        f"{time.monotonic() - started_s:.1f} s",
        f"kept back: {done.num_left_out:,} samples that a patch, a takedown or a safety list "
        "leaves out",
        f"known to the ledger as {done.export_id}; when it is gone from there: "
        f"wsdata dataset exports --gone {done.export_id} --reason ...",
    ]
    return Answer(asdict(done), lines)


def export_check(args: argparse.Namespace) -> Answer:
    """``dataset export-check``: needs what was exported alone."""
    from wsdata.shard.export_check import check_export

    found = check_export(args.folder)
    faults = [f"  - {fault}" for fault in found.faults[:_NUM_NAMED]]
    more = len(found.faults) - len(faults)
    is_mendable = len(found.faults) > len(found.strays)
    lines = [
        f"{found.version} as {found.format}: {found.num_samples:,} samples in "
        f"{found.num_files:,} files, {found.num_bytes:,} bytes, {len(found.faults)} faults",
        *faults,
        *([f"  and {more} more"] if more else []),
        *(
            ["export it again to the same place: what is damaged is made anew"]
            if is_mendable
            else []
        ),
    ]
    data = {**found._asdict(), "is_whole": not found.faults}
    del data["sample_ids"]
    return Answer(data, lines, code=1 if found.faults else 0)


def exports(args: argparse.Namespace) -> Answer:
    """``dataset exports``: where bytes went, and that they are gone."""
    from wsdata.lifecycle.exported import all_exports, forget_export

    opened = open_deployment(args)
    if (args.gone is None) != (args.reason is None):
        raise ValueError("--gone EXPORT and --reason TEXT go together")
    if args.gone is not None:
        body = forget_export(opened.ledger, args.gone, args.reason)
        line = f"{args.gone} in {body['address']} holds nothing any more: {args.reason}"
        return Answer({"export_id": args.gone, **body}, [line])
    found = all_exports(opened.ledger)
    lines = table(
        ["export", "version", "format", "order", "samples", "state", "host", "where"],
        [
            [export_id, body["version"], body["format"], body["order"], body["num_samples"],
             body["state"], body["host"], body["address"]]
            for export_id, body in found.items()
        ],
    )  # fmt: skip
    data = [{"export_id": export_id, **body} for export_id, body in found.items()]
    return Answer(data, lines if found else ["nothing was exported"])


def holding_lines(exports_told: list[dict[str, Any]]) -> list[str]:
    """One line for each export that still holds bytes of some clips."""
    return [
        f"  holds bytes: export {each['export_id']} of {each['version']}, "
        f"{each['samples']} samples, in {each['where']} ({each['state']})"
        for each in exports_told
    ]


def _version(name: str) -> str:
    if name.endswith(".toml"):
        raise ValueError(
            f"{name}: an export is of one dataset version, and the steps of a run of several "
            "segments have none in their order: `wsdata plan run` tells version, seed and plan "
            "steps of each segment; export them one by one, with --order plan --steps --seed"
        )
    return name


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal()):
        raise ValueError(f"--steps {text}: expected A:B, the first step and the one after the last")
    return int(first), int(end)
