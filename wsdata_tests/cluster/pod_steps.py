"""A fabricated step for worker pods, and ``wsdata`` with it in its registry.

What it does stands in its order: a pod shares no folder with the test.
"""

import sys
import time

from wsdata import steps, tables
from wsdata.__main__ import main
from wsdata.errors import StepFailed, StoreError
from wsdata.orders import Step, StepResult, StepRun

STEP = Step(
    stage="preprocess",
    name="decode",
    function="wsdata_tests.cluster.pod_steps:run",
    code_version="decode-test-1",
    partition="drop",
    assets={"decode_status": ("decode_status",)},
    pool="nvdec",
)
UNITS = 3


def run(run: StepRun) -> StepResult:
    """Work some units; in between do what the order's mood says, once for each word of it."""
    # Marked before any progress: a test strikes as soon as it sees some.
    is_first = run.store.put(f"progress/moods/{run.order.digest}", b"")
    for unit in range(UNITS):
        if not run.is_mine(f"unit-{unit}"):
            continue
        run.unit(f"unit-{unit}", lambda unit=unit: {"unit": unit})
        run.progress(unit + 1, UNITS, f"unit {unit} done")
        if unit == 0:
            _be(run.params.get("mood", ""), is_first=is_first)
    rows = [{"asset_id": f"{unit:064x}", "status": "ok", "attempts": 1} for unit in range(UNITS)]
    return StepResult(tables={"decode_status": tables.rows_of("decode_status", rows)})


def _be(mood: str, *, is_first: bool) -> None:
    if mood == "fail":
        raise StepFailed("asset 0123: the third box is cut off at byte 48")
    if mood == "away" and is_first:
        raise StoreError("the bucket does not answer")
    if mood == "slow" or (mood == "slow-once" and is_first):
        time.sleep(60)


if __name__ == "__main__":
    steps.STEPS["preprocess/decode"] = STEP
    sys.exit(main())
