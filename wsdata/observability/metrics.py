"""What the catalog tells Prometheus: throughput, kill rates, quarantine, sizes, versions.

Every collector asks the ledger for sums, or reads small objects that hold sums, each once; and
nothing at all while no commit came. Serving the numbers and asking Dagster belong to
`resources.exporter`.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import sqlalchemy as sa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from wsdata.catalog.objects import read_object
from wsdata.catalog.schema import COMMITS, FACTS, OBJECTS
from wsdata.errors import WsdataError
from wsdata.ids import parse_drop_key, parse_version
from wsdata.observability.run_metrics import RunMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from wsdata.catalog.ledger import Ledger
    from wsdata.records import ObjectRef
    from wsdata.store import BlobStore

log = logging.getLogger(__name__)

MAX_READS = 2000  # objects of kill rates that one collection reads; the rest come with the next
NUM_READERS = 8
MAX_SOURCES = 200  # sources with series of their own: the largest; the others are one series
OTHER = "_other"
MAX_VERSIONS = 20  # dataset versions with a series of their own: the newest
FACT_KINDS = ("tombstone", "takedown", "pin", "quarantine", "safety_report")


class CatalogMetrics:
    """Collects one ledger's numbers, remembering what it has read. For one thread.

    Args:
        ledger: The ledger.
        store: The store of its objects.
        max_reads: Objects that one collection of kill rates reads at most.
    """

    def __init__(self, ledger: Ledger, store: BlobStore, *, max_reads: int = MAX_READS) -> None:
        self._ledger = ledger
        self._runs = RunMetrics(ledger, store)
        self._kills = _KillRates(ledger, store, max_reads)
        self._seen_seq = 0
        self._commits: dict[tuple[str, str], int] = defaultdict(int)
        self._rows: dict[str, int] = defaultdict(int)
        self._kept: dict[str, tuple[int, list[Metric]]] = {}

    def collectors(self) -> dict[str, Callable[[], list[Metric]]]:
        """All collectors by name; each may fail without the others."""
        return {
            "commits": self.commits,
            "catalog": lambda: self._unless_idle("catalog", self._catalog),
            "facts": lambda: self._unless_idle("facts", self._facts),
            "versions": lambda: self._unless_idle("versions", self._versions),
            "kill_rates": self._kills.collect,
            "training_runs": lambda: self._unless_idle("training_runs", self._runs.collect),
        }

    def _unless_idle(self, name: str, collect: Callable[[], list[Metric]]) -> list[Metric]:
        seq = self._ledger.seq
        if name not in self._kept or self._kept[name][0] != seq:
            self._kept[name] = (seq, collect())
        return self._kept[name][1]

    def commits(self) -> list[Metric]:
        """Commits by step, and rows by table, since the ledger began; and its newest commit."""
        seq = self._ledger.seq
        if seq > self._seen_seq:
            new = sa.and_(COMMITS.c.seq > self._seen_seq, COMMITS.c.seq <= seq)
            counts = self._ledger.ask(
                sa.select(COMMITS.c.step, sa.func.count()).where(new).group_by(COMMITS.c.step)
            )
            came = sa.and_(OBJECTS.c.begin_seq > self._seen_seq, OBJECTS.c.begin_seq <= seq)
            rows = self._ledger.ask(
                sa.select(OBJECTS.c.name, sa.func.sum(OBJECTS.c.num_rows))
                .where(came)
                .group_by(OBJECTS.c.name)
            )
            for step, count in counts:
                stage, _, name = step.rpartition("/")
                self._commits[stage, name] += count
            for table, count in rows:
                self._rows[table] += int(count)
            self._seen_seq = seq
        return [
            _counter("wsdata_commits", "Commits by step.", ("stage", "step"), self._commits),
            _counter(
                "wsdata_rows_committed",
                "Rows of committed objects.",
                ("table",),
                _keyed(self._rows),
            ),
            GaugeMetricFamily("wsdata_ledger_seq", "Number of the newest commit.", value=seq),
            GaugeMetricFamily(
                "wsdata_ledger_last_commit_timestamp_seconds",
                "When the newest commit was made; 0 in an empty ledger.",
                value=self._committed_at(seq),
            ),
        ]

    def _committed_at(self, seq: int) -> float:
        found = self._ledger.ask(sa.select(COMMITS.c.committed_at).where(COMMITS.c.seq == seq))
        return dt.datetime.fromisoformat(found[0][0]).timestamp() if found else 0.0

    def _catalog(self) -> list[Metric]:
        live = self._ledger.ask(
            sa.select(OBJECTS.c.name, sa.func.count(), sa.func.sum(OBJECTS.c.num_rows))
            .where(OBJECTS.c.end_seq.is_(None))
            .group_by(OBJECTS.c.name)
        )
        landed, cut, gated = self._rows_per_drop("raw_assets", "clips", "gates")
        return [
            _gauge(
                "wsdata_catalog_objects", "Live objects of rows, of all versions.", ("table",),
                {(name,): count for name, count, _ in live},
            ),
            _gauge(
                "wsdata_catalog_rows", "Rows of live objects, of all versions.", ("table",),
                {(name,): int(rows) for name, _, rows in live},
            ),
            _gauge(
                "wsdata_drops", "Drops that came as far as a step.", ("state",),
                {("landed",): len(landed), ("cut",): len(cut), ("gated",): len(gated)},
            ),
            _gauge(
                "wsdata_assets", "Raw assets, counted once per drop.", ("source",),
                _keyed(_largest(_per_source(landed))),
            ),
            _gauge(
                "wsdata_clips", "Clips, counted once per drop.", ("source",),
                _keyed(_largest(_per_source(cut))),
            ),
        ]  # fmt: skip

    def _rows_per_drop(self, *names: str) -> list[dict[str, int]]:
        """Rows of each drop in the object of a table that was committed last."""
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        query = (
            sa.select(OBJECTS.c.name, OBJECTS.c.partition, OBJECTS.c.num_rows)
            .where(OBJECTS.c.name.in_(names), OBJECTS.c.end_seq.is_(None))
            .order_by(OBJECTS.c.begin_seq, OBJECTS.c.id)
        )
        for name, partition, num_rows in self._ledger.ask(query):
            found[name][partition] = num_rows
        return list(found.values())

    def _facts(self) -> list[Metric]:
        present: dict[tuple[str, ...], int] = {}
        held: dict[str, int] = defaultdict(int)
        for kind in FACT_KINDS:
            counts = self._present(kind)
            present[(kind,)] = sum(counts.values())
            if kind == "quarantine":
                for partition, count in counts.items():
                    held[_source(partition)] += count
        return [
            _gauge("wsdata_facts", "Subjects of which a fact is stated.", ("kind",), present),
            _gauge(
                "wsdata_quarantined_assets", "Raw assets that could not be decoded.", ("source",),
                _keyed(_largest(held)),
            ),
        ]  # fmt: skip

    def _present(self, kind: str) -> dict[str, int]:
        """Subjects of present facts of a kind by the partition of the commit that stated them.

        Counted by the database: bodies may be many, and only whether one is withdrawn matters.
        """
        newest = (
            sa.select(sa.func.max(FACTS.c.id)).where(FACTS.c.kind == kind).group_by(FACTS.c.subject)
        )
        query = (
            sa.select(COMMITS.c.partition, sa.func.count())
            .select_from(sa.join(FACTS, COMMITS, FACTS.c.seq == COMMITS.c.seq))
            .where(FACTS.c.id.in_(newest), FACTS.c.body.not_like('%"withdrawn":true%'))
            .group_by(COMMITS.c.partition)
        )
        return {row[0]: row[1] for row in self._ledger.ask(query)}

    def _versions(self) -> list[Metric]:
        cuts = {ref.partition: ref.num_rows for ref in self._ledger.live("manifests")}
        patches = self._ledger.ask(
            sa.select(sa.func.count(sa.distinct(FACTS.c.subject))).where(
                FACTS.c.kind == "dataset_version", FACTS.c.subject.like("%.%")
            )
        )[0][0]
        newest = sorted(cuts, key=parse_version)[-MAX_VERSIONS:]
        return [
            _gauge(
                "wsdata_dataset_versions", "Dataset versions.", ("kind",),
                {("cut",): len(cuts), ("patch",): patches},
            ),
            _gauge(
                "wsdata_dataset_samples", "Samples of the newest cut versions.", ("version",),
                {(name,): cuts[name] for name in newest},
            ),
        ]  # fmt: skip


class _KillRates:
    """Sums of the kill-rate objects of all drops; each object is read once."""

    def __init__(self, ledger: Ledger, store: BlobStore, max_reads: int) -> None:
        self._ledger = ledger
        self._store = store
        self._max_reads = max_reads
        self._read: dict[str, list[tuple[str, str, int, int, int, float]]] = {}
        self._seq = -1
        self._refs: list[ObjectRef] = []

    def collect(self) -> list[Metric]:
        """Clips that each filter saw, stopped and failed on, and seconds of clips, by source."""
        if (seq := self._ledger.seq) != self._seq:
            self._refs = self._ledger.live("kill_rates")
            self._seq = seq
            wanted = {ref.sha256 for ref in self._refs}
            self._read = {sha: rows for sha, rows in self._read.items() if sha in wanted}
        unread = [ref for ref in self._refs if ref.sha256 not in self._read]
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for ref, rows in zip(
                unread, readers.map(self._rows, unread[: self._max_reads]), strict=False
            ):
                if rows is not None:
                    self._read[ref.sha256] = rows
        return self._sums()

    def _rows(self, ref: ObjectRef) -> list[tuple[str, str, int, int, int, float]] | None:
        try:
            rows = read_object(self._store, ref)
        except WsdataError as error:  # one lost object must not hide all others
            log.warning("kill rates of %s are not counted: %s", ref.partition, error)
            return None
        columns = ("filter", "source", "num_in", "num_stopped", "num_errors", "duration_s")
        return rows.select(columns).fill_null(0).rows()

    def _sums(self) -> list[Metric]:
        seconds: dict[str, float] = defaultdict(float)
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        num_unread = 0
        for ref in self._refs:
            if ref.sha256 not in self._read:
                num_unread += 1
            of_drop: dict[str, float] = {}
            for name, source, *counts, duration_s in self._read.get(ref.sha256, []):
                of_drop[source] = duration_s  # the same on the row of every filter
                total = sums[name, source]
                for at, count in enumerate(counts):
                    total[at] += count
            for source, duration_s in of_drop.items():
                seconds[source] += duration_s
        kept = _largest(seconds)
        families = [
            _gauge(
                f"wsdata_filter_{word}_clips", f"Clips that a filter {said}.",
                ("filter", "source"), _folded(sums, at, kept),
            )
            for at, (word, said) in enumerate(
                (("seen", "looked at"), ("stopped", "stopped"), ("failed", "failed on"))
            )
        ]  # fmt: skip
        return [
            *families,
            _gauge("wsdata_clip_seconds", "Seconds of all clips.", ("source",), _keyed(kept)),
            GaugeMetricFamily(
                "wsdata_kill_rates_unread_objects",
                "Drops whose kill rates are not read yet, or cannot be.",
                value=num_unread,
            ),
        ]


def _folded(
    sums: Mapping[tuple[str, str], Sequence[int]], at: int, kept: Mapping[str, float]
) -> dict[tuple[str, str], int]:
    folded: dict[tuple[str, str], int] = defaultdict(int)
    for (name, source), counts in sums.items():
        folded[name, source if source in kept else OTHER] += counts[at]
    return folded


def _source(partition: str) -> str:
    try:
        return parse_drop_key(partition).source
    except ValueError:
        return OTHER


def _per_source(rows: Mapping[str, int]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for partition, num_rows in rows.items():
        counts[_source(partition)] += num_rows
    return counts


def _largest(values: Mapping[str, float]) -> dict[str, float]:
    """The largest sources, and the sum of all others: a crawl may have very many."""
    if len(values) <= MAX_SOURCES:
        return dict(values)
    order = sorted(values, key=lambda source: (-values[source], source))
    kept = {source: values[source] for source in order[:MAX_SOURCES]}
    kept[OTHER] = kept.get(OTHER, 0) + sum(values[source] for source in order[MAX_SOURCES:])
    return kept


def _keyed(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(key,): value for key, value in values.items()}


def _gauge(
    name: str, said: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    return _filled(GaugeMetricFamily(name, said, labels=labels), values)


def _counter(
    name: str, said: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    return _filled(CounterMetricFamily(name, said, labels=labels), values)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[tuple[str, ...], float]
) -> Metric:
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
