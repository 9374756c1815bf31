"""Times in fixed classes: any number of them in the same small memory, added up exactly.

Eight classes an octave from a microsecond to a quarter of an hour. The classes are the same on
every rank, so that percentiles of many ranks are those of their sum, and not a mean of percentiles.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FIRST_S = 1e-6
PER_OCTAVE = 8
NUM_OCTAVES = 30
NUM_CLASSES = PER_OCTAVE * NUM_OCTAVES + 1
CLASSES = "2^(1/8) from 1e-6 s, 241"  # what a stored histogram is of; a change is another format


class Histogram:
    """Counts by class. Adding to one from several threads needs a lock of the caller's."""

    __slots__ = ("counts", "num", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * NUM_CLASSES
        self.num = 0
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one time; beyond the last class it counts there."""
        self.counts[class_of(seconds)] += 1
        self.num += 1
        self.sum_s += seconds

    def add_all(self, seconds: Sequence[float]) -> None:
        """Count several times, at less cost than one by one."""
        if not seconds:
            return
        times = np.maximum(np.array(seconds), FIRST_S)
        numbers = np.ceil(np.log2(times / FIRST_S) * PER_OCTAVE).astype(np.int64)
        for number in np.minimum(numbers, NUM_CLASSES - 1).tolist():
            self.counts[number] += 1
        self.num += len(seconds)
        self.sum_s += math.fsum(seconds)

    def merge(self, other: "Histogram") -> None:
        """Add all of another's."""
        self.counts = [
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.num += other.num
        self.sum_s += other.sum_s

    def quantile_s(self, share: float) -> float | None:
        """Return the time that at least `share` of all stayed within, as its class's upper end.

        At most 9 % above the true one; None where nothing was counted.

        Args:
            share: In (0, 1].
        """
        rank, seen = math.ceil(share * self.num), 0
        for number, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return upper_s(number)
        return None

    def to_json(self) -> dict[str, Any]:
        """As JSON: classes without a count are left out."""
        filled = {str(number): count for number, count in enumerate(self.counts) if count}
        return {"classes": CLASSES, "sum_s": self.sum_s, "counts": filled}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Histogram":
        """Read what `to_json` wrote. Raises ValueError where the classes are others."""
        if body["classes"] != CLASSES:
            raise ValueError(f"histogram of classes {body['classes']!r}: expected {CLASSES!r}")
        made = cls()
        for number, count in body["counts"].items():
            made.counts[int(number)] += int(count)
        made.num, made.sum_s = sum(made.counts), float(body["sum_s"])
        return made


def class_of(seconds: float) -> int:
    """Number of the class that a time lies in."""
    if seconds <= FIRST_S:
        return 0
    return min(NUM_CLASSES - 1, math.ceil(math.log2(seconds / FIRST_S) * PER_OCTAVE))


def upper_s(number: int) -> float:
    """Upper end of a class, in seconds."""
    return FIRST_S * 2 ** (number / PER_OCTAVE)
