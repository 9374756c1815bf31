"""The rhythm of a plan: which pool each slot of each step draws from, and its how-many-th draw.

Only phases, buckets and pools by number are known here. Which sample a draw is belongs to
`plan`; how many letters a word has, to `plan_mixture`. Words are built when first asked for.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.shard.plan_mixture import BucketMix, PhaseMix
from wsdata.shard.plan_words import Word

I64 = NDArray[np.int64]


class Turn(NamedTuple):
    """A step: its phase, its bucket (by index in the phase), how many such steps came before."""

    phase: int
    mix: int
    bucket: BucketMix
    number: int


class Use(NamedTuple):
    """A pool within a phase, or a part of it: draws [first, end) of the pool are made there."""

    phase: int
    mix: int
    letter: int  # of the pool in the bucket's stream word
    start: int  # first draw of the whole phase
    first: int
    end: int


class Schedule:
    """See the module docstring."""

    def __init__(self, phases: Sequence[PhaseMix]) -> None:
        self.phases = tuple(phases)
        self._starts = [0]
        for phase in self.phases:
            self._starts.append(self._starts[-1] + phase.num_steps)
        self._bucket_words: dict[int, Word] = {}
        self._stream_words: dict[tuple[int, int], Word] = {}
        self._draws_before: dict[tuple[int, int], int] = {}

    @property
    def num_steps(self) -> int:
        """Steps of all phases together."""
        return self._starts[-1]

    def phase_at(self, step: int) -> int:
        """Phase of a step, by index; the last one goes on for ever.

        Raises:
            ValueError: A negative step.
        """
        if step < 0:
            raise ValueError(f"step {step}: steps count from 0")
        for phase, end in enumerate(self._starts[1:]):
            if step < end:
                return phase
        return len(self.phases) - 1

    def turn(self, step: int) -> Turn:
        """Which bucket a step draws from."""
        phase = self.phase_at(step)
        mix, number = self._bucket_word(phase).at_one(step - self._starts[phase])
        return Turn(phase, mix, self.phases[phase].buckets[mix], number)

    def draws_at(self, turn: Turn, slots: I64) -> tuple[I64, I64]:
        """Pool of each slot of a step, and how often that pool was drawn before, ever."""
        places = turn.number * turn.bucket.batch_size + slots
        letters, counts = self._stream_word(turn.phase, turn.mix).at(places)
        bases = np.array([self._start(turn.phase, p) for p in turn.bucket.pools], dtype=np.int64)
        return np.array(turn.bucket.pools, dtype=np.int64)[letters], bases[letters] + counts

    def slots_of(self, use: Use, numbers: I64) -> tuple[I64, I64]:
        """Step and slot of a pool's draws by running number, all in [use.first, use.end)."""
        places = self._stream_word(use.phase, use.mix).find(use.letter, numbers - use.start)
        turns, slots = np.divmod(places, self.phases[use.phase].buckets[use.mix].batch_size)
        return self._starts[use.phase] + self._bucket_word(use.phase).find(use.mix, turns), slots

    def uses(self, pool: int, until_step: int, from_step: int = 0) -> Iterator[Use]:
        """Where a pool is drawn from in steps [from_step, until_step), phase by phase."""
        for phase, content in enumerate(self.phases):
            is_last = phase == len(self.phases) - 1
            stop = until_step if is_last else min(until_step, self._starts[phase + 1])
            begin, num_steps = max(from_step - self._starts[phase], 0), stop - self._starts[phase]
            for mix, bucket in enumerate(content.buckets):
                if pool in bucket.pools and num_steps > begin:
                    start = self._start(phase, pool)
                    before = self.num_drawn(phase, pool, begin)
                    drawn = self.num_drawn(phase, pool, num_steps)
                    if drawn > before:
                        letter = bucket.pools.index(pool)
                        yield Use(phase, mix, letter, start, start + before, start + drawn)

    def num_drawn(self, phase: int, pool: int, num_steps: int) -> int:
        """How often a pool is drawn in the first `num_steps` steps of a phase."""
        for mix, bucket in enumerate(self.phases[phase].buckets):
            if pool in bucket.pools:
                turns = self._bucket_word(phase).count(mix, num_steps)
                word = self._stream_word(phase, mix)
                return word.count(bucket.pools.index(pool), turns * bucket.batch_size)
        return 0

    def _start(self, phase: int, pool: int) -> int:
        """Draws of a pool in all phases before one."""
        if (phase, pool) not in self._draws_before:
            self._draws_before[phase, pool] = sum(
                self.num_drawn(earlier, pool, self.phases[earlier].num_steps)
                for earlier in range(phase)
            )
        return self._draws_before[phase, pool]

    def _bucket_word(self, phase: int) -> Word:
        if phase not in self._bucket_words:
            turns = [bucket.num_turns for bucket in self.phases[phase].buckets]
            self._bucket_words[phase] = Word(turns)
        return self._bucket_words[phase]

    def _stream_word(self, phase: int, mix: int) -> Word:
        if (phase, mix) not in self._stream_words:
            self._stream_words[phase, mix] = Word(self.phases[phase].buckets[mix].draws)
        return self._stream_words[phase, mix]
