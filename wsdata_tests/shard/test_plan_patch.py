"""Patched plans: what is excluded is gone from a step on, and no other slot moves."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.errors import PlanError
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_patch import apply_patch, changed_slots
from wsdata_tests.shard.plan_support import BUCKETS, frame, make_phase, make_rows, mixtures

VIDEO_33 = BUCKETS[1]


def compile_mix(mix):
    arguments = {name: value for name, value in mix.items() if name != "rows"}
    return StepPlan.compile(frame(mix["rows"]), **arguments)


def slots(plan, until):
    return {
        (step, s.slot): (s.sample_id, s.pool, s.epoch)
        for step in range(until)
        for s in plan.samples(step)
    }


@settings(max_examples=12, deadline=None)
@given(mixtures(), st.data())
def test_patches_change_excluded_slots_alone_and_are_accounted_for(mix, data):
    plan = compile_mix(mix)
    until = plan.num_steps + 5
    ids = sorted(row["sample_id"] for row in mix["rows"])
    plans, cuts = [plan], []
    for _ in range(2):
        gone = {s for cut, _ in cuts for s in cut}
        excluded = set(data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=8)))
        # Keep one sample of every pool, as a pool without any is refused.
        kept = {min(_members(plan, pool) - gone) for pool in range(len(plan.pools))}
        from_step = data.draw(st.integers(0, until))
        cuts.append((excluded - kept - gone, from_step))
        plans.append(apply_patch(plans[-1], cuts[-1][0], from_step))
    served = [slots(each, until) for each in plans]
    for before, after, (excluded, from_step) in zip(served, served[1:], cuts, strict=False):
        for slot, (sample_id, pool, epoch) in before.items():
            if slot[0] >= from_step and sample_id in excluded:
                assert after[slot][0] not in excluded
                assert after[slot][1:] == (pool, epoch)
            else:
                assert after[slot] == (sample_id, pool, epoch)
    for excluded, from_step in cuts:
        assert not {
            sample_id
            for (step, _), (sample_id, *_) in served[-1].items()
            if step >= from_step and sample_id in excluded
        }
    accounted = [(*c[:2], c.before, c.after) for c in changed_slots(plans[0], plans[-1], until)]
    assert accounted == sorted(
        (*slot, was[0], served[-1][slot][0])
        for slot, was in served[0].items()
        if was != served[-1][slot]
    )
    for clip_id in sorted({row["clip_id"] for row in mix["rows"]})[:6]:
        expected = [
            (step, s.slot, s.epoch)
            for step in range(until)
            for s in plans[-1].samples(step)
            if s.clip_id == clip_id
        ]
        assert [tuple(found) for found in plans[-1].where(clip_id, until)] == expected


def _members(plan, pool):
    content = plan.pools[pool]
    rows = plan.index.frame.filter(
        (plan.index.frame["stream"] == content.stream)
        & (plan.index.frame["bucket"] == content.bucket)
        & plan.index.frame["tier"].is_in(list(content.tiers))
    )
    return set(rows["sample_id"])


@pytest.fixture
def plan():
    return StepPlan.compile(
        frame(make_rows({("video", VIDEO_33, "T0"): 10, ("video", VIDEO_33, "T1"): 4})),
        seed=1,
        phases=[make_phase("low", 20), make_phase("high", 20, tiers=("T1",))],
        streams={"video": {}},
        samples={"global_batch": 2},
    )


def test_patched_plan_has_its_own_id_and_reads_back(plan):
    patched = apply_patch(plan, [plan.index.frame["sample_id"][3]], 7)
    assert patched.plan_id != plan.plan_id
    assert patched.base_plan_id == plan.plan_id
    stored = StepPlan.from_json(json.loads(json.dumps(patched.to_json())), plan.index)
    assert stored.plan_id == patched.plan_id
    assert slots(stored, 40) == slots(patched, 40)
    assert slots(patched, 7) == slots(plan, 7)


def test_substitutes_spread_over_what_the_pool_has_left(plan):
    gone = plan.index.frame.filter(plan.index.frame["tier"] == "T0")["sample_id"].to_list()
    patched = apply_patch(plan, gone[:9], 0)
    left = {s.sample_id for step in range(20) for s in patched.samples(step)}
    assert left == {
        gone[9],
        *plan.index.frame.filter(plan.index.frame["tier"] == "T1")["sample_id"],
    }


def test_impossible_patches_are_refused(plan):
    with pytest.raises(PlanError, match=r"1 of 2 samples to exclude are not in.*'nothing'"):
        apply_patch(plan, [plan.index.frame["sample_id"][0], "nothing"], 0)
    tops = plan.index.frame.filter(plan.index.frame["tier"] == "T1")["sample_id"].to_list()
    half = apply_patch(plan, tops[:2], 5)
    with pytest.raises(PlanError, match=r"excludes all 4 samples of pool .*T1.*cut a new"):
        apply_patch(half, tops[2:], 9)
    with pytest.raises(ValueError, match="steps count from 0"):
        apply_patch(plan, tops[:1], -1)
    with pytest.raises(PlanError, match="differ by more than patches"):
        changed_slots(plan, plan.replaced(seed=5), 10)
