"""Which hashes lie within a distance of which: exact, by multi-index hashing.

Two 256-bit hashes that differ in at most r bits differ, in one of m substrings, in at most so
many bits that the substrings' radii plus m exceed r (the pigeonhole principle; Norouzi, Punjani
and Fleet, "Fast exact search in Hamming space with multi-index hashing", 2014). So every
substring is a key of a table, a query looks up the keys in that substring's radius, and what
lies there is compared in full: nothing is missed, and the result depends on no order of
insertion, block or thread. What a pair of near frames means belongs to the matchers.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.media.phash import HASH_BITS, HASH_BYTES

_MAX_KEY_BITS = 24  # of a substring: its table has 2^bits + 1 offsets
_MAX_SUBSTRINGS = 64
_BLOCK = 1 << 16  # candidates compared at once: what a core's cache holds
# Nanoseconds, measured on one core; only their ratios count, and no result follows from them.
_SORT_NS, _LOOKUP_NS, _COMPARE_NS = 35.0, 45.0, 85.0


class NearPairs(NamedTuple):
    """Pairs within the radius, sorted by left then right, each once.

    Attributes:
        left: Row of the left side.
        right: Row of the right side.
        distance: Bits in which they differ.
    """

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    distance: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Substring:
    """Bits [start, start + width) of a hash, searched within `radius` bits."""

    start: int
    width: int
    radius: int

    @property
    def num_lookups(self) -> int:
        return sum(math.comb(self.width, k) for k in range(self.radius + 1))

    def keys(self, hashes: NDArray[np.uint8]) -> NDArray[np.uint32]:
        first = min(self.start // 8, HASH_BYTES - 4)
        words = np.ascontiguousarray(hashes[:, first : first + 4]).view(">u4")[:, 0]
        shift = 32 - (self.start - 8 * first) - self.width
        return (words.astype(np.uint32) >> np.uint32(shift)) & np.uint32((1 << self.width) - 1)

    def flips(self) -> NDArray[np.uint32]:
        """Masks that turn a key into every key of its ball."""
        found = [
            sum(1 << bit for bit in bits)
            for k in range(self.radius + 1)
            for bits in combinations(range(self.width), k)
        ]
        return np.array(found, np.uint32)


@functools.cache
def _split(num_substrings: int, radius: int) -> tuple[_Substring, ...]:
    """Cut a hash into substrings whose radii reach all pairs within `radius`."""
    share, rest = divmod(radius - num_substrings + 1, num_substrings)
    edges = [HASH_BITS * i // num_substrings for i in range(num_substrings + 1)]
    parts = [
        _Substring(low, high - low, share + (i < rest))
        for i, (low, high) in enumerate(pairwise(edges))
    ]
    return tuple(part for part in parts if part.radius >= 0)


@functools.cache
def _ways(radius: int) -> tuple[list[tuple[_Substring, ...]], NDArray[np.float64]]:
    """All ways to cut, and of each: tables, offsets, lookups a query, share of hashes it meets."""
    least = -(-HASH_BITS // _MAX_KEY_BITS)
    ways = [_split(count, radius) for count in range(least, _MAX_SUBSTRINGS + 1)]
    sizes = [
        (
            len(parts),
            sum(2**part.width for part in parts),
            sum(part.num_lookups for part in parts),
            sum(part.num_lookups / 2**part.width for part in parts),
        )
        for parts in ways
    ]
    return ways, np.array(sizes, np.float64)


def _best_split(
    num_hashes: int, num_queries: int, radius: int
) -> tuple[float, tuple[_Substring, ...], float]:
    """The cheapest way to ask: its cost, the substrings, and the cost of one query, in ns."""
    ways, sizes = _ways(radius)
    tables, offsets, lookups, met = sizes.T
    build = _SORT_NS * num_hashes * tables + _LOOKUP_NS * offsets
    ask = _LOOKUP_NS * lookups + _COMPARE_NS * num_hashes * met
    cost = build + num_queries * ask
    best = int(cost.argmin())
    return float(cost[best]), ways[best], float(ask[best])


class PrintIndex:
    """An exact index of hashes. Memory: 32 bytes a hash, and 4 for each substring.

    Attributes:
        num_tables: Substrings that have a table.
    """

    def __init__(
        self, hashes: NDArray[np.uint8], *, radius: int, num_queries: int = 1 << 16
    ) -> None:
        """Build the tables.

        Args:
            hashes: Shape (n, 32), n below 2^31.
            radius: Largest distance that queries will be answered for, in [0, 255].
            num_queries: About how many queries are to come; only speed follows from it.
        """
        if not 0 <= radius < HASH_BITS:
            raise ValueError(f"radius {radius}: expected 0 to {HASH_BITS - 1} bits")
        self._radius = radius
        self._halves = _halves(hashes)
        _, self._parts, self._ask_ns = _best_split(len(hashes), num_queries, radius)
        self._flips = [part.flips() for part in self._parts]
        self._tables = [self._table(part, hashes) for part in self._parts]
        self.num_tables = len(self._tables)

    def __len__(self) -> int:
        return len(self._halves[0])

    @staticmethod
    def _table(
        part: _Substring, hashes: NDArray[np.uint8]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Offsets of every key, and rows in order of their keys."""
        keys = part.keys(hashes)
        counts = np.bincount(keys, minlength=1 << part.width)
        offsets = np.zeros((1 << part.width) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        packed = (keys.astype(np.uint64) << np.uint64(32)) | np.arange(len(keys), dtype=np.uint64)
        packed.sort()
        return offsets, (packed & np.uint64(0xFFFFFFFF)).astype(np.int32)

    def near(self, queries: NDArray[np.uint8]) -> NearPairs:
        """Return all pairs (row of `queries`, row of the index) within the radius."""
        if not len(self) or not len(queries):
            return _as_pairs([], len(self))
        per_block = max(1, min(len(queries), int(_BLOCK * _COMPARE_NS / self._ask_ns)))
        found: list[NDArray[np.int64]] = []
        for start in range(0, len(queries), per_block):
            block = np.ascontiguousarray(queries[start : start + per_block], np.uint8)
            found += self._near_block(block, start)
        return _as_pairs(found, len(self))

    def _near_block(self, block: NDArray[np.uint8], first: int) -> list[NDArray[np.int64]]:
        """Pairs of some queries as rows (query x size of the index + row, distance)."""
        head, tail = _halves(block)
        found: list[NDArray[np.int64]] = []
        for part, flips, (offsets, rows) in zip(
            self._parts, self._flips, self._tables, strict=True
        ):
            wanted = (part.keys(block)[:, None] ^ flips[None, :]).reshape(-1)
            starts = offsets[wanted]
            counts = offsets[wanted + np.uint32(1)] - starts
            hit = np.flatnonzero(counts)
            for some in _within(counts[hit], _BLOCK):
                pick = hit[some]
                query = np.repeat(pick // len(flips), counts[pick])
                row = rows[_ranges(starts[pick], counts[pick])]
                apart = _apart(self._halves[0], row, head, query)
                near = np.flatnonzero(apart <= self._radius)
                row, query = row[near], query[near]
                total = apart[near].astype(np.int64) + _apart(self._halves[1], row, tail, query)
                is_near = total <= self._radius
                label = (query[is_near] + first) * len(self) + row[is_near]
                found.append(np.stack([label, total[is_near]], axis=1))
        return [np.unique(np.concatenate(found), axis=0)] if found else []


def _within(counts: NDArray[np.int32], limit: int) -> Iterator[slice]:
    """Slices of buckets that hold at most `limit` together; one alone may hold more."""
    ends = np.cumsum(counts, dtype=np.int64)
    start = 0
    while start < len(counts):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield slice(start, stop)
        start = stop


def _ranges(starts: NDArray[np.int32], counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """All of [start, start + count), one after another."""
    ends = np.cumsum(counts, dtype=np.int64)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - counts), counts)


def _halves(hashes: NDArray[np.uint8]) -> list[NDArray[np.uint64]]:
    """First and last 128 bits: strangers differ too much in the first to be read further."""
    words = np.ascontiguousarray(hashes, np.uint8).view(np.uint64)
    return [np.ascontiguousarray(words[:, :2]), np.ascontiguousarray(words[:, 2:])]


def _apart(
    left: NDArray[np.uint64],
    rows: NDArray[np.integer],
    right: NDArray[np.uint64],
    columns: NDArray[np.integer],
) -> NDArray[np.uint8]:
    """Bits, of 128, in which picked rows of two arrays differ."""
    bits = left.take(rows, axis=0)
    bits ^= right.take(columns, axis=0)
    counts = np.bitwise_count(bits)
    return counts[:, 0] + counts[:, 1]


def _as_pairs(found: list[NDArray[np.int64]], size: int) -> NearPairs:
    if not found:
        none = np.empty(0, np.int64)
        return NearPairs(none, none, none)
    label, distance = np.concatenate(found).T
    return NearPairs(label // size, label % size, np.ascontiguousarray(distance))


def near_pairs(left: NDArray[np.uint8], right: NDArray[np.uint8], *, radius: int) -> NearPairs:
    """Return all pairs of rows within a distance; the side that is cheaper to index is indexed.

    Args:
        left: Hashes, shape (n, 32).
        right: Hashes, shape (m, 32).
        radius: Largest distance, in [0, 255] bits.
    """
    if (
        _best_split(len(left), len(right), radius)[0]
        < _best_split(len(right), len(left), radius)[0]
    ):
        found = PrintIndex(left, radius=radius, num_queries=len(right)).near(right)
        order = np.lexsort((found.left, found.right))
        return NearPairs(found.right[order], found.left[order], found.distance[order])
    return PrintIndex(right, radius=radius, num_queries=len(left)).near(left)
