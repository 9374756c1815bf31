"""Exposure: eval material that was listed only after it had been landed and used.

The carve comes first, so an asset on the eval list is sealed when it lands. One that was listed
later lies in the raw store, and may have been trained on: this tells where. Nothing is changed
here; what takes it out of every version to come is a takedown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

STATES = ("sealed", "exposed", "taken_down", "not_landed")

Uses = dict[str, Any]


def listed_states(
    ledger: Ledger, store: BlobStore, eval_sets: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Tell of each asset on the eval list where it is.

    Args:
        ledger: The ledger.
        store: The store.
        eval_sets: Asset id -> names of the eval sets that list it.

    Returns:
        Per asset, sorted by id: ``asset_id``, ``sets``, ``state`` (one of STATES),
        ``is_fit_for_eval``, ``landed``: ``drop``, ``path`` and ``in_vault`` of each delivery.
        Synthetic material is never fit. An asset is exposed where any delivery lies outside.
    """
    wanted = pl.col("asset_id").is_in(list(eval_sets))
    found_rows = read_rows(store, [(ref, wanted) for ref in ledger.live("provenance")])
    rows = pl.concat([tables.empty("provenance"), *found_rows])
    stones = ledger.present("tombstone")
    landed: dict[str, list[dict[str, Any]]] = {}
    for row in rows.sort("asset_id", "drop", "path").iter_rows(named=True):
        landed.setdefault(row["asset_id"], []).append(row)
    found: list[dict[str, Any]] = []
    for asset_id, sets in sorted(eval_sets.items()):
        deliveries = landed.get(asset_id, [])
        found.append(
            {
                "asset_id": asset_id,
                "sets": list(sets),
                "state": _state(deliveries, is_withheld=asset_id in stones),
                "is_fit_for_eval": all(row["source_tier"] != "synthetic" for row in deliveries),
                "landed": [
                    {name: row[name] for name in ("drop", "path", "in_vault")} for row in deliveries
                ],
            }
        )
    return found


def _state(deliveries: list[dict[str, Any]], *, is_withheld: bool) -> str:
    if not deliveries:
        return "not_landed"
    if all(row["in_vault"] for row in deliveries):
        return "sealed"
    return "taken_down" if is_withheld else "exposed"


def exposures(states: Sequence[dict[str, Any]], uses_of: Callable[[str], Uses]) -> list[dict]:
    """Tell of each asset that lies outside the vault where it has been used.

    Args:
        states: What `listed_states` gives.
        uses_of: Asset id -> ``twins``, ``clips``, and ``versions`` and ``exports`` that hold them,
            as a takedown that is only tried reports them.

    Returns:
        Per asset that is exposed or taken down: all that its state says, and ``twins``, ``clips``,
        ``versions`` (``version, samples, shards``, ``first_step, num_steps`` of its plan, and
        ``served`` and ``served_unknown`` of training runs) and ``exports`` that hold any, and
        ``to_do``.
    """
    found: list[dict[str, Any]] = []
    for state in states:
        if state["state"] not in ("exposed", "taken_down"):
            continue
        uses = uses_of(state["asset_id"])
        versions = [use for use in uses["versions"] if use["samples"]]
        found.append(
            {
                **state,
                "twins": uses["twins"],
                "clips": uses["clips"],
                "versions": versions,
                "exports": uses["exports"],
                "to_do": _to_do(state, versions, uses["exports"]),
            }
        )
    return found


def _to_do(state: dict[str, Any], versions: list[Uses], exports: list[Uses]) -> list[str]:
    asset_id, sets = state["asset_id"], ", ".join(state["sets"]) or "the eval list"
    steps: list[str] = []
    if state["state"] == "exposed":
        steps.append(f'wsdata takedown request --asset {asset_id} --reason "listed late in {sets}"')
    if versions:
        names = ", ".join(use["version"] for use in versions)
        steps.append(f"cut a new dataset version: {names} hold it, and their pins keep it")
    steps += [
        f"delete the export in {each['where']}, with its copies; then wsdata "
        f"dataset exports --gone {each['export_id']} --reason ..."
        for each in exports
    ]
    runs = sorted({served["run"] for use in versions for served in use["served"]})
    if runs:
        steps.append(f"report no score for {sets} of models of these runs: {', '.join(runs)}")
    if any(use["num_steps"] for use in versions):
        steps.append(
            f"ask of runs that told nothing of what they were served before reporting for {sets}: "
            "the plans of these versions serve it"
        )
    return steps or ["nothing: no version holds it"]
