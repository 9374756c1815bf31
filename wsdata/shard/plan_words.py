"""Balanced words: how often and in which rhythm letters (buckets, streams) come.

A word of some period holds letter i exactly `counts[i]` times, spread so evenly that every
prefix is within one letter of its due share (Tijdeman's chairman assignment, solved as earliest
deadline first over integer windows). Repeated for ever, it can be asked at any place, and
asked back. Exact rationals and integers only. What the letters mean belongs to `plan`.
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


def choose_period(shares: Sequence[Fraction], limit: int) -> int:
    """Return the period of a word for shares: the exact one if it is within `limit`, else that."""
    total = sum(shares, Fraction(0))
    exact = math.lcm(*((share / total).denominator for share in shares))
    return min(exact, limit)


def apportion(shares: Sequence[Fraction], period: int) -> list[int]:
    """Share out `period` places by largest remainder; each count is within one of its due.

    Args:
        shares: Non-negative, with a positive sum; need not sum to one.
        period: Number of places, at least 1.

    Returns:
        One count for each share, summing to `period`. A small share may get none.

    Raises:
        ValueError: A negative share, or none that is positive.
    """
    total = sum(shares, Fraction(0))
    if total <= 0 or min(shares) < 0:
        raise ValueError(f"shares {[str(share) for share in shares]} have no positive sum")
    due = [share * period / total for share in shares]
    counts = [math.floor(value) for value in due]
    by_remainder = sorted(range(len(due)), key=lambda i: (counts[i] - due[i], i))
    for i in by_remainder[: period - sum(counts)]:
        counts[i] += 1
    return counts


def balanced_word(counts: Sequence[int]) -> list[int]:
    """Spread letters evenly: after any prefix of length p, |seen_i - p * c_i / L| < 1.

    Args:
        counts: How often each letter comes; letters of count zero never do.

    Returns:
        The word, of length L = sum(counts), as letter indices.
    """
    period = sum(counts)
    letters = [i for i, count in enumerate(counts) if count]
    if len(letters) == 1:
        return letters * period
    # Occurrence k (from 0) of a letter may not come before it is 1 / slack due, and must come
    # where waiting would leave the letter more than 1 - 1 / slack behind. A schedule exists.
    slack = 2 * len(letters) - 2
    opening: list[list[tuple[int, int]]] = [[] for _ in range(period + 1)]
    for letter in letters:
        denominator = counts[letter] * slack
        for k in range(counts[letter]):
            release = -(-(k * slack + 1) * period // denominator)
            deadline = ((k + 1) * slack - 1) * period // denominator + 1
            opening[release].append((deadline, letter))
    waiting: list[tuple[int, int]] = []
    word: list[int] = []
    for opened in opening[1:]:
        for occurrence in opened:
            heapq.heappush(waiting, occurrence)
        word.append(heapq.heappop(waiting)[1])  # of those due at once, the first letter
    return word


class Word:
    """A balanced word repeated for ever: letter and running index of any place, and back."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self.period = sum(counts)
        self._word: I64 = np.array(balanced_word(counts), dtype=np.int64)
        self._counts: I64 = np.array(counts, dtype=np.int64)
        self._index: I64 = np.zeros(self.period, dtype=np.int64)
        self._places: list[I64] = []
        for letter in range(len(counts)):
            places: I64 = np.flatnonzero(self._word == letter).astype(np.int64)
            self._index[places] = np.arange(len(places), dtype=np.int64)
            self._places.append(places)

    def at(self, places: I64) -> tuple[I64, I64]:
        """Letter at each place >= 0, and how often that letter came before it."""
        turn, rest = np.divmod(places, self.period)
        letters = self._word[rest]
        return letters, turn * self._counts[letters] + self._index[rest]

    def at_one(self, place: int) -> tuple[int, int]:
        """As `at`, of one place."""
        turn, rest = divmod(place, self.period)
        letter = int(self._word[rest])
        return letter, turn * self.counts[letter] + int(self._index[rest])

    def find(self, letter: int, indices: I64) -> I64:
        """Place of the occurrence with each running index >= 0 of a letter.

        Raises:
            ValueError: The letter never comes.
        """
        if not self.counts[letter]:
            raise ValueError(f"letter {letter} never comes in a word of counts {self.counts}")
        turn, rest = np.divmod(indices, self.counts[letter])
        return turn * self.period + self._places[letter][rest]

    def count(self, letter: int, length: int) -> int:
        """How often a letter comes in the first `length` places."""
        turn, rest = divmod(length, self.period)
        inside = int(np.searchsorted(self._places[letter], rest))
        return turn * self.counts[letter] + inside
