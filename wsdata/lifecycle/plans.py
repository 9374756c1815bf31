"""The step plan of a dataset version or patch, read back over its index."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from wsdata.catalog.objects import read_table
from wsdata.errors import CatalogError
from wsdata.lifecycle.versions import base_of, require_version
from wsdata.shard.plan import StepPlan
from wsdata.shard.publish import read_dataset

if TYPE_CHECKING:
    import polars as pl

    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


def load_plan(ledger: Ledger, store: BlobStore, version: str) -> StepPlan:
    """Load the plan of a version.

    Raises:
        ValueError: The name is not a version's.
        CatalogError: There is no such version, or it has no plan yet.
    """
    require_version(ledger, version)
    pointer = read_dataset(store, version)
    if "plan_key" not in pointer:
        raise CatalogError(f"{version} has no step plan yet: run `wsdata run`")
    data = json.loads(store.get(pointer["plan_key"]))
    return StepPlan.from_json(data, _index(ledger, store, version))


def _index(ledger: Ledger, store: BlobStore, version: str) -> pl.DataFrame:
    return read_table(ledger, store, "dataset_index", base_of(version))
