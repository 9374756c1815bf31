"""Takedown: a rights request becomes tombstones at once, and a report of where it was used.

Nothing is decoded or encoded again: the next cut leaves every descendant out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_table
from wsdata.curate.withheld import withheld_clips
from wsdata.digest import digest, short_digest
from wsdata.errors import CatalogError
from wsdata.lifecycle.exported import exports_holding
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.served_use import ServedRuns, uses
from wsdata.lifecycle.tombstone import Criteria, copies, named_assets, twins_of
from wsdata.lifecycle.versions import all_versions, base_of, left_out, next_version
from wsdata.orders import FactInput, Step, StepResult, StepRun
from wsdata.records import Fact
from wsdata.shard.plan_atoms import SampleTable
from wsdata.shard.publish import dataset_key

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

STEP = Step(
    stage="lifecycle",
    name="takedowns",
    function="wsdata.lifecycle.takedown:run",
    code_version="takedowns-1",
    partition="none",
    assets={"takedowns": ("takedowns",)},
    facts=(FactInput(kind="takedown"),),
    description="Every takedown so far: the assets it named, their twins, the clips they gave.",
)


def run(run: StepRun) -> StepResult:
    """List all takedowns as rows."""
    requests = run.order.facts["takedown"]
    rows = [
        {
            "request_id": request_id,
            "asset_id": asset_id,
            "role": role,
            "num_clips": body["clips_of"].get(asset_id, 0),
            "reason": body["reason"],
        }
        for request_id, body in requests.items()
        for role, ids in (("named", body["assets"]), ("twin", body["twins"]))
        for asset_id in ids
    ]
    lines = ["| request | assets | twins | clips | reason |", "|---|---:|---:|---:|---|"]
    lines += [
        f"| {request_id} | {len(body['assets'])} | {len(body['twins'])} "
        f"| {sum(body['clips_of'].values())} | {body['reason']} |"
        for request_id, body in requests.items()
    ]
    return StepResult(
        tables={"takedowns": tables.rows_of("takedowns", rows)},
        metrics={"requests": len(requests), "assets": len(rows)},
        display={"takedowns": {"requests": {"type": "md", "raw_value": "\n".join(lines)}}},
    )


def request_takedown(
    ledger: Ledger, store: BlobStore, criteria: Criteria, *, reason: str, is_dry_run: bool = False
) -> dict[str, Any]:
    """Exclude what a request names, and its twins, from every version cut from now on.

    Args:
        ledger: The ledger.
        store: The store.
        criteria: What the request names.
        reason: Who asks and why; kept.
        is_dry_run: Report alone, exclude nothing.

    Returns:
        ``request_id, assets, twins, clips, versions, next_version``. Clips of other raw assets
        that show part of the material are among the clips.

    Raises:
        CatalogError: The request names nothing that was landed.
    """
    assets = named_assets(ledger, store, criteria)
    twins = twins_of(ledger, store, assets)
    clips = _clips_of(ledger, store, [*assets, *twins])
    counts = {asset: clips["asset_id"].eq(asset).sum() for asset in [*assets, *twins]}
    body: dict[str, Any] = {
        "criteria": asdict(criteria),
        "reason": reason,
        "assets": assets,
        "twins": twins,
        "clips_of": counts,
        "next_version": next_version(ledger),
    }
    request_id = "t" + short_digest([body["criteria"], reason, assets, twins])
    if not is_dry_run and request_id not in ledger.present("takedown"):
        facts = [Fact(kind="takedown", subject=request_id, body=body)]
        facts += [
            Fact(kind="tombstone", subject=asset, body={"request_id": request_id, "role": role})
            for role, ids in (("named", assets), ("twin", twins))
            for asset in ids
        ]
        ledger.state(facts, step="takedown/request")
    return {"is_dry_run": is_dry_run, **_report(ledger, store, request_id, body, clips)}


def report_takedown(ledger: Ledger, store: BlobStore, request_id: str) -> dict[str, Any]:
    """Tell what a takedown excluded, and where its material was used before.

    Raises:
        CatalogError: There is no such request.
    """
    requests = ledger.present("takedown")
    if request_id not in requests:
        known = ", ".join(requests) or "none"
        raise CatalogError(f"no takedown {request_id!r}: there are {known}")
    body = dict(requests[request_id])
    # Copies that came after the request are withheld under it too.
    body["twins"] = sorted({*body["twins"], *twins_of(ledger, store, body["assets"])})
    clips = _clips_of(ledger, store, [*body["assets"], *body["twins"]])
    report = _report(ledger, store, request_id, body, clips)
    return report | {"report_digest": digest(report)}


def _report(
    ledger: Ledger, store: BlobStore, request_id: str, body: dict[str, Any], clips: pl.DataFrame
) -> dict[str, Any]:
    ids = clips["clip_id"].to_list()
    return {
        "request_id": request_id,
        "assets": body["assets"],
        "twins": body["twins"],
        "clips": ids,
        "versions": _uses_of(ledger, store, ids),
        "exports": exports_holding(ledger, store, ids),  # copies that still hold bytes
        "next_version": body["next_version"],
    }


def _uses_of(ledger: Ledger, store: BlobStore, clips: list[str]) -> list[dict[str, Any]]:
    """Where some clips are used: by what each version's plan serves, and what runs were served."""
    runs = ServedRuns(ledger, store)
    found: list[dict[str, Any]] = []
    for version in all_versions(ledger):
        times, unknown = runs.times(clips, version=version)
        served = {"served": uses(times), "served_unknown": unknown}
        found.append(use_in(ledger, store, version, clips) | served)
    return found


def use_in(ledger: Ledger, store: BlobStore, version: str, clips: list[str]) -> dict[str, Any]:
    """Where some clips are used in a dataset version: samples, shards and steps of its plan.

    What a patch leaves out counts where its plan serves it before the patch's first step.
    """
    index = read_table(ledger, store, "dataset_index", base_of(version))
    mine = index.filter(pl.col("clip_id").is_in(clips))
    steps, served = _plan_of(ledger, store, version, index, mine["clip_id"].unique().to_list())
    is_left = ~pl.col("sample_id").is_in(left_out(ledger, version))
    used = mine.filter(is_left | pl.col("sample_id").is_in(served))
    return {
        "version": version,
        "samples": used.height,
        "shards": sorted(used["shard"].unique()),
        "first_step": min(steps, default=None),
        "num_steps": len(steps),
    }


def _plan_of(
    ledger: Ledger, store: BlobStore, version: str, index: pl.DataFrame, clips: list[str]
) -> tuple[set[int], list[str]]:
    """Steps that serve any of the clips, and which of their samples they serve.

    Where no plan can be asked, no step, but all samples: it may have served each.
    """
    table = SampleTable(index)
    rows = table.rows_of_clips(clips)
    if not clips or store.size(dataset_key(version)) is None:
        return set(), [sample for sample, _ in table.names(rows)]
    plan = load_plan(ledger, store, version)
    steps: set[int] = set()
    found: set[int] = set()
    for pool, places in plan.places_of(rows).items():
        # What a later patch leaves out may stand in for what an earlier one did.
        touched = [each.excluded[pool].all() for each in plan.patches if pool in each.excluded]
        asked = np.unique(np.concatenate([places, *touched]))
        for draws in plan.draws_of(pool, asked, until_step=plan.num_steps):
            drawn = plan.serve(draws)
            mine = np.isin(drawn, places)
            steps |= set(cast("list[int]", draws.steps[mine].tolist()))
            met = plan.rows_of(draws._replace(places=drawn))[mine]
            found |= set(cast("list[int]", met.tolist()))
    names = table.names(np.array(sorted(found), dtype=np.int64))
    return steps, [sample for sample, _ in names]


def _clips_of(ledger: Ledger, store: BlobStore, assets: list[str]) -> pl.DataFrame:
    """Clips that tombstones of some assets withhold, asked as the cut asks."""
    clips = read_table(ledger, store, "clips").unique("clip_id")
    pairs = read_table(ledger, store, "match_pairs")
    stones: dict[str, dict[str, Any]] = {asset: {} for asset in assets}
    withheld = withheld_clips(clips, copies(ledger, store), pairs, stones)
    return clips.join(withheld, on="clip_id", how="semi").sort("clip_id")
