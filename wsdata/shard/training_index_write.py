"""Writing the packed training index, chunk by chunk, from rows that come sorted.

The same rows give the same bytes, whatever the chunks. One part of each packed table is in memory,
and of the table of shards what is sorted at a time.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.digest import sha256_bytes
from wsdata.errors import PlanError
from wsdata.shard.format import Span
from wsdata.shard.packed import ROWS_PER_PART, PackedWriter, Section
from wsdata.shard.packs import pack_key
from wsdata.shard.placement import NO_XXH3
from wsdata.shard.plan_atoms import AtomBuilder
from wsdata.shard.shard_entries import FIELDS, EntrySorter
from wsdata.shard.training_index import AFTER_CLIP, Kind, Layout, Root, root_key
from wsdata.shard.writer import shard_key
from wsdata.store import BlobStore

SAMPLES_PER_BLOCK = 128  # some 20 KB, read for one sample
SHARD_ENTRIES_PER_BLOCK = 2048  # as many fit a shard, more or less
SOURCES_PER_BLOCK = 128
ROWS_AT_ONCE = 1 << 16

INDEXED = (  # columns of table `dataset_index` that go into the index
    "sample_id", "clip_id", "stream", "bucket", "tier", "num_tokens", "tokenizer_version",
    "latent_dtype", "latent_shape_json", "shard", "shard_key", "row", "offset", "length",
    "columns_json", "xxh3", "caption_pack_key", "caption_offset", "caption_length", "caption_xxh3",
    "is_prefix_exact",
)  # fmt: skip
SOURCED = (  # ... and of table `manifests`
    "rung", "fps", "transcode_key", "transcode_sha256", "start_frame", "num_frames", "width_px",
    "height_px", "crop_x", "crop_y", "variant",
)  # fmt: skip

_SHA256 = r"([0-9a-f]{64})"
_SHARED = ["latent_dtype", "tokenizer_version", "latent_shape_json", "is_prefix_exact"]


class WrittenObject(NamedTuple):
    """An object of an index."""

    key: str
    sha256: str
    size_bytes: int


class Written(NamedTuple):
    """An index as written: its root, and all its parts."""

    root: Root
    key: str
    sha256: str
    parts: list[WrittenObject]


class Widths(NamedTuple):
    """Bytes that the longest sample id and transcode key take."""

    sample_id: int
    transcode_key: int


def sample_fields(id_width: int) -> list[tuple[str, str]]:
    """Fields of a record that says where a sample lies."""
    return [
        ("sample_id", f"S{id_width}"),
        ("clip_length", "<u2"),
        ("shard", "V32"),
        ("pack", "V32"),
        ("xxh3", "<u8"),
        ("row", "<u4"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("kind", "<u2"),
        ("layout", "<u4"),
        ("caption_offset", "<u4"),  # within the pack; so are the next two
        ("caption_length", "<u4"),  # 0 where there are none
        ("caption_xxh3", "<u8"),
    ]


def source_fields(key_width: int) -> list[tuple[str, str]]:
    """Fields of a record that says what a sample is made of."""
    return [
        ("transcode_key", f"S{key_width}"),
        ("transcode_sha256", "V32"),
        ("start_frame", "<u4"),
        ("num_frames", "<u4"),
        ("width_px", "<u4"),
        ("height_px", "<u4"),
        ("crop_x", "<u4"),
        ("crop_y", "<u4"),
        ("fps", "<f8"),
        ("variant", "S8"),
    ]


def widths_of(sample_ids: pl.Series, transcode_keys: pl.Series) -> Widths:
    """Find how wide fields must be for all ids and keys of a version."""
    longest = (each.str.len_bytes().max() for each in (sample_ids, transcode_keys))
    return Widths(*(cast("int", width) or 1 for width in longest))


def write_training_index(
    store: BlobStore,
    chunks: Iterable[pl.DataFrame],
    widths: Widths,
    *,
    rows_per_part: int = ROWS_PER_PART,
) -> Written:
    """Write the index of a dataset version.

    Args:
        store: Where to.
        chunks: Rows with columns `INDEXED` and `SOURCED`, sorted as plans count them.
        widths: What `widths_of` finds for all of them.
        rows_per_part: Records in each object.

    Raises:
        PlanError: Rows are not sorted, or an id or key is not of the form that they all have.
    """
    with EntrySorter() as entries:
        writer = _IndexWriter(store, widths, rows_per_part, entries)
        for chunk in chunks:
            for part in chunk.iter_slices(ROWS_AT_ONCE):
                writer.add(part)
        return writer.close()


class _IndexWriter:
    def __init__(
        self, store: BlobStore, widths: Widths, rows_per_part: int, entries: EntrySorter
    ) -> None:
        self._store = store
        self._entries = entries
        self._rows_per_part = rows_per_part
        self._atoms = AtomBuilder()
        self._kinds: dict[Kind, int] = {}
        self._layouts: dict[tuple[tuple[str, int, int], ...], int] = {}
        self._num_rows = 0
        self._has_sources = False
        self._samples = PackedWriter(
            store,
            "samples",
            sample_fields(widths.sample_id),
            key="sample_id",
            rows_per_block=SAMPLES_PER_BLOCK,
            rows_per_part=rows_per_part,
        )
        self._sources = PackedWriter(
            store,
            "sources",
            source_fields(widths.transcode_key),
            rows_per_block=SOURCES_PER_BLOCK,
            rows_per_part=rows_per_part,
        )

    def add(self, rows: pl.DataFrame) -> None:
        self._atoms.add(rows)
        _check_ids(rows)
        records = np.zeros(rows.height, self._samples.dtype)
        records["sample_id"] = _text(rows["sample_id"])
        records["clip_length"] = rows["clip_id"].str.len_bytes().to_numpy()
        records["shard"] = _hex(rows["shard"], 32)
        packs = rows["caption_pack_key"].str.extract(_SHA256)
        records["pack"] = _hex(packs.fill_null("0" * 64), 32)
        records["caption_xxh3"] = _hex(rows["caption_xxh3"].fill_null(NO_XXH3), 8).view(">u8")
        for name in ("caption_offset", "caption_length"):
            records[name] = rows[name].fill_null(0).to_numpy()
        records["xxh3"] = _hex(rows["xxh3"], 8).view(">u8")
        for name in ("row", "offset", "length"):
            records[name] = rows[name].to_numpy()
        records["kind"] = self._kind_numbers(rows)
        records["layout"] = self._layout_numbers(rows)
        self._samples.add(records)
        self._entries.add(self._entries_of(records))
        self._num_rows += rows.height
        self._add_sources(rows)

    def close(self) -> Written:
        samples = self._samples.close()
        shards, shard_sizes = self._write_shards()
        sources = self._sources.close() if self._has_sources else None
        root = Root(
            atoms=self._atoms.close(),
            kinds=tuple(self._kinds),
            layouts=tuple(_layout(each) for each in self._layouts),
            samples=samples,
            shards=shards,
            sources=sources,
        )
        data = root.to_bytes()
        sha256 = sha256_bytes(data)
        self._store.put(root_key(sha256), data)
        sizes = [*self._samples.sizes, *shard_sizes, *(self._sources.sizes if sources else [])]
        parts = [
            WrittenObject(key, part, size)
            for (key, part), size in zip(root.objects.items(), sizes, strict=True)
        ]
        return Written(root, root_key(sha256), sha256, parts)

    def _entries_of(self, records: NDArray[np.void]) -> NDArray[np.void]:
        entries = np.zeros(len(records), np.dtype(list(FIELDS)))
        bytes_nd = np.frombuffer(records["shard"].tobytes(), np.uint8).reshape(-1, 32)
        entries["shard"] = np.ascontiguousarray(bytes_nd[:, :8]).view(">u8")[:, 0]
        entries["row"] = np.arange(self._num_rows, self._num_rows + len(records))
        return entries

    def _write_shards(self) -> tuple[Section, list[int]]:
        writer = PackedWriter(
            self._store,
            "shards",
            FIELDS,
            key="shard",
            rows_per_block=SHARD_ENTRIES_PER_BLOCK,
            rows_per_part=max(self._rows_per_part, SHARD_ENTRIES_PER_BLOCK),
        )
        for entries in self._entries.sorted():
            writer.add(entries)
        return writer.close(), writer.sizes

    def _add_sources(self, rows: pl.DataFrame) -> None:
        self._has_sources |= rows["transcode_key"].null_count() < rows.height
        records = np.zeros(rows.height, self._sources.dtype)
        records["transcode_key"] = _text(rows["transcode_key"].fill_null(""))
        records["transcode_sha256"] = _hex(rows["transcode_sha256"].fill_null("0" * 64), 32)
        for name in ("start_frame", "num_frames", "width_px", "height_px", "crop_x", "crop_y"):
            records[name] = rows[name].fill_null(0).to_numpy()
        by_rung = pl.when(pl.col("rung").str.ends_with("48")).then(48.0).otherwise(24.0)
        records["fps"] = rows.select(pl.coalesce("fps", by_rung))["fps"].to_numpy()
        records["variant"] = _text(rows["variant"].fill_null(""))
        self._sources.add(records)

    def _kind_numbers(self, rows: pl.DataFrame) -> NDArray[np.int64]:
        found = rows.select(_SHARED).unique(maintain_order=True)
        numbers: list[int] = []
        for dtype, tokenizer, shape_json, is_exact in found.iter_rows():
            t, c, h, w = cast("list[int]", json.loads(shape_json))
            kind = Kind(dtype, tokenizer, (t, c, h, w), bool(is_exact))
            numbers.append(self._kinds.setdefault(kind, len(self._kinds)))
        table = found.with_columns(pl.Series("number", numbers, dtype=pl.Int64))
        joined = rows.select(_SHARED).join(
            table, on=_SHARED, how="left", nulls_equal=True, maintain_order="left"
        )
        return joined["number"].to_numpy()

    def _layout_numbers(self, rows: pl.DataFrame) -> NDArray[np.int64]:
        """Number the layouts of samples, in the order in which rows first have them."""
        shapes = rows.select("offset", "columns_json").with_row_index("at")
        found: list[tuple[list[int], tuple[tuple[str, int, int], ...]]] = []
        pattern = pl.col("columns_json").str.replace_all(r"\d+", "#")
        for group in shapes.with_columns(pattern.alias("pattern")).partition_by("pattern"):
            names = sorted(cast("Mapping[str, Any]", json.loads(group["columns_json"][0])))
            spans = _spans(group, names)
            columns = spans.columns[1:]
            for *numbers, ats in spans.group_by(columns, maintain_order=True).agg("at").iter_rows():
                pairs = zip(numbers[::2], numbers[1::2], strict=True)
                layout = tuple((name, *pair) for name, pair in zip(names, pairs, strict=True))
                found.append((ats, layout))
        out = np.zeros(rows.height, np.int64)
        for ats, layout in sorted(found, key=lambda each: each[0][0]):
            out[ats] = self._layouts.setdefault(layout, len(self._layouts))
        return out


def _spans(group: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Start and length of each column of each sample, counted from the sample's start."""
    kind = pl.Struct({name: pl.List(pl.Int64) for name in names})
    decoded = group.select("at", "offset", pl.col("columns_json").str.json_decode(kind))
    spans: list[pl.Expr] = []
    for name in names:
        span = pl.col("columns_json").struct.field(name)
        spans.append((span.list.get(0) - pl.col("offset")).alias(f"{name}.offset"))
        spans.append(span.list.get(1).alias(f"{name}.length"))
    return decoded.select("at", *spans)


def _layout(named: tuple[tuple[str, int, int], ...]) -> Layout:
    return {name: Span(offset, length) for name, offset, length in named}


def _check_ids(rows: pl.DataFrame) -> None:
    """Refuse what the index would not give back: it keeps digests, and makes names of them."""
    pack = pl.col("caption_pack_key")
    wrong = rows.filter(
        ~pl.col("sample_id").str.starts_with(pl.concat_str("clip_id", pl.lit(AFTER_CLIP)))
        | (pl.col("shard_key") != _key_expression(shard_key, pl.col("shard")))
        | (
            pack.is_not_null()
            & (
                (pack != _key_expression(pack_key, pack.str.extract(_SHA256)).fill_null(""))
                | pl.col("caption_length").fill_null(0).eq(0)
            )
        )
    )
    if wrong.height:
        row = wrong.select("sample_id", "clip_id", "shard_key", "caption_pack_key").row(0)
        raise PlanError(
            f"{wrong.height} rows of the dataset index cannot be indexed for training, such as "
            f"{row}: expected a sample id that begins with its clip's and {AFTER_CLIP!r}, keys "
            "of shards and caption packs that are made of their digests, and the place of the "
            "captions in their pack"
        )


def _key_expression(make_key: Any, sha256: pl.Expr) -> pl.Expr:
    """Object keys of digests, as `make_key` makes them of one."""
    before, between, after = make_key("@" * 64).replace("@" * 64, "|").replace("@@", "|").split("|")
    return pl.concat_str(
        pl.lit(before), sha256.str.slice(0, 2), pl.lit(between), sha256, pl.lit(after)
    )


def _text(values: pl.Series) -> list[bytes]:
    return cast("list[bytes]", values.cast(pl.Binary).to_list())


def _hex(values: pl.Series, width: int) -> NDArray[np.void]:
    data = b"".join(cast("list[bytes]", values.str.decode("hex").to_list()))
    return np.frombuffer(data, f"V{width}")
