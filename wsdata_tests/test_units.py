"""Units are made once; how many, and in how long, is counted where they are made."""

import json
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsdata import tables
from wsdata.access import GRANTS, WRITE
from wsdata.orders import Step, StepResult, StepRun
from wsdata.units import SPEEDS
from wsdata_tests.orders_support import new_store, order_of, run_step

STEP = Step(
    stage="label", name="source", function="made_up_units:run", code_version="7",
    partition="drop", assets={"label_qc": ("label_qc",)},
)  # fmt: skip


class Clock:
    """Stands still unless told."""

    now_s = 100.0

    def perf_counter(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("wsdata.units.time", made)
    return made


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path)


def order(subjects, **params):
    return order_of(STEP, "drop", {}, params=params, settings={"subjects": subjects})


@pytest.fixture
def step(clock, monkeypatch):
    """A step whose every unit takes as many seconds as its name is long."""

    def make(subject):
        clock.now_s += len(subject)
        return {"length": len(subject)}

    def run(run):
        for subject in run.settings["subjects"]:
            run.unit(
                subject,
                lambda subject=subject: make(subject),
                kind="short" if len(subject) == 1 else "long",
                amounts=lambda made: {"letters": made["length"]},
            )
            clock.now_s += 1000  # what is no unit is not counted
        return StepResult(tables={"label_qc": tables.rows_of("label_qc", [])}, metrics={"own": 3.0})

    module = types.ModuleType("made_up_units")
    module.run = run
    monkeypatch.setitem(sys.modules, "made_up_units", module)
    return STEP


def left(store):
    return [json.loads(store.get(key)) for key, _ in store.list(SPEEDS)]


def test_what_an_earlier_worker_made_costs_nothing_and_counts_as_kept(step, store):
    first = run_step(step, order(["a", "bbb"]), store)
    assert first.metrics == {
        "own": 3.0, "num_units_made": 2.0, "num_units_kept": 0.0, "made_s": 4.0
    }  # fmt: skip
    second = run_step(step, order(["a", "bbb", "cc", "d", "e"]), store)
    assert second.metrics == {
        "own": 3.0, "num_units_made": 3.0, "num_units_kept": 2.0, "made_s": 4.0
    }  # fmt: skip
    told = left(store)
    assert [(t["stage"], t["step"], t["partition"], t["code_version"]) for t in told] == [
        ("label", "source", "drop", "7")
    ] * 2
    assert told[1]["kinds"] == {
        "long": {"num_made": 1, "num_kept": 1, "made_s": 2.0, "amounts": {"letters": 2}},
        "short": {"num_made": 2, "num_kept": 1, "made_s": 2.0, "amounts": {"letters": 2}},
    }


def test_speeds_are_in_no_row_and_nothing_is_left_where_nothing_was_made(step, store):
    first = run_step(step, order(["a", "bbb"]), store)
    again = run_step(step, order(["a", "bbb"]), store)
    assert again.metrics["num_units_made"] == 0
    assert again.objects == first.objects
    assert len(left(store)) == 1
    none = run_step(step, order([]), store)
    assert none.metrics == {"own": 3.0}, "a step without units is told nothing of them"


def test_other_parameters_are_another_pace(step, store):
    run_step(step, order(["a"], size=1), store)
    run_step(step, order(["a"], size=2), store)
    one, two = left(store)
    assert one["params_digest"] != two["params_digest"]


def test_keys_sort_by_time_and_name_their_order(step, store):
    orders = [order([name]) for name in "abc"]
    for each in orders:
        run_step(step, each, store)
    keys = [key for key, _ in store.list(SPEEDS + "label.source/")]
    assert [json.loads(store.get(key))["kinds"]["short"]["num_made"] for key in keys] == [1] * 3
    assert all(key.endswith(f"-{orders[0].digest[:16]}.json") for key in keys)


@pytest.mark.parametrize("identity", ["pipeline", "decode", "vault"])
def test_every_identity_of_a_pool_may_leave_its_speed(identity):
    assert any(
        SPEEDS.startswith(prefix)
        for grant in GRANTS[identity]
        if grant.place == "store" and set(WRITE) <= set(grant.actions)
        for prefix in grant.prefixes
    )


def test_units_made_at_once_are_timed_once(clock, store):
    run, both_begun, may_end = StepRun(order([]), store), threading.Barrier(3), threading.Event()

    def compute():
        both_begun.wait(30)
        may_end.wait(30)
        return {}

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(run.unit, name, compute) for name in "ab"]
        both_begun.wait(30)
        clock.now_s += 7
        may_end.set()
        for each in waiting:
            each.result()
    assert run.units.metrics() == {
        "num_units_made": 2.0, "num_units_kept": 0.0, "made_s": 7.0
    }  # fmt: skip


def test_a_unit_that_fails_costs_time_and_is_not_made(clock, store):
    run = StepRun(order([]), store)

    def fail():
        clock.now_s += 5
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        run.unit("a", fail)
    assert run.units.metrics() == {"num_units_made": 0.0, "num_units_kept": 0.0, "made_s": 5.0}
    run.units.put_speeds()
    assert left(store) == []


def test_what_is_made_before_it_is_kept_is_timed_too(clock, store):
    """An engine that answers batches, whose answers are then kept one by one."""
    run = StepRun(order([]), store)
    with run.at_work():
        clock.now_s += 9
        for name in "abc":
            run.unit(name, dict)
    assert run.units.metrics() == {"num_units_made": 3.0, "num_units_kept": 0.0, "made_s": 9.0}
