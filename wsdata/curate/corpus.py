"""One corpus out of many drops: which of several rows about one subject speaks.

The same bytes may arrive in several drops, and every drop tells the same of them. The drop
whose key sorts first speaks for a raw asset and all its clips, so that order of arrival cannot
matter. Merging what drops declare differently (rights) belongs to `rights`.
"""

from collections.abc import Mapping

import polars as pl

from wsdata import tables

_DROP = "_partition"


def _stack(table: str, by_partition: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Rows of all partitions, with a last column ``_partition``."""
    frames = [
        rows.with_columns(pl.lit(key).alias(_DROP)) for key, rows in sorted(by_partition.items())
    ]
    return pl.concat(frames or [tables.empty(table).with_columns(pl.lit("").alias(_DROP))])


def unify_clips(by_drop: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return every clip once: of each raw asset, the clips of the drop that sorts first.

    Args:
        by_drop: Rows of table ``clips`` by drop.

    Returns:
        Rows of table ``clips`` with a column ``home``, the drop that speaks, sorted by clip.
    """
    rows = _stack("clips", by_drop)
    return (
        rows.filter(pl.col(_DROP) == pl.col(_DROP).min().over("asset_id"))
        .rename({_DROP: "home"})
        .sort("clip_id")
    )


def unify_of_clips(
    table: str, by_drop: Mapping[str, pl.DataFrame], clips: pl.DataFrame
) -> pl.DataFrame:
    """Return the rows about known clips, each key once: from the clip's home where it has one.

    Args:
        table: A table with a column ``clip_id``.
        by_drop: Its rows by drop.
        clips: What `unify_clips` returned.
    """
    key = list(tables.TABLES[table].key)
    return (
        _stack(table, by_drop)
        .join(clips.select("clip_id", "home"), on="clip_id", how="inner")
        .sort([*key, pl.col(_DROP) != pl.col("home"), _DROP])
        .unique(subset=key, keep="first", maintain_order=True)
        .drop(_DROP, "home")
    )


def unify_rows(table: str, by_partition: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return each key of a table once, from the partition that sorts first."""
    key = list(tables.TABLES[table].key)
    return (
        _stack(table, by_partition)
        .sort([*key, _DROP])
        .unique(subset=key, keep="first", maintain_order=True)
        .drop(_DROP)
    )
