"""Runs of segments: which plan serves which step, and what is refused."""

import itertools
import json

import pytest

from wsdata.errors import PlanError
from wsdata.loader.run import Segment, changes_at, one_tokens, parse_run, read_run, settle_segments
from wsdata.shard.plan_patch import apply_patch
from wsdata_tests.loader.run_support import NEW, OLD, A, B, C, bind, samples, small_plans, some


def test_each_step_belongs_to_the_plan_and_seed_that_were_declared():
    run = bind(A, B, C)
    assert [run.locate(step)[0] for step in (0, 9, 10, 24, 25, 400)] == [0, 0, 1, 1, 2, 2]
    assert samples(run, 9) == [each.sample_id for each in small_plans()["v3"].samples(9)]
    seeded = small_plans()["v4"].replaced(seed=7)
    assert samples(run, 10) == [each.sample_id for each in seeded.samples(10)]
    assert samples(run, 27) == [each.sample_id for each in small_plans()["v5"].samples(2)]
    assert run.is_open
    assert run.end_step == 25 + 40
    assert changes_at(run) == {10: (OLD, NEW)}
    assert "steps 10..25: v4 seed 7 from plan step 10 (wan-2, fp8)" in run.told()


def test_stretches_join_to_the_steps_asked_for_whatever_is_asked():
    run = bind(A, B, C)
    for first, end in itertools.combinations(range(0, 32, 3), 2):
        parts = list(run.stretches(first, end))
        steps = [step for part in parts for step in range(part.first_step, part.end_step)]
        assert steps == list(range(first, end))
        for part in parts:
            assert part.plan_step == run.locate(part.first_step).plan_step
            assert {run.locate(s).number for s in (part.first_step, part.end_step - 1)} == {
                part.number
            }


def test_closed_run_ends_and_says_so():
    run = bind(A, B)
    assert (run.end_step, run.is_open) == (25, False)
    with pytest.raises(PlanError, match=r"step 25 is none of the run's.*append a segment"):
        run.locate(25)
    with pytest.raises(PlanError, match="step -1"):
        run.locate(-1)


@pytest.mark.parametrize(
    ("segments", "match"),
    [
        ([], "at least one"),
        ([C, A], r"segment 0 \(v5\) is open"),
        ([A, Segment(version="v4", first_step=11)], "ends at 10"),
        ([A, Segment(version="v4", first_step=9)], "ends at 10"),
        ([Segment(version="v3", first_step=1)], "contiguous from 0"),
        ([A, Segment(version="v4", end_step=10)], r"has steps \[10, 10\)"),
    ],
)
def test_gaps_overlaps_and_empty_segments_are_refused(segments, match):
    with pytest.raises(ValueError, match=match):
        settle_segments(segments)


def test_world_sizes_are_those_that_divide_every_segments_batches():
    run = bind(A, B, C)
    assert run.world_sizes() == [1, 2]
    run.check_world(rank=1, world_size=2)
    with pytest.raises(PlanError) as caught:
        run.check_world(rank=0, world_size=4)
    assert "segment 1 (v4, from step 10)" in caught.value.__notes__[0]
    assert "[1, 2]" in caught.value.__notes__[0]


def test_two_tokenizers_or_dtypes_never_meet_in_one_segment():
    assert one_tokens("v3", [("wan-1", "fp8"), ("wan-1", "fp8")]) == OLD
    for kinds in ([("wan-1", "fp8"), ("wan-2", "fp8")], [("wan-1", "fp8"), ("wan-1", "int8")], []):
        with pytest.raises(PlanError, match="only where a segment begins"):
            one_tokens("v3", kinds)


def test_a_declared_plan_is_the_one_that_is_opened():
    patched = apply_patch(small_plans()["v3"], some(small_plans()["v3"], 1), 5)
    for plan_id in (small_plans()["v3"].plan_id, patched.plan_id, small_plans()["v3"].plan_id[:12]):
        bind(Segment(version="v3.1", plan_id=plan_id), v3=patched)
    with pytest.raises(PlanError, match="its samples would be others"):
        bind(Segment(version="v3", plan_id=patched.plan_id))


def test_runs_are_declared_in_json_toml_or_code(tmp_path):
    (tmp_path / "run.toml").write_text(
        '[[segments]]\nversion = "v3"\nend_step = 10\n\n'
        '[[segments]]\nversion = "v4"\nseed = 7\nend_step = 25\n\n'
        '[[segments]]\nversion = "v5"\nplan_step = 0\n'
    )
    told = {"segments": [each.to_json() for each in (A, B, C)]}
    (tmp_path / "run.json").write_text(json.dumps(told))
    assert read_run(tmp_path / "run.toml") == read_run(tmp_path / "run.json") == [A, B, C]
    for bad, match in (
        ({}, "at least one segment"),
        ({"segments": [{"end_step": 3}]}, "a table with a version"),
        ({"segments": [{"version": "v3", "steps": 3}]}, "unknown keys"),
        ({"segments": [{"version": "v3", "end_step": "3"}]}, "expected a step"),
        ({"segments": [{"version": "latest"}]}, "latest"),
        ({"segments": [{"version": 1}]}, "version 1, expected a text"),
        ({"segments": [{"version": "v3", "plan_id": 12}]}, "plan_id 12, expected a text"),
        ({"segments": [{"version": "v3", "end_step": True}]}, "end_step True, expected a step"),
        ({"segments": [{"version": "v3", "seed": "7"}]}, "seed '7', expected a seed"),
    ):
        with pytest.raises(ValueError, match=match):
            parse_run(bad)
    (tmp_path / "run.yaml").write_text("segments: []")
    with pytest.raises(ValueError, match=r"expected a \.json or \.toml"):
        read_run(tmp_path / "run.yaml")


def test_only_a_patch_of_the_same_plan_takes_a_segments_place():
    run = bind(A, B)
    patched = apply_patch(small_plans()["v3"], sorted(samples(run, 9))[:2], 8)
    swapped = run.replaced(0, "v3.1", patched)
    assert swapped.run_id == run.run_id
    assert samples(swapped, 9) != samples(run, 9)
    assert samples(swapped, 7) == samples(run, 7)
    with pytest.raises(PlanError, match="only a patch of the same version"):
        run.replaced(0, "v4", small_plans()["v4"])
