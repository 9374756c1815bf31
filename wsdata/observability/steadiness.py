"""Steadiness: does a filter stop, or fail on, as much of a source as it used to?

Each rate of a drop (stopped, of the clips that the filter looked at; failed, of those that it
tried) is held against the same source's earlier drops, and against all other sources. The rule:
Fisher's exact test of the two counts, two-sided by doubling, and a difference that matters. Drops
of one source differ more than chance allows, so a difference of few points never alarms, however
many clips show it; sources differ still more, so against others it takes more and only warns.

With 18 rates and two comparisons a drop, chance alone warns about once in 280 drops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from wsdata.catalog.objects import read_objects

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

MIN_CLIPS = 20  # on both sides; a rate of fewer says nothing
NEWEST = 30  # earlier drops of a source, and drops of others, that are asked
WARN_P, WARN_POINTS = 1e-4, 0.05
ERROR_P, ERROR_POINTS = 1e-9, 0.20
OTHERS_POINTS = 0.20

_SUMS = ("num_in", "num_stopped", "num_errors")


class Count(NamedTuple):
    """So many of so many."""

    hits: int
    of: int

    @property
    def share(self) -> float:
        """The rate, in [0, 1]; 0 of none."""
        return self.hits / self.of if self.of else 0.0

    def __str__(self) -> str:
        return f"{self.hits} of {self.of} ({self.share:.1%})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """One rate that is not what it was. `severity` is ``warn`` or ``error``."""

    severity: str
    text: str


def check_drop(ledger: Ledger, store: BlobStore, drop: str) -> list[Alarm]:
    """Hold a drop's kill rates against history; see the module.

    History are the newest drops before it by key, so that it does not matter which came in first.
    """
    source_key = drop.rsplit(".", 2)[0] + "."
    refs = sorted(ledger.live("kill_rates"), key=lambda ref: _age(ref.partition), reverse=True)
    before = [ref for ref in refs if _age(ref.partition) < _age(drop)]
    own = [ref for ref in before if ref.partition.startswith(source_key)][:NEWEST]
    others = [ref for ref in refs if not ref.partition.startswith(source_key)][:NEWEST]
    rates = read_objects(store, "kill_rates", [ref for ref in refs if ref.partition == drop])
    return alarms(
        rates, read_objects(store, "kill_rates", own), read_objects(store, "kill_rates", others)
    )


def _age(drop: str) -> tuple[str, ...]:
    """Sorts drops by day and number, whatever their source."""
    return (*drop.rsplit(".", 2)[1:], drop)


def alarms(rates: pl.DataFrame, own: pl.DataFrame, others: pl.DataFrame) -> list[Alarm]:
    """Compare one drop's rates with two baselines.

    Args:
        rates: Rows of ``kill_rates`` of the drop.
        own: The same of earlier drops of its source.
        others: The same of drops of other sources.

    Returns:
        Alarms, errors first.
    """
    history = {"its earlier drops": _sums(own), "other sources": _sums(others)}
    found: list[Alarm] = []
    for row in rates.sort("filter", "source").iter_rows(named=True):
        for what, mine, pick in (
            ("stopped", Count(row["num_stopped"], row["num_in"]), _stopped),
            ("failed on", Count(row["num_errors"], row["num_in"] + row["num_errors"]), _failed),
        ):
            for where, sums in history.items():
                base = pick(sums.get(row["filter"], dict.fromkeys(_SUMS, 0)))
                severity = judge(mine, base, is_own=where != "other sources")
                if severity is not None:
                    text = (
                        f"{row['filter']} {what} {mine} clips of {row['source']}, and {base} in "
                        f"{where}"
                    )
                    found.append(Alarm(severity=severity, text=text))
    return sorted(found, key=lambda alarm: alarm.severity != "error")


def judge(mine: Count, base: Count, *, is_own: bool) -> str | None:
    """Whether two rates differ by more than chance and by enough to matter: warn, error or None."""
    if min(mine.of, base.of) < MIN_CLIPS:
        return None
    apart = abs(mine.share - base.share)
    if apart < (WARN_POINTS if is_own else OTHERS_POINTS):
        return None
    p = fisher_p(mine, base)
    if is_own and apart >= ERROR_POINTS and p < ERROR_P:
        return "error"
    return "warn" if p < WARN_P else None


def fisher_p(a: Count, b: Count) -> float:
    """Fisher's exact test of two counts: the smaller tail, doubled, at most 1."""
    hits, drawn, total = a.hits + b.hits, a.of, a.of + b.of
    lowest, highest = max(0, hits - (total - drawn)), min(hits, drawn)

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    log_first = (
        log_choose(hits, a.hits)
        + log_choose(total - hits, drawn - a.hits)
        - log_choose(total, drawn)
    )

    def tail(ratio: NDArray[np.float64]) -> float:
        return math.exp(log_first) * (1.0 + float(np.exp(np.cumsum(np.log(ratio))).sum()))

    up = np.arange(a.hits, highest, dtype=np.float64)  # from k to k + 1
    down = np.arange(a.hits, lowest, -1, dtype=np.float64)  # from k to k - 1
    rise = (hits - up) * (drawn - up) / ((up + 1) * (total - hits - drawn + up + 1))
    fall = down * (total - hits - drawn + down) / ((hits - down + 1) * (drawn - down + 1))
    return min(1.0, 2 * min(tail(rise), tail(fall)))


def _sums(rates: pl.DataFrame) -> dict[str, dict[str, int]]:
    summed = rates.group_by("filter").agg(pl.col(name).sum() for name in _SUMS)
    return {row.pop("filter"): row for row in summed.to_dicts()}


def _stopped(sums: dict[str, int]) -> Count:
    return Count(sums["num_stopped"], sums["num_in"])


def _failed(sums: dict[str, int]) -> Count:
    return Count(sums["num_errors"], sums["num_in"] + sums["num_errors"])
