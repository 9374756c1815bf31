"""What a step plan answers with, and the small things that it is asked for."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import PlanError

I64 = NDArray[np.int64]


class PlannedSample(NamedTuple):
    """One slot of one step. `row` is the sample's in the index; `pool` is `pools[pool]`."""

    slot: int
    sample_id: str
    clip_id: str
    stream: str
    epoch: int
    pool: int
    row: int


class Served(NamedTuple):
    """One time that a sample is served."""

    step: int
    slot: int
    epoch: int


class Draws(NamedTuple):
    """Slots as arrays of one length: step, slot, pool, epoch, place within the pool."""

    steps: I64
    slots: I64
    pools: I64
    epochs: I64
    places: I64


class Near(NamedTuple):
    """Samples in the order of an epoch are served from few blocks; see `permute.permute_near`."""

    block: int
    window: int


def near_of(samples: Mapping[str, Any]) -> Near | None:
    """Read the optional block-and-window form from the recipe's ``samples`` section.

    Raises:
        PlanError: The window is not a multiple of the block.
    """
    near = Near(int(samples.get("shuffle_block", 0)), int(samples.get("shuffle_window", 0)))
    if near == (0, 0):
        return None
    if near.block < 1 or near.window < near.block or near.window % near.block:
        raise PlanError(
            f"samples.shuffle_block {near.block}, samples.shuffle_window {near.window}: expected "
            "a window that is a multiple of the block, or neither"
        )
    return near
