"""Cursors: small JSON, taken exactly where what was delivered before is the same."""

import itertools
import json

import pytest

from wsdata.digest import digest
from wsdata.errors import CursorError
from wsdata.loader.cursor import resume_run, run_cursor
from wsdata.loader.run import ID_DIGITS, Segment, single_run
from wsdata.shard.plan_patch import apply_patch
from wsdata_tests.loader.run_support import OLD, A, B, C, bind, samples, small_plans, some


def test_cursor_is_a_few_hundred_bytes_and_resumes_at_every_step():
    run = bind(A, B, C)
    for step in range(40):
        cursor = json.loads(json.dumps(run_cursor(run, step)))
        assert resume_run(run, cursor) == step
        assert len(json.dumps(cursor)) < 300


def test_cursor_is_taken_exactly_where_what_was_delivered_is_the_same():
    """Every pair of runs, at every step: taken if and only if the samples so far are the same."""
    runs = [
        bind(Segment(version="v3")),
        bind(A, B),
        bind(A, B, C),
        bind(A, Segment(version="v4", seed=8)),
        bind(Segment(version="v3", seed=2)),
        bind(Segment(version="v3", end_step=12), Segment(version="v4", seed=7)),
    ]
    steps = range(1, 25)
    tales = [[samples(run, step) for step in steps] for run in runs]
    for (mine, told), (other, others) in itertools.product(zip(runs, tales, strict=True), repeat=2):
        first = samples(mine, 0) == samples(other, 0)
        for step in steps:
            cursor = run_cursor(mine, step)
            if first and told[: step - 1] == others[: step - 1]:
                assert resume_run(other, cursor) == step
            else:
                with pytest.raises(CursorError):
                    resume_run(other, cursor)


def test_a_cursor_holds_the_digest_of_what_was_delivered():
    """Spelled out once more here, so that cursors of earlier releases are taken."""
    plan = small_plans()["v3"]
    patched = apply_patch(apply_patch(plan, some(plan, 2), 3), some(plan, 1), 8)
    run = bind(Segment(version="v3.2", end_step=10), B, v3=patched)
    for step in range(20):
        told = [
            {
                **part.segment.identity(),
                "end_step": part.end_step,
                "patches": [
                    patch.summary
                    for patch in part.segment.plan.patches
                    if patch.from_step < part.segment.to_plan(part.end_step)
                ],
            }
            for part in run.stretches(0, step)
        ]
        assert run_cursor(run, step)["delivered"] == digest(told)[:ID_DIGITS]


def test_a_single_version_becomes_a_run_by_appending():
    alone = single_run("v3", small_plans()["v3"], OLD)
    assert resume_run(bind(A, B), run_cursor(alone, 10)) == 10
    assert resume_run(bind(A, B), run_cursor(alone, 4)) == 4
    with pytest.raises(CursorError, match=r"version 'v3' there, 'v4' here"):
        resume_run(bind(A, B), run_cursor(alone, 11))
    with pytest.raises(CursorError, match="past the run's end at 25"):
        resume_run(bind(A, B), run_cursor(bind(A, B, C), 26))


def test_patches_after_the_cursor_are_taken_and_those_that_rewrite_are_not():
    plan = small_plans()["v3"]
    patched = apply_patch(plan, some(plan, 2), 8)
    before, after = bind(A, B), bind(Segment(version="v3.1", end_step=10), B, v3=patched)
    assert resume_run(after, run_cursor(before, 8)) == 8
    with pytest.raises(CursorError, match="has passed step 8 of v3"):
        resume_run(after, run_cursor(before, 9))
    with pytest.raises(CursorError, match="earlier segments or their patches"):
        resume_run(after, run_cursor(before, 12))
    with pytest.raises(CursorError, match="lacks one or has another"):
        resume_run(before, run_cursor(after, 5))  # the patch is not to be forgotten
    late = apply_patch(plan, some(plan, 2), 10)  # after the segment's last step
    assert resume_run(bind(A, B, v3=late), run_cursor(before, 12)) == 12


@pytest.mark.parametrize("broken", [{}, {"format_version": 1}, {"step": -1}, {"step": "3"}])
def test_what_is_no_cursor_is_refused(broken):
    run = bind(A, B)
    with pytest.raises(CursorError, match=r"as PlanDataset\.state_dict\(\) writes it"):
        resume_run(run, {**run_cursor(run, 3), **broken} if broken else {})
