"""The step plan: a pure function from (dataset index, seed, step) to samples, and its inverse.

Closed form, integers only. A phase is a range of steps. The bucket of a step is a letter of the
phase's balanced bucket word; the pool of a slot is a letter of the bucket's balanced stream
word, read on by one batch each time that the bucket's turn comes; the sample is a keyed
permutation of the pool, another for each epoch. Nothing depends on ranks. Pools are (stream,
bucket, tiers admitted), and a pool goes on from phase to phase where it left off.

Past its last step a plan goes on with its last phase. How weights become counts belongs to
`plan_mixture`, patches to `plan_exclusion` and `plan_patch`, who reads what to `loader`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.digest import digest
from wsdata.errors import PlanError
from wsdata.shard.permute import hash_values, make_key, permute, unpermute
from wsdata.shard.plan_exclusion import Patch, served_places
from wsdata.shard.plan_mixture import (
    PhaseMix,
    Pool,
    exact,
    mix_from_json,
    mix_phase,
    mix_to_json,
    pool_from_json,
)
from wsdata.shard.plan_pools import (
    admit_pools,
    check_pools,
    pool_rows,
    sort_index,
    split_index,
)
from wsdata.shard.plan_schedule import Schedule

I64 = NDArray[np.int64]

FORMAT_VERSION = 1
_PAIRS_AT_ONCE = 1_000_000  # (epoch, sample) pairs inverted in one go


class PlannedSample(NamedTuple):
    """One slot of one step. `row` counts the index sorted by sample id; `pool` is `pools[pool]`."""

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


class StepPlan:
    """See the module docstring. Made by `compile`, `from_json` and `plan_patch.apply_patch`."""

    def __init__(
        self,
        index: pl.DataFrame,
        rows: Sequence[I64],
        *,
        seed: int,
        pools: Sequence[Pool],
        phases: Sequence[PhaseMix],
        patches: Sequence[Patch] = (),
    ) -> None:
        self.index = index
        self.seed = seed
        self.pools = tuple(pools)
        self.phases = tuple(phases)
        self.patches = tuple(patches)
        self._rows = tuple(rows)
        self._keys = [make_key("pool", seed, pool.name) for pool in self.pools]
        self.schedule = Schedule(self.phases)

    @classmethod
    def compile(
        cls,
        index_rows: pl.DataFrame,
        *,
        seed: int,
        phases: Sequence[Mapping[str, Any]],
        streams: Mapping[str, Mapping[str, Any]],
        samples: Mapping[str, Any],
        lost: Mapping[str, int] | None = None,
    ) -> "StepPlan":
        """Compile the plan of a dataset version.

        Args:
            index_rows: Rows of table ``dataset_index``, in any order.
            seed: Keys every permutation.
            phases: The recipe's phases, as plain dicts, in the order of training.
            streams: The recipe's streams, as plain dicts.
            samples: The recipe's ``samples`` section, as a plain dict.
            lost: Samples of each bucket that were in the manifest but could not be encoded: a
                bucket that is short because of them is left out instead of refused.

        Raises:
            PlanError: There is no phase or an empty one, a bucket cannot fill a global batch, a
                share is too small to be drawn, or epoch caps leave too little data.
        """
        if not phases:
            raise PlanError("the recipe declares no phase, so there is no step to plan: add one")
        index = sort_index(index_rows)
        epochs_left = {
            str(stream): exact(section["max_epochs"])
            for stream, section in streams.items()
            if section.get("max_epochs")
        }
        atoms = split_index(index)
        pools: list[Pool] = []
        mixes: list[PhaseMix] = []
        for phase in phases:
            mix, taken = mix_phase(
                phase,
                admit_pools(index, atoms, phase, pools),
                streams=streams,
                samples=samples,
                epochs_left=epochs_left,
                lost=lost or {},
            )
            mixes.append(mix)
            for stream in epochs_left:
                epochs_left[stream] -= taken.get(stream, Fraction(0))
        rows = [pool_rows(atoms, pool) for pool in pools]
        return cls(index, rows, seed=seed, pools=pools, phases=mixes)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], index_rows: pl.DataFrame) -> "StepPlan":
        """Read what `to_json` wrote, over the rows of the dataset index that it was compiled from.

        Raises:
            PlanError: Another format version, or the index cannot be the one that was planned.
        """
        if data.get("format_version") != FORMAT_VERSION:
            raise PlanError(
                f"step plan has format {data.get('format_version')!r}, this code reads "
                f"{FORMAT_VERSION}: use the release of wsdata that wrote it"
            )
        index = sort_index(index_rows)
        atoms = split_index(index)
        pools = [pool_from_json(pool) for pool in data["pools"]]
        rows = [pool_rows(atoms, pool) for pool in pools]
        check_pools(pools, rows)
        return cls(
            index,
            rows,
            seed=int(data["seed"]),
            pools=pools,
            phases=[mix_from_json(phase) for phase in data["phases"]],
            patches=[Patch.from_json(patch) for patch in data["patches"]],
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form: the integers that define the plan, and its patch log."""
        return {
            "format_version": FORMAT_VERSION,
            "seed": self.seed,
            "pools": [{**asdict(pool), "tiers": list(pool.tiers)} for pool in self.pools],
            "phases": [mix_to_json(phase) for phase in self.phases],
            "patches": [patch.to_json() for patch in self.patches],
        }

    @cached_property
    def plan_id(self) -> str:
        """Digest over all that decides which sample is served when, patches included."""
        return digest(self.to_json())

    @cached_property
    def base_plan_id(self) -> str:
        """What `plan_id` is, or was, without any patch."""
        return digest({**self.to_json(), "patches": []})

    @property
    def num_steps(self) -> int:
        """Steps of all phases together. Later ones can be asked for: the last phase goes on."""
        return self.schedule.num_steps

    @property
    def num_samples(self) -> int:
        """Samples that some phase admits."""
        return int(np.unique(np.concatenate(self._rows)).size)

    def replaced(
        self, *, seed: int | None = None, patches: Sequence[Patch] | None = None
    ) -> "StepPlan":
        """Return the plan with another seed or patch log, over the same pools and mixture.

        Places that a patch excludes stay excluded under another seed.
        """
        return StepPlan(
            self.index,
            self._rows,
            seed=self.seed if seed is None else seed,
            pools=self.pools,
            phases=self.phases,
            patches=self.patches if patches is None else patches,
        )

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Global batch of every bucket that is ever drawn."""
        return {mix.bucket: mix.batch_size for phase in self.phases for mix in phase.buckets}

    def phase(self, step: int) -> PhaseMix:
        """Phase that a step belongs to."""
        return self.phases[self.schedule.phase_at(step)]

    def bucket(self, step: int) -> str:
        """Bucket that a step draws all its samples from."""
        return self.schedule.turn(step).bucket.bucket

    def batch_size(self, step: int) -> int:
        """Samples in a step's global batch."""
        return self.schedule.turn(step).bucket.batch_size

    def samples(
        self, step: int, *, first_slot: int = 0, end_slot: int | None = None
    ) -> list[PlannedSample]:
        """Return the samples of slots [first_slot, end_slot) of a step, in global order.

        Raises:
            ValueError: A negative step, or slots outside the step's global batch.
        """
        draws = self.draws(step, first_slot=first_slot, end_slot=end_slot)
        rows = self.rows_of(draws)
        taken = self.index.select("sample_id", "clip_id")[rows].rows()
        columns = (draws.slots, draws.epochs, draws.pools, rows)
        numbers = cast("list[list[int]]", np.stack(columns, axis=1).tolist())
        return [
            PlannedSample(slot, sample_id, clip_id, self.pools[pool].stream, epoch, pool, row)
            for (slot, epoch, pool, row), (sample_id, clip_id) in zip(numbers, taken, strict=True)
        ]

    def draws(self, step: int, *, first_slot: int = 0, end_slot: int | None = None) -> Draws:
        """As `samples`, as arrays of what is served, patches applied."""
        turn = self.schedule.turn(step)
        size = turn.bucket.batch_size
        end = size if end_slot is None else end_slot
        if not 0 <= first_slot <= end <= size:
            raise ValueError(f"step {step} has slots [0, {size}), asked for [{first_slot}, {end})")
        slots = np.arange(first_slot, end, dtype=np.int64)
        pools, numbers = self.schedule.draws_at(turn, slots)
        epochs, places = np.zeros_like(slots), np.zeros_like(slots)
        steps = np.full_like(slots, step)
        for pool in cast("list[int]", np.unique(pools).tolist()):
            mask = pools == pool
            epochs[mask], place = self._place(pool, numbers[mask])
            places[mask] = self._served(pool, steps[mask], epochs[mask], place)
        return Draws(steps, slots, pools, epochs, places)

    def epoch_order(self, pool: int, epoch: int, num: int) -> I64:
        """Places of a pool in the order of the first `num` draws of one epoch, unpatched."""
        first = epoch * self.pools[pool].num_samples
        return self._place(pool, np.arange(first, first + num, dtype=np.int64))[1]

    def rows_of(self, draws: Draws) -> I64:
        """Rows (of the index sorted by sample id) that draws are of."""
        rows = np.zeros_like(draws.places)
        for pool in cast("list[int]", np.unique(draws.pools).tolist()):
            mask = draws.pools == pool
            rows[mask] = self._rows[pool][draws.places[mask]]
        return rows

    def places_of(self, rows: I64) -> dict[int, I64]:
        """Places of sorted rows in each pool that holds any of them, ascending."""
        found: dict[int, I64] = {}
        for pool, mine in enumerate(self._rows):
            places = np.searchsorted(mine, rows)
            places = places[places < len(mine)]
            places = places[np.isin(mine[places], rows)]
            if places.size:
                found[pool] = np.unique(places)
        return found

    def where(self, clip_id: str, until_step: int | None = None) -> list[Served]:
        """Every time in steps [0, until_step) that a sample of a clip is served, in order.

        Args:
            clip_id: A clip of the dataset version; an unknown one is never served.
            until_step: Default: the end of the plan's own steps.
        """
        rows = (self.index["clip_id"] == clip_id).arg_true().to_numpy().astype(np.int64)
        end = self.num_steps if until_step is None else until_step
        found: list[Served] = []
        for pool, places in self.places_of(rows).items():
            # A sample also stands in for excluded ones, so their draws are looked at too.
            excluded = [p.excluded[pool] for p in self.patches if pool in p.excluded]
            asked = np.unique(np.concatenate([places, *excluded]))
            for draws in self.draws_of(pool, asked, until_step=end):
                mine = np.isin(self.serve(pool, draws), places)
                found += [
                    Served(*item)
                    for item in zip(
                        cast("list[int]", draws.steps[mine].tolist()),
                        cast("list[int]", draws.slots[mine].tolist()),
                        cast("list[int]", draws.epochs[mine].tolist()),
                        strict=True,
                    )
                ]
        return sorted(found)

    def draws_of(self, pool: int, places: I64, *, until_step: int) -> Iterator[Draws]:
        """Every draw of some places of a pool in steps [0, until_step), patches not applied.

        Yields in chunks, in no order that matters.
        """
        length = self.pools[pool].num_samples
        stride = max(1, _PAIRS_AT_ONCE // len(places))
        for use in self.schedule.uses(pool, until_step):
            last_epoch = (use.end - 1) // length
            for first in range(use.base // length, last_epoch + 1, stride):
                span = np.arange(first, min(first + stride, last_epoch + 1), dtype=np.int64)
                epochs, tiled = np.repeat(span, len(places)), np.tile(places, len(span))
                positions = unpermute(tiled, length, hash_values(epochs, self._keys[pool]))
                numbers = epochs * length + positions
                inside = (numbers >= use.base) & (numbers < use.end)
                steps, slots = self.schedule.slots_of(use, numbers[inside])
                pools = np.full_like(steps, pool)
                yield Draws(steps, slots, pools, epochs[inside], tiled[inside])

    def serve(self, pool: int, draws: Draws) -> I64:
        """Places that are served for draws of one pool once the patches are applied."""
        return self._served(pool, draws.steps, draws.epochs, draws.places)

    def _place(self, pool: int, numbers: I64) -> tuple[I64, I64]:
        """Epoch and place of a pool's draws by their running number, patches not applied."""
        length = self.pools[pool].num_samples
        epochs, positions = np.divmod(numbers, length)
        return epochs, permute(positions, length, hash_values(epochs, self._keys[pool]))

    def _served(self, pool: int, steps: I64, epochs: I64, places: I64) -> I64:
        return served_places(
            self.patches,
            pool,
            key=self._keys[pool],
            length=self.pools[pool].num_samples,
            steps=steps,
            epochs=epochs,
            places=places,
        )
