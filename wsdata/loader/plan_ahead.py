"""What the coming steps read, planned several steps at once.

Planning one step costs as much for few samples as for many, and more than reading a small sample.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from wsdata.loader.order import Piece, Share
from wsdata.loader.ranks import rank_slots
from wsdata.loader.run import Run
from wsdata.loader.version import OpenVersion
from wsdata.shard.placement import Placement

MAX_STEPS = 16
MAX_SAMPLES = 1024  # of all steps that are planned at once
_MAX_KEPT = 4 * MAX_STEPS  # steps; threads are never further apart


class Planned(NamedTuple):
    """The samples of a piece, in global order; `rows` are those of the index."""

    rows: list[int]
    placements: list[Placement]
    epochs: list[int]


class _Step(NamedTuple):
    first_slot: int
    planned: Planned


class Planner:
    """Plans what somebody walks. Safe to use from threads.

    Args:
        run: The run.
        versions: The opened version of each of its segments.
        share: Who walks.
    """

    def __init__(self, run: Run, versions: Sequence[OpenVersion], share: Share) -> None:
        self._run, self._versions, self._share = run, versions, share
        self._lock = threading.Lock()
        self._steps: OrderedDict[tuple[int, int], _Step] = OrderedDict()

    def plan(self, piece: Piece) -> Planned:
        """Return the samples of a piece.

        Raises:
            IntegrityError: The training index is damaged; object and block are named.
        """
        key = (piece.segment, piece.plan_step)
        with self._lock:
            if key not in self._steps:
                self._plan_from(piece)
            first_slot, (rows, placements, epochs) = self._steps[key]
        part = slice(piece.first_slot - first_slot, piece.end_slot - first_slot)
        return Planned(rows[part], placements[part], epochs[part])

    def _plan_from(self, piece: Piece) -> None:
        plan, version = self._run.segments[piece.segment].plan, self._versions[piece.segment]
        share = self._share
        size = len(self._slots(plan.batch_size(piece.plan_step)))
        num_steps = max(1, min(MAX_STEPS, MAX_SAMPLES // size))
        # Workers take turns at whole steps, unless steps are cut into pieces.
        stride = share.num_workers if share.micro_batch is None else 1
        steps = [piece.plan_step + stride * number for number in range(num_steps)]
        each = plan.draws_of_steps(steps, self._slots)
        rows = [plan.rows_of(draws).tolist() for draws in each]
        placements = iter(version.placements([row for part in rows for row in part]))
        for step, draws, mine in zip(steps, each, rows, strict=True):
            planned = Planned(mine, [next(placements) for _ in mine], draws.epochs.tolist())
            self._steps[piece.segment, step] = _Step(int(draws.slots[0]), planned)
        while len(self._steps) > _MAX_KEPT:
            self._steps.popitem(last=False)

    def _slots(self, batch_size: int) -> range:
        return rank_slots(batch_size, rank=self._share.rank, world_size=self._share.world_size)
