"""The step plan against a slow, obvious one, and its promises as properties."""

import json
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wsdata.digest import digest
from wsdata.errors import PlanError
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_patch import apply_patch
from wsdata.shard.plan_step import share_bound, token_shares
from wsdata_tests.shard import plan_oracle
from wsdata_tests.shard.plan_support import BUCKETS, frame, make_phase, make_rows, mixtures

VIDEO_33, VIDEO_65 = BUCKETS[1], BUCKETS[3]

# Stream crawl comes first by name, and its pool last: no sample of it is in the first phase.
LATE_STREAM = {
    "rows": make_rows(
        {
            ("crawl", BUCKETS[2], "T1"): 1,
            ("image", BUCKETS[2], "T0"): 1,
            ("video", BUCKETS[2], "T0"): 1,
            ("video", VIDEO_33, "T0"): 12,
        }
    ),
    "seed": 0,
    "phases": [
        make_phase(name, 1, tiers=tiers, weights={"video": 0.1, "crawl": 0.1, "image": 0.1})
        for name, tiers in (("p0", ("T0",)), ("p1", ("T0", "T1")))
    ],
    "streams": {"video": {}, "crawl": {"multiplier": 2.0}, "image": {}},
    "samples": {"global_batch": 1, "batch_of_bucket": {}},
}


SHUFFLES = st.sampled_from([None, {"block": 1, "window": 3}, {"block": 4, "window": 8}])


def compile_mix(mix, **more):
    arguments = {name: value for name, value in mix.items() if name != "rows"}
    return StepPlan.compile(frame(mix["rows"]), **arguments, **more)


def simple_plan(counts=None, *, phases=None, streams=None, batch=4, seed=1):
    return StepPlan.compile(
        frame(make_rows(counts or {("video", VIDEO_33, "T0"): 10})),
        seed=seed,
        phases=phases or [make_phase()],
        streams=streams or {"video": {}, "image": {}, "crawl": {}},
        samples={"global_batch": batch, "batch_of_bucket": {}},
    )


def told(plan, step):
    return plan.bucket(step), [(s.sample_id, s.stream, s.epoch) for s in plan.samples(step)]


@settings(max_examples=15, deadline=None)
@given(mixtures())
@example(LATE_STREAM)
def test_every_step_is_what_the_slow_oracle_says(mix):
    plan = compile_mix(mix)
    steps = plan.num_steps + 10  # past the end the last phase goes on
    expected = list(plan_oracle.walk(**mix, num_steps=steps))
    assert [told(plan, step) for step in range(steps)] == expected


@settings(max_examples=40, deadline=None)
@given(mixtures())
@example(LATE_STREAM)
def test_rhythm_of_a_phase_is_its_own_whatever_comes_before_it(mix):
    def rhythm(plan, number):
        return [
            (mix.bucket, mix.num_turns, [plan.pools[pool].stream for pool in mix.pools], mix.draws)
            for mix in plan.phases[number].buckets
        ]

    plan = compile_mix(mix)
    for number, phase in enumerate(mix["phases"]):
        assert rhythm(plan, number) == rhythm(compile_mix({**mix, "phases": [phase]}), 0)


@settings(max_examples=12, deadline=None)
@given(mixtures(), SHUFFLES)
def test_each_sample_comes_exactly_once_in_each_epoch_of_its_pool(mix, shuffle):
    plan = compile_mix(mix, shuffle=shuffle)
    served = Counter()
    for step in range(plan.num_steps):
        for sample in plan.samples(step):
            served[sample.pool, sample.epoch, sample.sample_id] += 1
    assert set(served.values()) == {1}
    per_epoch = Counter((pool, epoch) for pool, epoch, _ in served)
    for pool, content in enumerate(plan.pools):
        epochs = sorted(epoch for number, epoch in per_epoch if number == pool)
        assert epochs == list(range(len(epochs)))
        assert all(per_epoch[pool, epoch] == content.num_samples for epoch in epochs[:-1])


@settings(max_examples=12, deadline=None)
@given(mixtures(), SHUFFLES, st.data())
def test_inverse_agrees_with_forward(mix, shuffle, data):
    plan = compile_mix(mix, shuffle=shuffle)
    until = plan.num_steps + 5
    forward = {}
    steps_of_row = {}
    for step in range(until):
        for sample in plan.samples(step):
            forward.setdefault(sample.clip_id, []).append((step, sample.slot, sample.epoch))
            steps_of_row.setdefault(sample.row, set()).add(step)
    rows = data.draw(st.lists(st.integers(0, len(mix["rows"]) - 1), max_size=4))
    first, limit = data.draw(st.integers(0, until)), data.draw(st.integers(1, 5))
    horizon = min(until, max(plan.num_steps, first + plan.phases[-1].num_steps))
    due = {step for row in rows for step in steps_of_row.get(row, ()) if first <= step < horizon}
    told = plan.steps_of_rows(rows, first, limit)
    expected = sorted(due)[:limit]
    assert told[: len(expected)] == expected
    assert all(step >= horizon for step in told[len(expected) :])
    assert len(told) <= limit
    for clip_id in sorted({row["clip_id"] for row in mix["rows"]})[:12]:
        found = [tuple(served) for served in plan.where(clip_id, until)]
        assert found == sorted(forward.get(clip_id, []))
        assert plan.where(clip_id) == [s for s in plan.where(clip_id, until) if s[0] < until - 5]


@settings(max_examples=12, deadline=None)
@given(mixtures(), st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_row_order_nor_on_who_asks_when(mix, rng):
    plan = compile_mix(mix)
    shuffled = list(mix["rows"])
    rng.shuffle(shuffled)
    again = compile_mix({**mix, "rows": shuffled})
    stored = StepPlan.from_json(json.loads(json.dumps(plan.to_json())), frame(shuffled))
    assert plan.plan_id == again.plan_id == stored.plan_id
    steps = list(range(plan.num_steps))
    rng.shuffle(steps)
    for step in steps[:10]:
        assert plan.samples(step) == stored.samples(step) == again.samples(step)
        size = plan.batch_size(step)
        for world in (world for world in range(1, size + 1) if size % world == 0):
            share = size // world
            parts = [
                sample
                for rank in range(world)
                for sample in plan.samples(
                    step, first_slot=rank * share, end_slot=(rank + 1) * share
                )
            ]
            assert parts == plan.samples(step)


@settings(max_examples=12, deadline=None)
@given(mixtures())
def test_token_shares_stay_within_the_stated_bound_at_every_prefix(mix):
    plan = compile_mix(mix)
    for number, phase in enumerate(plan.phases):
        for num_steps in range(1, 60):
            bound = share_bound(plan, number, num_steps)
            shares = token_shares(plan, number, num_steps)
            for stream, due in phase.due.items():
                assert abs(shares.get(stream, 0) - Fraction(due)) <= bound[stream]


def test_shares_come_close_to_weights_in_the_long_run():
    counts = {
        ("video", VIDEO_33, "T0"): 40,
        ("video", VIDEO_65, "T0"): 9,
        ("image", BUCKETS[0], "T0"): 300,
        ("crawl", VIDEO_33, "T0"): 11,
    }
    weights = {"video": 0.6, "crawl": 0.3, "image": 0.1}
    plan = simple_plan(counts, phases=[make_phase(steps=20_000, weights=weights)])
    for stream, share in token_shares(plan, 0, 20_000).items():
        assert float(share) == pytest.approx(weights[stream], rel=0.02)


def test_phases_that_admit_the_same_samples_go_on_with_the_epoch():
    counts = {("video", VIDEO_33, "T0"): 10, ("video", VIDEO_33, "T1"): 10}
    phases = [
        make_phase("a", 3, tiers=("T0",)),
        make_phase("b", 3, tiers=("T0", "T1")),
        make_phase("c", 4, tiers=("T0", "T3")),  # no sample is of T3: the pool of phase a
    ]
    plan = simple_plan(counts, phases=phases)
    assert len(plan.pools) == 2
    pool_a = [s for step in (0, 1, 2, 6, 7) for s in plan.samples(step)]
    assert [s.epoch for s in pool_a] == [0] * 10 + [1] * 10
    assert len({s.sample_id for s in pool_a[:10]}) == 10
    assert plan.phase(3).name == "b"
    assert plan.phase(10**6).name == "c"


def test_seed_changes_the_order_and_not_the_mixture():
    plan = simple_plan({("video", VIDEO_33, "T0"): 50})
    other = plan.replaced(seed=2)
    assert other.plan_id == simple_plan({("video", VIDEO_33, "T0"): 50}, seed=2).plan_id
    assert other.plan_id != plan.plan_id
    assert [plan.bucket(step) for step in range(40)] == [other.bucket(step) for step in range(40)]
    assert plan.samples(0) != other.samples(0)


def test_epoch_caps_hold_over_phases_and_the_rest_goes_to_other_streams():
    counts = {("video", VIDEO_33, "T0"): 1000, ("crawl", VIDEO_33, "T0"): 20}
    weights = {"video": 0.5, "crawl": 0.5}
    phases = [make_phase("a", 50, weights=weights), make_phase("b", 200, weights=weights)]
    streams = {"video": {}, "crawl": {"max_epochs": 7.5}}
    plan = simple_plan(counts, phases=phases, streams=streams)
    served = Counter(s.stream for step in range(250) for s in plan.samples(step))
    assert sum(served.values()) == 1000
    assert abs(served["crawl"] - 150) <= 2  # 7.5 epochs of 20 samples, a draw off in each phase
    assert [phase.capped for phase in plan.phases] == [(), ("crawl",)]


def test_asking_for_impossible_slots_or_steps_is_a_bad_argument():
    plan = simple_plan()
    with pytest.raises(ValueError, match="steps count from 0"):
        plan.samples(-1)
    with pytest.raises(ValueError, match=r"slots \[0, 4\)"):
        plan.samples(0, first_slot=2, end_slot=5)
    assert plan.where("no such clip") == []


@pytest.mark.parametrize(
    ("counts", "phases", "streams", "message"),
    [
        ({}, [], None, "declares no phase"),
        ({}, [make_phase("late", tiers=("T3",))], None, "phase 'late' is empty.*admit more"),
        (
            {("video", VIDEO_65, "T0"): 3},
            None,
            None,
            "bucket 512p/896x512/65 has 3 samples, fewer than one global batch of 4.*hand_down",
        ),
        (
            {("image", BUCKETS[0], "T0"): 10},
            [make_phase(weights={"video": 1.0, "image": 1e-9})],
            None,
            "too small to be drawn.*raise its weight",
        ),
        ({}, [make_phase(weights={"sound": 1.0})], None, "unknown streams \\['sound'\\]"),
        (
            {},
            [make_phase(steps=500)],
            {"video": {"max_epochs": 2.0}},
            "has 500 steps, but max_epochs lets its streams fill only 5",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_fix(counts, phases, streams, message):
    with pytest.raises(PlanError, match=message):
        StepPlan.compile(
            frame(make_rows({("video", VIDEO_33, "T0"): 10, **counts})),
            seed=0,
            phases=[make_phase()] if phases is None else phases,
            streams=streams or {"video": {}, "image": {}},
            samples={"global_batch": 4, "batch_of_bucket": {}},
        )


def test_streams_without_a_sample_are_left_out_and_named():
    plan = simple_plan(phases=[make_phase(weights={"video": 0.5, "image": 0.5})])
    assert plan.phases[0].absent == ("image",)
    assert plan.phases[0].due == {"video": "1"}


def test_another_index_or_format_is_refused():
    data = simple_plan().to_json()
    fewer = frame(make_rows({("video", VIDEO_33, "T0"): 9}))
    with pytest.raises(PlanError, match="9 samples in this dataset index, 10 were planned"):
        StepPlan.from_json(data, fewer)
    with pytest.raises(PlanError, match="format 99"):
        StepPlan.from_json({**data, "format_version": 99}, fewer)
    rows = make_rows({("video", VIDEO_33, "T0"): 10})
    with pytest.raises(PlanError, match="lists samples twice"):
        StepPlan.compile(
            frame(rows + rows[:1]), seed=0, phases=[make_phase()], streams={"video": {}},
            samples={"global_batch": 4},
        )  # fmt: skip


def test_order_is_the_one_that_was_published():
    """A change of this digest changes what every planned run would train on: a format change."""
    counts = {("video", VIDEO_33, "T0"): 97, ("image", BUCKETS[0], "T1"): 211}
    phases = [make_phase(steps=300, weights={"video": 0.7, "image": 0.3})]
    plan = simple_plan(counts, phases=phases, batch=8, seed=20261129)
    served = [[s.sample_id for s in plan.samples(step)] for step in range(0, 3000, 7)]
    assert digest(served)[:16] == "a4148dd6053f9bc8"
    late = [told(compile_mix(LATE_STREAM), step) for step in range(100)]
    assert digest(late)[:16] == "6eea3f6692ede7ba"


def test_sequence_from_any_step_is_the_tail_of_the_whole():
    plan = simple_plan({("video", VIDEO_33, "T0"): 10})
    whole = [plan.samples(step) for step in range(12)]
    for start in (0, 3, 7, 11):
        fresh = StepPlan.from_json(plan.to_json(), plan.index)
        assert [fresh.samples(step) for step in range(start, 12)] == whole[start:]


def test_every_world_size_up_to_64_gives_the_same_sequence_from_any_step():
    counts = {("video", VIDEO_33, "T0"): 500, ("image", BUCKETS[0], "T0"): 300}
    phases = [make_phase(steps=30, weights={"video": 0.7, "image": 0.3})]
    plan = simple_plan(counts, phases=phases, batch=192)
    whole = [plan.samples(step) for step in range(30)]
    stored = json.dumps(plan.to_json())
    worlds = [world for world in range(1, 65) if 192 % world == 0]
    assert len(worlds) == 12
    for start, world in enumerate(worlds):  # a resume point each, and one past the end of an epoch
        fresh = StepPlan.from_json(json.loads(stored), plan.index)
        for step in (start, start + 15):
            share = 192 // world
            parts = [
                fresh.samples(step, first_slot=rank * share, end_slot=(rank + 1) * share)
                for rank in range(world)
            ]
            assert [sample for part in parts for sample in part] == whole[step]


def test_a_plan_is_small_whatever_the_number_of_samples():
    few, many = (
        simple_plan({("video", VIDEO_33, "T0"): num, ("video", VIDEO_33, "T1"): num})
        for num in (10, 20_000)
    )
    assert len(json.dumps(many.to_json())) < len(json.dumps(few.to_json())) + 40
    patched = apply_patch(many, many.index.frame["sample_id"].head(15_000), 3)
    assert len(json.dumps(patched.to_json())) < len(json.dumps(many.to_json())) + 80


def test_bucket_that_losses_left_short_is_left_out_and_named():
    rows = make_rows({("video", VIDEO_33, "T0"): 10, ("video", VIDEO_65, "T0"): 3})
    arguments = {
        "seed": 0,
        "phases": [make_phase()],
        "streams": {"video": {}},
        "samples": {"global_batch": 4},
    }
    plan = StepPlan.compile(frame(rows), **arguments, lost={VIDEO_65: 1})
    assert plan.phases[0].short == (VIDEO_65,)
    assert {plan.bucket(step) for step in range(40)} == {VIDEO_33}
    assert StepPlan.from_json(plan.to_json(), frame(rows)).plan_id == plan.plan_id
    with pytest.raises(PlanError, match="left out after losses: 512p/896x512/65"):
        StepPlan.compile(frame(rows[10:]), **arguments, lost={VIDEO_65: 1})
