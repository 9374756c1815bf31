"""Open a published dataset version for training: its plan, and where each sample lies.

Everything read here, and by the loader at large, lies under ``training/`` in the store.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, PlanError
from wsdata.shard.placement import Placement, placement_of
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_atoms import sort_rows
from wsdata.shard.publish import read_dataset
from wsdata.store import BlobStore


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """A dataset version as the loader sees it; `index` is sorted as plans count."""

    version: str
    plan: StepPlan
    index: pl.DataFrame

    def placements(self, rows: Sequence[int]) -> list[Placement]:
        """Where samples lie, by their rows in the plan, in the order asked for."""
        return [placement_of(row) for row in self.index[list(rows)].iter_rows(named=True)]

    def placement(self, row: int) -> dict[str, Any]:
        """Row of the dataset index by its number in a plan."""
        return self.index.row(row, named=True)


def open_version(store: BlobStore, version: str, *, seed: int | None = None) -> OpenVersion:
    """Read pointer, index and plan of a version.

    Args:
        store: A store that holds ``training/``.
        version: ``v3`` or ``v3.1``.
        seed: Another order of the same mixture; None is the plan's own.

    Raises:
        CatalogError: The version is not published here.
        PlanError: It has no step plan yet.
        IntegrityError: Index or plan are not what the pointer says.
    """
    pointer = read_dataset(store, version)
    if "plan_key" not in pointer:
        raise PlanError(f"dataset version {version} has no step plan yet: run `wsdata run`")
    data = store.get(pointer["index_key"])
    if (found := sha256_bytes(data)) != pointer["index_sha256"]:
        raise IntegrityError(
            f"index of dataset version {version} ({pointer['index_key']}) has digest {found[:12]}, "
            f"the pointer says {pointer['index_sha256'][:12]}: delete it and run `wsdata run`"
        )
    index = sort_rows(pl.read_parquet(io.BytesIO(data)))
    plan = StepPlan.from_json(json.loads(store.get(pointer["plan_key"])), index)
    if plan.plan_id != pointer["plan_id"]:
        raise IntegrityError(
            f"plan of dataset version {version} ({pointer['plan_key']}) is plan "
            f"{plan.plan_id[:12]}, the pointer says {pointer['plan_id'][:12]}: delete it and run "
            "`wsdata run`"
        )
    return OpenVersion(version, plan if seed is None else plan.replaced(seed=seed), index)
