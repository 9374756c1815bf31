"""Make a patched plan: samples are excluded from a step on, and the accounting of what changed.

Nothing else of the plan moves: the same buckets, streams and samples in every other slot.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np

from wsdata.errors import PlanError
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_exclusion import Patch, Places, num_excluded

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
    rows = plan.index.rows_of_samples(wanted)
    unknown = [sample_id for sample_id, row in zip(wanted, rows, strict=True) if row < 0]
    if unknown:
        raise PlanError(
            f"{len(unknown)} of {len(wanted)} samples to exclude are not in this dataset version, "
            f"such as {unknown[:_NAMED]}: name samples of its index"
        )
    excluded = {pool: Places.of(places) for pool, places in plan.places_of(rows).items()}
    patches = [*plan.patches, Patch(from_step=from_step, excluded=excluded)]
    for pool in excluded:
        length = plan.pools[pool].num_samples
        if num_excluded(patches, pool) == length:
            raise PlanError(
                f"the patch excludes all {length} samples of pool {plan.pools[pool].name}, so its "
                "slots could not be filled: cut a new dataset version without them"
            )
    return plan.replaced(patches=patches)


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
            patch.excluded[pool].all()
            for patch in (*before.patches, *after.patches)
            if pool in patch.excluded
        ]
        if not touched:
            continue
        for draws in before.draws_of(
            pool, np.unique(np.concatenate(touched)), until_step=until_step
        ):
            served = [plan.serve(draws) for plan in (before, after)]
            moved = served[0] != served[1]
            rows = [before.rows_of(draws._replace(places=places))[moved] for places in served]
            names = [before.index.names(each) for each in rows]
            numbers = zip(
                cast("list[int]", draws.steps[moved].tolist()),
                cast("list[int]", draws.slots[moved].tolist()),
                cast("list[int]", draws.epochs[moved].tolist()),
                names[0],
                names[1],
                strict=True,
            )
            changes += [
                ChangedSlot(step, slot, epoch, was[0], now[0])
                for step, slot, epoch, was, now in numbers
            ]
    return sorted(changes)
