"""What a run was really served: ranges of steps that rank 0 tells the inbox, and how they merge.

A report is one object, put once. Reports of one attempt (one life of rank 0) are joined to
ranges; a later attempt that begins before an earlier one ended serves steps again, and what was
served first is then told as replayed. Taking reports into the catalog belongs to `runs_served`.
"""

import datetime as dt
import itertools
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from wsdata.digest import canonical_json
from wsdata.errors import StoreError
from wsdata.ids import parse_version
from wsdata.loader.run import Run, Stretch
from wsdata.store import BlobStore

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

PREFIX = "inbox/served/"
FORMAT = "served-2"
REPORT_EVERY = 100  # steps
MAX_STEP = 2**48
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NUMBERS = ("seed", "segment_step", "first_step", "end_step", "plan_step")


class Range(NamedTuple):
    """Steps [first_step, end_step) of a run, served by one plan from its `plan_step` on.

    Attributes:
        segment_step: First step of the segment that they are of.
    """

    first_step: int
    end_step: int
    version: str
    plan_id: str
    seed: int
    segment_step: int
    plan_step: int

    def cut(self, first_step: int, end_step: int) -> "Range":
        """The part of it within [first_step, end_step)."""
        first, end = max(self.first_step, first_step), min(self.end_step, end_step)
        moved = self.plan_step + first - self.first_step
        return self._replace(first_step=first, end_step=end, plan_step=moved)

    def is_continued_by(self, other: "Range") -> bool:
        """Whether another range is of the same plan and begins within it, or where it ends."""
        shift = self.plan_step - self.first_step
        return (
            self[2:6] == other[2:6]
            and shift == other.plan_step - other.first_step
            and self.first_step <= other.first_step <= self.end_step
        )


class Attempt(NamedTuple):
    """What one life of rank 0 served. Names of attempts sort by when they began.

    Attributes:
        resumed_step: Where it went on from a cursor: all before it had been delivered. None
            where it was started anew.
    """

    run: str
    attempt: str
    run_id: str
    world_size: int
    resumed_step: int | None
    ranges: tuple[Range, ...]


class Told(NamedTuple):
    """A range of an attempt, and what became of it.

    Attributes:
        is_replayed: A later attempt served these steps again, so that the model that goes on
            was not trained on this time.
        is_reported: False where it follows from a cursor alone: a killed rank tells no more.
    """

    attempt: str
    range: Range
    is_replayed: bool
    is_reported: bool


def name_attempt(now: dt.datetime | None = None) -> str:
    """Name an attempt that begins now."""
    at = now or dt.datetime.now(dt.UTC)
    return f"{at:%Y%m%dT%H%M%S}.{at.microsecond // 1000:03d}-{secrets.token_hex(3)}"


def check_run_name(run: str) -> str:
    """Return a run's name if it can be part of a key.

    Raises:
        ValueError: It cannot.
    """
    if not _NAME.fullmatch(run):
        raise ValueError(
            f"run {run!r}: expected a name of letters, digits, dots, dashes and underscores"
        )
    return run


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
        self._told = {"attempt": name_attempt(), "world_size": world_size,
                      "resumed_step": resumed_step}  # fmt: skip
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
            "version": part.segment.version,
            "plan_id": part.segment.plan.plan_id,
            "seed": part.segment.plan.seed,
            "segment_step": part.segment.first_step,
            "first_step": part.first_step,
            "end_step": part.end_step,
            "plan_step": part.plan_step,
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


def parse_report(data: bytes) -> Attempt:
    """Read one report, as an attempt of one range.

    Raises:
        ValueError: It is no report, or says what cannot be.
    """
    try:
        body = json.loads(data)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(body, dict) or cast("dict[str, Any]", body).get("format") != FORMAT:
        raise ValueError(f"expected a report of format {FORMAT}, got {data[:80]!r}")
    stated = cast("dict[str, Any]", body)
    words = ("run", "attempt", "run_id", "version", "plan_id")
    for name in words:
        if not isinstance(stated.get(name), str):
            raise ValueError(f"{name} {stated.get(name)!r}: expected a text")  # noqa: TRY004
    for name in (*_NUMBERS, "world_size"):
        value = stated.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_STEP:
            raise ValueError(f"{name} {value!r}: expected an integer in [0, 2^48)")
    resumed = stated.get("resumed_step")
    if resumed is not None and (not isinstance(resumed, int) or resumed < 0):
        raise ValueError(f"resumed_step {resumed!r}: expected a step, or null")
    parse_version(stated["version"])
    for name in ("run", "attempt"):
        check_run_name(stated[name])
    if not stated["segment_step"] <= stated["first_step"] < stated["end_step"]:
        raise ValueError(
            f"steps [{stated['first_step']}, {stated['end_step']}) of a segment from "
            f"{stated['segment_step']} on: expected at least one, in the segment"
        )
    served = Range(**{name: stated[name] for name in Range._fields})
    return Attempt(
        stated["run"], stated["attempt"], stated["run_id"], stated["world_size"], resumed,
        (served,),
    )  # fmt: skip


def join_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Join ranges of one attempt that overlap or touch, however often each was told."""
    joined: list[Range] = []
    for each in sorted(set(ranges)):
        at = next((n for n, old in enumerate(joined) if old.is_continued_by(each)), None)
        if at is None:
            joined.append(each)
        else:
            end = max(joined[at].end_step, each.end_step)
            joined[at] = joined[at]._replace(end_step=end)
    return tuple(sorted(joined))


def join_attempts(one: Attempt, other: Attempt) -> Attempt:
    """Join what two reports tell of one attempt."""
    starts = [step for step in (one.resumed_step, other.resumed_step) if step is not None]
    return one._replace(
        resumed_step=min(starts, default=None), ranges=join_ranges(one.ranges + other.ranges)
    )


def settle(attempts: Sequence[Attempt]) -> list[Told]:
    """Tell what became of each range of a run's attempts, in the order in which they began.

    A step is kept once: where the last attempt served it. What an attempt resumed after and
    nobody reported was delivered all the same.
    """
    ordered = sorted(attempts, key=lambda attempt: attempt.attempt)
    told: list[Told] = []
    for attempt in ordered:
        told = [part for old in told for part in _replayed(old, _first_step(attempt))]
        known = [each.range for each in told if not each.is_replayed]
        told += [
            Told(attempt.attempt, gap, is_replayed=False, is_reported=False)
            for gap in _gaps(attempt, known)
        ]
        told += [
            Told(attempt.attempt, each, is_replayed=False, is_reported=True)
            for each in attempt.ranges
        ]
    return sorted(told, key=lambda each: (each.range.first_step, each.attempt))


def _first_step(attempt: Attempt) -> int:
    return min(each.first_step for each in attempt.ranges)


def _replayed(old: Told, from_step: int) -> list[Told]:
    """What of an earlier range stays, and what the attempt from a step on serves anew.

    All beyond that step goes with it: the model went back to where the later attempt began.
    """
    if old.is_replayed or old.range.end_step <= from_step:
        return [old]
    gone = old._replace(range=old.range.cut(from_step, MAX_STEP), is_replayed=True)
    if old.range.first_step >= from_step:
        return [gone]
    return [old._replace(range=old.range.cut(0, from_step)), gone]


def _gaps(attempt: Attempt, known: Sequence[Range]) -> list[Range]:
    """Steps that an attempt's cursor says were delivered and no report tells of.

    Of those, the ones of the segment that it goes on in: of others its reports say nothing.
    """
    first = min(attempt.ranges)
    if attempt.resumed_step is None or first.first_step > attempt.resumed_step:
        return []
    at, gaps = first.segment_step, list[tuple[int, int]]()
    for each in sorted(known):
        if each.first_step > at:
            gaps.append((at, each.first_step))
        at = max(at, each.end_step)
    gaps.append((at, attempt.resumed_step))
    shift = first.plan_step - first.first_step
    whole = first._replace(first_step=first.segment_step, plan_step=first.segment_step + shift,
                           end_step=attempt.resumed_step)  # fmt: skip
    clipped = [(max(a, first.segment_step), min(b, attempt.resumed_step)) for a, b in gaps]
    return [whole.cut(a, b) for a, b in clipped if a < b]


def to_body(attempt: Attempt) -> dict[str, Any]:
    """An attempt as JSON, for the ledger."""
    return {**attempt._asdict(), "ranges": [each._asdict() for each in attempt.ranges]}


def from_body(body: Mapping[str, Any]) -> Attempt:
    """Read what `to_body` wrote."""
    return Attempt(**{**body, "ranges": tuple(Range(**each) for each in body["ranges"])})


def kept_spans(told: Iterable[Told]) -> list[tuple[int, int]]:
    """Steps of a run that were served and not replayed, as joined spans."""
    spans: list[tuple[int, int]] = []
    for each in sorted(item.range[:2] for item in told if not item.is_replayed):
        if spans and each[0] <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], each[1]))
        else:
            spans.append((each[0], each[1]))
    return spans


def holes(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Steps between spans, of which nothing is known."""
    return [(one[1], other[0]) for one, other in itertools.pairwise(spans)]
