"""Which steps of runs served a clip, against a walk of the plan over what was told."""

import json

import pytest

from wsdata.cli.main import run_command
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.served_use import ServedRuns, uses
from wsdata.lifecycle.takedown import request_takedown
from wsdata.lifecycle.tombstone import Criteria
from wsdata.loader.inbox import take_in
from wsdata.loader.run import Segment, Tokens, bind_run
from wsdata.loader.served_log import ServedLog
from wsdata_tests.lifecycle.fabricated import asset_id, clip_id

FILM = [clip_id("film", n) for n in range(3)]


@pytest.fixture
def plan(home):
    return load_plan(home.ledger, home.store, "v1")


def train(home, plan, steps, *segments, run="r1", **options):
    """Deliver steps of a run, and take in what it told."""
    declared = segments or (Segment(version="v1"),)
    bound = bind_run(
        declared,
        lambda each: (plan if each.seed is None else plan.replaced(seed=each.seed),
                      Tokens("noise-1", "fp8")),
    )  # fmt: skip
    log = ServedLog(home.store, run, bound, every=10, **options)
    for step in steps:
        log.delivered(step)
    log.close()
    take_in(home.ledger, home.store)


def walked(plan, clips, steps, *, shift=0):
    return [
        (step, sample.slot, sample.epoch)
        for step in steps
        for sample in plan.samples(step + shift)
        if sample.clip_id in clips
    ]


def told(times, *, is_replayed):
    return [(t.step, t.slot, t.epoch) for t in times if t.is_replayed == is_replayed]


def test_times_are_those_of_a_walk_over_what_was_delivered(home, plan):
    train(home, plan, range(30))
    train(home, plan, range(20, 44), resumed_step=20)
    times, unknown = ServedRuns(home.ledger, home.store).times(FILM)
    assert told(times, is_replayed=False) == walked(plan, FILM, range(44))
    assert told(times, is_replayed=True) == walked(plan, FILM, range(20, 30))
    assert unknown == []
    (use,) = uses(times)
    steps = {step for step, _, _ in walked(plan, FILM, range(44))}
    assert (use["run"], use["version"], use["num_steps"]) == ("r1", "v1", len(steps))
    assert (use["first_step"], use["last_step"]) == (min(steps), max(steps))
    assert use["num_replayed"] == len({s for s, _, _ in walked(plan, FILM, range(20, 30))})


def test_segments_and_seeds_are_asked_of_their_own_plans(home, plan):
    parts = Segment(version="v1", end_step=12), Segment(version="v1", seed=77, plan_step=3)
    train(home, plan, range(25), *parts)
    times, _ = ServedRuns(home.ledger, home.store, "r1").times(FILM)
    expected = walked(plan, FILM, range(12))
    expected += walked(plan.replaced(seed=77), FILM, range(12, 25), shift=3 - 12)
    assert told(times, is_replayed=False) == expected


def test_segments_that_only_a_later_cursor_tells_of_are_found(home, plan):
    """The rank that served the first segment was killed before it told anything."""
    parts = Segment(version="v1", end_step=12), Segment(version="v1", seed=77, plan_step=3)
    train(home, plan, range(14, 25), *parts, resumed_step=14)
    times, unknown = ServedRuns(home.ledger, home.store, "r1").times(FILM)
    expected = walked(plan, FILM, range(12))
    assert expected
    expected += walked(plan.replaced(seed=77), FILM, range(12, 25), shift=3 - 12)
    assert told(times, is_replayed=False) == expected
    assert {time.is_reported for time in times if time.step < 14} == {False}
    assert unknown == []


def test_a_plan_that_is_not_published_is_unknown_and_not_unused(home, plan):
    train(home, plan.replaced(seed=5), range(8), run="odd")  # as if of a plan never published
    body = next(iter(home.ledger.present("run_served").values()))
    assert body["ranges"][0]["seed"] == 5
    served = ServedRuns(home.ledger, home.store)
    (each,) = served.told["odd"]
    moved = each._replace(range=each.range._replace(plan_id="f" * 64))
    served.told["odd"] = [moved]
    times, (unknown,) = served.times(FILM)
    assert times == []
    assert "run odd, steps 0..8: served by plan ffffffffffff" in unknown


def test_people_are_told_what_was_served_beside_what_is_planned(home, plan, capsys):
    train(home, plan, range(30))

    def ask(*words):
        assert run_command([*words, "--json", "--home", str(home.path)]) == 0
        return json.loads(capsys.readouterr().out)

    listed = ask("served", "list", "--run", "r1")
    assert [(r["run"], r["num_steps"], r["versions"]) for r in listed["runs"]] == [
        ("r1", 30, ["v1"])
    ]
    assert [(r["first_step"], r["end_step"]) for r in listed["ranges"]] == [(0, 30)]
    clip = FILM[0]
    expected = walked(plan, [clip], range(30))
    found = ask("served", "where", "--clip", clip)
    assert [(t["step"], t["slot"], t["epoch"]) for t in found["times"]] == expected
    planned = ask("plan", "where", "v1", "--clip", clip)
    assert len(planned["served"]) > len(expected)  # of all steps of the plan
    assert planned["runs"][0]["num_steps"] == len({step for step, _, _ in expected})
    behind = ask("lineage", "clip", clip)
    assert (behind["served"], behind["served_unknown"]) == (planned["runs"], [])
    report = request_takedown(
        home.ledger, home.store, Criteria(assets=(asset_id("film"),)), reason="x", is_dry_run=True
    )
    (use,) = report["versions"]
    assert use["served"][0]["run"] == "r1"
    assert 0 < use["served"][0]["num_steps"] < use["num_steps"]
    assert run_command(["plan", "where", "v1", "--clip", clip, "--home", str(home.path)]) == 0
    assert f"run r1 was served it at {planned['runs'][0]['num_steps']} steps" in (
        capsys.readouterr().out
    )
    assert run_command(["served", "list", "--run", "r9", "--home", str(home.path)]) == 1


def test_a_declared_run_is_told_before_it_is_started(home, plan, tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(
        '[[segments]]\nversion = "v1"\nend_step = 12\n\n[[segments]]\nversion = "v1"\nseed = 7\n'
    )
    assert run_command(["plan", "run", str(file), "--json", "--home", str(home.path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(s["first_step"], s["end_step"], s["seed"]) for s in found["segments"]] == [
        (0, 12, plan.seed),
        (12, None, 7),
    ]
    assert (found["world_sizes"], found["end_step"]) == ([1, 2, 4], 60)
    assert run_command(["plan", "run", str(file), "--home", str(home.path)]) == 0
    assert "world sizes that can read it: 1, 2, 4" in capsys.readouterr().out
    file.write_text('[[segments]]\nversion = "v1"\n\n[[segments]]\nversion = "v1"\n')
    assert run_command(["plan", "run", str(file), "--home", str(home.path)]) == 2
    assert "is open" in capsys.readouterr().err
