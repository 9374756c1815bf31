"""The deployment that a command talks to, opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wsdata.deployment import Deployment, load_deployment

if TYPE_CHECKING:
    import argparse

    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


class Opened(NamedTuple):
    """A deployment with its ledger and store."""

    deployment: Deployment
    ledger: Ledger
    store: BlobStore


def open_deployment(args: argparse.Namespace) -> Opened:
    """Open what ``--home`` or the environment names."""
    deployment = load_deployment(Path(args.home) if args.home else None)
    return Opened(deployment, deployment.open_ledger(), deployment.open_store())


def table(header: list[str], rows: list[list[object]]) -> list[str]:
    """Lay rows out in columns for a terminal; numbers to the right."""
    cells = [header, *[["" if cell is None else str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [
        bool(rows) and all(isinstance(row[i], (int, float)) for row in rows)
        for i in range(len(header))
    ]
    return [
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
