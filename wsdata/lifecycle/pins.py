"""Pins: for which dataset versions and patches objects are kept, whatever else is deleted.

A cut version is pinned when it is complete (`snapshot`), a patch when it is published (`patch`);
both stay so until somebody takes the pin off. A pin holds all that reading its version takes. That
of a patch names its own pointer and plan, those of the patches it lies on, and its base, whose
objects it holds too: even once the base itself is pinned no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wsdata.catalog.objects import read_objects
from wsdata.curate.manifest import manifest_digest
from wsdata.errors import CatalogError
from wsdata.ids import parse_version
from wsdata.lifecycle.versions import all_versions, base_of, require_version
from wsdata.records import Fact
from wsdata.shard.plan_step import plan_key
from wsdata.shard.publish import dataset_key, index_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from wsdata.catalog.ledger import Ledger
    from wsdata.records import ObjectRef
    from wsdata.store import BlobStore

KIND = "pin"
TABLES = ("manifests", "dataset_index", "step_plans", "training_index_parts")  # that name objects


@dataclass(frozen=True, kw_only=True, slots=True)
class PinSummary:
    """Whether a version is pinned, and what its pin holds.

    Attributes:
        version: A cut version or a patch.
        is_pinned: Whether it is pinned now.
        num_objects: Objects that its pin holds; 0 without one.
        num_own: Those of them that no other pin holds: what taking it off sets free.
        reason: Why the pin was taken off, where it was.
    """

    version: str
    is_pinned: bool
    num_objects: int
    num_own: int
    reason: str | None


def keys_of_version(
    version: str, refs: Mapping[str, list[ObjectRef]], rows: Mapping[str, pl.DataFrame]
) -> list[str]:
    """Keys of every object that reading a cut version takes, sorted.

    Args:
        version: Its name.
        refs: Live objects of the version, by table of `TABLES`.
        rows: Their rows.
    """
    index, plans = rows["dataset_index"], rows["step_plans"]
    keys = {ref.key for table in TABLES for ref in refs[table]}
    keys |= {index_key(ref.sha256) for ref in refs["dataset_index"]}
    keys |= set(index["shard_key"]) | set(index["caption_pack_key"].drop_nulls())
    keys |= set(plans["key"]) | set(plans["training_index_key"])
    keys |= set(rows["training_index_parts"]["key"]) | {dataset_key(version)}
    return sorted(keys)


def pin_of_version(
    version: str, refs: Mapping[str, list[ObjectRef]], rows: Mapping[str, pl.DataFrame]
) -> Fact:
    """The pin of a cut version; see `keys_of_version`."""
    digest = manifest_digest(rows["manifests"])
    keys = keys_of_version(version, refs, rows)
    return Fact(kind=KIND, subject=version, body={"manifest_digest": digest, "keys": keys})


def pin_of_patch(
    ledger: Ledger, store: BlobStore, version: str, stated: Mapping[str, dict[str, Any]]
) -> Fact:
    """The pin of a patch.

    Args:
        ledger: The ledger.
        store: Read where the base was never pinned: its objects are named one by one then.
        version: The patch.
        stated: Facts ``dataset_version``, the patch's own among them.
    """
    keys: set[str] = set()
    body: dict[str, Any] = {
        "plan_id": stated[version]["patch"]["plan_id"],
        "base": base_of(version),
    }
    name = version
    while "patch" in (each := stated.get(name, {})):
        keys |= {dataset_key(name), plan_key(each["patch"]["plan_id"])}
        name = each["parent"]
    if body["base"] not in _last_keys(ledger):
        keys |= set(_found_pin(ledger, store, body["base"]).body["keys"])
    return Fact(kind=KIND, subject=version, body={**body, "keys": sorted(keys)})


def pin_version(ledger: Ledger, store: BlobStore, version: str) -> bool:
    """Pin a version or a patch; return whether it was not pinned before.

    Raises:
        ValueError: The name is not a version's.
        CatalogError: There is no such version, or it is not complete yet.
    """
    require_version(ledger, version)
    if version in ledger.present(KIND):
        return False
    stated: dict[str, dict[str, Any]] = ledger.present("dataset_version")
    if "patch" in stated.get(version, {}):
        fact = pin_of_patch(ledger, store, version, stated)
    else:
        fact = _found_pin(ledger, store, version)
    ledger.state([fact], step="dataset/pin")
    return True


def pin_forgotten_patches(ledger: Ledger, store: BlobStore) -> list[str]:
    """Pin patches that never were, as those of older releases; return their names.

    One whose pin was taken off is left alone, and so is one whose base was never complete.
    """
    ever = {fact.subject for _, fact in ledger.facts(KIND)}
    stated: dict[str, dict[str, Any]] = ledger.present("dataset_version")
    names = [
        name for name, body in stated.items()
        if "patch" in body and name not in ever and base_of(name) in ever
    ]  # fmt: skip
    if names:
        facts = [pin_of_patch(ledger, store, name, stated) for name in names]
        ledger.state(facts, step="dataset/pin")
    return names


def unpin_version(ledger: Ledger, version: str, reason: str) -> None:
    """Take the pin off a version or a patch; what other pins hold, or live rows name, stays.

    Args:
        ledger: The ledger.
        version: Which; pins of its patches, or of its base, stand.
        reason: Why; kept.

    Raises:
        ValueError: The name is not a version's, or no reason is given.
        CatalogError: There is no such version, or it is not pinned.
    """
    require_version(ledger, version)
    if not reason.strip():
        raise ValueError(f"unpin {version}: say why: what its pin held may be deleted then")
    pins = ledger.present(KIND)
    if version not in pins:
        there = ", ".join(sorted(pins, key=parse_version)) or "none"
        raise CatalogError(f"{version} is not pinned: pinned are {there}")
    body = {"withdrawn": True, "reason": reason}
    ledger.state([Fact(kind=KIND, subject=version, body=body)], step="dataset/unpin")


def keys_of_pins(ledger: Ledger) -> dict[str, list[str]]:
    """What pins hold: version -> keys, those of a patch's base included."""
    pins: dict[str, dict[str, Any]] = ledger.present(KIND)
    bases = {body["base"] for body in pins.values() if "base" in body}
    last = _last_keys(ledger) if bases - pins.keys() else {}
    last |= {name: body["keys"] for name, body in pins.items() if "base" not in body}
    return {
        name: sorted({*body["keys"], *last.get(body.get("base", ""), [])})
        for name, body in sorted(pins.items(), key=lambda item: parse_version(item[0]))
    }


def pinned_keys(ledger: Ledger) -> dict[str, str]:
    """Keys that pins hold: key -> whose pin, the oldest version's first."""
    holders: dict[str, list[str]] = {}
    for version, keys in keys_of_pins(ledger).items():
        for key in keys:
            holders.setdefault(key, []).append(version)
    return {
        key: f"pin of {names[0]}" + (f" and of {len(names) - 1} more" if names[1:] else "")
        for key, names in holders.items()
    }


def list_pins(ledger: Ledger) -> list[PinSummary]:
    """Every version and patch, whether it is pinned, and what its pin alone holds."""
    held = keys_of_pins(ledger)
    times: dict[str, int] = {}
    for keys in held.values():
        for key in keys:
            times[key] = times.get(key, 0) + 1
    newest = {fact.subject: fact.body for _, fact in ledger.facts(KIND)}
    return [
        PinSummary(
            version=version,
            is_pinned=version in held,
            num_objects=len(held.get(version, [])),
            num_own=sum(times[key] == 1 for key in held.get(version, [])),
            reason=newest.get(version, {}).get("reason"),
        )
        for version in all_versions(ledger)
    ]


def _last_keys(ledger: Ledger) -> dict[str, list[str]]:
    """What the last pin of each cut version holds or held, one that was taken off included."""
    return {
        fact.subject: fact.body["keys"]
        for _, fact in ledger.facts(KIND)
        if "keys" in fact.body and "base" not in fact.body
    }


def _found_pin(ledger: Ledger, store: BlobStore, version: str) -> Fact:
    """The pin of a cut version, of what is live."""
    refs = {table: ledger.live(table, version) for table in TABLES}
    if lacking := [table for table in TABLES if not refs[table]]:
        raise CatalogError(
            f"{version} cannot be pinned yet: it has no {', '.join(lacking)}; `wsdata run` "
            "completes it, and pins it"
        )
    rows = {table: read_objects(store, table, refs[table]) for table in TABLES}
    return pin_of_version(version, refs, rows)
