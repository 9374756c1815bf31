"""What becomes of a run when a patched version takes its version's place, while it is going on."""

from collections.abc import Callable
from typing import NamedTuple

from wsdata.errors import PlanError
from wsdata.ids import parse_version
from wsdata.loader.run import Run
from wsdata.loader.version import OpenVersion


class Swapped(NamedTuple):
    """A run under a patch.

    Attributes:
        run: With the patched plans.
        opened: The patched version, by the number of each segment that it serves now.
        first_step: First step of the run that the patch may change.
    """

    run: Run
    opened: dict[int, OpenVersion]
    first_step: int


def swap_in(run: Run, version: str, open_seeded: Callable[[int], OpenVersion]) -> Swapped:
    """Put a patched version into all segments of the version that it patches.

    Args:
        run: As it is.
        version: A patch of a version of it, such as ``v3.1`` of ``v3``.
        open_seeded: Opens the patch with a seed.

    Raises:
        PlanError: It is no patch of the plans of this run.
    """
    numbers = [
        number
        for number, segment in enumerate(run.segments)
        if parse_version(segment.version)[0] == parse_version(version)[0]
    ]
    if not numbers:
        raise PlanError(
            f"swap to {version}: the run has {'; '.join(run.told())}: only a patch of one of "
            "these can take its place"
        )
    new, opened = run, dict[int, OpenVersion]()
    for number in numbers:
        opened[number] = open_seeded(run.segments[number].plan.seed)
        new = new.replaced(number, version, opened[number].plan)
    first = min(_first_change(run, new, number) for number in numbers)
    return Swapped(new, opened, first)


def _first_change(old: Run, new: Run, number: int) -> int:
    """First step of the run that patches of one segment, new since, may change."""
    before, after = old.segments[number].plan, new.segments[number]
    added = after.plan.patches[len(before.patches) :]
    steps = [patch.from_step - after.plan_step + after.first_step for patch in added]
    return max(after.first_step, min(steps, default=old.end_step))
