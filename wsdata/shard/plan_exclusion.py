"""Patches of a step plan: which places of which pools are excluded, and what is served instead.

A substitute is a hashed draw from what its pool has left, found by rank and never by trial, so
it costs the same however much is excluded. Excluded places are kept as runs: all samples of a
clip, or of a raw asset, stand side by side in a pool. How a patch is made belongs to
`plan_patch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wsdata.digest import digest
from wsdata.shard.permute import hash_values, make_key

I64 = NDArray[np.int64]


class Places:
    """A set of places of a pool, as runs of neighbours."""

    def __init__(self, starts: I64, lengths: I64) -> None:
        """Take runs that are ascending, not empty, and neither touch nor overlap."""
        self.starts, self.lengths = starts, lengths
        self.ends: I64 = starts + lengths
        self._before: I64 = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    @classmethod
    def of(cls, places: I64) -> "Places":
        """Take places in any order, repeated or not."""
        places = np.unique(places)
        heads = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        return cls(places[heads], np.diff(heads, append=len(places)))

    @classmethod
    def union(cls, sets: Sequence["Places"]) -> "Places":
        """Join sets of one pool."""
        starts = np.concatenate([each.starts for each in sets])
        ends = np.concatenate([each.ends for each in sets])
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        is_head = np.concatenate([np.ones(1, bool), starts[1:] > ends[:-1]])[: len(starts)]
        heads = np.flatnonzero(is_head)
        lasts = np.append(heads[1:] - 1, len(starts) - 1)[: len(heads)]
        return cls(starts[heads], ends[lasts] - starts[heads])

    @classmethod
    def from_json(cls, runs: Sequence[int]) -> "Places":
        """Read what `to_json` wrote."""
        pairs = np.array(runs, dtype=np.int64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])

    def to_json(self) -> list[int]:
        """Return the start and length of each run, one after the other."""
        return cast("list[int]", np.stack([self.starts, self.lengths], axis=1).ravel().tolist())

    def __len__(self) -> int:
        """Count the places."""
        return int(self._before[-1])

    def has(self, places: I64) -> NDArray[np.bool_]:
        """Tell which of some places are in the set."""
        if not len(self.starts):
            return np.zeros(len(places), dtype=np.bool_)
        run = np.searchsorted(self.starts, places, side="right") - 1
        return (run >= 0) & (places < self.ends[run])

    def all(self) -> I64:
        """Return every place, ascending."""
        offsets = np.repeat(self.starts - self._before[:-1], self.lengths)
        return offsets + np.arange(len(self), dtype=np.int64)

    def rest(self, ranks: I64) -> I64:
        """Place of each rank among the places that are not in the set."""
        # The place lies behind as many runs as have at most `rank` other places before them.
        runs = np.searchsorted(self.starts - self._before[:-1], ranks, side="right")
        return ranks + self._before[runs]


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """Places excluded in each pool, in steps [from_step, ...)."""

    from_step: int
    excluded: Mapping[int, Places]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {
            "from_step": self.from_step,
            "excluded": {str(pool): places.to_json() for pool, places in self.excluded.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Patch":
        """Read what `to_json` wrote."""
        excluded = cast("dict[str, list[int]]", data["excluded"])
        return cls(
            from_step=int(data["from_step"]),
            excluded={
                int(pool): Places.from_json(runs)
                for pool, runs in sorted(excluded.items(), key=lambda item: int(item[0]))
            },
        )

    @property
    def summary(self) -> dict[str, Any]:
        """What a cursor keeps of a patch: from when, how much, and a digest of what."""
        num = sum(len(places) for places in self.excluded.values())
        return {"from_step": self.from_step, "num": num, "digest": digest(self.to_json())[:16]}


class Exclusions:
    """The patch log of one pool, ready to be applied to draws."""

    def __init__(self, patches: Sequence[Patch], pool: int, *, key: int, length: int) -> None:
        """Prepare the patches that touch a pool.

        Args:
            patches: The plan's patch log.
            pool: Which pool.
            key: The pool's key.
            length: Samples in the pool.
        """
        self._key, self._length = key, length
        self._patches = [
            (number, patch.from_step, patch.excluded[pool])
            for number, patch in enumerate(patches)
            if pool in patch.excluded
        ]
        froms = [from_step for _, from_step, _ in self._patches]
        self._borders: I64 = np.unique(np.array(froms, dtype=np.int64))
        self._eras: dict[int, list[tuple[int, Places, Places]]] = {}

    def touched(self) -> I64:
        """Every place that some patch excludes, ascending."""
        sets = [excluded for _, _, excluded in self._patches]
        return Places.union(sets).all() if sets else np.zeros(0, dtype=np.int64)

    def served(self, steps: I64, epochs: I64, places: I64) -> I64:
        """Apply the patches, in their order, to draws of the pool.

        A patch touches only what is excluded by it: a substitute that an earlier patch chose
        stays until a later one excludes it too.

        Args:
            steps: Step of each draw.
            epochs: Epoch of each draw.
            places: Place in the pool of each draw before any patch.

        Returns:
            Place in the pool of each draw as served.
        """
        if not len(self._borders):
            return places
        served = places.copy()
        eras = np.searchsorted(self._borders, steps, side="right")
        for era in cast("list[int]", np.unique(eras).tolist()):
            mask = eras == era
            now = served[mask]
            for number, excluded, gone in self._active(era):
                hit = excluded.has(now)
                salt = hash_values(epochs[mask][hit], make_key("substitute", self._key, number))
                hashes = hash_values(now[hit], self._key) ^ salt
                left = np.uint64(self._length - len(gone))
                now[hit] = gone.rest((hashes % left).astype(np.int64))
            served[mask] = now
        return served

    def _active(self, era: int) -> list[tuple[int, Places, Places]]:
        """Patches of an era: number, what each excludes, and what is gone by then."""
        if era not in self._eras:
            done = list[Places]()
            found: list[tuple[int, Places, Places]] = []
            for number, from_step, excluded in self._patches:
                if era and from_step <= self._borders[era - 1]:
                    done = [Places.union([*done, excluded])]
                    found.append((number, excluded, done[0]))
            self._eras[era] = found
        return self._eras[era]


def num_excluded(patches: Sequence[Patch], pool: int) -> int:
    """Places of a pool that patches exclude, all together."""
    sets = [patch.excluded[pool] for patch in patches if pool in patch.excluded]
    return len(Places.union(sets)) if sets else 0
