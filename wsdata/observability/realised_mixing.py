"""The samples that a run was served, window by window: do their traits follow each other?

Samples are those of the published plan of each range, patches applied; what they are (source,
cluster) is read from the dataset index. The maths is `loader.realised`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from wsdata.catalog.objects import scan_matching
from wsdata.ids import parse_version
from wsdata.loader.realised import (
    MAX_STEPS,
    choose_lags,
    choose_windows,
    off_lags,
    trait_autocorrelation,
)
from wsdata.observability.realised_counts import counts_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wsdata.loader.served import Range
    from wsdata.orders import StepRun
    from wsdata.shard.plan import StepPlan

    I64 = NDArray[np.int64]

Row = dict[str, Any]
Known = Sequence[tuple["Range", "StepPlan"]]


class Seen(NamedTuple):
    """Samples in the order served: number of the range, of the window, pool, row of the plan."""

    ranges: I64
    windows: I64
    pools: I64
    rows: I64
    num_differing: int  # windows with other draws than the plan counts
    num_windows: int


def mixing_rows(run: StepRun, name: str, known: Known, traits: Sequence[str]) -> list[Row]:
    """Rows of ``autocorrelation`` and ``counts`` of one run.

    Args:
        run: Where the dataset index is read.
        name: The run.
        known: Ranges that were kept, ascending, with their plans.
        traits: Columns of the dataset index.
    """
    batch = max(max(plan.batch_sizes.values()) for _, plan in known)
    seen = look(name, known, batch)
    rows: list[Row] = [
        {
            "part": "all",
            "measure": "counts",
            "subject": f"{seen.num_windows} windows",
            "value": float(seen.num_differing),
            "target": 0.0,
            "bound": 0.0,
            "is_off": seen.num_differing > 0,
            "num_samples": len(seen.rows),
        }
    ]
    told = _traits(run, known, seen, traits)
    pools = seen.ranges * (int(seen.pools.max(initial=0)) + 1) + seen.pools
    lags = choose_lags(batch, len(pools))
    for trait in traits:
        has = told[trait].is_not_null().to_numpy()
        codes = (
            told[trait].filter(told[trait].is_not_null()).rank("dense").cast(pl.Int64).to_numpy()
        )
        found = trait_autocorrelation(pools[has], codes, lags, seen.windows[has])
        off = off_lags(found, beyond=batch)
        rows += [
            {
                "part": "all",
                "measure": "autocorrelation",
                "subject": f"{trait}@{lag}",
                "value": each.value,
                "target": 0.0,
                "bound": each.bound if lag > batch else None,
                "is_off": lag in off,
                "num_samples": each.num_pairs,
            }
            for lag, each in found.items()
        ]
    return rows


def look(name: str, known: Known, batch: int, max_steps: int = MAX_STEPS) -> Seen:
    """Draw the samples of the windows that are looked at; see `choose_windows`."""
    spans = [(each.first_step, each.end_step) for each, _ in known]
    windows = choose_windows(_joined(spans), key=name, batch=batch, max_steps=max_steps)
    parts: list[tuple[I64, I64, I64, I64]] = []
    differing = 0
    for window, (first, end) in enumerate(windows):
        for number, plan, low, high in _ranges_in(known, first, end):
            draws = [plan.draws(step) for step in range(low, high)]
            pools = np.concatenate([each.pools for each in draws])
            rows = np.concatenate([plan.rows_of(each) for each in draws])
            counted = dict(zip(*(each.tolist() for each in np.unique(pools, return_counts=True)),
                               strict=True))  # fmt: skip
            differing += counted != counts_in(plan, low, high)
            parts.append((np.full_like(rows, number), np.full_like(rows, window), pools, rows))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Seen(*columns, num_differing=differing, num_windows=len(windows))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, end in spans:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return joined


def _ranges_in(known: Known, first: int, end: int) -> Iterator[tuple[int, StepPlan, int, int]]:
    """Cut steps of the run at the borders of ranges: number, plan, and steps of the plan."""
    for number, (each, plan) in enumerate(known):
        part = each.cut(first, end)
        if part.first_step < part.end_step:
            length = part.end_step - part.first_step
            yield number, plan, part.plan_step, part.plan_step + length


def _traits(run: StepRun, known: Known, seen: Seen, traits: Sequence[str]) -> dict[str, pl.Series]:
    """Traits of each sample seen; null where the index is gone."""
    base = [f"v{parse_version(each.version)[0]}" for each, _ in known]
    ids = pl.Series([""] * len(seen.rows), dtype=pl.String)
    version_of = np.array(base)[seen.ranges]
    sample_ids = np.empty(len(seen.rows), dtype=object)
    for number, (_, plan) in enumerate(known):
        mine = np.flatnonzero(seen.ranges == number)
        unique, where = np.unique(seen.rows[mine], return_inverse=True)
        names = np.array([sample_id for sample_id, _ in plan.index.names(unique)], dtype=object)
        sample_ids[mine] = names[where.reshape(-1)]
    ids = pl.Series("sample_id", sample_ids.tolist(), dtype=pl.String)
    asked = pl.DataFrame({"sample_id": ids, "version": version_of.tolist()})
    frames = [
        scan_matching(
            run.store,
            ref,
            asked.filter(version=ref.partition),
            "sample_id",
            ["sample_id", *traits],
        ).with_columns(version=pl.lit(ref.partition))
        for ref in run.order.context.get("dataset_index", [])
        if ref.partition in set(base)
    ]
    if not frames:
        return {trait: pl.Series([None] * len(asked), dtype=pl.String) for trait in traits}
    joined = asked.join(
        pl.concat(frames), on=["sample_id", "version"], how="left", maintain_order="left"
    )
    return {trait: joined[trait] for trait in traits}
