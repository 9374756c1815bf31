"""What every launcher of workers shares: the job handed over, and how its end is told.

How a worker is started belongs to the launchers; which pool it runs in to `compute_pool`.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import dagster as dg

from wsdata.cli.stage import ORDER_FORMAT
from wsdata.errors import WsdataError
from wsdata.records import Order
from wsdata.units import Part

TAIL_LINES = 60


class WorkerLost(WsdataError):
    """A worker ended without a fault of its order's; the same order may be tried again.

    Attributes:
        is_preempted: It made room for others or lost its machine: nothing speaks against it.
    """

    def __init__(self, message: str, *, is_preempted: bool = False) -> None:
        super().__init__(message)
        self.is_preempted = is_preempted


class WorkerLeft(WsdataError):
    """The run that waited for a worker was interrupted, and waits no longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerJob:
    """What a launcher is handed: one step's order and the store that it is worked in.

    Attributes:
        part: The part of its units that this worker does; None for the whole step.
        follows_parts: Workers of all its parts are done: nearly all is kept.
    """

    stage: str
    step: str
    order: Order
    store: str
    environment: dict[str, str] = field(default_factory=dict[str, str])
    part: Part | None = None
    follows_parts: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the order file that ``wsdata stage`` reads."""
        return {
            "format_version": ORDER_FORMAT,
            "store": self.store,
            "order": self.order.to_json(),
            **({"part": asdict(self.part)} if self.part else {}),
            **({"follows_parts": True} if self.follows_parts else {}),
        }

    def __str__(self) -> str:
        part = f"part {self.part.index + 1} of {self.part.of} of " if self.part else ""
        return f"{part}{self.stage}/{self.step} of {self.order.partition}"


def step_failure(job: WorkerJob, *, exit_code: int, tail: str, where: str = "") -> dg.Failure:
    """Say that the step itself failed, in its worker's last words.

    Args:
        job: What was worked.
        exit_code: The worker's.
        tail: Its last lines.
        where: What a person can look at, a pod's name say.
    """
    return dg.Failure(
        description=f"{job}: {last_error(tail)}",
        metadata={
            "exit_code": exit_code,
            **({"worker": where} if where else {}),
            "output": dg.MetadataValue.md(f"```\n{tail}\n```"),
        },
        allow_retries=False,
    )


def last_error(tail: str) -> str:
    """The last exception in some output with all its lines, or the last line."""
    lines = tail.rstrip().splitlines()
    if not lines:
        return "the worker failed and said nothing"
    traceback_at = max(
        (at for at, line in enumerate(lines) if line.startswith("Traceback ")), default=None
    )
    if traceback_at is None:
        return "\n".join(lines[-5:])
    said = [at for at in range(traceback_at + 1, len(lines)) if not lines[at].startswith(" ")]
    return "\n".join(lines[said[0] :]) if said else lines[-1]
