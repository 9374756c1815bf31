"""Which slots of a global batch each data-parallel rank reads: contiguous, equal slices.

The global batch itself is the plan's, and the same for every world size. Sequence-parallel ranks
of one data-parallel rank share its slots.
"""

import math
from collections.abc import Mapping

from wsdata.errors import PlanError


def world_sizes(batch_sizes: Mapping[str, int]) -> list[int]:
    """World sizes that divide the global batch of every bucket, ascending."""
    common = math.gcd(*batch_sizes.values())
    return [size for size in range(1, common + 1) if common % size == 0]


def check_world(batch_sizes: Mapping[str, int], *, rank: int, world_size: int) -> None:
    """Refuse a world size that would give ranks unequal slices.

    Args:
        batch_sizes: Global batch of each bucket of the plan.
        rank: In [0, world_size).
        world_size: Number of data-parallel ranks.

    Raises:
        PlanError: A bucket's batch is no multiple of the world size.
        ValueError: There is no such rank.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}: expected 0 <= rank < world_size")
    odd = {bucket: size for bucket, size in sorted(batch_sizes.items()) if size % world_size}
    if odd:
        listed = ", ".join(f"{bucket}: {size}" for bucket, size in odd.items())
        raise PlanError(
            f"a world of {world_size} ranks does not divide every global batch ({listed}): use "
            f"one of {world_sizes(batch_sizes)} ranks, or change samples.global_batch and "
            "samples.batch_of_bucket in the recipe"
        )


def rank_slots(batch_size: int, *, rank: int, world_size: int) -> range:
    """Return the slots of a rank; those of all ranks, in order, are the whole batch."""
    share = batch_size // world_size
    return range(rank * share, (rank + 1) * share)
