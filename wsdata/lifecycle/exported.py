"""What was exported, where to: so that a takedown can say who else holds the bytes.

Fact ``export`` about the export's id (of version, options, host and place) is stated before the
first byte leaves, and again when the last has left. It is withdrawn when somebody states that the
folder or prefix is gone. Making exports is `export`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wsdata.errors import CatalogError
from wsdata.lifecycle.plans import load_indexed_plan
from wsdata.records import Fact

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

KIND = "export"
_TOLD = ("version", "format", "host", "address", "state")


def state_export(ledger: Ledger, export_id: str, body: dict[str, Any]) -> None:
    """State where an export stands, unless the very same was stated last."""
    if ledger.present(KIND).get(export_id) != body:
        ledger.state([Fact(kind=KIND, subject=export_id, body=body)], step="dataset/export")


def all_exports(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Every export that may still hold bytes, by its id."""
    return {each: {"host": "unknown", **body} for each, body in ledger.present(KIND).items()}


def forget_export(ledger: Ledger, export_id: str, reason: str) -> dict[str, Any]:
    """State that an export is gone from its place, with every copy of it.

    Raises:
        CatalogError: There is no such export.
    """
    known = all_exports(ledger)
    if export_id not in known:
        raise CatalogError(f"no export {export_id!r}: there are {', '.join(known) or 'none'}")
    body = {**known[export_id], "withdrawn": True, "reason": reason}
    ledger.state([Fact(kind=KIND, subject=export_id, body=body)], step="dataset/exports")
    return body


def exports_holding(ledger: Ledger, store: BlobStore, clips: list[str]) -> list[dict[str, Any]]:
    """Exports that hold bytes of any of some clips.

    Returns:
        ``export_id, version, format, host, address, state, where, samples`` of each, by its id;
        ``host`` is null where the address means the same to every host, ``where`` is both in words,
        and ``samples`` are the different ones of those clips.
    """
    found = [
        {
            "export_id": export_id,
            **{name: body[name] for name in _TOLD},
            "where": body["address"] + (f" of {body['host']}" if body["host"] else ""),
            "samples": len(_held(ledger, store, body, clips)),
        }
        for export_id, body in all_exports(ledger).items()
    ]
    return [each for each in found if each["samples"]]


def _held(ledger: Ledger, store: BlobStore, body: dict[str, Any], clips: list[str]) -> set[str]:
    """Samples of some clips that an export holds, or may hold where it was not finished."""
    if not clips:
        return set()
    plan, index = load_indexed_plan(ledger, store, body["version"])
    rows = np.concatenate([index.rows_of_clip(clip) for clip in clips])
    held = {
        row: placement.sample_id
        for row, placement in zip(rows.tolist(), index.placements(rows), strict=True)
        if body["bucket"] in (None, placement.bucket)
    }
    samples = set(held.values()) - set(body["without"])
    if body["steps"] is None or not samples:
        return samples
    if body["seed"] is not None:
        plan = plan.replaced(seed=body["seed"])
    first, end = body["steps"]
    served = plan.where_rows(np.array(list(held)), from_step=first, until_step=end)
    steps = {each.step for each in served}
    return samples & {sample.sample_id for step in steps for sample in plan.samples(step)}
