"""What the catalog tells Prometheus of training runs: steps served, loaders, realised order.

Read from the small reports that are live; of very many runs those that told something last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from prometheus_client.core import GaugeMetricFamily

from wsdata.catalog.objects import read_objects
from wsdata.loader.rank_reports import ALL_RANKS, hit_share
from wsdata.loader.runs_served import summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.metrics_core import Metric

    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

MAX_RUNS = 20  # with series of their own: those whose newest attempt began last
QUANTILES = {"0.5": "fetch_p50_s", "0.99": "fetch_p99_s", "0.999": "fetch_p999_s"}

Values = dict[tuple[str, ...], float]


class RunMetrics:
    """Series of training runs; what was read is read again only where it is other rows."""

    def __init__(self, ledger: Ledger, store: BlobStore) -> None:
        self._ledger, self._store = ledger, store
        self._rows: dict[str, tuple[list[str], pl.DataFrame]] = {}

    def collect(self) -> list[Metric]:
        """All series of training runs."""
        served = self._read("runs_served")
        newest = served.group_by("run").agg(pl.col("attempt").max()).sort("attempt", "run")
        is_kept = pl.col("run").is_in(newest["run"].tail(MAX_RUNS).to_list())
        return [
            *_served(served.filter(is_kept)),
            *_loaders(self._read("rank_telemetry").filter(is_kept)),
            *_order(self._read("realised_order").filter(is_kept)),
        ]

    def _read(self, table: str) -> pl.DataFrame:
        refs = self._ledger.live(table)
        shas = [ref.sha256 for ref in refs]
        if table not in self._rows or self._rows[table][0] != shas:
            self._rows[table] = (shas, read_objects(self._store, table, refs))
        return self._rows[table][1]


def _served(rows: pl.DataFrame) -> list[Metric]:
    runs = summary(rows)
    states: Values = {}
    for each in runs:
        unknown = sum(end - first for first, end in each["holes"])
        states[each["run"], "kept"] = each["num_steps"]
        states[each["run"], "replayed"] = each["num_replayed"]
        states[each["run"], "unknown"] = unknown
    return [
        _gauge("wsdata_run_steps", "Steps that a run was served, and what became of them.",
               ("run", "state"), states),
        _gauge("wsdata_run_end_step", "End of the steps that a run was served.", ("run",),
               {(each["run"],): each["end_step"] for each in runs}),
    ]  # fmt: skip


def _loaders(rows: pl.DataFrame) -> list[Metric]:
    whole = rows.filter(rank=ALL_RANKS).to_dicts()
    ranks = rows.filter((pl.col("rank") != ALL_RANKS) & pl.col("is_current"))
    states: Values = {}
    for (run,), mine in ranks.sort("run").group_by("run", maintain_order=True):
        slow = float(mine["is_too_slow"].fill_null(value=False).sum())
        states[str(run), "too_slow"] = slow
        states[str(run), "keeps_up"] = mine.height - slow
    fetches = {
        (row["run"], quantile): row[column]
        for row in whole
        for quantile, column in QUANTILES.items()
        if row[column] is not None
    }
    return [
        _gauge("wsdata_run_fetch_seconds", "Seconds of a fetch, over all current ranks.",
               ("run", "quantile"), fetches),
        _gauge("wsdata_run_stalled_seconds", "Seconds that current ranks waited for batches.",
               ("run",), _of(whole, "stalled_s")),
        _gauge("wsdata_run_stalls", "Batches that were not ready when asked for.", ("run",),
               _of(whole, "num_stalls")),
        _gauge("wsdata_run_cache_hit_share", "Ranges that came from the node's cache.", ("run",),
               {(row["run"],): share for row in whole if (share := hit_share(row)) is not None}),
        _gauge("wsdata_run_ranks", "Ranks of the last attempt, by whether their ring suffices.",
               ("run", "state"), states),
    ]  # fmt: skip


def _order(rows: pl.DataFrame) -> list[Metric]:
    off = rows.group_by("run").agg(pl.col("is_off").sum()).sort("run")
    beyond = rows.filter((pl.col("measure") == "autocorrelation") & pl.col("bound").is_not_null())
    worst = (
        beyond.with_columns(trait=pl.col("subject").str.split("@").list.first())
        .group_by("run", "trait")
        .agg(pl.col("value").max())
        .sort("run", "trait")
    )
    return [
        _gauge("wsdata_run_order_off", "Measures of a run's realised order that are off.",
               ("run",), {(run,): count for run, count in off.iter_rows()}),
        _gauge("wsdata_run_autocorrelation", "Largest correlation beyond the global batch.",
               ("run", "trait"), {(run, trait): value for run, trait, value in worst.iter_rows()}),
    ]  # fmt: skip


def _of(rows: list[dict[str, Any]], column: str) -> Values:
    return {(row["run"],): float(row[column]) for row in rows}


def _gauge(
    name: str, said: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(name, said, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
