"""What ranks told of their fetches and stalls, summed up per run and rank.

Reports are those of `telemetry`: counts since a rank's session began, put anew every while. Of a
session the newest is kept; sessions that are over are added up, so that what is kept of a run
grows with its ranks and not with its length. How they are taken in belongs to `inbox`.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any, cast

from wsdata.digest import canonical_json
from wsdata.loader.served import check_run_name
from wsdata.loader.telemetry import FORMAT, merge

TAKEN_FORMAT = "taken-1"
MAX_SESSIONS = 2  # of a rank that are kept apart: reports of one that is over may come late
ALL_RANKS = -1
_SUMMED = (
    "num_samples", "num_bytes", "num_cache_hits", "num_cache_misses", "num_reread", "num_retries",
    "num_batches", "num_stalls", "stalled_s", "fetch_p50_s", "fetch_p99_s", "fetch_p999_s",
)  # fmt: skip

Report = dict[str, Any]


def parse_rank_report(data: bytes) -> Report:
    """Read one report.

    Raises:
        ValueError: It is none, or says what cannot be.
    """
    try:
        body = json.loads(data)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(body, dict) or cast("Report", body).get("format") != FORMAT:
        raise ValueError(f"expected a report of format {FORMAT}, got {data[:80]!r}")
    report = cast("Report", body)
    check_run_name(str(report.get("run")))
    for name in ("rank", "step"):
        value = report.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} {value!r}: expected an integer >= 0")
    if not isinstance(report.get("session"), str):
        raise ValueError(  # noqa: TRY004
            f"session {report.get('session')!r}: expected a text"
        )
    try:
        merge([report])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"counts or histograms are missing or broken: {error!r}") from error
    return report


class RunReports:
    """What is kept of one run's reports. State: per rank its newest sessions and a sum."""

    def __init__(self, ranks: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._ranks: dict[int, dict[str, Any]] = {
            int(rank): {"before": kept["before"], "sessions": dict(kept["sessions"])}
            for rank, kept in (ranks or {}).items()
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> "RunReports":
        """Read what `to_bytes` wrote.

        Raises:
            ValueError: It is of another format.
        """
        body = json.loads(zlib.decompress(data))
        if body["format"] != TAKEN_FORMAT:
            raise ValueError(f"reports of format {body['format']!r}: expected {TAKEN_FORMAT!r}")
        return cls(body["ranks"])

    def to_bytes(self) -> bytes:
        """All that is kept, as bytes; the same state gives the same."""
        ranks = {  # pairs, since the order in which sessions began matters
            str(rank): {"before": kept["before"], "sessions": [*kept["sessions"].items()]}
            for rank, kept in self._ranks.items()
        }
        text = canonical_json({"format": TAKEN_FORMAT, "ranks": ranks})
        return zlib.compress(text.encode(), level=6)

    @property
    def num_ranks(self) -> int:
        """Ranks that ever told something."""
        return len(self._ranks)

    def add(self, report: Report) -> None:
        """Take one report; one that is older than what is known of its session changes nothing."""
        kept = self._ranks.setdefault(report["rank"], {"before": None, "sessions": {}})
        sessions: dict[str, Report] = kept["sessions"]
        known = sessions.get(report["session"])
        if known is None or report["step"] >= known["step"]:
            sessions[report["session"]] = report
        while len(sessions) > MAX_SESSIONS:
            over = sessions.pop(next(iter(sessions)))
            before = kept["before"]
            kept["before"] = {
                **merge([over] if before is None else [before, over]),
                "num_sessions": 1 + (before or {}).get("num_sessions", 0),
            }

    def rows(self, run: str, current_from: int) -> list[dict[str, Any]]:
        """One row for each rank, and one for all of them together.

        Args:
            run: Name of the run.
            current_from: First step of the run's last attempt: ranks that told nothing since are
                no longer there.
        """
        rows: list[dict[str, Any]] = []
        for rank, kept in sorted(self._ranks.items()):
            sessions = list(kept["sessions"].values())
            last = max(sessions, key=lambda each: each["step"])
            before = [kept["before"]] if kept["before"] else []
            rows.append(
                {
                    **_row(run, rank, merge([*before, *sessions]), last),
                    "num_sessions": len(sessions) + (before[0]["num_sessions"] if before else 0),
                    "step": last["step"],
                    "is_current": last["step"] > current_from,
                }
            )
        newest = [self._newest(row["rank"]) for row in rows if row["is_current"]]
        if newest:
            whole = merge(newest)
            rows.append(
                {
                    **_row(run, ALL_RANKS, whole, whole),
                    "num_sessions": len(newest),
                    "step": max(each["step"] for each in newest),
                    "is_current": True,
                }
            )
        return rows

    def _newest(self, rank: int) -> Report:
        return max(self._ranks[rank]["sessions"].values(), key=lambda each: each["step"])


def _row(run: str, rank: int, summed: Report, last: Report) -> dict[str, Any]:
    return {
        "run": run,
        "rank": rank,
        **{name: summed[name] for name in _SUMMED},
        "ring_depth": last["ring_depth"],
        "step_s": last["step_s"],
        "last_p999_s": last["fetch_p999_s"],
        "is_too_slow": last["is_too_slow"],
    }


def hit_share(row: Mapping[str, Any]) -> float | None:
    """Share of ranges that came from the node's cache; None without a cache."""
    asked = row["num_cache_hits"] + row["num_cache_misses"]
    return row["num_cache_hits"] / asked if asked else None
