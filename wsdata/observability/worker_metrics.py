"""What a worker of a pool tells Prometheus while it lives: units, their time, store traffic.

Served on a port of the pod, for one step of one order. A worker that no scrape met is counted
all the same: by the ledger, whose numbers belong to `metrics`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import resource
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from wsdata.errors import ObjectMissing
from wsdata.observability.scrape import ANY_ADDRESS, ScrapeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from wsdata.observability.scrape import Page
    from wsdata.store import BlobStore

log = logging.getLogger(__name__)

Store = TypeVar("Store", bound="BlobStore")

UNIT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
REQUEST_SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BYTES_PER_KIB = 1024  # Linux gives ru_maxrss in KiB


class Watch(Protocol):
    """Watches one step: takes its progress, and counts what goes through its store."""

    def __call__(self, done: int, total: int, note: str) -> None:
        """Take (units done, units in all, what was just done), as `wsdata.orders.Progress`."""
        ...

    def metered(self, store: Store) -> Store:
        """Return a store that does as the given one, and is counted."""
        ...


class LoggedProgress:
    """Watches a step that nobody scrapes: progress goes to the log alone."""

    def __call__(self, done: int, total: int, note: str) -> None:
        """Log where the step is."""
        log.info("%d/%d %s", done, total, note)

    def metered(self, store: Store) -> Store:
        """Return the store itself."""
        return store


@contextlib.contextmanager
def serving(
    stage: str,
    step: str,
    port: int | str | None,
    pool: str = "",
    *,
    address: str = ANY_ADDRESS,
) -> Iterator[Watch]:
    """Serve ``/metrics`` while one step is worked, where a port is given.

    Args:
        stage: Stage of the step.
        step: Its name.
        port: Port to serve on, as a number or as the environment spells it; None or "" for no
            server. A port that is bad or taken is a warning in the log, and no server.
        pool: Pool that the worker belongs to.
        address: Address to serve on.

    Yields:
        What the step's progress and store go through.
    """
    if port in (None, ""):
        yield LoggedProgress()
        return
    watch = WorkerMetrics(stage, step, pool)
    try:
        server = ScrapeServer(_port(port), {"/metrics": watch.page}, address=address)
    except (OSError, ValueError) as error:
        log.warning("no metrics of this worker on port %r of %s: %s", port, address, error)
        yield LoggedProgress()
        return
    try:
        yield watch
    finally:
        server.close()


def _port(port: int | str | None) -> int:
    number = int(port or 0)
    if not 0 < number < 2**16:
        raise ValueError(f"expected a port in [1, 65535], got {number}")
    return number


class WorkerMetrics:
    """Counts one step of one worker. Safe to call from several threads."""

    def __init__(self, stage: str, step: str, pool: str) -> None:
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            ProcessCollector,
            disable_created_metrics,
        )

        disable_created_metrics()  # a series more of each, which nothing here asks for
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="wsdata_worker", registry=self.registry)
        self.registry.register(_Children())
        names, values = ("stage", "step", "pool"), (stage, step, pool)

        def of_step(kind: Any, name: str, said: str, **more: Any) -> Any:
            return kind(name, said, names, registry=self.registry, **more).labels(*values)

        self._done = of_step(Counter, "wsdata_units_done", "Units of work done.")
        self._total = of_step(Gauge, "wsdata_units_total", "Units of the phase being worked.")
        self._left = of_step(Gauge, "wsdata_units_left", "Units of that phase not done yet.")
        self._seconds = of_step(
            Histogram,
            "wsdata_unit_seconds",
            "Seconds per unit, one observation per report of progress.",
            buckets=UNIT_SECONDS,
        )
        self._traffic = _StoreTraffic(self.registry, pool)
        self._lock = threading.Lock()
        self._num_done = 0
        self._reported_at_s = time.monotonic()

    def __call__(self, done: int, total: int, note: str) -> None:
        """Take (units done, units in all, what was just done); a smaller `done` is a new phase."""
        log.info("%d/%d %s", done, total, note)
        now_s = time.monotonic()
        with self._lock:
            num_new = done - self._num_done if done >= self._num_done else done
            spent_s = now_s - self._reported_at_s
            self._num_done, self._reported_at_s = done, now_s
        self._total.set(total)
        self._left.set(max(0, total - done))
        if num_new > 0:
            self._done.inc(num_new)
            self._seconds.observe(spent_s / num_new)

    def metered(self, store: Store) -> Store:
        """Return a store that does as the given one, and is counted."""
        return self._traffic.metered(store)

    def page(self) -> Page:
        """Answer a scrape."""
        from prometheus_client import generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.registry)


class _StoreTraffic:
    """Bytes, requests and retries of a store."""

    def __init__(self, registry: CollectorRegistry, pool: str) -> None:
        from prometheus_client import Counter, Histogram

        self._pool = pool
        self._stores: list[BlobStore] = []
        registry.register(self)
        self._bytes = Counter(
            "wsdata_store_bytes",
            "Bytes read and written.",
            ("pool", "direction"),
            registry=registry,
        )
        self._requests = Counter(
            "wsdata_store_requests", "Store calls, by how they ended: ok, missing, taken, error.",
            ("pool", "op", "outcome"), registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "wsdata_store_request_seconds", "Seconds of a store call with its retries.",
            ("pool", "op"), registry=registry, buckets=REQUEST_SECONDS,
        )  # fmt: skip

    def metered(self, store: Store) -> Store:
        # A copy stays what it was: some steps read the files of a folder store in place.
        counted = copy.copy(store)
        self._stores.append(store)
        for op in ("put", "put_file", "get", "get_range", "fetch", "size", "age_s", "delete"):
            setattr(counted, op, self._counting(op, getattr(store, op)))
            self._requests.labels(self._pool, op, "error")  # a first error shows as a rise from 0
        counted.list = self._listing(store.list)
        return counted

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily

        retries = CounterMetricFamily(
            "wsdata_store_retries",
            "Tries of store requests beyond the first, where a store counts them.",
            labels=("pool",),
        )
        retries.add_metric(
            [self._pool], sum(getattr(store, "num_retries", 0) for store in self._stores)
        )
        yield retries

    def _counting(self, op: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            started_s = time.perf_counter()
            outcome = "error"
            try:
                result = call(*args, **named)
                outcome = self._ended(op, args, named, result)
            except ObjectMissing:
                outcome = "missing"
                raise
            finally:
                self._seconds.labels(self._pool, op).observe(time.perf_counter() - started_s)
                self._requests.labels(self._pool, op, outcome).inc()
            return result

        return counted

    def _ended(self, op: str, args: tuple[Any, ...], named: dict[str, Any], result: Any) -> str:
        if op in ("get", "get_range"):
            self._bytes.labels(self._pool, "read").inc(len(result))
        elif op == "fetch":
            self._bytes.labels(self._pool, "read").inc(result)
        elif op in ("put", "put_file"):
            if not result:
                return "taken"
            given = args[1] if len(args) > 1 else named["data" if op == "put" else "path"]
            size_bytes = given.stat().st_size if op == "put_file" else len(given)
            self._bytes.labels(self._pool, "written").inc(size_bytes)
        return "missing" if result is None and op == "size" else "ok"

    def _listing(self, call: Callable[[str], Iterator[tuple[str, int]]]) -> Any:
        def counted(prefix: str) -> Iterator[tuple[str, int]]:
            outcome = "error"
            try:
                yield from call(prefix)
                outcome = "ok"
            except GeneratorExit:  # the caller had enough of it
                outcome = "ok"
                raise
            finally:
                self._requests.labels(self._pool, "list", outcome).inc()

        return counted


class _Children:
    """Processes that this one started and saw end: what parses bytes runs in such."""

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        yield CounterMetricFamily(
            "wsdata_worker_children_cpu_seconds",
            "CPU seconds of child processes that ended.",
            value=used.ru_utime + used.ru_stime,
        )
        yield GaugeMetricFamily(
            "wsdata_worker_children_peak_memory_bytes",
            "Largest resident size that a child process that ended had.",
            value=used.ru_maxrss * BYTES_PER_KIB,
        )
