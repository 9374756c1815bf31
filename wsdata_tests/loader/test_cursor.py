"""Cursors: small JSON, taken by the plan that wrote it and refused by any other."""

import json

import pytest

from wsdata.errors import CursorError
from wsdata.loader.cursor import make_cursor, resume_step
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_patch import apply_patch
from wsdata_tests.shard.plan_support import BUCKETS, frame, make_phase, make_rows


@pytest.fixture(scope="module")
def plan():
    return StepPlan.compile(
        frame(make_rows({("video", BUCKETS[1], "T0"): 12})),
        seed=1,
        phases=[make_phase()],
        streams={"video": {}},
        samples={"global_batch": 4},
    )


def test_cursor_is_a_few_hundred_bytes_of_json(plan):
    cursor = json.loads(json.dumps(make_cursor(plan, 48_210)))
    assert resume_step(plan, cursor) == 48_210
    assert len(json.dumps(cursor)) < 300


def test_cursor_of_another_plan_is_refused(plan):
    with pytest.raises(CursorError, match="belongs to plan"):
        resume_step(plan.replaced(seed=2), make_cursor(plan, 3))


def test_a_patch_that_begins_later_is_taken_and_one_that_rewrites_the_past_is_not(plan):
    patched = apply_patch(plan, plan.index.frame["sample_id"].head(2), 10)
    assert resume_step(patched, make_cursor(plan, 10)) == 10
    with pytest.raises(CursorError, match="has passed step 10"):
        resume_step(patched, make_cursor(plan, 11))
    again = apply_patch(patched, plan.index.frame["sample_id"].tail(1), 20)
    assert resume_step(again, make_cursor(patched, 20)) == 20
    other = apply_patch(plan, plan.index.frame["sample_id"].tail(1), 10)
    with pytest.raises(CursorError, match="belongs to plan"):
        resume_step(again, make_cursor(other, 15))
    with pytest.raises(CursorError, match="belongs to plan"):
        resume_step(plan, make_cursor(patched, 5))  # the patch is not to be forgotten


@pytest.mark.parametrize("broken", [{}, {"format_version": 2}, {"step": -1}, {"step": "3"}])
def test_what_is_no_cursor_is_refused(plan, broken):
    good = make_cursor(plan, 3)
    with pytest.raises(CursorError, match=r"as PlanDataset\.state_dict\(\) writes it"):
        resume_step(plan, {**good, **broken} if broken else {})
