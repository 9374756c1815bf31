"""The canonical order as somebody walks it: which slots of which steps, piece by piece.

The global sequence is the plans'. Ranks take slices of each step, micro-batches cut a slice into
pieces, DataLoader workers take turns at pieces.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wsdata.loader.ranks import rank_slots
from wsdata.loader.run import Run
from wsdata.shard.permute import make_key


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Which part of the global sequence somebody walks; the sequence itself is the same for all.

    Attributes:
        rank: In [0, world_size).
        world_size: Number of data-parallel ranks.
        micro_batch: Samples that are delivered at once; None is all of a rank's of a step.
        worker: In [0, num_workers).
        num_workers: Each walks every so-many-th piece.
    """

    rank: int = 0
    world_size: int = 1
    micro_batch: int | None = None
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(f"micro_batch {self.micro_batch}: expected at least 1 sample")


class Piece(NamedTuple):
    """Slots [first_slot, end_slot) of a step of a run: what one batch holds.

    Attributes:
        step: Of the run.
        segment: Number of the run's segment that serves it.
        plan_step: Step of that segment's plan.
        number: Which piece of the rank's slots of the step this is, in [0, num_pieces).
        num_pieces: Of the step; more than one with micro-batches.
    """

    step: int
    segment: int
    plan_step: int
    first_slot: int
    end_slot: int
    number: int
    num_pieces: int

    @property
    def is_last(self) -> bool:
        """Whether the rank has all of the step with it."""
        return self.number == self.num_pieces - 1


def walk(run: Run, share: Share, *, start_step: int, end_step: int) -> Iterator[Piece]:
    """Yield the pieces of steps [start_step, end_step), in order.

    Raises:
        PlanError: The world size does not divide every global batch, or steps are not the run's.
    """
    run.check_world(rank=share.rank, world_size=share.world_size)
    seen = 0
    for step in range(start_step, end_step):
        for piece in pieces_of(run, share, step):
            if seen % share.num_workers == share.worker:
                yield piece
            seen += 1


def pieces_of(run: Run, share: Share, step: int) -> list[Piece]:
    """Cut a rank's slots of one step into pieces; all but the last have `micro_batch` samples."""
    number, segment, plan_step = run.locate(step)
    size = segment.plan.batch_size(plan_step)
    slots = rank_slots(size, rank=share.rank, world_size=share.world_size)
    stride = share.micro_batch or len(slots)
    starts = range(slots.start, slots.stop, stride)
    return [
        Piece(step, number, plan_step, start, min(start + stride, slots.stop), index, len(starts))
        for index, start in enumerate(starts)
    ]


def choose_variant(variants: list[str], *, seed: int, step: int, slot: int) -> str:
    """Choose which caption variant a slot is served with; the same for every world size.

    Args:
        variants: What the sample has, at least one; their order does not matter.
        seed: The plan's seed.
        step: The plan's step.
        slot: Slot of the global batch.
    """
    return sorted(variants)[make_key("caption", seed, step, slot) % len(variants)]
