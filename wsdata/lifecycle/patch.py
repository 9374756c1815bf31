"""Patches: ``v3.1`` is ``v3`` without a cohort, from a step on.

A patch is a statement and a plan: no row, shard or slot of the version changes but the
excluded ones. Loaders take it at a step boundary. What becomes of one whose objects are lost
belongs to `patch_mend`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.digest import canonical_json
from wsdata.errors import CatalogError
from wsdata.ids import parse_version
from wsdata.lifecycle.patch_mend import PatchObject, objects_of, patches, publish_patch
from wsdata.lifecycle.pins import pin_of_patch
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.versions import all_versions, base_of, left_out, require_version
from wsdata.records import Fact
from wsdata.shard.plan_atoms import SampleTable
from wsdata.shard.plan_patch import apply_patch, changed_slots
from wsdata.shard.plan_step import plan_key
from wsdata.shard.publish import dataset_key, read_dataset

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.shard.plan import StepPlan
    from wsdata.store import BlobStore


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchResult:
    """A patch as published."""

    version: str
    parent: str
    from_step: int
    excluded: list[str]
    plan_id: str
    num_changed_slots: int  # that serve another sample than the parent's plan


def patch_version(
    ledger: Ledger, store: BlobStore, version: str, subjects: list[str], *, from_step: int
) -> PatchResult:
    """Publish the next patch of a version, or once more the very same whose objects are lost.

    Args:
        ledger: The ledger.
        store: The store.
        version: ``v3``, or a patch of it to exclude yet more.
        subjects: Asset, clip or sample ids of the version.
        from_step: First step that serves none of them.

    Raises:
        CatalogError: No such version, or a subject that is not in it.
        PlanError: A pool would be left empty.
    """
    require_version(ledger, version)
    base = base_of(version)
    table = read_table(ledger, store, "dataset_index", base)
    samples = samples_of(table, subjects)
    # All at once is asked for here, so the rows are at hand in memory.
    parent = load_plan(ledger, store, version).replaced(index=SampleTable(table))
    plan = apply_patch(parent, samples, from_step)
    name = _lost_patch(ledger, store, version, plan.plan_id)
    name = name or _next_patch(ledger, store, base, plan.plan_id)
    made = PatchObject(plan_key(plan.plan_id), name, plan.plan_id)
    store.put(made.key, canonical_json(plan.to_json()).encode())
    publish_patch(store, name, version, made, read_dataset(store, version))
    stated = ledger.present("dataset_version")
    if name not in stated:
        body = {"parent": version, "patch": _stated(ledger, version, samples, from_step, plan)}
        fact = Fact(kind="dataset_version", subject=name, body=body)
        pin = pin_of_patch(ledger, store, name, {**stated, name: body})
        ledger.state([fact, pin], step="dataset/patch")
    return PatchResult(
        version=name,
        parent=version,
        from_step=from_step,
        excluded=samples,
        plan_id=plan.plan_id,
        num_changed_slots=len(changed_slots(parent, plan, plan.num_steps)),
    )


def samples_of(index: pl.DataFrame, subjects: list[str]) -> list[str]:
    """Samples that asset, clip or sample ids name, sorted.

    Raises:
        CatalogError: Some name none, or nothing is named.
    """
    wanted = pl.Series(sorted(set(subjects)), dtype=pl.String)
    hits = index.filter(
        pl.col("sample_id").is_in(wanted.implode())
        | pl.col("clip_id").is_in(wanted.implode())
        | pl.col("asset_id").is_in(wanted.implode())
    )
    known = {value for name in ("sample_id", "clip_id", "asset_id") for value in hits[name]}
    if unknown := [subject for subject in wanted if subject not in known]:
        raise CatalogError(
            f"{len(unknown)} of {len(wanted)} ids are not in this dataset version, such as "
            f"{unknown[:3]}: give asset, clip or sample ids that it serves"
        )
    if hits.is_empty():
        raise CatalogError("nothing to exclude was named")
    return hits["sample_id"].sort().to_list()


def _stated(
    ledger: Ledger, parent: str, samples: list[str], from_step: int, plan: StepPlan
) -> dict[str, Any]:
    """What the ledger keeps of a patch: enough to make its plan again."""
    before = set(left_out(ledger, parent))
    again = sorted(before & set(samples))  # those that its parents leave out from another step
    return {
        "excluded": sorted({*samples, *before}),
        "from_step": from_step,
        "plan_id": plan.plan_id,
        **({"again": again} if again else {}),
    }


def _lost_patch(ledger: Ledger, store: BlobStore, parent: str, plan_id: str) -> str | None:
    """A patch of this parent with this plan, of which the pointer or the plan is gone."""
    for name, body in patches(ledger).items():
        is_same = body["patch"]["plan_id"] == plan_id and body["parent"] == parent
        if is_same and any(store.size(each.key) is None for each in objects_of(name, body)):
            return name
    return None


def _next_patch(ledger: Ledger, store: BlobStore, base: str, plan_id: str) -> str:
    """The next free name. One published by a patch that was killed is free for the same alone."""
    taken = [parse_version(name)[1] for name in all_versions(ledger) if base_of(name) == base]
    number = max(taken) + 1
    while store.size(dataset_key(f"{base}.{number}")) is not None:
        if read_dataset(store, f"{base}.{number}")["plan_id"] == plan_id:
            break
        number += 1
    return f"{base}.{number}"
