"""The step plan of a dataset version or patch, read back over its training index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsdata.errors import CatalogError
from wsdata.lifecycle.versions import read_pointer
from wsdata.shard.plan import StepPlan
from wsdata.shard.publish import read_plan
from wsdata.shard.training_index import TrainingIndex, open_index

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


def load_plan(ledger: Ledger, store: BlobStore, version: str) -> StepPlan:
    """Load the plan of a version.

    Raises:
        ValueError: The name is not a version's.
        CatalogError: There is no such version, or it has no plan yet.
        IntegrityError: Pointer, plan or index is damaged; it is named.
        ObjectMissing: Plan or index is not in the store.
        PlanError: The plan is of another format.
    """
    return load_indexed_plan(ledger, store, version)[0]


def load_indexed_plan(
    ledger: Ledger, store: BlobStore, version: str
) -> tuple[StepPlan, TrainingIndex]:
    """As `load_plan`, with the index that the plan's rows count."""
    pointer = read_pointer(ledger, store, version)
    if "plan_key" not in pointer:
        raise CatalogError(f"{version} has no step plan yet: run `wsdata run`")
    index = open_index(store, pointer)
    return StepPlan.from_json(read_plan(store, pointer), index), index
