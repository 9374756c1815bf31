"""What a run was really served: ranges of steps that rank 0 tells the inbox, and how they merge.

A report is one object, put once. Reports of one attempt (one life of rank 0) are joined to
ranges; a later attempt that begins before an earlier one ended serves steps again, and what was
served first is then told as replayed. Taking reports into the catalog belongs to `runs_served`.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from wsdata.ids import parse_version

PREFIX = "inbox/served/"
FORMAT = "served-2"
MAX_STEP = 2**48
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RANGES = ("ranges", "before")  # of an attempt
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
        before: What served the steps before `resumed_step`, as the run knew it then; empty in
            reports of older releases, which told of their own segment alone.
    """

    run: str
    attempt: str
    run_id: str
    world_size: int
    resumed_step: int | None
    ranges: tuple[Range, ...]
    before: tuple[Range, ...] = ()


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
    for name in ("run", "attempt", "run_id"):
        if not isinstance(stated.get(name), str):
            raise ValueError(f"{name} {stated.get(name)!r}: expected a text")  # noqa: TRY004
    _check_number(stated, "world_size")
    resumed = stated.get("resumed_step")
    if resumed is not None:
        _check_number(stated, "resumed_step")
    for name in ("run", "attempt"):
        check_run_name(stated[name])
    before = stated.get("before", [])
    if not isinstance(before, list):
        raise ValueError(f"before {before!r}: expected ranges")  # noqa: TRY004
    return Attempt(
        stated["run"], stated["attempt"], stated["run_id"], stated["world_size"], resumed,
        (_parse_range(stated),), tuple(_parse_range(each) for each in cast("list[Any]", before)),
    )  # fmt: skip


def _check_number(stated: Mapping[str, Any], name: str) -> None:
    value = stated.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_STEP:
        raise ValueError(f"{name} {value!r}: expected an integer in [0, 2^48)")


def _parse_range(told: Any) -> Range:
    if not isinstance(told, Mapping):
        raise ValueError(f"range {told!r}: expected an object")  # noqa: TRY004
    stated = cast("Mapping[str, Any]", told)
    for name in ("version", "plan_id"):
        if not isinstance(stated.get(name), str):
            raise ValueError(f"{name} {stated.get(name)!r}: expected a text")  # noqa: TRY004
    for name in _NUMBERS:
        _check_number(stated, name)
    parse_version(stated["version"])
    if not stated["segment_step"] <= stated["first_step"] < stated["end_step"]:
        raise ValueError(
            f"steps [{stated['first_step']}, {stated['end_step']}) of a segment from "
            f"{stated['segment_step']} on: expected at least one, in the segment"
        )
    return Range(**{name: stated[name] for name in Range._fields})


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
        resumed_step=min(starts, default=None),
        ranges=join_ranges(one.ranges + other.ranges),
        before=one.before or other.before,
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


def _gaps(attempt: Attempt, known: Sequence[Range]) -> Iterator[Range]:
    """Steps that an attempt's cursor says were delivered and no report tells of."""
    for part in attempt.before or _own_before(attempt):
        at = part.first_step
        for each in sorted(known):
            if at < min(each.first_step, part.end_step):
                yield part.cut(at, each.first_step)
            at = max(at, each.end_step)
        if at < part.end_step:
            yield part.cut(at, part.end_step)


def _own_before(attempt: Attempt) -> list[Range]:
    """Steps before the resumption in the segment that it was in: all that old reports tell."""
    first = min(attempt.ranges)
    if attempt.resumed_step is None or not (
        first.first_step <= attempt.resumed_step and first.segment_step < attempt.resumed_step
    ):
        return []
    shift = first.plan_step - first.first_step
    return [first._replace(first_step=first.segment_step, plan_step=first.segment_step + shift,
                           end_step=attempt.resumed_step)]  # fmt: skip


def to_body(attempt: Attempt) -> dict[str, Any]:
    """An attempt as JSON, for the ledger."""
    told = {name: [each._asdict() for each in getattr(attempt, name)] for name in _RANGES}
    return {**attempt._asdict(), **told}


def from_body(body: Mapping[str, Any]) -> Attempt:
    """Read what `to_body` wrote, of any release."""
    told = {name: tuple(Range(**each) for each in body.get(name, ())) for name in _RANGES}
    return Attempt(**{**body, **told})


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
