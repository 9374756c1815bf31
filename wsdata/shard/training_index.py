"""The packed training index: what a trainer asks about samples, read block by block when asked.

One small JSON object (the root) names the atoms, tables of what many samples share, and three
packed tables: where each sample lies, which samples each shard holds, and of what pixels each
was made. Opening reads the root alone, so the memory of a rank does not depend on the number of
samples. Bytes of packed tables belong to `packed`, writing them to `training_index_write`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from wsdata.digest import canonical_json, sha256_bytes
from wsdata.errors import IntegrityError, PlanError
from wsdata.shard.block_cache import DEFAULT_CACHE_BYTES, BlockCache
from wsdata.shard.format import Span
from wsdata.shard.packed import (
    PackedTable,
    ReadRange,
    Records,
    Section,
)
from wsdata.shard.packs import pack_key
from wsdata.shard.placement import Placement
from wsdata.shard.plan_atoms import Atom
from wsdata.shard.writer import shard_key
from wsdata.store import BlobStore

I64 = NDArray[np.int64]
Layout = dict[str, Span]

FORMAT_VERSION = 2
AFTER_CLIP = "."  # what follows the clip's id in a sample's

_WORD_BYTES = 8


class Kind(NamedTuple):
    """What many samples have in common; see `Placement`."""

    dtype: str
    tokenizer_version: str
    latent_shape: tuple[int, int, int, int]
    is_prefix_exact: bool


class Source(NamedTuple):
    """The pixels that a sample is made of.

    Attributes:
        transcode_sha256: Of the transcode's bytes.
        start_frame: First frame, in frames of the transcode.
        num_frames: How many.
        width_px: Of what is cut out of each frame; so is `height_px`.
        crop_x: Left edge of what is cut out; `crop_y` is its upper edge.
        fps: Of the rung.
        variant: plain or flip.
    """

    sample_id: str
    clip_id: str
    transcode_key: str
    transcode_sha256: str
    start_frame: int
    num_frames: int
    width_px: int
    height_px: int
    crop_x: int
    crop_y: int
    fps: float
    variant: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """What the root says.

    Attributes:
        kinds: By their number in records.
        layouts: Where columns lie within a sample, by their number in records.
        samples: Where each sample lies.
        shards: Which samples each shard holds, sorted by shard.
        sources: What each sample is made of; None where no transcode is known.
    """

    atoms: tuple[Atom, ...]
    kinds: tuple[Kind, ...]
    layouts: tuple[Layout, ...]
    samples: Section
    shards: Section
    sources: Section | None

    def to_bytes(self) -> bytes:
        """Write the root."""
        body = {
            "format_version": FORMAT_VERSION,
            "atoms": [atom.to_json() for atom in self.atoms],
            "kinds": [list(kind) for kind in self.kinds],
            "layouts": [
                {name: [*span] for name, span in layout.items()} for layout in self.layouts
            ],
            "samples": self.samples.to_json(),
            "shards": self.shards.to_json(),
            "sources": self.sources.to_json() if self.sources else None,
        }
        return canonical_json(body).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Root":
        """Read a root.

        Raises:
            PlanError: Another format.
        """
        body = json.loads(data)
        if body.get("format_version") != FORMAT_VERSION:
            raise PlanError(
                f"training index has format {body.get('format_version')!r}, this code reads "
                f"{FORMAT_VERSION}: use the release of wsdata that wrote it, or plan the next "
                "dataset version with this one"
            )
        return cls(
            atoms=tuple(Atom(**atom) for atom in body["atoms"]),
            kinds=tuple(_kind(*kind) for kind in body["kinds"]),
            layouts=tuple(
                {name: Span(*span) for name, span in layout.items()} for layout in body["layouts"]
            ),
            samples=Section.from_json(body["samples"]),
            shards=Section.from_json(body["shards"]),
            sources=Section.from_json(body["sources"]) if body["sources"] else None,
        )

    @property
    def objects(self) -> dict[str, str]:
        """Object key of every part of the packed tables -> sha256 of its bytes."""
        sections = [self.samples, self.shards, *([self.sources] if self.sources else [])]
        return {
            key: part.sha256
            for section in sections
            for key, part in zip(section.object_keys, section.parts, strict=True)
        }


def root_key(sha256: str) -> str:
    """Object key of a root by the sha256 of its bytes."""
    return f"training/index/{sha256}.json"


def read_root(store: BlobStore, key: str, sha256: str) -> Root:
    """Read the root of an index.

    Raises:
        IntegrityError: Its bytes are not those that were written.
        ObjectMissing: It is not in the store.
        PlanError: Another format.
    """
    data = store.get(key)
    if (found := sha256_bytes(data)) != sha256:
        raise IntegrityError(
            f"training index {key} has digest {found[:12]}, the pointer says {sha256[:12]}: "
            "delete it and run `wsdata run`"
        )
    return Root.from_bytes(data)


class TrainingIndex:
    """Answers about samples by their rows; safe for any number of threads."""

    def __init__(
        self, root: Root, read: ReadRange, *, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> None:
        """Open an index.

        Args:
            root: Its root.
            read: Returns exactly some bytes of an object: (key, offset, length).
            cache_bytes: Bound of the blocks kept in memory.
        """
        self.root = root
        self.atoms = root.atoms
        self._first_rows: I64 = np.array([atom.first_row for atom in root.atoms], dtype=np.int64)
        self._cache = cache = BlockCache(cache_bytes)
        self._samples = PackedTable(root.samples, read, cache)
        self._shards = PackedTable(root.shards, read, cache)
        self._sources = PackedTable(root.sources, read, cache) if root.sources else None

    @property
    def num_rows(self) -> int:
        """Samples in all."""
        return self.root.samples.num_rows

    @property
    def cached_bytes(self) -> int:
        """Bytes of the blocks that are in memory."""
        return self._cache.num_bytes

    def names(self, rows: I64) -> list[tuple[str, str]]:
        """Return (sample id, clip id) of each row, in the order asked for."""
        sample_ids, clip_ids = _names(self._samples.take(rows))
        return list(zip(sample_ids, clip_ids, strict=True))

    def placements(self, rows: Sequence[int] | I64) -> list[Placement]:
        """Where samples lie, in the order asked for.

        Raises:
            IndexError: A row that the index does not have.
            IntegrityError: The index is damaged; object and block are named.
        """
        wanted = np.asarray(rows, dtype=np.int64)
        records = self._samples.take(wanted)
        numbers = np.searchsorted(self._first_rows, wanted, side="right") - 1
        atoms = [self.atoms[number] for number in cast("list[int]", numbers.tolist())]
        kinds = [self.root.kinds[kind] for kind in _plain(records, "kind")]
        shards, packs = _hex(records, "shard", 32), _hex(records, "pack", 32)
        caption_lengths = _plain(records, "caption_length")
        # A column at a time: all of it is done for each sample of each step, under one lock.
        columns = (
            *_names(records),
            [atom.stream for atom in atoms],
            [atom.bucket for atom in atoms],
            shards,
            [shard_key(shard) for shard in shards],
            _plain(records, "row"),
            _plain(records, "offset"),
            _plain(records, "length"),
            _hex(records, "xxh3", 8),
            [kind.dtype for kind in kinds],
            [kind.tokenizer_version for kind in kinds],
            [kind.latent_shape for kind in kinds],
            [self.root.layouts[layout] for layout in _plain(records, "layout")],
            [pack_key(p) if n else "" for p, n in zip(packs, caption_lengths, strict=True)],
            _plain(records, "caption_offset"),
            caption_lengths,
            _hex(records, "caption_xxh3", 8),
            [kind.is_prefix_exact for kind in kinds],
        )
        return [Placement._make(each) for each in zip(*columns, strict=True)]

    def sources(self, rows: Sequence[int] | I64) -> list[Source]:
        """What samples are made of, in the order asked for.

        Raises:
            PlanError: The version's manifest names no transcode for some of them.
        """
        wanted = np.asarray(rows, dtype=np.int64)
        names = self.names(wanted)
        if self._sources is None:
            raise PlanError("the manifest of this dataset version names no transcodes")
        fields = cast("list[tuple[Any, ...]]", self._sources.take(wanted).tolist())
        return [_source(*name, each) for name, each in zip(names, fields, strict=True)]

    def rows_of_clip(self, clip_id: str) -> I64:
        """Return the rows of a clip's samples, ascending; none where it is unknown."""
        low, high = (f"{clip_id}{end}".encode() for end in (AFTER_CLIP, chr(ord(AFTER_CLIP) + 1)))
        found = [np.zeros(0, dtype=np.int64)]
        for atom in self.atoms:
            first = self._samples.lower_bound(low, atom.first_row, atom.end_row)
            end = self._samples.lower_bound(high, first, atom.end_row)
            found.append(np.arange(first, end, dtype=np.int64))
        return np.concatenate(found)

    def rows_of_samples(self, sample_ids: Sequence[str]) -> I64:
        """Return the row of each sample, in the order asked for; -1 where it is unknown."""
        return np.array([self._row_of(sample_id) for sample_id in sample_ids], dtype=np.int64)

    def rows_of_shard(self, shard: str) -> I64:
        """Return the rows of the samples that a shard holds, ascending; none if it is unknown."""
        prefix, num_rows = int(shard[:16], 16), self.num_rows
        first = self._shards.lower_bound(prefix, 0, num_rows)
        rows: list[int] = []
        while first < num_rows:
            stop = min(first + self.root.shards.rows_per_block, num_rows)
            records = self._shards.take(np.arange(first, stop, dtype=np.int64))
            mine = records["row"][records["shard"] == prefix]
            rows += cast("list[int]", mine.tolist())
            if len(mine) < len(records):
                break
            first = stop
        wanted = np.array(rows, dtype=np.int64)
        held = self._samples.take(wanted)["shard"].tolist()  # two may begin alike
        return np.sort(wanted[[bytes(each).hex() == shard for each in held]])

    def scan(self) -> Iterator[Records]:
        """Yield the records of all samples, block by block, in the order of rows."""
        section = self.root.samples
        for number in range(-(-section.num_rows // section.rows_per_block)):
            yield self._samples.block(number)

    def _row_of(self, sample_id: str) -> int:
        key = sample_id.encode()
        for atom in self.atoms:
            row = self._samples.lower_bound(key, atom.first_row, atom.end_row)
            if row < atom.end_row and self.names(np.array([row]))[0][0] == sample_id:
                return row
        return -1


def open_index(
    store: BlobStore, pointer: Mapping[str, Any], *, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> TrainingIndex:
    """Open the index that the pointer of a dataset version names.

    Raises:
        IntegrityError: Its root is damaged.
        ObjectMissing: Its root is not in the store.
        PlanError: The version has none yet, or one of another format.
    """
    if "training_index_key" not in pointer:
        raise PlanError(
            f"dataset version {pointer.get('version')} has no training index yet: run `wsdata run`"
        )
    root = read_root(store, pointer["training_index_key"], pointer["training_index_sha256"])
    return TrainingIndex(root, store.get_range, cache_bytes=cache_bytes)


def _source(sample_id: str, clip_id: str, record: tuple[Any, ...]) -> Source:
    key, sha256, *numbers, variant = record
    if not key:
        raise PlanError(f"the manifest names no transcode for sample {sample_id}: cut it again")
    names = (sample_id, clip_id, key.decode(), sha256.hex())
    return Source._make((*names, *numbers, variant.decode()))


def _kind(dtype: str, tokenizer: str, shape: list[int], is_prefix_exact: bool) -> Kind:  # noqa: FBT001
    frames, channels, height, width = shape
    return Kind(dtype, tokenizer, (frames, channels, height, width), is_prefix_exact)


def _names(records: Records) -> tuple[list[str], list[str]]:
    """Return ids of samples, and of their clips."""
    encoded = cast("list[bytes]", records["sample_id"].tolist())
    ids = b"\n".join(encoded).decode().split("\n") if encoded else []  # at once: it is faster
    lengths = _plain(records, "clip_length")
    return ids, [sample_id[:length] for sample_id, length in zip(ids, lengths, strict=True)]


def _plain(records: Records, name: str) -> list[int]:
    return cast("list[int]", records[name].tolist())


def _hex(records: Records, name: str, num_bytes: int) -> list[str]:
    """Hex digits of a field: of digests as they are, of numbers the most significant first."""
    values = records[name]
    text = (values if num_bytes > _WORD_BYTES else values.astype(">u8")).tobytes().hex()
    width = 2 * num_bytes
    return [text[at : at + width] for at in range(0, len(text), width)]
