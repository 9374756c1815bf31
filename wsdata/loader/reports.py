"""What a rank tells the inbox while it delivers: rank 0 which steps, each one how it keeps up.

Made anew for each iteration: each is an attempt of its own. What is told of steps belongs to
`served_log`, of fetches and stalls to `telemetry`; taking it in to `inbox`.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from wsdata.errors import StoreError
from wsdata.loader.run import Run
from wsdata.loader.served_log import ServedLog, submit
from wsdata.loader.telemetry import export
from wsdata.store import BlobStore

log = logging.getLogger(__name__)

TELEMETRY_EVERY_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reporter:
    """Where and for whom a rank reports.

    Attributes:
        store: Where the inbox is.
        name: Name of the training run.
        rank: Of all ranks, those of a sequence-parallel group counted singly.
        world_size: Number of data-parallel ranks.
        telemetry: Gives a report of the rank's loader.
        session: Names the life of the rank that the telemetry counts.
    """

    store: BlobStore
    name: str
    rank: int
    world_size: int
    telemetry: Callable[[], dict[str, Any]]
    session: str


class Reports:
    """Reports of one iteration. `delivered`, `swap` and `close` are for one thread.

    Args:
        reporter: For whom.
        run: The run's segments.
        resumed_step: Where it goes on from a cursor, if it does.
    """

    def __init__(self, reporter: Reporter, run: Run, *, resumed_step: int | None = None) -> None:
        self._reporter = reporter
        self._served: ServedLog | None = None
        if reporter.rank == 0:
            self._served = ServedLog(
                reporter.store,
                reporter.name,
                run,
                world_size=reporter.world_size,
                resumed_step=resumed_step,
            )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wsdata-report")
        self._putting: Future[None] | None = None
        self._next_step = 0
        self._told_at = time.monotonic()
        self._is_closed = False

    def delivered(self, step: int) -> None:
        """Note that the last batch of a step was handed to the trainer."""
        self._next_step = step + 1
        if self._served is not None:
            self._served.delivered(step)
        if time.monotonic() - self._told_at >= TELEMETRY_EVERY_S:
            self._tell()

    def swap(self, run: Run) -> None:
        """Go on under a patched run."""
        if self._served is not None:
            self._served.swap(run)

    def close(self, patience_s: float = 30.0) -> None:
        """Tell what is left, waiting for the store at most so long; a second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._next_step:
            self._tell()
        if self._served is not None:
            self._served.close(patience_s)
        if self._putting is not None:
            try:
                self._putting.result(timeout=patience_s)
            except TimeoutError:
                log.warning("the last telemetry of rank %d was not taken", self._reporter.rank)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _tell(self) -> None:
        """Put the rank's report; one that is still under way is not waited for."""
        self._told_at = time.monotonic()
        if self._putting is None or self._putting.done():
            report = self._reporter.telemetry()
            self._putting = submit(self._thread, self._put, report, self._next_step)

    def _put(self, report: dict[str, Any], step: int) -> None:
        me = self._reporter
        try:
            export(me.store, report, run=me.name, rank=me.rank, session=me.session, step=step)
        except (StoreError, OSError) as error:
            log.warning("telemetry of rank %d is told later: %s", me.rank, error)
