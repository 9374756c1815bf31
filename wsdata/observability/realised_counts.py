"""Exact counts over the steps that a run was served: tokens by stream, steps by bucket, repeats.

A plan says in closed form how often each pool is drawn up to a step, so a range of any length
costs the same. How far the counts may be from what is due is the plan's own bound, of both ends
of the range.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from wsdata.shard.plan_step import share_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wsdata.loader.served import Range
    from wsdata.shard.plan import StepPlan

Row = dict[str, Any]


class _Part(NamedTuple):
    """Steps [first, end) of one phase of a plan, counted from the phase's first."""

    plan: StepPlan
    phase: int
    first: int
    end: int


class Stretches:
    """All that a run was served, by plan and phase.

    Args:
        served: Ranges that were kept, with their plans.
    """

    def __init__(self, served: Sequence[tuple[Range, StepPlan]]) -> None:
        self._parts: dict[str, list[_Part]] = {}
        for each, plan in served:
            first = each.plan_step
            for part in _phases(plan, first, first + each.end_step - each.first_step):
                name = f"{each.version} {each.plan_id[:8]} {plan.phases[part.phase].name}"
                parts = self._parts.setdefault(name, [])
                if parts and parts[-1].end == part.first:  # another attempt, or seed, goes on here
                    part = part._replace(first=parts.pop().first)
                parts.append(part)

    def rows(self) -> list[Row]:
        """Rows of ``stream_share``, ``bucket_share`` and ``epochs``."""
        return [
            {"part": name, "is_off": False, **row}
            for name, parts in self._parts.items()
            for row in (*_stream_rows(parts), *_bucket_rows(parts), *_epoch_rows(parts))
        ]


def _phases(plan: StepPlan, first: int, end: int) -> Iterator[_Part]:
    """Cut steps [first, end) of a plan at the borders of its phases; the last one goes on."""
    start = 0
    for number, phase in enumerate(plan.phases):
        is_last = number == len(plan.phases) - 1
        stop = end if is_last else start + phase.num_steps
        low, high = max(first, start), min(end, stop)
        if low < high:
            yield _Part(plan, number, low - start, high - start)
        start += phase.num_steps


def drawn(plan: StepPlan, phase: int, first: int, end: int) -> dict[int, int]:
    """How often each pool is drawn in steps [first, end) of a phase."""
    count = plan.schedule.num_drawn
    pools = {pool for bucket in plan.phases[phase].buckets for pool in bucket.pools}
    return {pool: count(phase, pool, end) - count(phase, pool, first) for pool in sorted(pools)}


def counts_in(plan: StepPlan, first_step: int, end_step: int) -> dict[int, int]:
    """How often each pool is drawn in steps [first_step, end_step) of a plan."""
    found: dict[int, int] = {}
    for part in _phases(plan, first_step, end_step):
        for pool, count in drawn(plan, part.phase, part.first, part.end).items():
            found[pool] = found.get(pool, 0) + count
    return {pool: count for pool, count in found.items() if count}


def _tokens(plan: StepPlan, draws: Mapping[int, int]) -> dict[str, Fraction]:
    tokens: dict[str, Fraction] = {}
    for index, count in draws.items():
        pool = plan.pools[index]
        taken = Fraction(pool.num_tokens, pool.num_samples) * count
        tokens[pool.stream] = tokens.get(pool.stream, Fraction(0)) + taken
    return tokens


def _stream_rows(parts: Sequence[_Part]) -> Iterator[Row]:
    got: dict[str, Fraction] = {}
    off: dict[str, Fraction] = {}
    num_samples = 0
    for part in parts:
        draws = drawn(part.plan, part.phase, part.first, part.end)
        num_samples += sum(draws.values())
        _add(got, _tokens(part.plan, draws))
        for end in {part.first, part.end} - {0}:
            total = sum(_tokens(part.plan, drawn(part.plan, part.phase, 0, end)).values())
            allowed = share_bound(part.plan, part.phase, end)
            _add(off, {stream: share * total for stream, share in allowed.items()})
    whole = sum(got.values(), Fraction(0))
    due = parts[0].plan.phases[parts[0].phase].due
    for stream, target in due.items():
        value, bound = got.get(stream, Fraction(0)) / whole, off[stream] / whole
        yield {
            "measure": "stream_share",
            "subject": stream,
            "value": float(value),
            "target": float(Fraction(target)),
            "bound": float(bound),
            "is_off": abs(value - Fraction(target)) > bound,
            "num_samples": num_samples,
        }


def _add(sums: dict[str, Fraction], more: Mapping[str, Fraction]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, Fraction(0)) + value


def _bucket_rows(parts: Sequence[_Part]) -> Iterator[Row]:
    """A bucket's turns come within one of their due up to any step, so within two in a range."""
    content = parts[0].plan.phases[parts[0].phase]
    period = sum(bucket.num_turns for bucket in content.buckets)
    num_steps = sum(part.end - part.first for part in parts)
    slack = sum(len({part.first, part.end} - {0}) for part in parts)
    for bucket in content.buckets:
        num = sum(
            sum(drawn(part.plan, part.phase, part.first, part.end)[pool] for pool in bucket.pools)
            for part in parts
        )
        turns, due = Fraction(num, bucket.batch_size), Fraction(bucket.num_turns, period)
        yield {
            "measure": "bucket_share",
            "subject": bucket.bucket,
            "value": float(turns / num_steps),
            "target": float(due),
            "bound": slack / num_steps,
            "is_off": abs(turns - due * num_steps) > slack,
            "num_samples": num,
        }


def _epoch_rows(parts: Sequence[_Part]) -> Iterator[Row]:
    """How often a stream's most repeated pool was gone through in these steps."""
    plan = parts[0].plan
    draws: dict[int, int] = {}
    for part in parts:
        for pool, count in drawn(plan, part.phase, part.first, part.end).items():
            draws[pool] = draws.get(pool, 0) + count
    for stream in sorted({plan.pools[pool].stream for pool in draws}):
        mine = [pool for pool in draws if plan.pools[pool].stream == stream]
        yield {
            "measure": "epochs",
            "subject": stream,
            "value": float(max(Fraction(draws[p], plan.pools[p].num_samples) for p in mine)),
            "target": None,
            "bound": None,
            "num_samples": sum(draws[pool] for pool in mine),
        }
