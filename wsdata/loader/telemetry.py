"""What a rank tells about itself: fetch times, cache hits, stalls.

Times are for people and alarms; none of them reaches a sample. The memory is the same however long
a run is. A report is JSON; reports of many ranks add up exactly (`merge`), are put into the inbox
(`export`) and shown to Prometheus (`prometheus`). Where worker processes read for a rank, each
tells with every batch what it fetched so far (`told`), and the rank adds it to its own (`take`).
"""

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wsdata.digest import canonical_json
from wsdata.loader.histogram import PER_OCTAVE, Histogram, upper_s
from wsdata.store import BlobStore

if TYPE_CHECKING:
    from wsdata.loader.batch_reader import Skipped

TELEMETRY_PREFIX = "inbox/telemetry/"
FORMAT = "telemetry-1"
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
_MAX_NOTED = 256  # reads that are noted before they are counted
MAX_SKIPPED_KEPT = 1000
_MAX_SKIPPED_TOLD = 16  # by a worker with each batch
_MAX_WORKERS = 256  # worker processes that are kept apart: those before them are gone
_MAX_NOTED_PLAINLY = 32  # of several reads each
_COUNTS = {  # name in a report: what Prometheus says of it
    "num_samples": "Byte ranges that were fetched.",
    "num_bytes": "Bytes that were fetched.",
    "num_cache_hits": "Ranges that came from the node's cache.",
    "num_cache_misses": "Ranges that the node's cache did not have.",
    "num_reread": "Ranges read a second time, since the first bytes were wrong.",
    "num_retries": "Requests to the store beyond the first of a read.",
    "num_hedges": "Second requests sent since the first took long.",
    "num_hedges_won": "Second requests that were faster.",
    "num_batches": "Batches handed over.",
    "num_stalls": "Batches that were not ready when asked for.",
    "stalled_s": "Seconds spent waiting for batches that were not ready.",
}


_OF_TRAINER = ("num_batches", "num_stalls", "stalled_s")  # a worker waits for others than it does


class Telemetry:
    """Counts of one rank, or of one of its workers. Safe to write to from reader threads."""

    def __init__(self) -> None:
        self.session = secrets.token_hex(4)  # a restarted rank counts from nothing again
        self._lock = threading.Lock()
        self._fetches, self._steps = Histogram(), Histogram()
        self._delivered_at: float | None = None
        self._counts: dict[str, float] = dict.fromkeys(_COUNTS, 0)
        self._noted: deque[tuple[float, int, bool, bool | None, int]] = deque()
        self._num_skipped, self._skipped = 0, deque[dict[str, Any]](maxlen=MAX_SKIPPED_KEPT)
        self._workers: dict[str, tuple[int, bytes]] = {}  # by session, the newest last
        self._noted_plainly: deque[tuple[list[float], int, bool | None]] = deque()

    def fetched(
        self,
        seconds: float,
        num_bytes: int,
        *,
        is_reread: bool = False,
        is_hit: bool | None = None,
        num_retries: int = 0,
    ) -> None:
        """Note one range that was read.

        Args:
            seconds: From asking until the bytes were there and right.
            num_bytes: Its length.
            is_reread: Whether the first bytes were wrong.
            is_hit: Whether the node's cache had it; None without a cache.
            num_retries: Requests to the store beyond the first.
        """
        self._noted.append((seconds, num_bytes, is_reread, is_hit, num_retries))
        if len(self._noted) >= _MAX_NOTED:
            with self._lock:
                self._count()

    def fetched_plainly(
        self, seconds: list[float], num_bytes: int, *, is_hit: bool | None = None
    ) -> None:
        """Note ranges that were right at the first attempt.

        Args:
            seconds: Of each.
            num_bytes: Of all together.
            is_hit: Whether the node's cache had them; None without a cache.
        """
        self._noted_plainly.append((seconds, num_bytes, is_hit))
        if len(self._noted_plainly) >= _MAX_NOTED_PLAINLY:
            with self._lock:
                self._count()

    def _count(self) -> None:
        """Add up what was noted, which a reader does without waiting for the others."""
        counts = self._counts
        while self._noted:
            seconds, num_bytes, is_reread, is_hit, num_retries = self._noted.popleft()
            self._fetches.add(seconds)
            counts["num_samples"] += 1
            counts["num_bytes"] += num_bytes
            counts["num_reread"] += is_reread
            counts["num_retries"] += num_retries
            if is_hit is not None:
                counts["num_cache_hits" if is_hit else "num_cache_misses"] += 1
        several: list[float] = []
        while self._noted_plainly:
            seconds_of_each, num_bytes, is_hit = self._noted_plainly.popleft()
            several += seconds_of_each
            counts["num_bytes"] += num_bytes
            if is_hit is not None:
                name = "num_cache_hits" if is_hit else "num_cache_misses"
                counts[name] += len(seconds_of_each)
        counts["num_samples"] += len(several)
        self._fetches.add_all(several)

    def hedged(self, *, is_won: bool) -> None:
        """Note a second request that was sent, when it is known whether it was the faster."""
        with self._lock:
            self._counts["num_hedges"] += 1
            self._counts["num_hedges_won"] += is_won

    def delivered(self, waited_s: float, *, is_stall: bool) -> None:
        """Note one batch that was handed over just now.

        The time since the one before, less the wait, is taken for the trainer's own step.

        Args:
            waited_s: Seconds from being asked for the batch.
            is_stall: Whether it was not ready then.
        """
        now = time.monotonic()
        with self._lock:
            self._counts["num_batches"] += 1
            self._counts["num_stalls"] += is_stall
            self._counts["stalled_s"] += waited_s if is_stall else 0.0
            if self._delivered_at is not None:
                self._steps.add(max(0.0, now - self._delivered_at - waited_s))
            self._delivered_at = now

    def skipped(self, slots: Sequence["Skipped"]) -> None:
        """Note slots of a delivered batch that a swapped-in patch changed."""
        with self._lock:
            self._num_skipped += len(slots)
            self._skipped.extend(slot._asdict() for slot in slots)

    def skips(self) -> dict[str, Any]:
        """How many slots a swap changed (``num_skipped``), and the newest (``skipped``)."""
        with self._lock:
            num, newest = self._num_skipped, list(self._skipped)
            for _, told in self._workers.values():
                body = json.loads(told)
                num += body["num_skipped"]
                newest += body["skipped"]
        newest.sort(key=lambda slot: (slot["step"], slot["slot"]))
        return {"num_skipped": num, "skipped": newest[-MAX_SKIPPED_KEPT:]}

    def told(self, num_workers: int) -> bytes:
        """All that was fetched so far, for the rank's own process to `take`; some 1 KB.

        Args:
            num_workers: Worker processes of the rank, each of which reads ahead.
        """
        with self._lock:
            self._count()
            counts = {n: count for n, count in self._counts.items() if n not in _OF_TRAINER}
            body = {
                "session": self.session,
                "num_workers": num_workers,
                "counts": counts,
                "fetches": self._fetches.to_json(),
                "num_skipped": self._num_skipped,
                "skipped": list(self._skipped)[-_MAX_SKIPPED_TOLD:],
            }
        return json.dumps(body).encode()

    def take(self, told: bytes) -> None:
        """Note a batch that a worker process read and the trainer was handed just now.

        What the worker waited for is not what the trainer does, so that stalls are not known; a
        step is what passes between two batches.

        Args:
            told: What the worker told with it. Of each worker what it told last counts.
        """
        body = json.loads(told)
        session, num = body["session"], body["counts"]["num_samples"]
        with self._lock:
            known = self._workers.pop(session, (0, b""))
            self._workers[session] = (num, told) if num >= known[0] else known
            while len(self._workers) > _MAX_WORKERS:
                _, over = self._workers.pop(next(iter(self._workers)))
                _add_worker(over, self._counts, self._fetches)
                self._num_skipped += json.loads(over)["num_skipped"]
        self.delivered(0.0, is_stall=False)

    def report(self, *, ring_depth: int, step_s: float | None = None) -> dict[str, Any]:
        """Summarise, as JSON.

        Args:
            ring_depth: Batches that are read ahead, by each worker where there are some.
            step_s: Seconds of one training step; measured between deliveries without it.
        """
        num_workers = 1
        with self._lock:
            self._count()
            fetches, steps = Histogram(), Histogram()
            fetches.merge(self._fetches)
            steps.merge(self._steps)
            counts = dict(self._counts)
            for _, told in self._workers.values():
                num_workers = _add_worker(told, counts, fetches)
        depth = ring_depth * num_workers  # of the newest pass
        return _summary(counts, fetches, steps, ring_depth=depth, step_s=step_s)


def _add_worker(told: bytes, counts: dict[str, float], fetches: Histogram) -> int:
    """Add what a worker told; return how many workers its rank had."""
    body = json.loads(told)
    for name, count in body["counts"].items():
        counts[name] += count
    fetches.merge(Histogram.from_json(body["fetches"]))
    return body["num_workers"]


def _summary(
    counts: Mapping[str, float],
    fetches: Histogram,
    steps: Histogram,
    *,
    ring_depth: int,
    step_s: float | None,
) -> dict[str, Any]:
    slowest_s = fetches.quantile_s(QUANTILES["p999"])
    step_s = steps.quantile_s(0.5) if step_s is None else step_s
    # The slowest reads outlast what is ready: the trainer will wait for them.
    is_too_slow = None
    if slowest_s is not None and step_s is not None:
        is_too_slow = slowest_s > ring_depth * step_s
    return {
        "format": FORMAT,
        **counts,
        **{f"fetch_{name}_s": fetches.quantile_s(share) for name, share in QUANTILES.items()},
        "ring_depth": ring_depth,
        "step_s": step_s,
        "is_too_slow": is_too_slow,
        "fetches": fetches.to_json(),
        "steps": steps.to_json(),
    }


def merge(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up reports of several ranks, or of one rank's sessions; exact, in any order.

    The ring is the shallowest of them; the step's time is the median over all steps.

    Raises:
        ValueError: No reports, or one of another format.
    """
    reports = list(reports)
    if not reports:
        raise ValueError("merge of no reports: expected at least one")
    if strange := {report.get("format") for report in reports} - {FORMAT}:
        raise ValueError(f"telemetry of formats {sorted(map(str, strange))}: expected {FORMAT}")
    fetches, steps = Histogram(), Histogram()
    for report in reports:
        fetches.merge(Histogram.from_json(report["fetches"]))
        steps.merge(Histogram.from_json(report["steps"]))
    counts = {name: sum(report[name] for report in reports) for name in _COUNTS}
    depth = min(report["ring_depth"] for report in reports)
    return _summary(counts, fetches, steps, ring_depth=depth, step_s=None)


def prometheus(report: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """A report in Prometheus' text format.

    Args:
        report: Of one rank, or merged.
        labels: Put on every line, as ``run`` and ``rank``.
    """
    own = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    lines: list[str] = []
    for name, words in _COUNTS.items():
        metric = f"wsdata_loader_{_metric_name(name)}_total"
        lines += [f"# HELP {metric} {words}", f"# TYPE {metric} counter"]
        lines.append(f"{metric}{{{own}}} {report[name]}")
    metric = "wsdata_loader_fetch_seconds"
    lines += [f"# HELP {metric} Seconds of a fetch.", f"# TYPE {metric} histogram"]
    fetches, seen = Histogram.from_json(report["fetches"]), 0
    for number, count in enumerate(fetches.counts):
        seen += count
        if number % PER_OCTAVE == 0:
            bound = f'{own}{"," if own else ""}le="{upper_s(number):.6g}"'
            lines.append(f"{metric}_bucket{{{bound}}} {seen}")
    lines.append(f'{metric}_bucket{{{own}{"," if own else ""}le="+Inf"}} {fetches.num}')
    lines += [f"{metric}_sum{{{own}}} {fetches.sum_s}", f"{metric}_count{{{own}}} {fetches.num}"]
    for name, words in (
        ("step_s", "Median seconds of a training step."),
        ("is_too_slow", "Whether p99.9 of fetches exceeds ring depth x step time."),
    ):
        if report[name] is not None:
            metric = f"wsdata_loader_{_metric_name(name)}"
            lines += [f"# HELP {metric} {words}", f"# TYPE {metric} gauge"]
            lines.append(f"{metric}{{{own}}} {float(report[name])}")
    return "\n".join(lines) + "\n"


def _metric_name(name: str) -> str:
    stem = name.removeprefix("num_").removeprefix("is_")
    return f"{stem.removesuffix('_s')}_seconds" if stem.endswith("_s") else stem


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def export(
    store: BlobStore, report: Mapping[str, Any], *, run: str, rank: int, session: str, step: int
) -> str:
    """Append a rank's report to the inbox; return its key.

    Objects are put once, so that each is a new one: the counts are those since the session began,
    and the one of the highest step holds all of the session's.

    Args:
        store: Where to.
        report: From `Telemetry.report`.
        run: Name of the training run.
        rank: Whose it is.
        session: `Telemetry.session`.
        step: The step that comes next.
    """
    key = f"{TELEMETRY_PREFIX}{run}/rank-{rank:05d}-{session}-{step:012d}.json"
    body = {**report, "run": run, "rank": rank, "session": session, "step": step}
    store.put(key, canonical_json(body).encode())
    return key
