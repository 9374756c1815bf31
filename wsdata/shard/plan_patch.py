"""Make a patched plan: samples are excluded from a step on, and the accounting of what changed.

Nothing else of the plan moves: the same buckets, streams and samples in every other slot.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np
import polars as pl

from wsdata.errors import PlanError
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_exclusion import Patch

_NAMED = 5


class ChangedSlot(NamedTuple):
    """A slot that serves another sample under a patched plan than before."""

    step: int
    slot: int
    epoch: int
    before: str  # sample ids
    after: str


def apply_patch(plan: StepPlan, excluded_sample_ids: Iterable[str], from_step: int) -> StepPlan:
    """Exclude samples in steps [from_step, ...), on top of the patches that a plan has.

    Args:
        plan: The plan to patch; it is left alone.
        excluded_sample_ids: Samples of the plan's dataset index.
        from_step: First step that serves none of them, at least 0.

    Raises:
        PlanError: A sample is not in the index, or a pool would have none left.
        ValueError: `from_step` is negative.
    """
    if from_step < 0:
        raise ValueError(f"patch from step {from_step}: steps count from 0")
    wanted = sorted(set(excluded_sample_ids))
    rows = plan.index["sample_id"].is_in(wanted).arg_true().to_numpy().astype(np.int64)
    if len(rows) != len(wanted):
        found = set(cast("list[str]", plan.index["sample_id"].gather(rows).to_list()))
        unknown = [sample_id for sample_id in wanted if sample_id not in found]
        raise PlanError(
            f"{len(unknown)} of {len(wanted)} samples to exclude are not in this dataset version, "
            f"such as {unknown[:_NAMED]}: name samples of its index"
        )
    patch = Patch(from_step=from_step, excluded=plan.places_of(rows))
    for pool, places in patch.excluded.items():
        gone = [earlier.excluded[pool] for earlier in plan.patches if pool in earlier.excluded]
        length = plan.pools[pool].num_samples
        if np.unique(np.concatenate([places, *gone])).size == length:
            raise PlanError(
                f"the patch excludes all {length} samples of pool {plan.pools[pool].name}, so its "
                "slots could not be filled: cut a new dataset version without them"
            )
    return plan.replaced(patches=[*plan.patches, patch])


def changed_slots(before: StepPlan, after: StepPlan, until_step: int) -> list[ChangedSlot]:
    """Account for a patch: every slot in steps [0, until_step) that serves another sample.

    Args:
        before: A plan.
        after: The same plan with other patches.
        until_step: Where to stop.

    Raises:
        PlanError: The plans differ by more than patches.
    """
    if (before.pools, before.phases, before.seed) != (after.pools, after.phases, after.seed):
        raise PlanError(
            f"plans {before.plan_id[:12]} and {after.plan_id[:12]} differ by more than patches, "
            "so their slots cannot be compared: compare a plan with its own patch"
        )
    changes: list[ChangedSlot] = []
    for pool in range(len(before.pools)):
        touched = [
            patch.excluded[pool]
            for patch in (*before.patches, *after.patches)
            if pool in patch.excluded
        ]
        if not touched:
            continue
        for draws in before.draws_of(
            pool, np.unique(np.concatenate(touched)), until_step=until_step
        ):
            served = [plan.serve(pool, draws) for plan in (before, after)]
            moved = served[0] != served[1]
            ids = [
                before.index["sample_id"].gather(before.rows_of(draws._replace(places=places)))
                for places in served
            ]
            table = pl.DataFrame(
                {
                    "step": draws.steps,
                    "slot": draws.slots,
                    "epoch": draws.epochs,
                    "before": ids[0],
                    "after": ids[1],
                }
            ).filter(pl.Series(moved))
            changes += [ChangedSlot(*row) for row in table.iter_rows()]
    return sorted(changes)
