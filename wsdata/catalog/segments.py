"""Segments: immutable sorted tables asset prefix -> object, in the store, read by ranges.

A segment covers some objects of `raw_assets`, numbered by their place in a list that the ledger
keeps. Its entries are cut into parts by the first bits of the prefix, a part into buckets by the
next: digests are uniform, so buckets are alike, and a question reads one of them. Which segments
there are, and what is done where one is lost, belongs to `locator`.

A part is a directory (one record a bucket), then the entries, all big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from wsdata.digest import digest
from wsdata.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from numpy.typing import NDArray

    from wsdata.store import BlobStore

FORMAT_VERSION = 1
ENTRY = np.dtype([("prefix", ">u8"), ("ordinal", ">u4")])
_BUCKET = np.dtype([("start", ">u4"), ("count", ">u4"), ("xxh3", ">u8"), ("own_xxh3", ">u8")])
_CHECKED = 16  # bytes of a record that its own checksum covers
PREFIX_DIGITS = 16  # hex digits of an asset id that an entry holds
ROWS_PER_PART = 1 << 20  # what a merge holds of each segment: 12 MiB
ROWS_PER_BUCKET = 1 << 10  # what a question reads of each segment: 12 KiB
_MOST_BITS = 31  # so that 8 digits, the shortest prefix that is answered, lie in one bucket


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One segment: its name, and how it is cut. Parts and buckets are powers of two."""

    digest: str
    num_rows: int
    num_parts: int
    num_buckets: int  # of each part

    def key(self, part: int) -> str:
        """Where a part lies in the store."""
        return f"locator/{self.digest[:2]}/{self.digest}/{part:05x}"

    @property
    def keys(self) -> list[str]:
        """Where all parts lie."""
        return [self.key(part) for part in range(self.num_parts)]


def plan_segment(objects: Sequence[str], num_rows: int) -> Segment:
    """Name and cut the segment that covers some objects, given by digest, in this order."""
    part_bits = _bits(num_rows / ROWS_PER_PART)
    bucket_bits = min(_bits(num_rows / (1 << part_bits) / ROWS_PER_BUCKET), _MOST_BITS - part_bits)
    return Segment(
        digest=digest(["locator", FORMAT_VERSION, list(objects), num_rows]),
        num_rows=num_rows,
        num_parts=1 << part_bits,
        num_buckets=1 << bucket_bits,
    )


def _bits(parts: float) -> int:
    return max(0, int(np.ceil(np.log2(max(parts, 1.0)))))


def entries_of(asset_ids: pl.Series, ordinal: int) -> NDArray[np.void]:
    """Entries of one object's asset ids, sorted."""
    found = np.empty(len(asset_ids), dtype=ENTRY)
    digits = "".join(asset_ids.str.slice(0, PREFIX_DIGITS))
    found["prefix"] = np.array(bytearray.fromhex(digits), dtype=np.uint8).view(">u8")
    found["ordinal"] = ordinal
    found.sort(order=["prefix", "ordinal"])
    return found


def write_segment(store: BlobStore, segment: Segment, entries: NDArray[np.void]) -> None:
    """Store a segment of entries in any order."""
    entries = np.sort(entries, order=["prefix", "ordinal"])
    bounds = _bounds(entries, segment.num_parts, 0, segment.num_parts)
    for part, (begin, end) in enumerate(pairwise(bounds)):
        store.put(segment.key(part), _part_bytes(segment, part, entries[begin:end]))


def merge_segments(store: BlobStore, old: Sequence[tuple[Segment, int]], segment: Segment) -> None:
    """Store a segment of the entries of others, one part of each at a time in memory.

    Args:
        store: The store.
        old: Segments, each with what its ordinals are moved by.
        segment: What to write; its number of parts is a multiple of every old one's.

    Raises:
        ObjectMissing: The store has lost a part.
        IntegrityError: A part is damaged.
    """
    held: list[tuple[int, NDArray[np.void]]] = [(-1, np.empty(0, ENTRY))] * len(old)
    for part in range(segment.num_parts):
        pieces: list[NDArray[np.void]] = []
        for number, (each, moved_by) in enumerate(old):
            ratio = segment.num_parts // each.num_parts
            if held[number][0] != part // ratio:
                entries = _read_part(store, each, part // ratio)
                entries["ordinal"] += moved_by
                held[number] = part // ratio, entries
            begin, end = _bounds(held[number][1], segment.num_parts, part, 1)
            pieces.append(held[number][1][begin:end])
        merged = np.sort(np.concatenate(pieces), order=["prefix", "ordinal"])
        store.put(segment.key(part), _part_bytes(segment, part, merged))


def find_ordinals(store: BlobStore, segment: Segment, asset_prefix: str) -> list[int]:
    """Ordinals of the objects that may hold an asset, in two small reads.

    Args:
        store: The store.
        segment: The segment.
        asset_prefix: At least 8 hex digits. Those after the first 16 are not looked at.

    Raises:
        ObjectMissing: The store has lost the part.
        IntegrityError: The part is damaged.
    """
    low = int(asset_prefix[:PREFIX_DIGITS].ljust(PREFIX_DIGITS, "0"), 16)
    high = int(asset_prefix[:PREFIX_DIGITS].ljust(PREFIX_DIGITS, "f"), 16)
    place = low >> (64 - _bits(segment.num_parts * segment.num_buckets))
    part, bucket = divmod(place, segment.num_buckets)
    key = segment.key(part)
    head = store.get_range(key, bucket * _BUCKET.itemsize, _BUCKET.itemsize)
    _check(key, bucket, head[:_CHECKED], int.from_bytes(head[_CHECKED:], "big"))
    (record,) = np.frombuffer(head, dtype=_BUCKET)
    count = int(record["count"])
    if count == 0:
        return []
    start = segment.num_buckets * _BUCKET.itemsize + int(record["start"]) * ENTRY.itemsize
    data = store.get_range(key, start, count * ENTRY.itemsize)
    _check(key, bucket, data, int(record["xxh3"]))
    entries = np.frombuffer(data, dtype=ENTRY)
    prefixes = entries["prefix"].astype(np.uint64)
    first = np.searchsorted(prefixes, np.uint64(low), side="left")
    last = np.searchsorted(prefixes, np.uint64(high), side="right")
    return sorted({int(ordinal) for ordinal in entries["ordinal"][first:last]})


def _check(key: str, bucket: int, data: bytes, expected: int) -> None:
    if xxhash.xxh3_64_intdigest(data) != expected:
        raise IntegrityError(f"{key}: bucket {bucket} is damaged: the locator makes it anew")


def _part_bytes(segment: Segment, part: int, entries: NDArray[np.void]) -> bytes:
    entries = entries.astype(ENTRY, copy=False)  # joining arrays turned them to native order
    records = np.zeros(segment.num_buckets, dtype=_BUCKET)
    num_places = segment.num_parts * segment.num_buckets
    bounds = _bounds(entries, num_places, part * segment.num_buckets, segment.num_buckets)
    for bucket, (begin, end) in enumerate(pairwise(bounds)):
        checksum = xxhash.xxh3_64_intdigest(entries[begin:end].tobytes())
        records[bucket] = (begin, end - begin, checksum, 0)
        own = records[bucket].tobytes()[:_CHECKED]
        records[bucket]["own_xxh3"] = xxhash.xxh3_64_intdigest(own)
    return records.tobytes() + entries.tobytes()


def _read_part(store: BlobStore, segment: Segment, part: int) -> NDArray[np.void]:
    key = segment.key(part)
    data = store.get(key)
    size = segment.num_buckets * _BUCKET.itemsize
    records = np.frombuffer(data[:size], dtype=_BUCKET)
    body = data[size:]
    for bucket, (start, count, expected, _) in enumerate(records.tolist()):
        piece = body[start * ENTRY.itemsize : (start + count) * ENTRY.itemsize]
        _check(key, bucket, piece, expected)
    return np.frombuffer(body, dtype=ENTRY).copy()


def _bounds(
    entries: NDArray[np.void], num_places: int, first: int, count: int
) -> NDArray[np.int64]:
    """Where sorted entries are cut into `num_places` by the first bits of their prefix.

    Returns:
        The begins of `count` places from `first` on, and the end of the last, as indices.
    """
    if num_places == 1:
        return np.array([0, len(entries)])
    shift = np.uint64(64 - _bits(num_places))
    places = (entries["prefix"].astype(np.uint64) >> shift).astype(np.int64)
    return np.searchsorted(places, np.arange(first, first + count + 1), side="left")
