"""What a patch consists of, what of it is lost or damaged, and how it is published again.

A patch is a pointer and a plan, both of which follow from the ledger and from what its base has:
so what is made again is the same, byte by byte, or it is not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wsdata.catalog.objects import read_table
from wsdata.digest import canonical_json
from wsdata.errors import CatalogError, PlanError, WsdataError
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.versions import base_of, left_out, read_pointer, require_version
from wsdata.shard.plan_atoms import SampleTable
from wsdata.shard.plan_patch import apply_patch
from wsdata.shard.plan_step import plan_key
from wsdata.shard.publish import dataset_key, publish_dataset, read_dataset, read_plan, remake

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.shard.plan import StepPlan
    from wsdata.store import BlobStore


class PatchObject(NamedTuple):
    """One object of a patch: its pointer, or its plan."""

    key: str
    patch: str
    plan_id: str


def patches(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """What the ledger says of each patch: name -> fact ``dataset_version``."""
    stated = ledger.present("dataset_version")
    return {name: body for name, body in stated.items() if "patch" in body}


def objects_of(name: str, body: dict[str, Any]) -> list[PatchObject]:
    """Pointer and plan of a patch, which a trainer needs."""
    plan_id = body["patch"]["plan_id"]
    return [PatchObject(key, name, plan_id) for key in (dataset_key(name), plan_key(plan_id))]


def objects_of_patches(ledger: Ledger) -> list[PatchObject]:
    """Pointers and plans of all patches."""
    return [each for name, body in patches(ledger).items() for each in objects_of(name, body)]


def fault_of(store: BlobStore, which: PatchObject) -> str | None:
    """What is wrong with an object of a patch that is there; it is read."""
    key, patch, plan_id = which
    try:
        if key != dataset_key(patch):
            read_plan(store, {"version": patch, "plan_key": key, "plan_id": plan_id})
        elif (told := read_dataset(store, patch).get("plan_id")) != plan_id:
            return f"it names plan {told}, the ledger says {plan_id}"
    except WsdataError as error:
        return str(error)
    return None


def own_samples(ledger: Ledger, name: str) -> list[str]:
    """Samples that a patch itself was told to exclude, sorted; its parents' others are not."""
    body = patches(ledger)[name]
    before = set(left_out(ledger, body["parent"]))
    own = {each for each in body["patch"]["excluded"] if each not in before}
    return sorted(own | set(body["patch"].get("again", [])))


def how_to_mend(ledger: Ledger, name: str) -> dict[str, Any]:
    """What to do where objects of a patch are lost, and the samples to exclude in it."""
    body, samples = patches(ledger)[name], own_samples(ledger, name)
    return {
        "to_do": f"{remake(name)}. It is `wsdata dataset patch {body['parent']} --exclude FILE "
        f"--from-step {body['patch']['from_step']}`, where FILE lists the {len(samples)} samples "
        "that `wsdata fsck --json` gives here as exclude",
        "exclude": samples,
    }


def mend_patch(ledger: Ledger, store: BlobStore, name: str) -> list[str]:
    """Publish again what is lost or damaged of a patch.

    Args:
        ledger: The ledger.
        store: The store; pointer, plan and dataset index of the base must be whole.
        name: A patch, such as ``v3.1``.

    Returns:
        Keys of what was written; none where the patch is whole.

    Raises:
        ValueError: The name is not a version's.
        CatalogError: There is no such patch.
        PlanError: The ledger does not say enough to make the same plan again.
        IntegrityError: What it would be made from is damaged; it is named.
        ObjectMissing: What it would be made from is not in the store.
    """
    require_version(ledger, name)
    known = patches(ledger)
    if name not in known:
        raise CatalogError(f"{name} is no patch: `wsdata run` puts back what a cut version lost")
    pointer, plan = objects_of(name, known[name])
    is_there = {each: store.size(each.key) is not None for each in (pointer, plan)}
    broken = [each for each, there in is_there.items() if not there or fault_of(store, each)]
    if not broken:
        return []
    # All is made before anything is written: a damaged object stays where no better one is known.
    body = read_pointer(ledger, store, base_of(name))
    data = canonical_json(_plan_again(ledger, store, name).to_json()) if plan in broken else ""
    for each in broken:
        if is_there[each]:
            store.delete(each.key)
    if plan in broken:
        store.put(plan.key, data.encode())
    if pointer in broken:
        publish_patch(store, name, known[name]["parent"], plan, body)
    return [each.key for each in broken]


def mend_patches(ledger: Ledger, store: BlobStore) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Publish again what patches have lost; whole ones cost two questions for a size.

    What is damaged is left to `mend_patch`, since whole objects are not read here.

    Returns:
        Keys of what was written, by patch; and by patch why it could not be made again.
    """
    mended: dict[str, list[str]] = {}
    failed: dict[str, str] = {}
    for name, body in patches(ledger).items():
        if all(store.size(each.key) is not None for each in objects_of(name, body)):
            continue
        try:
            mended[name] = mend_patch(ledger, store, name)
        except WsdataError as error:
            failed[name] = str(error)
    return mended, failed


def publish_patch(
    store: BlobStore, name: str, parent: str, plan: PatchObject, base: dict[str, Any]
) -> None:
    """Write the pointer of a patch: that of its base, or of its parent, with another plan."""
    body = {key: value for key, value in base.items() if key not in ("format_version", "version")}
    body |= {"plan_key": plan.key, "plan_id": plan.plan_id, "parent": parent}
    publish_dataset(store, name, body)


def _plan_again(ledger: Ledger, store: BlobStore, name: str) -> StepPlan:
    """The plan of a patch, from its base's and what each patch down to it excludes."""
    known, names = patches(ledger), [name]
    while (parent := known[names[0]]["parent"]) in known:
        names.insert(0, parent)
    base = base_of(name)
    table = SampleTable(read_table(ledger, store, "dataset_index", base))
    plan = load_plan(ledger, store, base).replaced(index=table)
    for each in names:
        patch = known[each]["patch"]
        plan = apply_patch(plan, own_samples(ledger, each), patch["from_step"])
        if plan.plan_id != patch["plan_id"]:
            raise PlanError(
                f"patch {name} cannot be made again: what the ledger says of {each} makes plan "
                f"{plan.plan_id}, it was {patch['plan_id']}. An older release did not note what "
                "a patch was told to exclude once more: repeat the `wsdata dataset patch` that "
                f"made {each} with the very file it was given, or copy "
                f"{plan_key(patch['plan_id'])} from a store that was synced"
            )
    return plan
