"""A training run over the fabricated home: what it told, taken in, and reported on."""

from wsdata.lifecycle.plans import load_plan
from wsdata.loader import runs_served
from wsdata.loader.inbox import take_in
from wsdata.loader.run import Tokens, single_run
from wsdata.loader.served_log import ServedLog
from wsdata.loader.telemetry import Telemetry, export
from wsdata.observability import realised_order


def train(home, *attempts, run="r1", fetch_s=0.01):
    """Deliver steps [first, end) of v1 in each attempt, by one rank with a cache; report on it."""
    plan = load_plan(home.ledger, home.store, "v1")
    for first, end in attempts:
        log = ServedLog(home.store, run, single_run("v1", plan, Tokens("noise-1", "fp8")))
        telemetry = Telemetry()
        for step in range(first, end):
            log.delivered(step)
            telemetry.fetched(fetch_s, 100, is_hit=step % 4 > 0)
            telemetry.delivered(0.0, is_stall=step % 10 == 0)
        log.close()
        report = telemetry.report(ring_depth=2, step_s=1.0)
        export(home.store, report, run=run, rank=0, session=telemetry.session, step=end)
    take_in(home.ledger, home.store)
    home.run_step(runs_served.STEP, "all")
    home.run_step(realised_order.STEP, "all")
