"""The inbox: reports come into the catalog once, whoever takes them in; junk holds nothing up."""

import json
import threading

import numpy as np
import pytest

from wsdata.catalog.ledger import Ledger
from wsdata.loader import inbox, runs_served, served
from wsdata.loader.inbox import take_in
from wsdata.loader.rank_reports import ALL_RANKS, RunReports
from wsdata.loader.served import Attempt, Range
from wsdata.loader.telemetry import Telemetry, export, merge
from wsdata.orders import build_order, execute
from wsdata.recipe import Recipe
from wsdata.store import FolderStore


@pytest.fixture
def place(tmp_path):
    return Ledger(str(tmp_path / "catalog.db")), FolderStore(tmp_path / "store")


def report(store, attempt, first, end, *, run="r1", version="v1", resumed=None):
    served_range = Range(first, end, version, "p" * 64, 1, 0, first)
    body = {
        "format": served.FORMAT, "run": run, "attempt": attempt, "run_id": "id",
        "world_size": 2, "resumed_step": resumed, **served_range._asdict(),
    }  # fmt: skip
    store.put(
        f"inbox/served/{run}/{attempt}-{first:012d}-{end:012d}.json", json.dumps(body).encode()
    )
    return Attempt(run, attempt, "id", 2, resumed, (served_range,))


def stated(ledger):
    return inbox.attempts_of_runs(ledger.present(inbox.SERVED).values())


def waiting(store):
    return [key for prefix in inbox.PREFIXES for key, _ in store.list(prefix)]


def rows_of(ledger, store):
    """Run the step as Dagster does."""
    order = build_order(runs_served.STEP, "all", ledger=ledger, deployment=None,
                        recipe=Recipe(name="t"))  # fmt: skip
    made = execute(order, runs_served.STEP.function, store, lambda *_: None, ledger)
    from wsdata.catalog.objects import read_object

    tables = {name: read_object(store, ref) for name, ref in made.objects.items()}
    return tables, made


def test_reports_are_moved_into_the_catalog_and_a_second_time_changes_nothing(place):
    ledger, store = place
    for first in range(0, 300, 100):
        report(store, "a1", first, first + 100)
    assert take_in(ledger, store).num_served == 3
    assert waiting(store) == []
    seq = ledger.seq
    for first in range(0, 300, 100):  # a killed pass had stated, and not deleted
        report(store, "a1", first, first + 100)
    take_in(ledger, store)
    assert (ledger.seq, waiting(store)) == (seq, [])
    assert not take_in(ledger, store)
    (attempt,) = stated(ledger)["r1"]
    assert [each[:2] for each in attempt.ranges] == [(0, 300)]


def test_rows_tell_what_was_kept_replayed_and_never_told(place):
    ledger, store = place
    report(store, "a1", 0, 100)
    take_in(ledger, store)
    report(store, "a2", 80, 160, resumed=80)
    report(store, "a3", 200, 220, resumed=200)
    report(store, "b1", 5, 9, run="r2")
    report(store, "b2", 20, 30, run="r2")
    take_in(ledger, store)
    tables, made = rows_of(ledger, store)
    rows = tables["runs_served"]
    found = [
        (row["run"], row["attempt"], row["first_step"], row["end_step"], row["is_replayed"],
         row["is_reported"])
        for row in rows.sort("run", "first_step", "attempt").to_dicts()
    ]  # fmt: skip
    assert found == [
        ("r1", "a1", 0, 80, False, True),
        ("r1", "a1", 80, 100, True, True),
        ("r1", "a2", 80, 160, False, True),
        ("r1", "a3", 160, 200, False, False),
        ("r1", "a3", 200, 220, False, True),
        ("r2", "b1", 5, 9, False, True),
        ("r2", "b2", 20, 30, False, True),
    ]
    one, other = runs_served.summary(rows)
    assert (one["num_steps"], one["num_replayed"], one["num_unreported"]) == (220, 20, 40)
    assert other["holes"] == [[9, 20]]
    (fault,) = runs_served.unknown_faults(rows)
    assert "run r2: nobody told what steps 9..20 served" in fault
    assert (
        "| r1 | v1 | 0..220 | 220 | 20 | 40 | 3 | none |"
        in (made.display["runs_served"]["runs"]["raw_value"])
    )


def test_two_who_take_in_at_once_lose_nothing(place):
    ledger, store = place
    rng = np.random.default_rng(0)
    expected = set()
    for _ in range(60):
        first = int(rng.integers(0, 900))
        report(store, f"a{rng.integers(3)}", first, first + 10)
    for key in waiting(store):
        one = served.parse_report(store.get(key))
        expected |= {(one.attempt, step) for step in range(*one.ranges[0][:2])}
    threads = [threading.Thread(target=take_in, args=(ledger, store)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {
        (attempt.attempt, step)
        for attempt in stated(ledger)["r1"]
        for each in attempt.ranges
        for step in range(*each[:2])
    }
    assert found == expected
    assert waiting(store) == []


def test_junk_is_set_aside_with_its_reason_until_someone_deletes_it(place):
    ledger, store = place
    store.put("inbox/served/r1/junk.json", b"not json")
    store.put("inbox/telemetry/r1/rank-00000-x-1.json", b'{"format":"telemetry-1","run":"r1"}')
    report(store, "a1", 0, 10)
    taken = take_in(ledger, store)
    assert (taken.num_served, len(taken.refused)) == (1, 2)
    assert waiting(store) == []
    refused = inbox.refused_reports(ledger, store)
    assert "no JSON" in refused["inbox/served/r1/junk.json"]
    assert "rank None" in refused["inbox/telemetry/r1/rank-00000-x-1.json"]
    for key, _ in list(store.list(inbox.REFUSED_PREFIX)):
        store.delete(key)
    assert inbox.refused_reports(ledger, store) == {}


# telemetry -----------------------------------------------------------------------------------


def tell(store, telemetry, rank, step, **options):
    body = telemetry.report(ring_depth=2, step_s=options.pop("step_s", 1.0))
    export(store, body, run="r1", rank=rank, session=telemetry.session, step=step)


def test_ranks_sum_up_exactly_over_sessions_and_passes(place):
    ledger, store = place
    rng = np.random.default_rng(1)
    sessions = [[Telemetry() for _ in range(4)] for _ in range(2)]
    whole = [Telemetry() for _ in range(2)]
    for number in range(4):
        for step in (10, 20):
            for rank in range(2):
                for _ in range(5):
                    seconds = float(rng.gamma(2.0, 0.01))
                    for each in (sessions[rank][number], whole[rank]):
                        each.fetched(seconds, 100, is_hit=bool(rng.integers(2)))
                tell(store, sessions[rank][number], rank, number * 100 + step)
            take_in(ledger, store)
    tables, _ = rows_of(ledger, store)
    rows = {row["rank"]: row for row in tables["rank_telemetry"].to_dicts()}
    for rank in range(2):
        expected = whole[rank].report(ring_depth=2)
        assert rows[rank]["num_samples"] == 40 == expected["num_samples"]
        for name in ("fetch_p50_s", "fetch_p99_s", "fetch_p999_s"):
            assert rows[rank][name] == expected[name]
        assert (rows[rank]["num_sessions"], rows[rank]["step"]) == (4, 320)
    last = merge([sessions[rank][3].report(ring_depth=2) for rank in range(2)])
    assert rows[ALL_RANKS]["fetch_p999_s"] == last["fetch_p999_s"]
    assert len(list(store.list(inbox.TAKEN_PREFIX))) <= 2


def test_reports_that_come_late_or_twice_change_nothing():
    telemetry, kept = Telemetry(), RunReports()
    told = []
    for step in (10, 20, 30):
        telemetry.fetched(0.1, 10)
        told.append({**telemetry.report(ring_depth=2), "run": "r1", "rank": 0,
                     "session": "s", "step": step})  # fmt: skip
    for number in (2, 0, 1, 2):
        kept.add(told[number])
    again = RunReports.from_bytes(kept.to_bytes())
    assert again.to_bytes() == kept.to_bytes()
    assert again.rows("r1", -1)[0]["num_samples"] == 3


def test_a_rank_whose_slowest_fetches_outlast_its_ring_is_named(place):
    ledger, store = place
    fast, slow, gone = Telemetry(), Telemetry(), Telemetry()
    for telemetry, seconds in ((fast, 0.01), (slow, 5.0), (gone, 9.0)):
        for _ in range(10):
            telemetry.fetched(seconds, 10)
    tell(store, fast, 0, 150)
    tell(store, slow, 1, 150)
    tell(store, gone, 2, 40)  # of a larger world, before the last attempt
    report(store, "a1", 0, 100)
    report(store, "a2", 100, 160, resumed=100)
    take_in(ledger, store)
    tables, made = rows_of(ledger, store)
    (fault,) = runs_served.slow_faults(tables["rank_telemetry"])
    assert "run r1 rank 1: p99.9 of fetches is 5" in fault
    assert "ring depth 2 x 1 s" in fault
    assert "| r1 | 1 | 150 |" in made.display["rank_telemetry"]["ranks"]["raw_value"]
