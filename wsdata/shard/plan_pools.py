"""Pools as arrays: which rows of a dataset index a pool holds, and what a phase admits.

Rows count the index sorted by sample id, so a pool needs no list of ids of its own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.errors import PlanError
from wsdata.shard.plan_mixture import Pool

I64 = NDArray[np.int64]
Atom = tuple[str, str, str]  # stream, bucket, tier

_COLUMNS = ("sample_id", "clip_id", "stream", "bucket", "tier", "num_tokens")
_ROWS_AT_ONCE = 1_000_000


def sort_index(index_rows: pl.DataFrame) -> pl.DataFrame:
    """Keep what a plan needs of a dataset index, sorted by sample id.

    Raises:
        PlanError: A sample occurs twice.
    """
    index = index_rows.select(_COLUMNS).sort("sample_id").rechunk()
    twice = index.filter(pl.col("sample_id") == pl.col("sample_id").shift())
    if twice.height:
        raise PlanError(
            f"the dataset index lists samples twice, such as {twice['sample_id'].head(3).to_list()}"
            ": rebuild it before planning"
        )
    return index


def split_index(index: pl.DataFrame) -> dict[Atom, I64]:
    """Rows of each (stream, bucket, tier), ascending, from an index that `sort_index` made."""
    groups = (
        index.lazy()
        .with_row_index("row")
        .group_by("stream", "bucket", "tier")
        .agg(pl.col("row").cast(pl.Int64))
        .collect()
    )
    rows = groups["row"]
    names = cast("list[Atom]", groups.select("stream", "bucket", "tier").rows())
    return {name: np.sort(rows[number].to_numpy()) for number, name in enumerate(names)}


def pool_rows(atoms: Mapping[Atom, I64], pool: Pool) -> I64:
    """Rows of a pool, ascending."""
    found = [atoms[pool.stream, pool.bucket, tier] for tier in pool.tiers
             if (pool.stream, pool.bucket, tier) in atoms]  # fmt: skip
    return np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def admit_pools(
    index: pl.DataFrame, atoms: Mapping[Atom, I64], phase: Mapping[str, Any], pools: list[Pool]
) -> dict[int, Pool]:
    """Find the pools that a phase admits, by index in `pools`; new ones are appended to it.

    A pool names only the tiers that it has samples of, so phases that admit the same samples
    share the pool and go on with its epochs.
    """
    present: dict[tuple[str, str], list[str]] = {}
    for stream, bucket, tier in sorted(atoms):
        is_weighted = phase["weights"].get(stream, 0) > 0
        if is_weighted and tier in phase["tiers"] and bucket.split("/")[0] in phase["rungs"]:
            present.setdefault((stream, bucket), []).append(tier)
    known = {(pool.stream, pool.bucket, pool.tiers): i for i, pool in enumerate(pools)}
    admitted: dict[int, Pool] = {}
    for (stream, bucket), tiers in present.items():
        name = (stream, bucket, tuple(tiers))
        if name not in known:
            known[name] = len(pools)
            pools.append(_make_pool(index, atoms, *name))
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


def _make_pool(
    index: pl.DataFrame,
    atoms: Mapping[Atom, I64],
    stream: str,
    bucket: str,
    tiers: tuple[str, ...],
) -> Pool:
    bare = Pool(stream=stream, bucket=bucket, tiers=tiers, num_samples=0, num_tokens=0, digest="")
    rows = pool_rows(atoms, bare)
    num_tokens = int(index["num_tokens"].gather(rows).sum())
    if num_tokens < 1:
        raise PlanError(
            f"stream {stream!r}, bucket {bucket}: {len(rows)} samples count {num_tokens} latent "
            "tokens, so no share can be worked out: rebuild the manifest"
        )
    return replace(
        bare,
        num_samples=len(rows),
        num_tokens=num_tokens,
        digest=digest_ids(index["sample_id"].gather(rows)),
    )
