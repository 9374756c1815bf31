"""The order in which each pool of a plan is served in each epoch, patches included.

A draw is told by its pool and its running number there; a place is which of the pool's samples it
is. When a draw comes belongs to `plan_schedule`, which row a place is to `plan_pools`.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wsdata.shard.permute import (
    hash_values,
    make_key,
    permute,
    permute_near,
    unpermute,
    unpermute_near,
)
from wsdata.shard.plan_exclusion import Exclusions, Patch
from wsdata.shard.plan_mixture import Pool
from wsdata.shard.plan_records import Near

I64 = NDArray[np.int64]


class PoolOrders:
    """See the module docstring."""

    def __init__(
        self, pools: Sequence[Pool], *, seed: int, near: Near | None, patches: Sequence[Patch]
    ) -> None:
        keys = [make_key("pool", seed, pool.name) for pool in pools]
        self._keys = np.array(keys, dtype=np.uint64)
        self._lengths: I64 = np.array([pool.num_samples for pool in pools], dtype=np.int64)
        self._near = near._asdict() if near else None
        self._is_patched = bool(patches)
        self._exclusions = [
            Exclusions(patches, i, key=keys[i], length=pool.num_samples)
            for i, pool in enumerate(pools)
        ]

    def places(self, pools: I64, numbers: I64) -> tuple[I64, I64]:
        """Epoch and place of draws by pool and running number, patches not applied."""
        lengths = self._lengths[pools]
        epochs, positions = np.divmod(numbers, lengths)
        keys = hash_values(epochs, self._keys[pools])
        if self._near is None:
            return epochs, permute(positions, lengths, keys)
        places = np.zeros_like(positions)
        for pool in cast("list[int]", np.unique(pools).tolist()):
            mask = pools == pool
            length = int(self._lengths[pool])
            places[mask] = permute_near(positions[mask], length, keys[mask], **self._near)
        return epochs, places

    def numbers(self, pool: int, epochs: I64, places: I64) -> I64:
        """Running number of the draw of each place of a pool in each epoch: `places` inverted."""
        length = int(self._lengths[pool])
        keys = hash_values(epochs, int(self._keys[pool]))
        if self._near is None:
            return epochs * length + unpermute(places, length, keys)
        return epochs * length + unpermute_near(places, length, keys, **self._near)

    def served(self, pools: I64, steps: I64, epochs: I64, places: I64) -> I64:
        """Apply the patches to draws: the place that is served for each."""
        if not self._is_patched:
            return places
        served = places.copy()
        for pool in cast("list[int]", np.unique(pools).tolist()):
            mask = pools == pool
            mine = (steps[mask], epochs[mask], places[mask])
            served[mask] = self._exclusions[pool].served(*mine)
        return served

    def touched(self, pool: int) -> I64:
        """Every place of a pool that some patch excludes, ascending."""
        return self._exclusions[pool].touched()
