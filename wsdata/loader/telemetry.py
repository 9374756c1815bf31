"""What a rank tells about itself: fetch times, cache hits, stalls; and which steps were served.

Times are for people and alarms; none of them reaches a batch.
"""

import threading
from typing import Any

from wsdata.digest import canonical_json
from wsdata.store import BlobStore

MAX_KEPT = 100_000  # newest fetches that percentiles are taken over
INBOX_PREFIX = "inbox/served/"


class Telemetry:
    """Counts of one rank. Safe to write to from reader threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetch_s: list[float] = []
        self.num_samples = self.num_bytes = self.num_reread = 0
        self.num_batches = self.num_stalls = 0
        self.stalled_s = 0.0

    def fetched(self, seconds: float, num_bytes: int, *, is_reread: bool) -> None:
        """Note one sample that was read."""
        with self._lock:
            if len(self._fetch_s) >= MAX_KEPT:
                del self._fetch_s[: MAX_KEPT // 2]
            self._fetch_s.append(seconds)
            self.num_samples += 1
            self.num_bytes += num_bytes
            self.num_reread += is_reread

    def delivered(self, waited_s: float, *, is_stall: bool) -> None:
        """Note one batch, and whether the ring was empty when it was asked for."""
        with self._lock:
            self.num_batches += 1
            self.num_stalls += is_stall
            self.stalled_s += waited_s if is_stall else 0.0

    def report(self, *, ring_depth: int, step_s: float | None = None) -> dict[str, Any]:
        """Summarise, as JSON.

        Args:
            ring_depth: Batches that are read ahead.
            step_s: Time of one training step; with it, says whether the slowest reads outlast
                what the ring covers.
        """
        with self._lock:
            times = sorted(self._fetch_s)
            body: dict[str, Any] = {
                "num_samples": self.num_samples,
                "num_bytes": self.num_bytes,
                "num_reread": self.num_reread,
                "num_batches": self.num_batches,
                "num_stalls": self.num_stalls,
                "stalled_s": self.stalled_s,
            }
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            body[f"fetch_{name}_s"] = times[int(share * (len(times) - 1))] if times else None
        if step_s is not None and times:
            body["is_too_slow"] = body["fetch_p999_s"] > ring_depth * step_s
        return body


def report_served(
    store: BlobStore, *, run: str, version: str, plan_id: str, first_step: int, end_step: int
) -> str:
    """Append a served range of steps [first_step, end_step) to the inbox; return its key."""
    body = {
        "run": run,
        "version": version,
        "plan_id": plan_id,
        "first_step": first_step,
        "end_step": end_step,
    }
    key = f"{INBOX_PREFIX}{run}/{first_step:012d}-{end_step:012d}.json"
    store.put(key, canonical_json(body).encode())
    return key
