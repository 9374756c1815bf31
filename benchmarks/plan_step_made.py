"""Made-up tables of a dataset version, written some rows at a time, for the step that plans it.

Streams, tiers and buckets are scattered over the samples, as they are in a real index; digests are
numbers spelt out.
"""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.plan_scale_made import BATCH, BUCKETS, STREAMS, TIERS, TOKENS
from wsdata.digest import sha256_bytes
from wsdata.records import ObjectRef, table_key
from wsdata.shard.packs import pack_key
from wsdata.shard.writer import shard_key
from wsdata.store import FolderStore
from wsdata.tables import MIN_GROUP_ROWS, TABLES

PARAMS = {
    "seed": 7,
    "phases": [
        {
            "name": "all",
            "steps": 1_000_000,
            "rungs": ["256p", "512p"],
            "tiers": list(TIERS),
            "weights": dict.fromkeys(STREAMS, 0.2),
        }
    ],
    "streams": {stream: {} for stream in STREAMS},
    "samples": {"global_batch": BATCH, "batch_of_bucket": {}},
}
SAMPLES_OF_SHARD = 1000
ROWS_AT_ONCE = 1 << 16
SAMPLE_BYTES = 258_152


def put_tables(folder: Path, num_samples: int) -> tuple[ObjectRef, ObjectRef]:
    """Write tables ``dataset_index`` and ``manifests`` of a version into a store."""
    store = FolderStore(folder)
    refs: list[ObjectRef] = []
    for table in ("dataset_index", "manifests"):
        path = folder / f"{table}.made"
        columns = TABLES[table].columns
        writer: pq.ParquetWriter | None = None
        for low in range(0, num_samples, ROWS_AT_ONCE):
            rows = _rows(low, min(low + ROWS_AT_ONCE, num_samples))
            told = [
                (pl.col(name) if name in rows.columns else pl.lit(None)).cast(dtype).alias(name)
                for name, dtype in columns.items()
            ]
            made: pa.Table = rows.select(told).to_arrow(compat_level=pl.CompatLevel.oldest())
            writer = writer or pq.ParquetWriter(path, made.schema, compression="zstd")
            writer.write_table(made, row_group_size=max(MIN_GROUP_ROWS, num_samples // 64))
        assert writer is not None
        writer.close()
        sha256 = sha256_bytes(path.read_bytes())
        store.put_file(table_key(sha256), path)
        path.unlink()
        refs.append(
            ObjectRef(
                table=table,
                partition="v1",
                version="made",
                version_digest="made",
                sha256=sha256,
                num_rows=num_samples,
            )
        )
    return refs[0], refs[1]


def _rows(low: int, end: int) -> pl.DataFrame:
    """Rows [low, end) of both tables, in order of sample."""
    number = pl.int_range(low, end, dtype=pl.Int64, eager=True).alias("number")
    scattered = pl.col("number").hash(seed=5)

    def one_of(names: tuple[str, ...], shift: int) -> pl.Expr:
        index = (scattered // 2**shift % len(names)).cast(pl.UInt32)
        return pl.lit(pl.Series(list(names))).gather(index)

    def digest(of: pl.Expr) -> pl.Expr:
        return of.hash(seed=9).cast(pl.String).str.pad_end(64, "0")

    def key(make, sha256: str) -> pl.Expr:  # noqa: ANN001
        folder, suffix = make("ab" * 32).split("ab/")[0], Path(make("ab" * 32)).suffix
        name = pl.col(sha256)
        return pl.format(f"{folder}{{}}/{{}}{suffix}", name.str.slice(0, 2), name)

    shard = pl.col("number") // SAMPLES_OF_SHARD
    clip = pl.col("number").cast(pl.String).str.zfill(24) + "-0-000000000-000002000"
    start = pl.col("offset")
    return (
        number.to_frame()
        .with_columns(
            clip_id=clip,
            bucket=one_of(tuple(BUCKETS), 8),
            stream=one_of(STREAMS, 24),
            tier=one_of(TIERS, 40),
            shard=digest(shard),
            pack=digest(shard + 1_000_000_000),
            transcode_sha256=digest(pl.col("number")),
            xxh3=pl.col("number").cast(pl.String).str.zfill(16),
            row=pl.col("number") % SAMPLES_OF_SHARD,
            offset=pl.col("number") % SAMPLES_OF_SHARD * SAMPLE_BYTES,
            length=pl.lit(SAMPLE_BYTES),
        )
        .with_columns(
            sample_id=pl.col("clip_id") + ".256p.000000.0033.plain",
            asset_id=pl.col("transcode_sha256"),
            source=pl.lit("source-1"),
            weight=pl.lit(1.0),
            num_tokens=pl.col("bucket").replace_strict(TOKENS),
            tokenizer_version=pl.lit("made-1"),
            latent_dtype=pl.lit("fp8"),
            latent_shape_json=pl.lit("[9,16,32,56]"),
            shard_key=key(shard_key, "shard"),
            columns_json=pl.concat_str(
                pl.lit('{"latents":['),
                start + 40,
                pl.lit(',258048],"scale":['),
                start + 258_088,
                pl.lit(",64]}"),
            ),
            psnr_db=pl.lit(31.5),
            is_prefix_exact=pl.lit(value=True),
            caption_pack_key=key(pack_key, "pack"),
            caption_version=pl.lit("describer-3"),
            caption_offset=pl.col("row") * 1349 + 40,
            caption_length=pl.lit(1348),
            caption_xxh3=pl.col("xxh3"),
            rung=pl.lit("256p"),
            fps=pl.lit(24.0),
            transcode_key=pl.format("derived/transcodes_256p/{}.mp4", "clip_id"),
            start_frame=pl.lit(0),
            num_frames=pl.lit(33),
            width_px=pl.lit(448),
            height_px=pl.lit(256),
            crop_x=pl.lit(0),
            crop_y=pl.lit(0),
            variant=pl.lit("plain"),
        )
    )
