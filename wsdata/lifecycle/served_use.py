"""Which steps of which training runs really served some clips: asked of what trainers told.

A plan says what a step would serve; this says what was. Of a run whose plan is no longer
published as it was, it says that it is unknown. What is told, and how attempts replay each other,
belongs to `wsdata.loader.served`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wsdata.catalog.view import LedgerView
from wsdata.errors import WsdataError
from wsdata.loader.inbox import SERVED, attempts_of_runs
from wsdata.loader.served import settle
from wsdata.loader.version import open_version

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from wsdata.catalog.ledger import Ledger
    from wsdata.loader.served import Range, Told
    from wsdata.shard.plan import StepPlan
    from wsdata.store import BlobStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """One time that a run was served a sample of a clip.

    `step` is the run's, `plan_step` that of the version's plan; see `Told` for the rest.
    """

    run: str
    attempt: str
    step: int
    version: str
    plan_step: int
    slot: int
    epoch: int
    is_replayed: bool
    is_reported: bool


class ServedRuns:
    """What all runs were served, as the ledger has it now; plans are opened as they are needed.

    Args:
        ledger: The ledger.
        store: Where versions are published.
        run: One run alone.
    """

    def __init__(self, ledger: Ledger, store: BlobStore, run: str | None = None) -> None:
        self._store = store
        if isinstance(ledger, LedgerView):
            ledger.renew()
        runs = attempts_of_runs(ledger.present(SERVED).values())
        self.told = {
            name: settle(attempts) for name, attempts in runs.items() if run in (None, name)
        }
        self._plans: dict[tuple[str, int], StepPlan | None] = {}

    def times(
        self, clips: Collection[str], *, version: str | None = None
    ) -> tuple[list[Time], list[str]]:
        """Every time that any of some clips was served.

        Args:
            clips: Clip ids.
            version: Of one dataset version alone.

        Returns:
            The times, by run and step; and what could not be told, in words.
        """
        found: list[Time] = []
        unknown: list[str] = []
        for run, told in self._by_plan(version):
            served = told[0].range
            plan = self._plan(served)
            if plan is None:
                unknown += [
                    f"run {run}, steps {each.range.first_step}..{each.range.end_step}: served by "
                    f"plan {served.plan_id[:12]}, which is not what is published as "
                    f"{served.version}"
                    for each in told
                ]
                continue
            found += _times(run, told, plan, clips)
        order = sorted(found, key=lambda time: (time.run, time.step, time.attempt, time.slot))
        return order, unknown

    def _by_plan(self, version: str | None) -> Iterator[tuple[str, list[Told]]]:
        """Ranges of one run that are steps of one plan alike: the plan is asked once for all."""
        for run, told in self.told.items():
            alike: dict[tuple[str, int, str, int], list[Told]] = {}
            for each in told:
                served = each.range
                if version in (None, served.version):
                    shift = served.plan_step - served.first_step
                    key = served.version, served.seed, served.plan_id, shift
                    alike.setdefault(key, []).append(each)
            for these in alike.values():
                yield run, these

    def _plan(self, served: Range) -> StepPlan | None:
        key = (served.version, served.seed)
        if key not in self._plans:
            try:
                opened = open_version(self._store, served.version, seed=served.seed)
                self._plans[key] = opened.plan
            except WsdataError:
                self._plans[key] = None
        plan = self._plans[key]
        return plan if plan is not None and plan.plan_id == served.plan_id else None


def _times(
    run: str, told: Sequence[Told], plan: StepPlan, clips: Collection[str]
) -> Iterator[Time]:
    rows = [plan.index.rows_of_clip(clip) for clip in sorted(clips)]
    if not rows:
        return
    shift = told[0].range.plan_step - told[0].range.first_step
    first = min(each.range.first_step for each in told)
    end = max(each.range.end_step for each in told)
    times = plan.where_rows(np.concatenate(rows), until_step=end + shift, from_step=first + shift)
    for time in times:
        step = time.step - shift
        for each in told:
            if each.range.first_step <= step < each.range.end_step:
                yield Time(
                    run=run,
                    attempt=each.attempt,
                    step=step,
                    version=each.range.version,
                    plan_step=time.step,
                    slot=time.slot,
                    epoch=time.epoch,
                    is_replayed=each.is_replayed,
                    is_reported=each.is_reported,
                )


def uses(times: Collection[Time]) -> list[dict[str, Any]]:
    """Sum times up by run and version.

    Returns:
        ``run, version, first_step, last_step, num_steps`` of the steps that were kept, and
        ``num_replayed``, of those that a later attempt served again.
    """
    grouped: dict[tuple[str, str], list[Time]] = {}
    for time in times:
        grouped.setdefault((time.run, time.version), []).append(time)
    found: list[dict[str, Any]] = []
    for (run, version), mine in sorted(grouped.items()):
        kept = {time.step for time in mine if not time.is_replayed}
        replayed = {time.step for time in mine if time.is_replayed}
        steps = kept or replayed
        found.append(
            {
                "run": run,
                "version": version,
                "first_step": min(steps),
                "last_step": max(steps),
                "num_steps": len(kept),
                "num_replayed": len(replayed),
            }
        )
    return found


def use_lines(found: Collection[dict[str, Any]], *, by_version: bool = True) -> list[str]:
    """Uses as lines for a person."""
    lines: list[str] = []
    for use in found:
        replayed = f", {use['num_replayed']} more replayed since" if use["num_replayed"] else ""
        of = f" of {use['version']}" if by_version else ""
        lines.append(
            f"run {use['run']} was served it{of} at {use['num_steps']} steps, "
            f"{use['first_step']} to {use['last_step']}{replayed}"
        )
    return lines


def time_records(times: Collection[Time]) -> list[dict[str, Any]]:
    """Times as JSON."""
    return [asdict(time) for time in times]
