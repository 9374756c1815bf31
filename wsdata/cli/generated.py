"""``wsdata generated``: fingerprints of what models made."""

import argparse
from pathlib import Path

from wsdata.catalog.objects import read_object
from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment, table
from wsdata.ingest import registered


def register(args: argparse.Namespace) -> Answer:
    """``generated register``."""
    if (args.file is None) == (args.from_media is None):
        raise ValueError("expected a file of fingerprints, or --from-media FOLDER, and not both")
    opened = open_deployment(args)
    level = opened.deployment.sandbox_minimum
    unread: list[str] = []
    if args.from_media is not None:
        rows, unread = registered.print_folder(Path(args.from_media), minimum_level=level)
    else:
        rows = registered.read_registration(Path(args.file), minimum_level=level)
    told = registered.register(opened.ledger, opened.store, rows, generator=args.generator)
    news = "registered" if told["is_new"] else "was registered already"
    lines = [
        f"{told['registration']} {news}: {told['num_prints']} fingerprints of "
        f"{told['num_items']} items by {told['generator']}",
        *(f"not printed: {one}" for one in unread),
    ]
    return Answer({**told, "unread": unread}, lines, code=1 if unread else 0)


def list_registrations(args: argparse.Namespace) -> Answer:
    """``generated list``."""
    opened = open_deployment(args)
    found = []
    for ref in opened.ledger.live(registered.TABLE):
        rows = read_object(opened.store, ref)
        found.append(
            {
                "registration": ref.partition,
                "generator": rows["generator"][0],
                "num_items": rows["item_id"].n_unique(),
                "num_prints": ref.num_rows,
            }
        )
    return Answer(
        found,
        table(
            ["registration", "generator", "items", "fingerprints"],
            [list(one.values()) for one in found],
        ),
    )
