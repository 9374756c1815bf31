"""The canonical order as a rank walks it: step by step, its own slots of each global batch."""

from collections.abc import Iterator
from typing import NamedTuple

from wsdata.loader.ranks import check_world, rank_slots
from wsdata.shard.permute import make_key
from wsdata.shard.plan import PlannedSample, StepPlan


class RankStep(NamedTuple):
    """What one rank reads in one step, in global order."""

    step: int
    bucket: str
    samples: list[PlannedSample]


def rank_step(plan: StepPlan, step: int, *, rank: int, world_size: int) -> RankStep:
    """Return a rank's part of one step. Any step can be asked for by itself."""
    slots = rank_slots(plan.batch_size(step), rank=rank, world_size=world_size)
    samples = plan.samples(step, first_slot=slots.start, end_slot=slots.stop)
    return RankStep(step, plan.bucket(step), samples)


def walk(
    plan: StepPlan, *, start_step: int, end_step: int, rank: int = 0, world_size: int = 1
) -> Iterator[RankStep]:
    """Yield a rank's part of steps [start_step, end_step).

    Raises:
        PlanError: The world size does not divide every global batch.
    """
    check_world(plan.batch_sizes, rank=rank, world_size=world_size)
    for step in range(start_step, end_step):
        yield rank_step(plan, step, rank=rank, world_size=world_size)


def choose_variant(variants: list[str], *, seed: int, step: int, slot: int) -> str:
    """Choose which caption variant a slot is served with; the same for every world size.

    Args:
        variants: What the sample has, at least one; their order does not matter.
        seed: The plan's seed.
        step: The step.
        slot: Slot of the global batch.
    """
    return sorted(variants)[make_key("caption", seed, step, slot) % len(variants)]
