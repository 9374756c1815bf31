"""What following a training run costs, by its length and by the ranks that report.

    PYTHONPATH=. .venv/bin/python benchmarks/realised_order.py

Prints JSON, CPU seconds of one process. Parts:

- order: the realised order of a run of 10^4 to 10^7 steps of 1,024 samples: drawing the samples of
  the windows, autocorrelation of a trait of 50,000 values, exact counts. Beside it the same over
  every step of 10^4, and so many times that per 10^4 steps as the run is long.
- inbox: taking in one report of each of 10^4 ranks, and making the rows.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from wsdata.catalog.ledger import Ledger
from wsdata.digest import canonical_json
from wsdata.loader import realised
from wsdata.loader.inbox import TAKEN_PREFIX, take_in
from wsdata.loader.rank_reports import RunReports
from wsdata.loader.realised import choose_lags, trait_autocorrelation
from wsdata.loader.served import Range
from wsdata.loader.telemetry import Telemetry
from wsdata.observability.realised_counts import Stretches
from wsdata.observability.realised_mixing import look
from wsdata.shard.plan import StepPlan
from wsdata.store import FolderStore
from wsdata_tests.shard.plan_support import BUCKETS, frame, make_phase, make_rows

BATCH = 1024
NUM_TRAITS = 50_000
LENGTHS = (10_000, 100_000, 1_000_000, 10_000_000)
NUM_RANKS = 10_000
NUM_FETCHES = 2000


def make_plan() -> StepPlan:
    """A plan of 80,000 samples in two buckets and two tiers."""
    rows = {("video", bucket, tier): 20_000 for bucket in BUCKETS[:2] for tier in ("T0", "T1")}
    return StepPlan.compile(
        frame(make_rows(rows)),
        seed=1,
        phases=[make_phase(steps=max(LENGTHS), tiers=["T0", "T1"])],
        streams={"video": {}},
        samples={"global_batch": BATCH},
    )


def order(plan: StepPlan, num_steps: int) -> dict[str, Any]:
    """Follow a run of so many steps."""
    known = [(Range(0, num_steps, "v1", plan.plan_id, plan.seed, 0, 0), plan)]
    start = time.process_time()
    seen = look("run", known, BATCH)
    traits = np.random.default_rng(0).integers(NUM_TRAITS, size=len(seen.rows))
    drawn = time.process_time()
    trait_autocorrelation(seen.pools, traits, choose_lags(BATCH, len(traits)), seen.windows)
    Stretches(known).rows()
    return {
        "num_steps": num_steps,
        "samples_seen": len(seen.rows),
        "draw_cpu_s": round(drawn - start, 3),
        "cpu_s": round(time.process_time() - start, 3),
    }


def order_of_all(plan: StepPlan) -> dict[str, Any]:
    """Follow the shortest run with every one of its samples."""
    kept = realised.MAX_SAMPLES
    realised.MAX_SAMPLES = LENGTHS[0] * BATCH
    try:
        known = [(Range(0, LENGTHS[0], "v1", plan.plan_id, plan.seed, 0, 0), plan)]
        start = time.process_time()
        seen = look("run", known, BATCH, max_steps=LENGTHS[0])
        traits = np.random.default_rng(0).integers(NUM_TRAITS, size=len(seen.rows))
        trait_autocorrelation(seen.pools, traits, choose_lags(BATCH, len(traits)), seen.windows)
        spent = time.process_time() - start
    finally:
        realised.MAX_SAMPLES = kept
    return {"num_steps": LENGTHS[0], "samples_seen": len(seen.rows), "cpu_s": round(spent, 3)}


def inbox() -> dict[str, Any]:
    """Take in one report of each rank."""
    telemetry = Telemetry()
    for number in range(NUM_FETCHES):
        telemetry.fetched(0.001 * (1 + number % 70), 100, is_hit=True)
    report = telemetry.report(ring_depth=2, step_s=1.0)
    with tempfile.TemporaryDirectory() as folder:
        store, ledger = FolderStore(Path(folder) / "s"), Ledger(str(Path(folder) / "c.db"))
        for rank in range(NUM_RANKS):
            body = {**report, "run": "r", "rank": rank, "session": "s", "step": 100}
            path = store.path_of(f"inbox/telemetry/r/rank-{rank:05d}-s-000000000100.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(canonical_json(body))
        start = time.process_time()
        take_in(ledger, store)
        taken = time.process_time()
        ((key, size),) = store.list(TAKEN_PREFIX)
        rows = RunReports.from_bytes(store.get(key)).rows("r", -1)
        return {
            "num_ranks": NUM_RANKS,
            "take_in_cpu_s": round(taken - start, 2),
            "rows_cpu_s": round(time.process_time() - taken, 2),
            "num_rows": len(rows),
            "kept_bytes": size,
        }


def main() -> None:
    """Measure all, and print it."""
    plan = make_plan()
    order(plan, LENGTHS[0])  # words of the plan are built when first asked for
    whole = order_of_all(plan)
    runs = [order(plan, num_steps) for num_steps in LENGTHS]
    for each in runs:
        every = whole["cpu_s"] * each["num_steps"] / whole["num_steps"]
        each["times_cheaper_than_every_sample"] = round(every / each["cpu_s"], 1)
    print(json.dumps({"order": runs, "order_of_all": whole, "inbox": inbox()}, indent=1))


if __name__ == "__main__":
    main()
