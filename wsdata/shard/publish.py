"""The pointer objects by which training hosts find a dataset version.

All that a trainer reads lies under ``training/``: training index, plan, shards, packs, and one
small pointer for each version that names the first two, and the dataset index as a table for
whoever wants to query it. A pointer is written once; what lies behind it
is content-addressed. The ledger is not needed to read any of it.
"""

import contextlib
import json
from typing import Any, cast

from wsdata.digest import canonical_json, digest, sha256_bytes
from wsdata.errors import CatalogError, IntegrityError, ObjectMissing, StoreError
from wsdata.ids import parse_version
from wsdata.shard.plan import FORMAT_VERSION as PLAN_FORMAT_VERSION
from wsdata.store import BlobStore

POINTER_FORMAT_VERSION = 2
REQUIRED = ("index_key", "index_sha256", "manifest_digest")

_PREFIX = "training/datasets/"

# What a pointer names, by which digest, and the key that carries it.
_NAMED = {
    "index_key": ("index_sha256", "training/index/{}.parquet"),
    "training_index_key": ("training_index_sha256", "training/index/{}.json"),
    "plan_key": ("plan_id", "training/plans/{}.json"),
}


def dataset_key(version: str) -> str:
    """Object key of the pointer of a dataset version.

    Raises:
        ValueError: `version` is not of the form ``v3`` or ``v3.1``.
    """
    parse_version(version)
    return f"{_PREFIX}{version}.json"


def index_key(sha256: str) -> str:
    """Object key of a dataset index by the sha256 of its bytes."""
    return f"training/index/{sha256}.parquet"


def publish_dataset(store: BlobStore, version: str, body: dict[str, Any]) -> bool:
    """Write the pointer of a dataset version, unless the very same one is there.

    Args:
        store: Where the version's index and plan already lie.
        version: ``v3`` or ``v3.1``.
        body: Whatever a trainer must know, JSON-able; at least the keys of `REQUIRED`.

    Returns:
        Whether it was written now.

    Raises:
        CatalogError: The version is published with another body, which stays.
        IntegrityError: The version is published, but its pointer is damaged.
        ObjectMissing: The index (or the plan) that the body names is not in the store.
        ValueError: A key of `REQUIRED` is missing, or `version` is malformed.
    """
    key = dataset_key(version)
    if missing := sorted(set(REQUIRED) - set(body)):
        raise ValueError(f"pointer of dataset version {version}: missing keys {missing}")
    full = {**body, "format_version": POINTER_FORMAT_VERSION, "version": version}
    for name in ("index_key", "training_index_key", "plan_key"):
        if name in body and store.size(body[name]) is None:
            raise ObjectMissing(
                f"dataset version {version}: {name} {body[name]} is not in {store.address}, so "
                "no trainer could read it: write it before the pointer"
            )
    if store.put(key, canonical_json(full).encode()):
        return True
    published = read_dataset(store, version)
    if canonical_json(published) != canonical_json(full):
        differing = sorted(
            name for name in {*published, *full} if published.get(name) != full.get(name)
        )
        raise CatalogError(
            f"dataset version {version} is already published with another "
            f"{', '.join(differing)}: a version never changes; cut the next one"
        )
    return False


def read_dataset(store: BlobStore, version: str) -> dict[str, Any]:
    """Read the pointer of a dataset version.

    Raises:
        CatalogError: The version is not published here, or in a format unknown to this code.
        IntegrityError: The pointer is damaged; it is named.
        ValueError: `version` is malformed.
    """
    key = dataset_key(version)
    try:
        data = store.get(key)
    except ObjectMissing:
        raise CatalogError(_why_absent(store, version)) from None
    what = f"pointer of dataset version {version} ({key})"
    body = _parse(what, version, data)
    if body["format_version"] != POINTER_FORMAT_VERSION:
        raise CatalogError(
            f"pointer of dataset version {version} has format {body.get('format_version')!r}; "
            f"this code reads {POINTER_FORMAT_VERSION}: train it with the release of wsdata that "
            "published it, or cut and plan the next version with this one"
        )
    if fault := _fault_of(body, version):
        raise IntegrityError(f"{what} is damaged: {fault}: {_remedy(version)}")
    return body


def read_plan(store: BlobStore, pointer: dict[str, Any]) -> dict[str, Any]:
    """Read the plan that a pointer names, as JSON that was checked against its id.

    One of an older format is returned as it is, for `StepPlan.from_json` to refuse.

    Args:
        store: Where it lies.
        pointer: What `read_dataset` returned; it names a plan.

    Raises:
        IntegrityError: The plan is damaged; it is named.
        ObjectMissing: It is not in the store.
    """
    version, key, plan_id = pointer["version"], pointer["plan_key"], pointer["plan_id"]
    what = f"plan of dataset version {version} ({key})"
    try:
        data = store.get(key)
    except ObjectMissing as error:
        raise ObjectMissing(f"{what} is gone ({error}): {remake(version)}") from None
    body = _parse(what, version, data)
    # Written as canonical JSON, so that its bytes and what they say have one digest.
    if sha256_bytes(data) == plan_id or body["format_version"] < PLAN_FORMAT_VERSION:
        return body
    if (found := _digest_of(body)) != plan_id:
        raise IntegrityError(
            f"{what} is damaged: what it says has digest {found}, its key and the pointer say "
            f"{plan_id}: {_remedy(version)}"
        )
    return body


def _parse(what: str, version: str, data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:  # not JSON, or not even text
        raise IntegrityError(f"{what} is damaged, no JSON ({error}): {_remedy(version)}") from None
    if not isinstance(body, dict) or type(body.get("format_version")) is not int:  # pyright: ignore[reportUnknownMemberType]
        raise IntegrityError(
            f"{what} is damaged: expected an object with a format_version: {_remedy(version)}"
        )
    return cast("dict[str, Any]", body)


def _digest_of(body: dict[str, Any]) -> str:
    try:
        return digest(body)
    except ValueError:  # such as NaN, which no plan holds
        return "none"


def _fault_of(body: dict[str, Any], version: str) -> str | None:
    """What contradicts itself in a pointer: such as a key that does not carry its digest."""
    if body.get("version") != version:
        return f"it says that it is of version {body.get('version')!r}"
    if missing := sorted(set(REQUIRED) - set(body)):
        return f"it lacks {', '.join(missing)}"
    for key_name, (digest_name, form) in _NAMED.items():
        key, sha256 = body.get(key_name), body.get(digest_name)
        if (key is None) != (sha256 is None):
            return f"it has but one of {key_name} and {digest_name}"
        if key is not None and key != form.format(sha256):
            return f"its {key_name} is {key!r}, which does not fit its {digest_name} {sha256!r}"
    return None


def _remedy(version: str) -> str:
    told = remake(version)
    return told if parse_version(version)[1] else f"delete it and {told}"


def remake(version: str) -> str:
    """What publishes a version or patch again whose pointer or plan is lost, as a request."""
    if parse_version(version)[1]:
        return f"run `wsdata dataset patch {version} --again`, which publishes it again"
    return "run `wsdata run`"


def _why_absent(store: BlobStore, version: str) -> str:
    """What a store shows of a version that has no pointer there, and what to do."""
    told = f"dataset version {version} is not published in {store.address}"
    try:
        there = published_versions(store)
        is_empty = not there and next(iter(store.list("training/plans/")), None) is None
        patches = _patches_of(store, version, there)
    except StoreError as error:
        return f"{told}, and what is published there cannot be listed: {error}"
    told += f"; published are {', '.join(there) or 'none'}. "
    if is_empty:
        told += "Nothing of any version lies there: is it the store that was meant?"
    elif not there:
        told += "Plans lie there without a pointer: pointers were deleted, or a sync was cut short."
    elif patches:
        told += f"It was once, as its patch {patches[0]} shows: its pointer was deleted."
    elif parse_version(version) > parse_version(there[-1]):
        told += "All that are there are older: it is not made yet, or was not copied there."
    else:
        told += "Newer ones are there: it was never made, never copied there, or was deleted."
    return (
        f"{told} Copy it from a store that has it (`wsdata dataset sync {version} STORE`); in the "
        f"deployment that made it `wsdata dataset list` tells whether it exists, and if it does, "
        f"{remake(version)}"
    )


def _patches_of(store: BlobStore, version: str, there: list[str]) -> list[str]:
    """Published patches that could not be there, had a version never been."""
    number, patch = parse_version(version)
    mine = [name for name in there if parse_version(name)[0] == number]
    if not patch:
        return mine
    found: list[str] = []
    for name in mine:
        with contextlib.suppress(CatalogError, IntegrityError):
            if read_dataset(store, name).get("parent") == version:
                found.append(name)
    return found


def published_versions(store: BlobStore) -> list[str]:
    """Dataset versions that a trainer can read, oldest first."""
    names = [
        key.removeprefix(_PREFIX).removesuffix(".json")
        for key, _ in store.list(_PREFIX)
        if key.endswith(".json")
    ]
    return sorted(names, key=parse_version)
