"""Tells the inbox which steps of a run were delivered, while they are; for rank 0.

What a report says, and what becomes of it, belongs to `served`.
"""

import datetime as dt
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from wsdata.digest import canonical_json
from wsdata.errors import StoreError
from wsdata.loader.run import Run, Stretch
from wsdata.loader.served import FORMAT, PREFIX, check_run_name
from wsdata.store import BlobStore

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

REPORT_EVERY = 100  # steps


def name_attempt(now: dt.datetime | None = None) -> str:
    """Name an attempt that begins now."""
    at = now or dt.datetime.now(dt.UTC)
    return f"{at:%Y%m%dT%H%M%S}.{at.microsecond // 1000:03d}-{secrets.token_hex(3)}"


class ServedLog:
    """Tells the inbox what was delivered, every some steps; for rank 0.

    Reports are put by a thread of its own, so a slow store holds no training up; what could not
    be put is put with the next one, and training goes on.

    Args:
        store: Where the inbox is.
        name: Name of the training run.
        run: Its segments; see `swap`.
        world_size: Number of data-parallel ranks.
        resumed_step: Where it goes on from a cursor, if it does.
        every: Steps between two reports.
    """

    def __init__(
        self,
        store: BlobStore,
        name: str,
        run: Run,
        *,
        world_size: int = 1,
        resumed_step: int | None = None,
        every: int = REPORT_EVERY,
    ) -> None:
        self._store, self._name, self._run = store, check_run_name(name), run
        self._every = every
        self._told: dict[str, Any] = {
            "attempt": name_attempt(),
            "world_size": world_size,
            "resumed_step": resumed_step,
            "before": [_range_body(part) for part in run.stretches(0, resumed_step or 0)],
        }
        self._first: int | None = None
        self._end = 0
        self._waiting: list[tuple[str, bytes]] = []
        self._putting: Future[list[tuple[str, bytes]]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wsdata-served")

    def delivered(self, step: int) -> None:
        """Note that a step was handed to the trainer."""
        if self._first is not None and step != self._end:
            self._gather()
        if self._first is None:
            self._first = step
        self._end = step + 1
        if self._end - self._first >= self._every:
            self._gather()
            self._send(waits=False)

    def swap(self, run: Run) -> None:
        """Go on under a patched run; what was delivered before is told as it was."""
        self._gather()
        self._run = run

    def close(self, patience_s: float = 30.0) -> None:
        """Tell what is left, waiting for the store at most so long.

        What it does not take in that time is lost to the catalog, which takes the steps before
        a cursor for served in any case.
        """
        self._gather()
        deadline = time.monotonic() + patience_s
        pause_s = 0.05
        while self._waiting or self._putting is not None:
            self._send(waits=True, patience_s=max(0.0, deadline - time.monotonic()))
            if not self._waiting or time.monotonic() + pause_s > deadline:
                break
            time.sleep(pause_s)
            pause_s *= 2
        if self._waiting:
            log.warning("%d reports of served steps of run %s were not taken by %s",
                        len(self._waiting), self._name, self._store.address)  # fmt: skip
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _gather(self) -> None:
        if self._first is not None and self._end > self._first:
            for part in self._run.stretches(self._first, self._end):
                self._waiting.append(self._report(part))
        self._first = None

    def _report(self, part: Stretch) -> tuple[str, bytes]:
        body = {
            "format": FORMAT,
            "run": self._name,
            "run_id": self._run.run_id,
            **self._told,
            **_range_body(part),
        }
        steps = f"{part.first_step:012d}-{part.end_step:012d}"
        # A step may be served twice in one attempt, after another state was loaded.
        key = f"{PREFIX}{self._name}/{body['attempt']}-{steps}-{secrets.token_hex(2)}.json"
        return key, canonical_json(body).encode()

    def _send(self, *, waits: bool, patience_s: float = 0.0) -> None:
        if self._putting is not None and (waits or self._putting.done()):
            self._collect(self._putting, patience_s)
        if self._waiting and self._putting is None:
            putting = self._putting = submit(self._thread, _put_all, self._store, self._waiting)
            self._waiting = []
            if waits:
                self._collect(putting, patience_s)

    def _collect(self, putting: Future[list[tuple[str, bytes]]], patience_s: float) -> None:
        try:
            self._waiting = putting.result(timeout=patience_s) + self._waiting
        except TimeoutError:
            log.warning("run %s: the inbox in %s is slow", self._name, self._store.address)
            return
        self._putting = None


def _range_body(part: Stretch) -> dict[str, Any]:
    """Steps as a report says them: the fields of `served.Range`."""
    return {
        "version": part.segment.version,
        "plan_id": part.segment.plan.plan_id,
        "seed": part.segment.plan.seed,
        "segment_step": part.segment.first_step,
        "first_step": part.first_step,
        "end_step": part.end_step,
        "plan_step": part.plan_step,
    }


def submit(
    thread: ThreadPoolExecutor, call: Callable[P, T], *args: P.args, **named: P.kwargs
) -> Future[T]:
    """Call something in a thread; here, where the interpreter ends and starts none any more."""
    try:
        return thread.submit(call, *args, **named)
    except RuntimeError:
        done: Future[T] = Future()
        done.set_result(call(*args, **named))
        return done


def _put_all(store: BlobStore, reports: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Put reports; return those from the first one on that the store did not take."""
    for number, (key, body) in enumerate(reports):
        try:
            store.put(key, body)
        except (StoreError, OSError) as error:
            log.warning("served steps are told later: %s: %s", key, error)
            return reports[number:]
    return []
