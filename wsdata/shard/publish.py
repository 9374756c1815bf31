"""The pointer objects by which training hosts find a dataset version.

All that a trainer reads lies under ``training/``: training index, plan, shards, packs, and one
small pointer for each version that names the first two, and the dataset index as a table for
whoever wants to query it. A pointer is written once; what lies behind it
is content-addressed. The ledger is not needed to read any of it.
"""

import json
from typing import Any

from wsdata.digest import canonical_json
from wsdata.errors import CatalogError, ObjectMissing
from wsdata.ids import parse_version
from wsdata.store import BlobStore

POINTER_FORMAT_VERSION = 2
REQUIRED = ("index_key", "index_sha256", "manifest_digest")

_PREFIX = "training/datasets/"


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
        ValueError: `version` is malformed.
    """
    try:
        body = json.loads(store.get(dataset_key(version)))
    except ObjectMissing:
        there = published_versions(store)
        raise CatalogError(
            f"dataset version {version} is not published in {store.address}; published are "
            f"{', '.join(there) or 'none'}"
        ) from None
    if body.get("format_version") != POINTER_FORMAT_VERSION:
        raise CatalogError(
            f"pointer of dataset version {version} has format {body.get('format_version')!r}; "
            f"this code reads {POINTER_FORMAT_VERSION}: train it with the release of wsdata that "
            "published it, or cut and plan the next version with this one"
        )
    return body


def published_versions(store: BlobStore) -> list[str]:
    """Dataset versions that a trainer can read, oldest first."""
    names = [
        key.removeprefix(_PREFIX).removesuffix(".json")
        for key, _ in store.list(_PREFIX)
        if key.endswith(".json")
    ]
    return sorted(names, key=parse_version)
