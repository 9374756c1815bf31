"""Units of a step: each is made once, remembered, and timed.

A step's work is many units (raw assets, clips, samples). What their results are belongs to the
steps; what a deployment's speed makes of a corpus, to `observability.capacity_speeds`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wsdata.digest import canonical_json, digest, short_digest
from wsdata.errors import ObjectMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wsdata.records import Order
    from wsdata.store import BlobStore

Item = TypeVar("Item")
Made = TypeVar("Made")

UNIT = "unit"  # the kind of those whose step has only one
SPEEDS = "reports/speeds/"  # every worker may write reports; these stay when reports go
SPEEDS_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One of several equal parts of a step's units, for one of several workers at once.

    Attributes:
        index: Which part, in [0, of).
        of: How many parts there are.
    """

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"part {self.index} of {self.of}: expected an index in [0, {self.of})")

    def holds(self, subject: str) -> bool:
        """Whether a unit belongs to this part: each belongs to one, whatever order lists it."""
        hashed = hashlib.blake2b(subject.encode(), digest_size=8).digest()
        return int.from_bytes(hashed, "big") % self.of == self.index


@dataclass(kw_only=True, slots=True)
class Pace:
    """How much was made of one kind of unit, and in how long.

    Attributes:
        num_made: Units that were made here.
        num_kept: Units that an earlier worker had made.
        made_s: Wall seconds in which at least one unit was being made or kept for later, also
            those that failed; several at once count once.
        amounts: What the units made amount to, such as ``media_s`` or ``size_bytes``.
    """

    num_made: int = 0
    num_kept: int = 0
    made_s: float = 0.0
    amounts: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    _num_at_work: int = 0
    _begun_s: float = 0.0

    def begin(self) -> None:
        """Somebody begins to work."""
        if self._num_at_work == 0:
            self._begun_s = time.perf_counter()
        self._num_at_work += 1

    def end(self) -> None:
        """Somebody stops."""
        self._num_at_work -= 1
        if self._num_at_work == 0:
            self.made_s += time.perf_counter() - self._begun_s

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form, to the microsecond."""
        return {
            "num_made": self.num_made,
            "num_kept": self.num_kept,
            "made_s": round(self.made_s, 6),
            "amounts": {name: round(amount, 3) for name, amount in self.amounts.items()},
        }


class Units:
    """Memory of one order's units, and their pace. Safe to call from several threads.

    Where not `asks_blobs`, the store is taken to have what a kept unit names: the workers of its
    parts have just put it, or asked.
    """

    def __init__(self, order: Order, store: BlobStore, *, asks_blobs: bool = True) -> None:
        self._order = order
        self._store = store
        self._asks_blobs = asks_blobs
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._lock = threading.Lock()

    def unit(
        self,
        subject: str,
        compute: Callable[[], dict[str, Any]],
        *,
        blobs: tuple[str, ...],
        kind: str,
        amounts: Callable[[dict[str, Any]], dict[str, float]] | None,
    ) -> dict[str, Any]:
        """Return a unit's result, made or remembered; see `wsdata.orders.StepRun.unit`."""
        key = self._key(subject)
        kept = self._kept(key, blobs)
        if kept is not None:
            with self._lock:
                self._paces[kind].num_kept += 1
            return kept
        with self.at_work(kind):
            result = compute()
            self._store.put(key, canonical_json(result).encode())
        with self._lock:
            pace = self._paces[kind]
            pace.num_made += 1
            for name, amount in (amounts(result) if amounts else {}).items():
                pace.amounts[name] += amount
        return result

    @contextlib.contextmanager
    def at_work(self, kind: str = UNIT) -> Iterator[None]:
        """Count the time inside as spent on units of a kind."""
        with self._lock:
            self._paces[kind].begin()
        try:
            yield
        finally:
            with self._lock:
                self._paces[kind].end()

    def metrics(self) -> dict[str, float]:
        """Numbers of all kinds together, for people; none where the step has no units."""
        if not self._paces:
            return {}
        paces = self._paces.values()
        return {
            "num_units_made": float(sum(pace.num_made for pace in paces)),
            "num_units_kept": float(sum(pace.num_kept for pace in paces)),
            "made_s": round(sum(pace.made_s for pace in paces), 3),
        }

    def put_speeds(self) -> None:
        """Leave what was measured in the store, if anything was made.

        Keys sort by time, so that who asks can read the newest alone.
        """
        order = self._order
        if not any(pace.num_made for pace in self._paces.values()):
            return
        body = {
            "format_version": SPEEDS_FORMAT,
            "stage": order.stage,
            "step": order.step,
            "partition": order.partition,
            "code_version": order.code_version,
            "params_digest": short_digest(order.params),
            "num_gpus": num_gpus(),
            "kinds": {kind: pace.to_json() for kind, pace in sorted(self._paces.items())},
        }
        ended = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}Z"
        key = f"{speeds_of(order.stage, order.step)}{ended}-{order.digest[:16]}.json"
        self._store.put(key, json.dumps(body).encode())

    def _key(self, subject: str) -> str:
        order = self._order
        name = digest([order.stage, order.step, subject])
        step = f"{order.stage}.{order.step}/{order.version_digest}"
        return f"progress/{step}/{name[:2]}/{name}.json"

    def _kept(self, key: str, blobs: tuple[str, ...]) -> dict[str, Any] | None:
        try:
            kept = json.loads(self._store.get(key))
        except ObjectMissing:
            return None
        if not self._asks_blobs:
            return kept
        named = (blob for path in blobs for blob in _at_path(kept, path.split(".")))
        return kept if all(self._store.size(blob) is not None for blob in named) else None


def in_order(
    work: Callable[[Item], Made], items: Sequence[Item], num_at_once: int
) -> Iterator[Made]:
    """Yield what is made of each item, in their order; the first failure begins no other.

    Args:
        work: Called for each item, by several threads where more than one is at work at once.
        items: What is to be worked.
        num_at_once: Threads; with 1 the caller's own does all.
    """
    if num_at_once == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(num_at_once) as executor:
        waiting = [executor.submit(work, item) for item in items]
        try:
            for each in waiting:
                yield each.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def speeds_of(stage: str, step: str) -> str:
    """Key prefix of what workers of a step measured."""
    return f"{SPEEDS}{stage}.{step}/"


def num_gpus() -> int:
    """NVIDIA GPUs that this worker was given, whether or not its step uses them."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _at_path(value: Any, path: list[str]) -> list[str]:
    if value is None:
        return []
    if not path:
        return [value]
    head, rest = path[0], path[1:]
    if head == "*":
        items = value.values() if isinstance(value, dict) else value
        return [found for item in items for found in _at_path(item, rest)]
    return _at_path(value.get(head), rest)
