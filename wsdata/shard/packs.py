"""Bytes of a caption pack: one row for each row of its shard, one column for each variant.

Which captions go in belongs to `captions`; training hosts read packs through this module.
"""

import io
from collections.abc import Sequence

import polars as pl

from wsdata import tables

CAPTION_PREFIX = "caption_"


def pack_key(sha256: str) -> str:
    """Object key of a caption pack by the sha256 of its bytes."""
    return f"training/packs/{sha256[:2]}/{sha256}.parquet"


def build_pack(rows: pl.DataFrame, captions: pl.DataFrame, variants: Sequence[str]) -> pl.DataFrame:
    """Build one pack.

    Args:
        rows: Of one shard: ``row, sample_id, clip_id``.
        captions: What `choose_captions` returns.
        variants: Each becomes a column ``caption_<variant>``, null where there is none.

    Returns:
        One row for each of the shard's, in its order. ``text_embedding`` is null until an engine
        for it has run.
    """
    pack = rows.select("row", "sample_id", "clip_id").sort("row")
    versions = captions.group_by("clip_id").agg(
        pl.col("captioner_version").unique().sort().str.join("+")
    )
    pack = pack.join(versions, on="clip_id", how="left", maintain_order="left")
    for variant in variants:
        texts = captions.filter(pl.col("variant") == variant).select(
            "clip_id", pl.col("text").alias(f"{CAPTION_PREFIX}{variant}")
        )
        pack = pack.join(texts, on="clip_id", how="left", maintain_order="left")
    return pack.with_columns(pl.lit(None, dtype=tables.VECTOR).alias("text_embedding"))


def read_pack(data: bytes) -> pl.DataFrame:
    """Read a caption pack, in the order of its shard's rows."""
    return pl.read_parquet(io.BytesIO(data)).sort("row")


def read_captions(data: bytes) -> tuple[list[str], dict[str, list[str | None]]]:
    """Read what a training host needs of a pack; safe in a forked child, as `read_pack` is not.

    Polars' threads do not live on in a child, which then waits for them for ever.

    Returns:
        The sample of each row of the shard, and for each variant its texts in the same order.
    """
    import pyarrow.parquet as pq

    names = pq.read_schema(io.BytesIO(data)).names
    columns = sorted(name for name in names if name.startswith(CAPTION_PREFIX))
    table = pq.read_table(
        io.BytesIO(data),
        columns=["row", "sample_id", *columns],
        use_threads=False,
        pre_buffer=False,
    ).sort_by("row")
    texts = {name.removeprefix(CAPTION_PREFIX): table[name].to_pylist() for name in columns}
    return table["sample_id"].to_pylist(), texts


def captions_of(pack: pl.DataFrame, row: int) -> dict[str, str]:
    """Captions of one row of a shard, by variant; variants without one are absent."""
    record = pack.row(row, named=True)
    return {
        name.removeprefix(CAPTION_PREFIX): text
        for name, text in record.items()
        if name.startswith(CAPTION_PREFIX) and text is not None
    }
