"""Pools as arrays: which rows of a dataset index a pool holds, and what a phase admits.

Rows count the index sorted by sample id, so a pool needs no list of ids of its own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.errors import PlanError
from wsdata.shard.plan_mixture import Pool

I64 = NDArray[np.int64]

_COLUMNS = ("sample_id", "clip_id", "stream", "bucket", "tier", "num_tokens")
_ROWS_AT_ONCE = 1_000_000


def sort_index(index_rows: pl.DataFrame) -> pl.DataFrame:
    """Keep what a plan needs of a dataset index, sorted by sample id.

    Raises:
        PlanError: A sample occurs twice.
    """
    index = index_rows.select(_COLUMNS).sort("sample_id")
    twice = index.filter(pl.col("sample_id") == pl.col("sample_id").shift())
    if twice.height:
        raise PlanError(
            f"the dataset index lists samples twice, such as {twice['sample_id'].head(3).to_list()}"
            ": rebuild it before planning"
        )
    return index


def pool_rows(index: pl.DataFrame, pool: Pool) -> I64:
    """Rows of a pool, ascending, from an index that `sort_index` made."""
    mask = index.select(
        (pl.col("stream") == pool.stream)
        & (pl.col("bucket") == pool.bucket)
        & pl.col("tier").is_in(list(pool.tiers))
    ).to_series()
    return mask.arg_true().to_numpy().astype(np.int64)


def admit_pools(
    index: pl.DataFrame, phase: Mapping[str, Any], pools: list[Pool]
) -> dict[int, Pool]:
    """Find the pools that a phase admits, by index in `pools`; new ones are appended to it.

    A pool names only the tiers that it has samples of, so phases that admit the same samples
    share the pool and go on with its epochs.
    """
    rungs, tiers = list(phase["rungs"]), list(phase["tiers"])
    groups = (
        index.lazy()
        .filter(pl.col("tier").is_in(tiers))
        .filter(pl.col("bucket").str.split("/").list.first().is_in(rungs))
        .filter(pl.col("stream").is_in([s for s, weight in phase["weights"].items() if weight > 0]))
        .group_by("stream", "bucket")
        .agg(pl.col("tier").unique().sort(), pl.len(), pl.col("num_tokens").sum())
        .sort("stream", "bucket")
        .collect()
    )
    known = {(pool.stream, pool.bucket, pool.tiers): i for i, pool in enumerate(pools)}
    admitted: dict[int, Pool] = {}
    for stream, bucket, present, count, num_tokens in cast(
        "list[tuple[str, str, list[str], int, int]]", groups.rows()
    ):
        name = (stream, bucket, tuple(present))
        if name not in known:
            if num_tokens < 1:
                raise PlanError(
                    f"stream {stream!r}, bucket {bucket}: {count} samples count {num_tokens} "
                    "latent tokens, so no share can be worked out: rebuild the manifest"
                )
            known[name] = len(pools)
            pool = Pool(
                stream=stream,
                bucket=bucket,
                tiers=name[2],
                num_samples=count,
                num_tokens=num_tokens,
                digest="",
            )
            pools.append(_with_digest(index, pool))
        admitted[known[name]] = pools[known[name]]
    return admitted


def check_pools(pools: Sequence[Pool], rows: Sequence[I64]) -> None:
    """Refuse an index that cannot be the one that was planned.

    Raises:
        PlanError: A pool has another number of samples.
    """
    for pool, found in zip(pools, rows, strict=True):
        if len(found) != pool.num_samples:
            raise PlanError(
                f"pool {pool.name} has {len(found)} samples in this dataset index, "
                f"{pool.num_samples} were planned: read the index that the plan was made from"
            )


def digest_ids(ids: pl.Series) -> str:
    """Return the sha256 of sample ids, each followed by a newline."""
    state = hashlib.sha256()
    for low in range(0, len(ids), _ROWS_AT_ONCE):
        part = cast("list[str]", ids.slice(low, _ROWS_AT_ONCE).to_list())
        state.update("".join(f"{sample_id}\n" for sample_id in part).encode())
    return state.hexdigest()


def _with_digest(index: pl.DataFrame, pool: Pool) -> Pool:
    rows = pool_rows(index, pool)
    return Pool(
        stream=pool.stream,
        bucket=pool.bucket,
        tiers=pool.tiers,
        num_samples=pool.num_samples,
        num_tokens=pool.num_tokens,
        digest=digest_ids(index["sample_id"].gather(rows)),
    )
