"""Second requests that race a slow first one: the tail of a store's answers, cut short.

A few answers in a thousand take many times as long as the rest, and a batch waits for its slowest
sample. Where one takes longer than nearly all of its size did lately, the same range is asked for
again, most likely of another server; the first whole answer wins and the other one is given up.
Their number is bounded, so that a store that is slow as a whole is not asked twice as much; one
that fails is not asked at all before the first request is through with its own retries.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wsdata.buffers import ReadWatch, num_bytes
from wsdata.errors import StoreError, WsdataError
from wsdata.loader.histogram import Histogram
from wsdata.store import BlobStore

_BURST = 8.0  # second requests that may be saved up
_RECENT = 512  # reads of a size that its delay is drawn from, twice
_LOOK_EVERY = 10
_LONGEST_S = 3600.0  # reads give up long before


@dataclass(frozen=True, kw_only=True, slots=True)
class Hedging:
    """When a second request is sent.

    Attributes:
        max_share: Second requests for each first one, at most; 0 sends none.
        quantile: Share of recent reads of about this size that were faster than the delay.
        min_delay_s: Shortest delay.
        max_delay_s: Longest, and what is waited before enough reads were seen.
        num_warm: Reads of a size after which its own delay counts.
    """

    max_share: float = 0.05
    quantile: float = 0.95
    min_delay_s: float = 0.02
    max_delay_s: float = 2.0
    num_warm: int = 30

    def __post_init__(self) -> None:
        if not (0 <= self.max_share <= 1 and 0 < self.quantile < 1):
            raise ValueError(f"max_share {self.max_share}, quantile {self.quantile}: within [0, 1]")
        if not 0 <= self.min_delay_s <= self.max_delay_s <= _LONGEST_S:
            raise ValueError(
                f"delays of {self.min_delay_s} to {self.max_delay_s} s: expected a range within "
                f"[0, {_LONGEST_S:.0f}]"
            )
        if self.num_warm < 1:
            raise ValueError(f"num_warm {self.num_warm}: expected at least 1 read")


def check_hedging(hedging: Hedging | None) -> Hedging | None:
    """Return it, whatever it is that a trainer gave; None is what suits the store.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(hedging, Hedging | None):
        raise ValueError(  # noqa: TRY004 - a bad argument, like the rest
            f"hedging {hedging!r}: expected wsdata.loader.hedging.Hedging(...), of max_share=0 to "
            "send no second request, or None for what suits the store"
        )
    return hedging


def default_hedging(store: BlobStore) -> Hedging:
    """Second requests for a bucket; none for a folder, whose disk would only have more to do."""
    return Hedging() if _is_remote(store) else Hedging(max_share=0)


def _is_remote(store: BlobStore) -> bool:
    return store.address.startswith("s3://")


class HedgedReads:
    """Reads of a store that may send a second request. Safe to use from threads.

    Args:
        store: Where from.
        hedging: When.
        on_hedge: Told of each second request once it is known whether it won.

    Attributes:
        is_remote: Whether reads wait for answers rather than for a disk.
        may_race: Whether a second request may ever be sent.
    """

    def __init__(
        self, store: BlobStore, hedging: Hedging, on_hedge: Callable[[bool], None]
    ) -> None:
        self.is_remote = _is_remote(store)
        self.may_race = hedging.max_share > 0
        self._store = store
        self._hedging = hedging
        self._on_hedge = on_hedge
        self._lock = threading.Lock()
        self._budget = 1.0
        self._times: dict[int, list[Histogram]] = {}  # by size, the newest last
        self._delays_s: dict[int, float] = {}

    def read_into(
        self, key: str, offset: int, buffers: Sequence[memoryview], *, watch: ReadWatch
    ) -> None:
        """As the store's, whichever request is faster. `watch` is told of the retries of both.

        Once it has returned, nothing writes to the buffers any more.
        """
        if not self.may_race:
            self._store.read_into(key, offset, buffers, watch=watch)
            return
        began, size = time.monotonic(), num_bytes(buffers).bit_length()
        race = _Race(self._store, key, offset, buffers)
        first = race.start()
        try:
            is_done = race.wait(self._delay_s(size))
            # A first one that has failed is with its retries: the store is not slow, but ill.
            if not is_done and not first.num_retries and self._may_hedge():
                race.start()
            race.wait(None)
        finally:
            race.end()
            watch.num_retries += sum(each.num_retries for each in race.watches)
        if len(race.watches) > 1:
            self._on_hedge(race.winner == 1)
        race.tell()
        self._note(size, time.monotonic() - began)

    def _delay_s(self, size: int) -> float:
        with self._lock:
            self._budget = min(_BURST, self._budget + self._hedging.max_share)
            return self._delays_s.get(size, self._hedging.max_delay_s)

    def _may_hedge(self) -> bool:
        with self._lock:
            if self._budget < 1:
                return False
            self._budget -= 1
            return True

    def _note(self, size: int, seconds: float) -> None:
        with self._lock:
            parts = self._times.setdefault(size, [Histogram()])
            if parts[-1].num >= _RECENT:
                parts.append(Histogram())
                del parts[:-2]
            parts[-1].add(seconds)
            if parts[-1].num % _LOOK_EVERY == 0:
                self._delays_s[size] = self._drawn_delay_s(parts)

    def _drawn_delay_s(self, parts: list[Histogram]) -> float:
        recent = Histogram()
        for part in parts:
            recent.merge(part)
        if recent.num < self._hedging.num_warm:
            return self._hedging.max_delay_s
        delay_s = recent.quantile_s(self._hedging.quantile) or 0.0
        return min(self._hedging.max_delay_s, max(self._hedging.min_delay_s, delay_s))


class _Race:
    """Requests for one range, each in a thread, since one that waits cannot be told to stop.

    All write to the same buffers: an object's bytes do not change, so that they write the same.
    """

    def __init__(
        self, store: BlobStore, key: str, offset: int, buffers: Sequence[memoryview]
    ) -> None:
        self._read = lambda watch: store.read_into(key, offset, buffers, watch=watch)
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []
        self.watches: list[ReadWatch] = []
        self.winner: int | None = None

    def start(self) -> ReadWatch:
        """Send another request."""
        watch, number = ReadWatch(is_racing=True), len(self.watches)
        self.watches.append(watch)
        threading.Thread(
            target=self._run, args=(watch, number), name="wsdata-get", daemon=True
        ).start()
        return watch

    def wait(self, seconds: float | None) -> bool:
        """Wait until one has won or all have failed; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.winner is not None or len(self._errors) == len(self.watches), seconds
            )

    def end(self) -> None:
        """Give up those that are still under way."""
        for number, watch in enumerate(self.watches):
            if number != self.winner:
                watch.give_up()

    def tell(self) -> None:
        """Raise what the first to fail raised, where none has won."""
        if self.winner is None:
            raise self._errors[0]

    def _run(self, watch: ReadWatch, number: int) -> None:
        is_done, raised = False, None
        try:
            self._read(watch)
            is_done = True
        except (WsdataError, OSError, ValueError) as error:
            raised = error
        finally:  # whatever else happened: who waits must learn of it
            with self._changed:
                if is_done and self.winner is None:
                    self.winner = number
                elif not is_done:
                    self._errors.append(raised or sys.exc_info()[1] or StoreError("no answer"))
                self._changed.notify_all()
