"""What a step plan answers with, and the small things that it is asked for."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    @classmethod
    def of(cls, shuffle: Mapping[str, int] | None) -> "Near | None":
        """Read the recipe's ``shuffle`` section; None where a pool is mixed as a whole."""
        near = cls(**shuffle) if shuffle else None
        return near if near and near.block else None
