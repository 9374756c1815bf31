"""``wsdata drop``: deliveries."""

import argparse
from pathlib import Path

from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment, table
from wsdata.errors import WsdataError
from wsdata.ingest.delivery import check_drop, inspect_drop, make_drop, payload_faults
from wsdata.ingest.landing import FolderLanding, open_landing, ready_drops
from wsdata.ingest.making import plan_drop


def make(args: argparse.Namespace) -> Answer:
    """``drop make``: what is not stated is found out, or assumed and told."""
    opened = open_deployment(args)
    folder, level = Path(args.folder), opened.deployment.sandbox_minimum
    stated = {
        "source_tier": args.tier,
        "source": args.source,
        "license_id": args.license,
        "territory": args.territory,
        "rights_from": args.rights_from,
        "rights_until": args.rights_until,
        "generator": args.generator,
        "continuous": args.continuous or None,
    }
    records = Path(args.records) if args.records else None
    plan = plan_drop(folder, stated, records=records, minimum_level=level)
    zone = open_landing(opened.deployment.landing)
    key = make_drop(
        folder,
        zone,
        plan.declaration,
        records=plan.records,
        tracks=plan.tracks,
        minimum_level=level,
    )
    where = zone.place(key)
    data = {"drop": key, "folder": where, "assumed": plan.assumed, "left_out": plan.left_out}
    lines = [f"assumed: {choice}" for choice in plan.assumed]
    lines += [f"left out, not a media file: {name}" for name in plan.left_out]
    return Answer(data, [*lines, f"drop {key} lies ready in {where}"])


def check(args: argparse.Namespace) -> Answer:
    """``drop check``."""
    folder = Path(args.folder)
    if not folder.is_dir():
        raise WsdataError(f"{folder} is not a folder")
    folder = folder.absolute()  # its name is the drop's
    zone = FolderLanding(folder.parent)
    faults, media, payloads = inspect_drop(zone, folder.name)
    faults += payload_faults(zone, folder.name, payloads)
    data = {"drop": folder.name, "ok": not faults, "faults": faults}
    lines = [f"{folder.name}: {fault}" for fault in faults] or [
        f"{folder.name} keeps the contract: {len(media)} media files"
        + (f", {len(payloads)} payloads" if payloads else "")
    ]
    return Answer(data, lines, code=1 if faults else 0)


def list_drops(args: argparse.Namespace) -> Answer:
    """``drop list``."""
    opened = open_deployment(args)
    zone = open_landing(opened.deployment.landing)
    landed = {ref.partition: ref.num_rows for ref in opened.ledger.live("raw_assets")}
    ready = {name for name, _ in ready_drops(zone, known=landed)}
    clips = {ref.partition: ref.num_rows for ref in opened.ledger.live("clips")}
    rows = []
    for name in sorted(ready | set(landed)):
        faults = [] if name in landed else check_drop(zone, name)
        state = "landed" if name in landed else "refused" if faults else "ready"
        rows.append(
            {
                "drop": name,
                "state": state,
                "raw_assets": landed.get(name, 0),
                "clips": clips.get(name, 0),
                "faults": faults,
            }
        )
    return Answer(
        rows,
        table(
            ["drop", "state", "raw assets", "clips", "faults"],
            [
                [r["drop"], r["state"], r["raw_assets"], r["clips"], "; ".join(r["faults"])]
                for r in rows
            ],
        ),
    )
