"""Backup, restore and check of the catalog's ledger."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from wsdata.catalog import transfer
from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment

if TYPE_CHECKING:
    import argparse


def export_catalog(args: argparse.Namespace) -> Answer:
    """Dump the ledger's history to a file."""
    extent = transfer.export_catalog(open_deployment(args).ledger, Path(args.file), _tell)
    return Answer(
        {"file": args.file, **asdict(extent)}, [f"{args.file}: {_said(extent)}, and it verifies"]
    )


def import_catalog(args: argparse.Namespace) -> Answer:
    """Put a dump into an empty ledger."""
    ledger = open_deployment(args).ledger
    extent = transfer.import_catalog(ledger, Path(args.file), _tell)
    lines = [
        f"{ledger.url}: {_said(extent)}, and it verifies",
        "next: `wsdata fsck` compares it with the store",
    ]
    return Answer({"ledger": ledger.url, **asdict(extent)}, lines)


def verify_catalog(args: argparse.Namespace) -> Answer:
    """Check the ledger's history against its chain."""
    ledger = open_deployment(args).ledger
    extent = transfer.verify_catalog(ledger)
    return Answer({"ledger": ledger.url, **asdict(extent)}, [f"{_said(extent)}: all as chained"])


def _said(extent: transfer.Extent) -> str:
    counts = f"{extent.num_commits:,} commits, {extent.num_objects:,} objects"
    return f"{counts}, {extent.num_facts:,} facts"


def _tell(num_done: int, num_all: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{num_done:,} of {num_all:,} commits", end="", file=sys.stderr, flush=True)
