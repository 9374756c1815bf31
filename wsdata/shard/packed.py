"""Packed tables: fixed-width records in blocks, read by ranges of bytes and never as a whole.

A table is a row of immutable objects (parts) of the same number of records. A part is its blocks
of little-endian records, then the xxh3 of each block, then the key of each block's first record
(fences). What describes a table, its section, is JSON of some bytes a part; it carries digests
of the two lists, so all that is read is checked, and nothing is read that is not asked for. What
records mean belongs to `training_index`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, ObjectMissing, StoreError
from wsdata.shard.block_cache import BlockCache
from wsdata.store import BlobStore

I64 = NDArray[np.int64]
Records = NDArray[np.void]
Key = bytes | int
ReadRange = Callable[[str, int, int], bytes]  # key, offset, length

ROWS_PER_PART = 1 << 18

_DIGEST_BYTES = 8
_SLOW_S = 0.005  # a block takes 0.1 ms from a disk, 20 from a bucket
_NUM_TRIED = 3  # one slow read alone is a busy machine's
_MAX_READERS = 32
_BLOCKS_AT_ONCE = 128  # held in memory beside those that are kept


class Part(NamedTuple):
    """One object of a table.

    Attributes:
        sha256: Of its bytes, which its object key is made of.
        first_key: Key of its first record: text, or a number.
        digests_xxh3: Of its list of block digests.
        fences_xxh3: Of its list of fences.
    """

    sha256: str
    first_key: str | int
    digests_xxh3: str
    fences_xxh3: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """What describes a table.

    Attributes:
        name: What errors and object keys call it.
        fields: (name, numpy type) of each field of a record, little-endian.
        key: The field that records are searched by, or "" where they are not.
        num_rows: Records in all.
        rows_per_block: Records in each block; the last of all may have fewer.
        rows_per_part: Records in each part, a multiple of those in a block; the last may have less.
        parts: The parts, in order.
    """

    name: str
    fields: tuple[tuple[str, str], ...]
    key: str
    num_rows: int
    rows_per_block: int
    rows_per_part: int
    parts: tuple[Part, ...]

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Type of a record."""
        return np.dtype(list(self.fields))

    @property
    def object_keys(self) -> list[str]:
        """Object key of each part."""
        return [part_key(self.name, part.sha256) for part in self.parts]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {
            "name": self.name,
            "fields": [list(each) for each in self.fields],
            "key": self.key,
            "num_rows": self.num_rows,
            "rows_per_block": self.rows_per_block,
            "rows_per_part": self.rows_per_part,
            "parts": [list(part) for part in self.parts],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Section":
        """Read what `to_json` wrote."""
        body = dict(data)
        body["fields"] = tuple((str(name), str(kind)) for name, kind in body["fields"])
        body["parts"] = tuple(Part(*part) for part in body["parts"])
        return cls(**body)


def part_key(name: str, sha256: str) -> str:
    """Object key of a part of a table by the sha256 of its bytes."""
    return f"training/index/{sha256[:2]}/{sha256}.{name}"


class PackedWriter:
    """Writes a table, part by part; holds one part in memory."""

    def __init__(
        self,
        store: BlobStore,
        name: str,
        fields: Sequence[tuple[str, str]],
        *,
        key: str = "",
        rows_per_block: int,
        rows_per_part: int = ROWS_PER_PART,
    ) -> None:
        if rows_per_part % rows_per_block:
            raise ValueError(f"{rows_per_part} rows a part: not a multiple of {rows_per_block}")
        self._store, self._name, self._key = store, name, key
        self._fields = tuple(fields)
        self.dtype = np.dtype(list(self._fields))
        self._rows_per_block, self._rows_per_part = rows_per_block, rows_per_part
        self._filling = np.zeros(rows_per_part, self.dtype)
        self._num_filled = 0
        self._num_rows = 0
        self._parts: list[Part] = []
        self.sizes: list[int] = []  # bytes of each part

    def add(self, records: Records) -> None:
        """Append records, which are in the order of their key."""
        done = 0
        while done < len(records):
            taken = min(self._rows_per_part - self._num_filled, len(records) - done)
            self._filling[self._num_filled : self._num_filled + taken] = records[
                done : done + taken
            ]
            self._num_filled += taken
            done += taken
            if self._num_filled == self._rows_per_part:
                self._flush()
        self._num_rows += len(records)

    def close(self) -> Section:
        """Write what is left, and describe the table."""
        if self._num_filled:
            self._flush()
        return Section(
            name=self._name,
            fields=self._fields,
            key=self._key,
            num_rows=self._num_rows,
            rows_per_block=self._rows_per_block,
            rows_per_part=self._rows_per_part,
            parts=tuple(self._parts),
        )

    def _flush(self) -> None:
        records = self._filling[: self._num_filled]
        self._num_filled = 0
        size = self._rows_per_block * records.itemsize
        blocks = records.view(np.uint8).data
        digests = np.array(
            [
                xxhash.xxh3_64_intdigest(blocks[low : low + size])
                for low in range(0, len(blocks), size)
            ],
            dtype="<u8",
        ).tobytes()
        firsts = records[self._key][:: self._rows_per_block] if self._key else None
        fences = firsts.tobytes() if firsts is not None else b""
        data = b"".join((blocks, digests, fences))
        sha256 = sha256_bytes(data)
        self._store.put(part_key(self._name, sha256), data)
        self.sizes.append(len(data))
        first = _plain(firsts[0]) if firsts is not None else 0
        self._parts.append(
            Part(
                sha256,
                first.decode() if isinstance(first, bytes) else first,
                xxhash.xxh3_64_hexdigest(digests),
                xxhash.xxh3_64_hexdigest(fences),
            )
        )


class PackedTable:
    """Reads a table; nothing is read before it is asked for."""

    def __init__(self, section: Section, read: ReadRange, cache: BlockCache) -> None:
        self.section = section
        self._read, self._cache = read, cache
        self._dtype = section.dtype
        self._record_bytes = self._dtype.itemsize
        self._block_bytes = section.rows_per_block * self._record_bytes
        self._keys = section.object_keys
        self._key_type = self._dtype[section.key] if section.key else np.dtype("u1")

    def take(self, rows: I64) -> Records:
        """Return the records of some rows, in the order asked for.

        Raises:
            IndexError: A row that the table does not have.
            IntegrityError: Bytes are damaged in the store; object and block are named.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if not len(rows):
            return np.zeros(0, self._dtype)
        if int(rows.min()) < 0 or int(rows.max()) >= self.section.num_rows:
            raise IndexError(
                f"rows {int(rows.min())}..{int(rows.max())} of a table of {self.section.num_rows}"
            )
        size = self._record_bytes
        numbers, inner = np.divmod(rows, self.section.rows_per_block)
        starts = cast("list[int]", (inner * size).tolist())
        places: dict[int, list[int]] = {}
        for place, number in enumerate(cast("list[int]", numbers.tolist())):
            places.setdefault(number, []).append(place)
        # Slices of bytes, as numpy copies single records field by field.
        pieces = [b""] * len(rows)
        for number, block in self._blocks(sorted(places)):
            for place in places[number]:
                pieces[place] = block[starts[place] : starts[place] + size]
        return np.frombuffer(b"".join(pieces), self._dtype)

    def _blocks(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield blocks, in their order; a store that answers slowly is asked for several at once.

        Threads live no longer than the call, lest a fork leave them behind.
        """
        begun = time.monotonic()
        for done, number in enumerate(numbers, 1):
            block = self._block(number)
            waited = time.monotonic() - begun
            yield number, block
            if done >= _NUM_TRIED and waited > _SLOW_S * done and done + 1 < len(numbers):
                rest = numbers[done:]
                break
        else:
            return
        with ThreadPoolExecutor(min(_MAX_READERS, len(rest))) as pool:
            for low in range(0, len(rest), _BLOCKS_AT_ONCE):
                part = rest[low : low + _BLOCKS_AT_ONCE]
                yield from zip(part, pool.map(self._block, part), strict=True)

    def block(self, number: int) -> Records:
        """Return the records of one block, checked."""
        return np.frombuffer(self._block(number), self._dtype)

    def _block(self, number: int) -> bytes:
        section = self.section
        part, inner = divmod(number, section.rows_per_part // section.rows_per_block)
        key = (self._keys[part], inner)
        piece = self._cache.find(key)
        if piece is None:
            rows_left = section.num_rows - number * section.rows_per_block
            num_rows = min(section.rows_per_block, rows_left)
            at = inner * _DIGEST_BYTES
            expected = int.from_bytes(self._digests(part)[at : at + _DIGEST_BYTES], "little")
            start, size = inner * self._block_bytes, num_rows * self._record_bytes
            piece = self._checked(part, start, size, expected, number)
            self._cache.keep(key, piece)
        return piece

    def lower_bound(self, key: Key, first: int, end: int) -> int:
        """First row in [first, end) whose key is not less, or `end`; keys rise within them."""
        section = self.section
        if first >= end:
            return end
        low, high = first // section.rows_per_part, (end - 1) // section.rows_per_part
        while low < high:  # the last part that begins before the key
            middle = (low + high + 1) // 2
            if self._as_key(section.parts[middle].first_key) < key:
                low = middle
            else:
                high = middle - 1
        start = max(first, low * section.rows_per_part)
        stop = min(end, (low + 1) * section.rows_per_part)
        blocks = range(start // section.rows_per_block, (stop - 1) // section.rows_per_block + 1)
        offset = low * section.rows_per_part // section.rows_per_block
        fences = self._fences(low)[blocks.start + 1 - offset : blocks.stop - offset]
        number = blocks.start + int(np.searchsorted(fences, self._as_scalar(key)))
        base = number * section.rows_per_block
        inside = self.block(number)[section.key]
        inside = inside[max(start - base, 0) : stop - base]
        return max(start, base) + int(np.searchsorted(inside, self._as_scalar(key)))

    def _as_key(self, value: str | int) -> Any:
        return value.encode() if isinstance(value, str) else value

    def _as_scalar(self, key: Key) -> Any:
        # Of a length of its own: a key longer than the field's must not be cut to it.
        return np.bytes_(key) if isinstance(key, bytes) else self._key_type.type(key)

    def _rows_of_part(self, part: int) -> int:
        section = self.section
        return min(section.rows_per_part, section.num_rows - part * section.rows_per_part)

    def _digests(self, part: int) -> bytes:
        num_rows = self._rows_of_part(part)
        num_blocks = -(-num_rows // self.section.rows_per_block)
        xxh3 = self.section.parts[part].digests_xxh3
        place = (num_rows * self._record_bytes, num_blocks * _DIGEST_BYTES)
        return self._list(part, -1, *place, xxh3, "its list of digests")

    def _fences(self, part: int) -> NDArray[Any]:
        num_rows = self._rows_of_part(part)
        num_blocks = -(-num_rows // self.section.rows_per_block)
        xxh3 = self.section.parts[part].fences_xxh3
        start = num_rows * self._record_bytes + num_blocks * _DIGEST_BYTES
        size = num_blocks * self._key_type.itemsize
        fences = self._list(part, -2, start, size, xxh3, "its list of first keys")
        return np.frombuffer(fences, self._key_type)

    def _list(self, part: int, name: int, start: int, size: int, xxh3: str, what: str) -> bytes:
        piece = self._cache.find((self._keys[part], name))
        if piece is None:
            piece = self._checked(part, start, size, int(xxh3, 16), what)
            self._cache.keep((self._keys[part], name), piece)
        return piece

    def _checked(self, part: int, offset: int, length: int, xxh3: int, what: str | int) -> bytes:
        """Read a range and check it; wrong bytes are read once more, then it fails.

        `what` is for the error: words, or the number of a block.
        """
        key = self._keys[part]
        found = 0
        for _ in range(2):
            try:
                data = self._read(key, offset, length)
            except ObjectMissing:
                raise
            except StoreError as error:
                error.add_note(
                    f"wanted for {self._words(what)} of training index object {key}; where the "
                    "object is cut short: delete it and run `wsdata run`"
                )
                raise
            found = xxhash.xxh3_64_intdigest(data)
            if found == xxh3:
                return data
        raise IntegrityError(
            f"training index object {key} is damaged: {self._words(what)}, {length} bytes at "
            f"{offset}, has digest {found:016x}, recorded is {xxh3:016x}: delete the object and "
            "run `wsdata run`"
        )

    def _words(self, what: str | int) -> str:
        if isinstance(what, str):
            return what
        section = self.section
        first = what * section.rows_per_block
        inner = what % (section.rows_per_part // section.rows_per_block)
        last = min(first + section.rows_per_block, section.num_rows) - 1
        return f"block {inner} (rows {first} to {last})"


def _plain(value: Any) -> Key:
    return cast("Key", value.item())
