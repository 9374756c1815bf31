"""Patches: ``v3.1`` is ``v3`` without a cohort, from a step on.

A patch is a statement and a plan: no row, shard or slot of the version changes but the
excluded ones. Loaders take it at a step boundary.
"""

from dataclasses import dataclass

import polars as pl

from wsdata.catalog.ledger import Ledger
from wsdata.catalog.objects import read_table
from wsdata.digest import canonical_json
from wsdata.errors import CatalogError
from wsdata.ids import parse_version
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.versions import all_versions, base_of, require_version
from wsdata.records import Fact
from wsdata.shard.plan_patch import apply_patch
from wsdata.shard.publish import publish_dataset, read_dataset
from wsdata.store import BlobStore


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchResult:
    """A patch as published."""

    version: str
    parent: str
    from_step: int
    excluded: list[str]
    plan_id: str


def patch_version(
    ledger: Ledger, store: BlobStore, version: str, subjects: list[str], *, from_step: int
) -> PatchResult:
    """Publish the next patch of a version.

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
    samples = samples_of(read_table(ledger, store, "dataset_index", base), subjects)
    plan = apply_patch(load_plan(ledger, store, version), samples, from_step)
    earlier = ledger.present("dataset_version").get(version, {}).get("patch", {})
    excluded = sorted({*samples, *earlier.get("excluded", [])})
    name = _next_patch(ledger, base)
    plan_key = f"training/plans/{plan.plan_id}.json"
    store.put(plan_key, canonical_json(plan.to_json()).encode())
    pointer = read_dataset(store, version)
    body = {
        key: value for key, value in pointer.items() if key not in ("format_version", "version")
    }
    publish_dataset(
        store, name, {**body, "plan_key": plan_key, "plan_id": plan.plan_id, "parent": version}
    )
    patch = {"excluded": excluded, "from_step": from_step, "plan_id": plan.plan_id}
    ledger.state(
        [Fact(kind="dataset_version", subject=name, body={"parent": version, "patch": patch})],
        step="dataset/patch",
    )
    return PatchResult(
        version=name,
        parent=version,
        from_step=from_step,
        excluded=samples,
        plan_id=plan.plan_id,
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


def _next_patch(ledger: Ledger, base: str) -> str:
    taken = [parse_version(name)[1] for name in all_versions(ledger) if base_of(name) == base]
    return f"{base}.{max(taken) + 1}"
