"""The step plan: a pure function from (dataset index, seed, step) to samples, and its inverse.

Closed form, integers only. A phase is a range of steps. The bucket of a step is a letter of the
phase's balanced bucket word; the pool of a slot is a letter of the bucket's balanced stream
word, read on by one batch each time that the bucket's turn comes; the sample is a keyed
permutation of the pool, another for each epoch. Nothing depends on ranks. Pools are (stream,
bucket, tiers admitted), and a pool goes on from phase to phase where it left off.

Past its last step a plan goes on with its last phase. A plan holds some integers for each pool
and none for a sample: what a sample is called is asked of a `SampleIndex`. How weights become
counts belongs to `plan_mixture`, patches to `plan_exclusion` and `plan_patch`, who reads what to
`loader`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import cached_property
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.digest import digest
from wsdata.errors import PlanError
from wsdata.shard.plan_atoms import Atom, SampleIndex, SampleTable
from wsdata.shard.plan_exclusion import Patch
from wsdata.shard.plan_mixture import (
    PhaseMix,
    Pool,
    exact,
    mix_from_json,
    mix_phase,
    mix_to_json,
    pool_from_json,
)
from wsdata.shard.plan_orders import PoolOrders
from wsdata.shard.plan_pools import (
    PoolRows,
    admit_pools,
    check_atoms,
    check_pools,
    pool_atoms,
)
from wsdata.shard.plan_records import Draws, Near, PlannedSample, Served
from wsdata.shard.plan_schedule import Schedule

I64 = NDArray[np.int64]

FORMAT_VERSION = 2
_PAIRS_AT_ONCE = 1_000_000  # (epoch, sample) pairs inverted in one go
_LOOK_AHEAD = 4096  # steps searched first for the next ones that serve some rows


class StepPlan:
    """See the module docstring. Made by `compile`, `from_json` and `plan_patch.apply_patch`.

    Attributes:
        index: Tells what the samples are called.
        atoms: Those that some pool has, in the order of their rows.
    """

    def __init__(
        self,
        index: SampleIndex,
        *,
        seed: int,
        atoms: Sequence[Atom],
        pools: Sequence[Pool],
        phases: Sequence[PhaseMix],
        near: Near | None = None,
        patches: Sequence[Patch] = (),
    ) -> None:
        self.index = index
        self.seed = seed
        self.atoms = tuple(atoms)
        self.pools = tuple(pools)
        self.phases = tuple(phases)
        self.near = near
        self.patches = tuple(patches)
        self._rows = PoolRows([pool_atoms(self.atoms, pool) for pool in self.pools])
        self._orders = PoolOrders(self.pools, seed=seed, near=near, patches=self.patches)
        self.schedule = Schedule(self.phases)

    @classmethod
    def compile(
        cls,
        index: SampleIndex | pl.DataFrame,
        *,
        seed: int,
        phases: Sequence[Mapping[str, Any]],
        streams: Mapping[str, Mapping[str, Any]],
        samples: Mapping[str, Any],
        shuffle: Mapping[str, int] | None = None,
        lost: Mapping[str, int] | None = None,
    ) -> "StepPlan":
        """Compile the plan of a dataset version.

        Args:
            index: What is planned; or rows of table ``dataset_index``, in any order.
            seed: Keys every permutation.
            phases: The recipe's phases, as plain dicts, in the order of training.
            streams: The recipe's streams, as plain dicts.
            samples: The recipe's ``samples`` section, as a plain dict.
            shuffle: The recipe's ``shuffle`` section, as a plain dict.
            lost: Samples of each bucket that were in the manifest but could not be encoded: a
                bucket that is short because of them is left out instead of refused.

        Raises:
            PlanError: There is no phase or an empty one, a bucket cannot fill a global batch, a
                share is too small to be drawn, or epoch caps leave too little data.
        """
        if not phases:
            raise PlanError("the recipe declares no phase, so there is no step to plan: add one")
        source = SampleTable(index) if isinstance(index, pl.DataFrame) else index
        epochs_left = {
            str(stream): exact(section["max_epochs"])
            for stream, section in streams.items()
            if section.get("max_epochs")
        }
        pools: list[Pool] = []
        mixes: list[PhaseMix] = []
        for phase in phases:
            mix, taken = mix_phase(
                phase,
                admit_pools(source.atoms, phase, pools),
                streams=streams,
                samples=samples,
                epochs_left=epochs_left,
                lost=lost or {},
            )
            mixes.append(mix)
            for stream in epochs_left:
                epochs_left[stream] -= taken.get(stream, Fraction(0))
        drawn = {id(atom) for pool in pools for atom in pool_atoms(source.atoms, pool)}
        return cls(
            source,
            seed=seed,
            atoms=[atom for atom in source.atoms if id(atom) in drawn],
            pools=pools,
            phases=mixes,
            near=Near.of(shuffle),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any], index: SampleIndex | pl.DataFrame) -> "StepPlan":
        """Read what `to_json` wrote, over the index (or its rows) that it was compiled from.

        Raises:
            PlanError: Another format version, or the index cannot be the one that was planned.
        """
        if data.get("format_version") != FORMAT_VERSION:
            raise PlanError(
                f"step plan has format {data.get('format_version')!r}, this code reads "
                f"{FORMAT_VERSION}: use the release of wsdata that wrote it, or plan the next "
                "dataset version with this one"
            )
        source = SampleTable(index) if isinstance(index, pl.DataFrame) else index
        atoms = [Atom(**atom) for atom in data["atoms"]]
        pools = [pool_from_json(pool) for pool in data["pools"]]
        check_pools(pools, atoms)
        check_atoms(atoms, source.atoms)
        return cls(
            source,
            seed=int(data["seed"]),
            atoms=atoms,
            pools=pools,
            phases=[mix_from_json(phase) for phase in data["phases"]],
            near=Near(**data["near"]) if data["near"] else None,
            patches=[Patch.from_json(patch) for patch in data["patches"]],
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form: the integers that define the plan, and its patch log."""
        return {
            "format_version": FORMAT_VERSION,
            "seed": self.seed,
            "atoms": [atom.to_json() for atom in self.atoms],
            "pools": [{**asdict(pool), "tiers": list(pool.tiers)} for pool in self.pools],
            "phases": [mix_to_json(phase) for phase in self.phases],
            "near": self.near._asdict() if self.near else None,
            "patches": [patch.to_json() for patch in self.patches],
        }

    @cached_property
    def patch_summaries(self) -> list[dict[str, Any]]:
        """What cursors keep of its patches, in their order."""
        return [patch.summary for patch in self.patches]

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
        return sum(atom.num_samples for atom in self.atoms)

    def replaced(
        self,
        *,
        seed: int | None = None,
        patches: Sequence[Patch] | None = None,
        index: SampleIndex | None = None,
    ) -> "StepPlan":
        """Return the plan with another seed, patch log or index, over the same mixture.

        Places that a patch excludes stay excluded under another seed. Another index is another
        form of the same rows.
        """
        return StepPlan(
            self.index if index is None else index,
            seed=self.seed if seed is None else seed,
            atoms=self.atoms,
            pools=self.pools,
            phases=self.phases,
            near=self.near,
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
        taken = self.index.names(rows)
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
        epochs, places = self._orders.places(pools, numbers)
        steps = np.full_like(slots, step)
        places = self._orders.served(pools, steps, epochs, places)
        return Draws(steps, slots, pools, epochs, places)

    def draws_of_steps(self, steps: Sequence[int], slots_of: Callable[[int], range]) -> list[Draws]:
        """As `draws` of each step, at little more than the cost of one.

        Args:
            steps: The steps.
            slots_of: Which slots are wanted of a step, by its batch size.
        """
        turns = [self.schedule.turn(step) for step in steps]
        wanted = [slots_of(turn.bucket.batch_size) for turn in turns]
        slots: list[I64] = [np.arange(each.start, each.stop, dtype=np.int64) for each in wanted]
        drawn = [self.schedule.draws_at(*each) for each in zip(turns, slots, strict=True)]
        lengths = [len(each) for each in slots]
        joined = np.concatenate([pools for pools, _ in drawn])
        epochs, places = self._orders.places(joined, np.concatenate([n for _, n in drawn]))
        each_step = np.repeat(np.array(steps, dtype=np.int64), lengths)
        places = self._orders.served(joined, each_step, epochs, places)
        columns = (each_step, np.concatenate(slots), joined, epochs, places)
        ends = itertools.accumulate(lengths)
        parts = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        return [Draws(*(column[part] for column in columns)) for part in parts]

    def epoch_order(self, pool: int, epoch: int, num: int) -> I64:
        """Places of a pool in the order of the first `num` draws of one epoch, unpatched."""
        first = epoch * self.pools[pool].num_samples
        numbers = np.arange(first, first + num, dtype=np.int64)
        return self._orders.places(np.full_like(numbers, pool), numbers)[1]

    def rows_of(self, draws: Draws) -> I64:
        """Rows of the index that draws are of."""
        return self._rows.rows(draws.pools, draws.places)

    def places_of(self, rows: I64) -> dict[int, I64]:
        """Places of rows in each pool that holds any of them, ascending."""
        found = {pool: self._rows.places(pool, rows) for pool in range(len(self.pools))}
        return {pool: places for pool, places in found.items() if places.size}

    def where(self, clip_id: str, until_step: int | None = None) -> list[Served]:
        """Every time in steps [0, until_step) that a sample of a clip is served, in order.

        Args:
            clip_id: A clip of the dataset version; an unknown one is never served.
            until_step: Default: the end of the plan's own steps.
        """
        end = self.num_steps if until_step is None else until_step
        return self.where_rows(self.index.rows_of_clip(clip_id), until_step=end)

    def where_rows(self, rows: I64, *, until_step: int, from_step: int = 0) -> list[Served]:
        """Every time in steps [from_step, until_step) that a row is served, in order."""
        found: list[Served] = []
        for pool, places in self.places_of(rows).items():
            # A sample also stands in for excluded ones, so their draws are looked at too.
            asked = np.union1d(places, self._orders.touched(pool))
            for draws in self.draws_of(pool, asked, until_step=until_step, from_step=from_step):
                mine = np.isin(self.serve(draws), places)
                columns = (draws.steps[mine], draws.slots[mine], draws.epochs[mine])
                numbers = cast("list[list[int]]", np.stack(columns, axis=1).tolist())
                found += [Served(*item) for item in numbers]
        return sorted(found)

    def steps_of_rows(self, rows: I64, from_step: int, limit: int) -> list[int]:
        """The next steps, at most `limit` of them, from a step on that serve any of some rows.

        Looks to the end of the plan's own steps, or of one run of the last phase beyond it.
        """
        rows = np.asarray(rows, dtype=np.int64)
        last = max(self.num_steps, from_step + self.phases[-1].num_steps)
        span = _LOOK_AHEAD
        while True:
            end = min(from_step + span, last)
            served = self.where_rows(rows, until_step=end, from_step=from_step)
            steps = sorted({item.step for item in served})
            if len(steps) >= limit or end == last:
                return steps[:limit]
            span *= 8

    def draws_of(
        self, pool: int, places: I64, *, until_step: int, from_step: int = 0
    ) -> Iterator[Draws]:
        """Every draw of some places of a pool in steps [from_step, until_step), unpatched.

        Yields in chunks, in no order that matters.
        """
        length = self.pools[pool].num_samples
        stride = max(1, _PAIRS_AT_ONCE // max(len(places), 1))
        for use in self.schedule.uses(pool, until_step, from_step):
            last_epoch = (use.end - 1) // length
            for first in range(use.first // length, last_epoch + 1, stride):
                span = np.arange(first, min(first + stride, last_epoch + 1), dtype=np.int64)
                epochs, tiled = np.repeat(span, len(places)), np.tile(places, len(span))
                numbers = self._orders.numbers(pool, epochs, tiled)
                inside = (numbers >= use.first) & (numbers < use.end)
                steps, slots = self.schedule.slots_of(use, numbers[inside])
                pools = np.full_like(steps, pool)
                yield Draws(steps, slots, pools, epochs[inside], tiled[inside])

    def serve(self, draws: Draws) -> I64:
        """Places that are served for draws once the patches are applied."""
        return self._orders.served(draws.pools, draws.steps, draws.epochs, draws.places)
