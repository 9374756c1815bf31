"""Runs over small plans, without a store."""

import functools

from wsdata.loader.run import Segment, Tokens, bind_run
from wsdata.shard.plan import StepPlan
from wsdata_tests.shard.plan_support import BUCKETS, frame, make_phase, make_rows

OLD, NEW = Tokens("wan-1", "fp8"), Tokens("wan-2", "fp8")
A, B, C = (
    Segment(version="v3", end_step=10),
    Segment(version="v4", seed=7, end_step=25),
    Segment(version="v5", plan_step=0),
)


def compile_plan(num_samples, *, batch=4, steps=40):
    return StepPlan.compile(
        frame(make_rows({("video", BUCKETS[1], "T0"): num_samples})),
        seed=1,
        phases=[make_phase(steps=steps)],
        streams={"video": {}},
        samples={"global_batch": batch},
    )


@functools.cache
def small_plans():
    return {"v3": compile_plan(12), "v4": compile_plan(16, batch=6), "v5": compile_plan(24)}


def bind(*segments, **others):
    """Bind segments over the small plans, or others by version."""

    def open_segment(segment):
        plan = (small_plans() | others)[segment.version.split(".")[0]]
        plan = plan if segment.seed is None else plan.replaced(seed=segment.seed)
        return plan, OLD if segment.version.startswith("v3") else NEW

    return bind_run(segments, open_segment)


def samples(run, step):
    _, segment, plan_step = run.locate(step)
    return [each.sample_id for each in segment.plan.samples(plan_step)]


def some(plan, count):
    return [each.sample_id for each in plan.samples(0)[:count]]
