"""The exporter: one process that tells Prometheus what Dagster's instance and the ledger say.

It collects on an interval of its own, so that no scrape waits for a database; `/metrics` answers
from the last collection. What the catalog's numbers are belongs to
`wsdata.observability.metrics`.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric

from wsdata.catalog.ledger import Ledger
from wsdata.observability.metrics import CatalogMetrics
from wsdata.observability.scrape import ANY_ADDRESS, TEXT, Page, ScrapeServer
from wsdata.store import BlobStore

log = logging.getLogger(__name__)

UNKNOWN_JOB = "_other"  # runs of jobs that are no longer, or of another code location
BACKFILLS = (
    BulkActionStatus.REQUESTED,
    BulkActionStatus.CANCELING,
    BulkActionStatus.COMPLETED_SUCCESS,
    BulkActionStatus.COMPLETED_FAILED,
    BulkActionStatus.FAILED,
)
MAX_IDLE_S = 600.0  # a loop that has not turned for so long hangs for good

Collect = Callable[[], list[Metric]]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What of an instance is counted by name: an instance itself knows no definitions."""

    job_names: Sequence[str] = ()
    partition_names: Sequence[str] = ()
    check_keys: Sequence[dg.AssetCheckKey] = field(default_factory=tuple)

    @classmethod
    def of(cls, defs: dg.Definitions) -> "Watched":
        """Name the jobs, dynamic partitions and checks of some definitions."""
        graph = defs.resolve_asset_graph()
        kinds = [graph.get(key).partitions_def for key in graph.get_all_asset_keys()]
        names = {kind.name for kind in kinds if isinstance(kind, dg.DynamicPartitionsDefinition)}
        return cls(
            job_names=sorted(job.name for job in defs.resolve_all_job_defs()),
            partition_names=sorted(name for name in names if name),
            check_keys=sorted(graph.asset_check_keys),
        )


class DagsterMetrics:
    """Collects an instance's numbers through its storages."""

    def __init__(self, instance: dg.DagsterInstance, watched: Watched) -> None:
        self._instance = instance
        self._watched = watched

    def collectors(self) -> dict[str, Collect]:
        """All collectors by name; each may fail without the others."""
        return {
            "runs": self.runs,
            "queue": self.queue,
            "pools": self.pools,
            "backfills": self.backfills,
            "partitions": self.partitions,
            "checks": self.checks,
            "daemons": self.daemons,
        }

    def runs(self) -> list[Metric]:
        """Runs by status and job."""
        family = GaugeMetricFamily(
            "wsdata_dagster_runs",
            "Runs that the instance knows.",
            labels=("dagster_job", "status"),  # Prometheus keeps `job` for itself
        )
        for status in DagsterRunStatus:
            left = self._count(status)
            for job in self._watched.job_names:  # nothing is asked of what cannot be there
                count = self._count(status, job) if left else 0
                family.add_metric([job, status.value.lower()], count)
                left = max(0, left - count)
            family.add_metric([UNKNOWN_JOB, status.value.lower()], left)
        return [family]

    def _count(self, status: DagsterRunStatus, job: str | None = None) -> int:
        return self._instance.get_runs_count(RunsFilter(statuses=[status], job_name=job))

    def queue(self) -> list[Metric]:
        """Age of the run that waits longest."""
        oldest = self._instance.get_run_records(
            RunsFilter(statuses=[DagsterRunStatus.QUEUED]), limit=1, ascending=True
        )
        age_s = time.time() - oldest[0].create_timestamp.timestamp() if oldest else 0.0
        return [
            GaugeMetricFamily(
                "wsdata_dagster_oldest_queued_run_age_seconds",
                "Age of the run that is queued longest; 0 where none is.",
                value=age_s,
            )
        ]

    def pools(self) -> list[Metric]:
        """Slots of every pool: how many there are, are taken, and are waited for."""
        storage = self._instance.event_log_storage
        infos = storage.get_concurrency_infos(sorted(storage.get_concurrency_keys()))
        limits = GaugeMetricFamily("wsdata_pool_slots", "Slots of a pool.", labels=("pool",))
        used = GaugeMetricFamily("wsdata_pool_slots_used", "Slots taken.", labels=("pool",))
        steps = GaugeMetricFamily(
            "wsdata_pool_pending_steps", "Steps of started runs that wait.", labels=("pool",)
        )
        for pool, info in infos.items():
            limits.add_metric([pool], info.slot_count)
            used.add_metric([pool], info.active_slot_count)
            steps.add_metric([pool], info.pending_step_count)
        return [limits, used, steps]

    def backfills(self) -> list[Metric]:
        """Backfills by status."""
        family = GaugeMetricFamily("wsdata_dagster_backfills", "Backfills.", labels=("status",))
        for status in BACKFILLS:
            count = self._instance.get_backfills_count(BulkActionsFilter(statuses=[status]))
            family.add_metric([status.value.lower()], count)
        return [family]

    def partitions(self) -> list[Metric]:
        """Dynamic partitions by definition."""
        family = GaugeMetricFamily(
            "wsdata_dagster_partitions", "Dynamic partitions.", labels=("definition",)
        )
        for name in self._watched.partition_names:
            family.add_metric([name], len(self._instance.get_dynamic_partitions(name)))
        return [family]

    def checks(self) -> list[Metric]:
        """Whether the newest evaluation of every check, of whatever partition, failed."""
        newest = self._instance.event_log_storage.get_latest_asset_check_execution_by_key(
            list(self._watched.check_keys)
        )
        family = GaugeMetricFamily(
            "wsdata_asset_check_failing",
            "1 where the newest evaluation of an asset check failed.",
            labels=("asset", "check"),
        )
        for key, record in newest.items():
            is_failed = record.status is AssetCheckExecutionRecordStatus.FAILED
            family.add_metric([key.asset_key.to_user_string(), key.name], float(is_failed))
        return [family]

    def daemons(self) -> list[Metric]:
        """Heartbeats of the daemons that this instance asks for."""
        healthy = GaugeMetricFamily(
            "wsdata_dagster_daemon_healthy", "1 where a daemon's heart beats.", labels=("daemon",)
        )
        for daemon, status in self._instance.get_daemon_statuses().items():
            healthy.add_metric([daemon], float(bool(status.healthy)))
        return [healthy]


class Exporter:
    """Runs collectors, and answers from what they found last."""

    def __init__(self, collectors: dict[str, Collect]) -> None:
        self._collectors = collectors
        self._found: dict[str, list[Metric]] = {}
        self._turned_at_s = time.monotonic()
        disable_created_metrics()  # a series more of each, which nothing here asks for
        self._own = CollectorRegistry()
        self._errors = Counter(
            "wsdata_exporter_errors", "Collections that failed.", ("collector",), registry=self._own
        )
        self._succeeded = Gauge(
            "wsdata_exporter_last_success_timestamp_seconds", "When a collector last succeeded.",
            ("collector",), registry=self._own,
        )  # fmt: skip
        self._spent = Gauge(
            "wsdata_exporter_collection_seconds", "What a collector's last turn took.",
            ("collector",), registry=self._own,
        )  # fmt: skip
        for name in collectors:
            self._errors.labels(name)
            self._succeeded.labels(name).set(0)
        self._own.register(self)

    def collect(self) -> Iterable[Metric]:
        """What the collectors found last, for the registry."""
        for families in list(self._found.values()):
            yield from families

    def turn(self) -> None:
        """Run every collector once; one that fails is counted, and keeps what it found before."""
        for name, collector in self._collectors.items():
            started_s = time.monotonic()
            try:
                self._found[name] = collector()
                self._succeeded.labels(name).set(time.time())
            except Exception:  # a database that is away for a while must not end the exporter
                log.exception("collector %s failed; what it found before is still told", name)
                self._errors.labels(name).inc()
            self._spent.labels(name).set(time.monotonic() - started_s)
        self._turned_at_s = time.monotonic()

    def metrics(self) -> Page:
        """Answer a scrape."""
        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._own)

    def healthz(self) -> Page:
        """Whether the loop turns: a database that is away is no reason to start us anew."""
        idle_s = time.monotonic() - self._turned_at_s
        if idle_s > MAX_IDLE_S:
            return 503, TEXT, f"no collection ended for {idle_s:.0f} s\n".encode()
        return 200, TEXT, b"ok\n"


@contextmanager
def exporting(
    exporter: Exporter, port: int, interval_s: float, *, address: str = ANY_ADDRESS
) -> Iterator[ScrapeServer]:
    """Collect every `interval_s` seconds in a thread, and serve, until the block ends."""
    ended = threading.Event()

    def loop() -> None:
        while True:
            exporter.turn()
            if ended.wait(interval_s):
                return

    server = ScrapeServer(
        port, {"/metrics": exporter.metrics, "/healthz": exporter.healthz}, address=address
    )
    thread = threading.Thread(target=loop, name="collections", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        server.close()
        thread.join(interval_s)


def build_exporter(
    instance: dg.DagsterInstance, ledger: Ledger, store: BlobStore, watched: Watched
) -> Exporter:
    """Join the collectors of the instance and of the catalog."""
    return Exporter(
        {
            **DagsterMetrics(instance, watched).collectors(),
            **CatalogMetrics(ledger, store).collectors(),
        }
    )


def serve(
    instance: dg.DagsterInstance,
    ledger: Ledger,
    store: BlobStore,
    port: int,
    interval_s: float,
    *,
    defs: dg.Definitions | None = None,
    address: str = ANY_ADDRESS,
) -> None:
    """Serve ``/metrics`` and ``/healthz`` until SIGTERM or SIGINT comes.

    Args:
        instance: Dagster's instance.
        ledger: The ledger.
        store: The store of its objects.
        port: Port to serve on; 0 for any that is free.
        interval_s: Seconds between collections.
        defs: Definitions whose jobs, dynamic partitions and checks are counted by name.
        address: Address to serve on.

    Raises:
        ValueError: The interval is not positive.
        OSError: The port is taken.
    """
    if interval_s <= 0:
        raise ValueError(f"interval_s {interval_s}: expected a positive number of seconds")
    watched = Watched.of(defs) if defs is not None else Watched()
    exporter = build_exporter(instance, ledger, store, watched)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # the first process of a container has neither
        signal.signal(number, lambda *_: ended.set())
    with exporting(exporter, port, interval_s, address=address) as server:
        log.info("metrics at http://%s:%d/metrics", address, server.port)
        ended.wait()
