"""Open a published dataset version for training: its plan, and where each sample lies.

Everything read here, and by the loader at large, lies under ``training/`` in the store. Opening
reads three small objects, however many samples there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wsdata.errors import PlanError
from wsdata.shard.placement import Placement
from wsdata.shard.plan import StepPlan
from wsdata.shard.publish import read_dataset, read_plan
from wsdata.shard.training_index import Source, TrainingIndex, open_index
from wsdata.store import BlobStore


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """A dataset version as the loader sees it; rows of plan and index are the same."""

    version: str
    plan: StepPlan
    index: TrainingIndex

    def placements(self, rows: Sequence[int]) -> list[Placement]:
        """Where samples lie, by their rows in the plan, in the order asked for.

        Raises:
            IntegrityError: The training index is damaged; object and block are named.
        """
        return self.index.placements(rows)

    def sources(self, rows: Sequence[int]) -> list[Source]:
        """What pixels samples are made of, by their rows, in the order asked for.

        Raises:
            PlanError: The version's manifest names no transcode for some of them.
        """
        return self.index.sources(rows)

    def steps_of_rows(self, rows: Sequence[int], from_step: int, limit: int = 5) -> list[int]:
        """The next steps from a step on that serve any of some rows; see `StepPlan`."""
        return self.plan.steps_of_rows(np.asarray(rows, dtype=np.int64), from_step, limit)

    def steps_of_shard(self, shard: str, from_step: int, limit: int = 5) -> list[int]:
        """The next steps from a step on that read a shard, by its sha256."""
        return self.plan.steps_of_rows(self.index.rows_of_shard(shard), from_step, limit)


def open_version(store: BlobStore, version: str, *, seed: int | None = None) -> OpenVersion:
    """Read pointer, plan and the root of the index of a version.

    Args:
        store: A store that holds ``training/``.
        version: ``v3`` or ``v3.1``.
        seed: Another order of the same mixture; None is the plan's own.

    Raises:
        CatalogError: The version is not published here.
        PlanError: It has no step plan yet, or one of another format.
        IntegrityError: Pointer, index or plan is damaged; it is named.
    """
    pointer = read_dataset(store, version)
    if "plan_key" not in pointer:
        raise PlanError(f"dataset version {version} has no step plan yet: run `wsdata run`")
    index = open_index(store, pointer)
    plan = StepPlan.from_json(read_plan(store, pointer), index)
    return OpenVersion(version, plan if seed is None else plan.replaced(seed=seed), index)
