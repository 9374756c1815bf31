"""``wsdata drop``: deliveries."""

import argparse
import json
from pathlib import Path

from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment, table
from wsdata.errors import WsdataError
from wsdata.ingest.delivery import (
    Declaration,
    check_drop,
    inspect_drop,
    make_drop,
    source_name,
)
from wsdata.ingest.landing import FolderLanding, open_landing, ready_drops


def make(args: argparse.Namespace) -> Answer:
    """``drop make``."""
    opened = open_deployment(args)
    folder = Path(args.folder)
    declaration = Declaration(
        source_tier=args.tier,
        source=args.source or source_name(folder),
        license_id=args.license,
        territory=args.territory,
        rights_from=args.rights_from,
        rights_until=args.rights_until,
        generator=args.generator,
    )
    records = _read_sidecar(Path(args.records)) if args.records else []
    zone = open_landing(opened.deployment.landing)
    key = make_drop(folder, zone, declaration, records=records)
    where = zone.place(key)
    return Answer({"drop": key, "folder": where}, [f"drop {key} lies ready in {where}"])


def _read_sidecar(path: Path) -> list[dict]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, json.JSONDecodeError) as error:
        raise WsdataError(f"{path}: expected one JSON record a line: {error}") from error


def check(args: argparse.Namespace) -> Answer:
    """``drop check``."""
    folder = Path(args.folder)
    if not folder.is_dir():
        raise WsdataError(f"{folder} is not a folder")
    folder = folder.absolute()  # its name is the drop's
    faults, media = inspect_drop(FolderLanding(folder.parent), folder.name)
    data = {"drop": folder.name, "ok": not faults, "faults": faults}
    lines = [f"{folder.name}: {fault}" for fault in faults] or [
        f"{folder.name} keeps the contract: {len(media)} media files"
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
