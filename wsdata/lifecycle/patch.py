"""Patches: ``v3.1`` is ``v3`` without a cohort, from a step on.

A patch is a statement and a plan: no row, shard or slot of the version changes but the
excluded ones. Loaders take it at a step boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.digest import canonical_json
from wsdata.errors import CatalogError
from wsdata.ids import parse_version
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.versions import all_versions, base_of, left_out, require_version
from wsdata.records import Fact
from wsdata.shard.plan_atoms import SampleTable
from wsdata.shard.plan_patch import apply_patch, changed_slots
from wsdata.shard.publish import dataset_key, publish_dataset, read_dataset

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
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
    excluded = sorted({*samples, *left_out(ledger, version)})
    name = _lost_patch(ledger, store, version, plan.plan_id)
    name = name or _next_patch(ledger, store, base, plan.plan_id)
    plan_key = _plan_key(plan.plan_id)
    store.put(plan_key, canonical_json(plan.to_json()).encode())
    pointer = read_dataset(store, version)
    body = {
        key: value for key, value in pointer.items() if key not in ("format_version", "version")
    }
    publish_dataset(
        store, name, {**body, "plan_key": plan_key, "plan_id": plan.plan_id, "parent": version}
    )
    patch = {"excluded": excluded, "from_step": from_step, "plan_id": plan.plan_id}
    if name not in ledger.present("dataset_version"):
        fact = Fact(kind="dataset_version", subject=name, body={"parent": version, "patch": patch})
        ledger.state([fact], step="dataset/patch")
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


def objects_of_patches(ledger: Ledger) -> dict[str, tuple[str, str]]:
    """Pointer and plan of each patch, which a trainer needs: key -> (patch, id of its plan)."""
    return {
        key: (name, body["patch"]["plan_id"])
        for name, body in ledger.present("dataset_version").items()
        if "patch" in body
        for key in (dataset_key(name), _plan_key(body["patch"]["plan_id"]))
    }


def how_to_mend(ledger: Ledger, name: str) -> dict[str, Any]:
    """What to do where objects of a patch are lost, and the samples to exclude in it."""
    body = ledger.present("dataset_version")[name]
    before = set(left_out(ledger, body["parent"]))
    samples = [each for each in body["patch"]["excluded"] if each not in before]
    return {
        "to_do": f"repeat `wsdata dataset patch {body['parent']} --exclude FILE --from-step "
        f"{body['patch']['from_step']}`, which publishes {name} again; FILE lists the "
        f"{len(samples)} samples that `wsdata fsck --json` gives here as exclude",
        "exclude": samples,
    }


def _plan_key(plan_id: str) -> str:
    return f"training/plans/{plan_id}.json"


def _lost_patch(ledger: Ledger, store: BlobStore, parent: str, plan_id: str) -> str | None:
    """A patch of this parent with this plan, of which the pointer or the plan is gone."""
    for name, body in ledger.present("dataset_version").items():
        if body.get("patch", {}).get("plan_id") == plan_id and body["parent"] == parent:
            keys = (dataset_key(name), _plan_key(plan_id))
            if any(store.size(key) is None for key in keys):
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
