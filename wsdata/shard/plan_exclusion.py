"""Patches of a step plan: which places of which pools are excluded, and what is served instead.

A substitute is a hashed draw from what its pool has left, found by rank and never by trial, so
it costs the same however much is excluded. How a patch is made belongs to `plan_patch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wsdata.digest import digest
from wsdata.shard.permute import hash_values, make_key

I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """Sorted places excluded in each pool, in steps [from_step, ...)."""

    from_step: int
    excluded: Mapping[int, I64]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {
            "from_step": self.from_step,
            "excluded": {str(pool): places.tolist() for pool, places in self.excluded.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Patch":
        """Read what `to_json` wrote."""
        excluded = cast("dict[str, list[int]]", data["excluded"])
        return cls(
            from_step=int(data["from_step"]),
            excluded={
                int(pool): np.array(places, dtype=np.int64)
                for pool, places in sorted(excluded.items(), key=lambda item: int(item[0]))
            },
        )

    @property
    def summary(self) -> dict[str, Any]:
        """What a cursor keeps of a patch: from when, how much, and a digest of what."""
        num = sum(len(places) for places in self.excluded.values())
        return {"from_step": self.from_step, "num": num, "digest": digest(self.to_json())[:16]}


def served_places(
    patches: Sequence[Patch],
    pool: int,
    *,
    key: int,
    length: int,
    steps: I64,
    epochs: I64,
    places: I64,
) -> I64:
    """Apply patches, in their order, to draws of one pool.

    A patch touches only what is excluded by it: a substitute that an earlier patch chose stays
    until a later one excludes it too.

    Args:
        patches: The plan's patch log.
        pool: The pool that all draws are of.
        key: The pool's key.
        length: Samples in the pool.
        steps: Step of each draw.
        epochs: Epoch of each draw.
        places: Place in the pool of each draw before any patch.

    Returns:
        Place in the pool of each draw as served.
    """
    mine = [(i, patch) for i, patch in enumerate(patches) if pool in patch.excluded]
    if not mine:
        return places
    served = places.copy()
    borders = np.unique([patch.from_step for _, patch in mine])
    eras = np.searchsorted(borders, steps, side="right")
    for era in cast("list[int]", np.unique(eras).tolist()):
        mask = eras == era
        active = [(i, patch) for i, patch in mine if patch.from_step in borders[:era]]
        gone: I64 = np.zeros(0, dtype=np.int64)
        now = served[mask]
        for number, patch in active:
            excluded = patch.excluded[pool]
            gone = np.union1d(gone, excluded)
            hit = np.isin(now, excluded)
            salt = hash_values(epochs[mask][hit], make_key("substitute", key, number))
            now[hit] = _draw_rest(hash_values(now[hit], key) ^ salt, gone, length)
        served[mask] = now
    return served


def _draw_rest(hashes: NDArray[np.uint64], gone: I64, length: int) -> I64:
    ranks = (hashes % np.uint64(length - len(gone))).astype(np.int64)
    # The rank-th place that is left lies behind as many gone ones as have at most `rank` left
    # places before them.
    return ranks + np.searchsorted(gone - np.arange(len(gone)), ranks, side="right")
