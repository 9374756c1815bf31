"""The inbox of trainers' reports, and how they come into the catalog.

Trainers may put, and read nothing back. `take_in` joins what lies there to what was stated
before, states it, and only then deletes it: killed at any point, the next one does the rest, and
a report that is taken twice changes nothing. What cannot be a report is moved aside, with the
reason stated, and holds nothing else up.
"""

from __future__ import annotations

import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wsdata.catalog.restate import restate
from wsdata.digest import sha256_bytes
from wsdata.errors import ObjectMissing
from wsdata.loader import served
from wsdata.loader.rank_reports import RunReports, parse_rank_report
from wsdata.loader.telemetry import TELEMETRY_PREFIX
from wsdata.records import Fact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wsdata.catalog.ledger import Ledger
    from wsdata.loader.served import Attempt
    from wsdata.store import BlobStore

log = logging.getLogger(__name__)

SERVED, TELEMETRY, REFUSED = "run_served", "run_telemetry", "report_refused"  # kinds of facts
REPORTED = (SERVED, TELEMETRY, REFUSED)
PREFIXES = (served.PREFIX, TELEMETRY_PREFIX)
REFUSED_PREFIX = "inbox/refused/"
TAKEN_PREFIX = "inbox/taken/"
MAX_REPORTS = 20_000  # in one pass; the rest come with the next
NUM_READERS = 16
STEP = "loader/inbox"


@dataclass(kw_only=True, slots=True)
class Taken:
    """What one pass took in."""

    num_served: int = 0
    num_telemetry: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])

    def __bool__(self) -> bool:
        return bool(self.num_served or self.num_telemetry or self.refused)


def num_waiting(store: BlobStore, *, most: int = MAX_REPORTS) -> int:
    """How many reports lie in the inbox, counted up to a number."""
    listed = (key for prefix in PREFIXES for key in store.list(prefix))
    return sum(1 for _ in itertools.islice(listed, most))


def first_waiting(store: BlobStore) -> str | None:
    """Key of some report that lies in the inbox, or None."""
    return next((key for prefix in PREFIXES for key, _ in store.list(prefix)), None)


def take_in(ledger: Ledger, store: BlobStore) -> Taken:
    """Take all reports of the inbox into the ledger; see the module."""
    taken = Taken()
    found, refused = _read(store, served.PREFIX, served.parse_report)
    taken.num_served = len(found)
    _state_served(ledger, list(found.values()))
    told, unread = _read(store, TELEMETRY_PREFIX, parse_rank_report)
    taken.num_telemetry = len(told)
    by_run: dict[str, list[dict[str, Any]]] = {}
    for _, report in sorted(told.items()):
        by_run.setdefault(report["run"], []).append(report)
    for run, reports in sorted(by_run.items()):
        _state_telemetry(ledger, store, run, reports)
    for key, (data, reason) in {**refused, **unread}.items():
        taken.refused[key] = reason
        _set_aside(ledger, store, key, data, reason)
    _delete(store, [*found, *told, *taken.refused])
    if taken:
        log.info("took in %d served ranges, %d rank reports; refused %d",
                 taken.num_served, taken.num_telemetry, len(taken.refused))  # fmt: skip
    return taken


def _read(
    store: BlobStore, prefix: str, parse: Callable[[bytes], Any]
) -> tuple[dict[str, Any], dict[str, tuple[bytes, str]]]:
    """Read what lies under a prefix: by key what could be parsed, and what not, with the reason."""
    keys = [key for key, _ in itertools.islice(store.list(prefix), MAX_REPORTS)]

    def one(key: str) -> tuple[bytes, Any, str] | None:
        try:
            data = store.get(key)
        except ObjectMissing:  # another one took it in
            return None
        try:
            return data, parse(data), ""
        except ValueError as error:
            return data, None, str(error)

    good: dict[str, Any] = {}
    bad: dict[str, tuple[bytes, str]] = {}
    with ThreadPoolExecutor(NUM_READERS) as readers:
        for key, read in zip(keys, readers.map(one, keys), strict=True):
            if read is not None and read[2]:
                bad[key] = (read[0], read[2])
            elif read is not None:
                good[key] = read[1]
    return good, bad


def _state_served(ledger: Ledger, reports: Iterable[Attempt]) -> None:
    attempts: dict[str, Attempt] = {}
    for each in reports:
        subject = f"{each.run}/{each.attempt}"
        known = attempts.get(subject)
        attempts[subject] = each if known is None else served.join_attempts(known, each)
    if not attempts:
        return

    def change(bodies: dict[str, dict[str, Any]]) -> list[Fact]:
        facts: list[Fact] = []
        for subject, new in attempts.items():
            old = bodies.get(subject)
            joined = new if old is None else served.join_attempts(served.from_body(old), new)
            body = served.to_body(joined)
            if body != old:
                facts.append(Fact(kind=SERVED, subject=subject, body=body))
        return facts

    restate(ledger, SERVED, attempts, change, step=STEP)


def _state_telemetry(
    ledger: Ledger, store: BlobStore, run: str, reports: list[dict[str, Any]]
) -> None:
    """Join a run's reports to what is kept; begun anew where another one did so meanwhile."""
    while True:
        old = ledger.present(TELEMETRY).get(run)
        kept = RunReports.from_bytes(store.get(old["key"])) if old else RunReports()
        for report in reports:
            kept.add(report)
        data = kept.to_bytes()
        key = f"{TAKEN_PREFIX}{run}/{sha256_bytes(data)}.json.z"
        if old and old["key"] == key:
            return
        store.put(key, data)
        body = {"key": key, "num_ranks": kept.num_ranks, "before": old["key"] if old else None}

        def change(bodies: dict[str, dict[str, Any]], old=old, body=body) -> list[Fact]:  # noqa: ANN001
            is_other = (bodies.get(run) or {}).get("key") != (old or {}).get("key")
            return [] if is_other else [Fact(kind=TELEMETRY, subject=run, body=body)]

        if restate(ledger, TELEMETRY, [run], change, step=STEP) is not None:
            if old and old["before"]:  # a step may still be reading what was newest before this
                store.delete(old["before"])
            return
        _renew(ledger)


def _renew(ledger: Ledger) -> None:
    from wsdata.catalog.view import LedgerView

    if isinstance(ledger, LedgerView):
        ledger.renew()


def _set_aside(ledger: Ledger, store: BlobStore, key: str, data: bytes, reason: str) -> None:
    kept_as = f"{REFUSED_PREFIX}{sha256_bytes(data)}"
    store.put(kept_as, data)
    log.warning("report %s is refused: %s; kept as %s", key, reason, kept_as)
    body = {"reason": reason, "kept_as": kept_as}

    def change(bodies: dict[str, dict[str, Any]]) -> list[Fact]:
        return [] if bodies.get(key) == body else [Fact(kind=REFUSED, subject=key, body=body)]

    restate(ledger, REFUSED, [key], change, step=STEP)


def _delete(store: BlobStore, keys: list[str]) -> None:
    with ThreadPoolExecutor(NUM_READERS) as threads:
        list(threads.map(store.delete, keys))


def attempts_of_runs(bodies: Iterable[dict[str, Any]]) -> dict[str, list[Attempt]]:
    """Attempts of each run, from what was stated of them."""
    found: dict[str, list[Attempt]] = {}
    for body in bodies:
        attempt = served.from_body(body)
        found.setdefault(attempt.run, []).append(attempt)
    return dict(sorted(found.items()))


def refused_reports(ledger: Ledger, store: BlobStore) -> dict[str, str]:
    """Reports that were refused and still lie aside, with the reason; deleting one settles it."""
    return {
        key: f"{body['reason']}; it lies under {body['kept_as']}"
        for key, body in ledger.present(REFUSED).items()
        if store.size(body["kept_as"]) is not None
    }
