"""Served ranges: what is told, how tellings merge, and what a later attempt makes of them."""

import itertools
import json

import numpy as np
import pytest

from wsdata.errors import StoreError
from wsdata.loader import served
from wsdata.loader.run import Segment, Tokens, bind_run, single_run
from wsdata.loader.served import Attempt, Range, settle
from wsdata.loader.served_log import ServedLog, name_attempt
from wsdata.shard.plan import StepPlan
from wsdata.store import FolderStore
from wsdata_tests.shard.plan_support import BUCKETS, frame, make_phase, make_rows

TOKENS = Tokens("noise-1", "fp8")


@pytest.fixture(scope="module")
def plan():
    return StepPlan.compile(
        frame(make_rows({("video", BUCKETS[1], "T0"): 12})),
        seed=1,
        phases=[make_phase()],
        streams={"video": {}},
        samples={"global_batch": 4},
    )


def told_by(store):
    """Attempts as the inbox tells them, joined."""
    found = {}
    for key, _ in store.list(served.PREFIX):
        one = served.parse_report(store.get(key))
        known = found.get(one.attempt)
        found[one.attempt] = one if known is None else served.join_attempts(known, one)
    return [found[name] for name in sorted(found)]


def walk(store, run, steps, **options):
    log = ServedLog(store, "r1", run, every=10, **options)
    for step in steps:
        log.delivered(step)
    log.close()


def test_reports_of_one_attempt_join_to_what_was_delivered(plan, tmp_path):
    store = FolderStore(tmp_path)
    run = single_run("v1", plan, TOKENS)
    walk(store, run, range(35), world_size=2)
    assert len(list(store.list("inbox/served/r1/"))) >= 4
    (attempt,) = told_by(store)
    assert (attempt.run, attempt.run_id, attempt.world_size) == ("r1", run.run_id, 2)
    (only,) = attempt.ranges
    assert only == Range(0, 35, "v1", plan.plan_id, plan.seed, 0, 0)


def test_reports_are_cut_at_the_borders_of_segments(plan, tmp_path):
    run = bind_run(
        [Segment(version="v1", end_step=7), Segment(version="v2", plan_step=3)],
        lambda _: (plan, TOKENS),
    )
    walk(FolderStore(tmp_path), run, range(4, 12))
    (attempt,) = told_by(FolderStore(tmp_path))
    assert [(r.version, *r[:2], r.segment_step, r.plan_step) for r in attempt.ranges] == [
        ("v1", 4, 7, 0, 4),
        ("v2", 7, 12, 7, 3),
    ]


class BrokenStore(FolderStore):
    """Fails its first puts."""

    failures = 3

    def put(self, key, data):
        self.failures -= 1
        if self.failures >= 0:
            raise StoreError("away")
        return super().put(key, data)


def test_a_store_that_is_away_loses_nothing_and_stops_nothing(plan, tmp_path):
    store = BrokenStore(tmp_path)
    walk(store, single_run("v1", plan, TOKENS), range(45))
    (attempt,) = told_by(store)
    assert [r[:2] for r in attempt.ranges] == [(0, 45)]


def test_a_patched_plan_is_told_from_where_it_took_over(plan, tmp_path):
    run, other = single_run("v1", plan, TOKENS), single_run("v1.1", plan, TOKENS)
    log = ServedLog(FolderStore(tmp_path), "r1", run)
    for step in range(20):
        if step == 12:
            log.swap(other)
        log.delivered(step)
    log.close()
    (attempt,) = told_by(FolderStore(tmp_path))
    assert [(r.version, *r[:2]) for r in attempt.ranges] == [("v1", 0, 12), ("v1.1", 12, 20)]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "served-1"}, "expected a report of format"),
        ({"end_step": 0}, "at least one"),
        ({"first_step": -1}, "in \\[0, 2"),
        ({"first_step": True}, "first_step True"),
        ({"seed": "1"}, "seed '1'"),
        ({"version": "latest"}, "latest"),
        ({"run": "../../raw"}, "expected a name"),
        ({"plan_id": None}, "plan_id None"),
        ({"resumed_step": "7"}, "resumed_step '7'"),
        ({"before": {}}, "before {}: expected ranges"),
        ({"before": [7]}, "range 7: expected an object"),
        ({"before": [{"version": "v1"}]}, "plan_id None"),
    ],
)
def test_what_is_no_report_is_refused_with_a_reason(plan, tmp_path, change, match):
    store = FolderStore(tmp_path)
    walk(store, single_run("v1", plan, TOKENS), range(3))
    ((key, _),) = store.list(served.PREFIX)
    body = json.loads(store.get(key))
    served.parse_report(json.dumps(body).encode())
    with pytest.raises(ValueError, match=match):
        served.parse_report(json.dumps(body | change).encode())
    for junk in (b"", b"\xff", b"[]", b"{"):
        with pytest.raises(ValueError, match=r"no JSON|expected a report"):
            served.parse_report(junk)


# merging -------------------------------------------------------------------------------------


def part(first, end, *, version="v1", segment=0, shift=0):
    return Range(first, end, version, f"plan of {version}", 1, segment, first + shift)


def attempt(number, *ranges, resumed=None):
    return Attempt("r1", f"2026-{number:02d}", "id", 1, resumed, ranges)


def test_joining_is_the_same_in_any_order_and_however_often():
    pieces = [part(a, a + n) for a in range(0, 40, 7) for n in (3, 9)]
    pieces += [part(60, 70), part(10, 20, version="v2"), part(3, 9, shift=2)]
    expected = {(p.version, p.plan_step - p.first_step): set() for p in pieces}
    for p in pieces:
        expected[p.version, p.plan_step - p.first_step] |= set(range(p.first_step, p.end_step))
    rng = np.random.default_rng(0)
    joined = served.join_ranges(pieces)
    for _ in range(20):
        many = [pieces[n] for n in rng.integers(len(pieces), size=30)] + pieces
        rng.shuffle(many)
        assert served.join_ranges(many) == joined
    found = {key: [] for key in expected}
    for r in joined:
        found[r.version, r.plan_step - r.first_step] += range(r.first_step, r.end_step)
    assert {key: sorted(steps) for key, steps in found.items()} == {
        key: sorted(steps) for key, steps in expected.items()
    }


def test_every_step_is_kept_at_most_once_and_by_the_last_to_serve_it():
    """Against a plain simulation: each attempt goes back to its start and serves on."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        attempts, timeline, times = [], {}, {}
        for number in range(rng.integers(1, 6)):
            first = int(rng.integers(20))
            end = first + int(rng.integers(1, 15))
            attempts.append(attempt(number, part(first, end)))
            timeline = {step: who for step, who in timeline.items() if step < first}
            for step in range(first, end):
                timeline[step] = f"2026-{number:02d}"
                times[step] = times.get(step, 0) + 1
        rng.shuffle(attempts)
        told = settle(attempts)
        kept = {
            step: each.attempt
            for each in told
            if not each.is_replayed
            for step in range(*each.range[:2])
        }
        assert kept == timeline
        counted = {}
        for each in told:
            for step in range(*each.range[:2]):
                counted[step] = counted.get(step, 0) + 1
        assert counted == times


def test_what_a_killed_rank_could_not_tell_follows_from_the_cursor():
    told = settle([attempt(0, part(0, 100)), attempt(1, part(140, 200), resumed=140)])
    assert [(each.range[:2], each.is_reported) for each in told] == [
        ((0, 100), True),
        ((100, 140), False),
        ((140, 200), True),
    ]
    assert served.kept_spans(told) == [(0, 200)]
    anew = settle([attempt(0, part(0, 100)), attempt(1, part(140, 200))])
    assert served.holes(served.kept_spans(anew)) == [(100, 140)]


@pytest.mark.parametrize("resumed", [3, 7, 9, 12])
@pytest.mark.parametrize("last_told", [0, 2, 5, 8])
def test_a_cursor_tells_which_segments_served_all_before_it(plan, tmp_path, resumed, last_told):
    """A rank was killed after `resumed` steps, and its reports from `last_told` on with it."""
    store = FolderStore(tmp_path)
    run = bind_run(
        [
            Segment(version="v1", end_step=4),
            Segment(version="v2", plan_step=30, end_step=9),
            Segment(version="v3"),
        ],
        lambda _: (plan, TOKENS),
    )
    last_told = min(last_told, resumed)
    walk(store, run, range(last_told))
    walk(store, run, range(resumed, 14), resumed_step=resumed)
    attempts = [served.from_body(json.loads(json.dumps(served.to_body(each))))
                for each in told_by(store)]  # fmt: skip
    told = settle(attempts)
    assert served.kept_spans(told) == [(0, 14)]
    for step in range(14):
        (each,) = [one for one in told if one.range.first_step <= step < one.range.end_step]
        _, segment, plan_step = run.locate(step)
        assert each.range.version == segment.version
        assert each.range.plan_step + step - each.range.first_step == plan_step
        assert each.range.segment_step == segment.first_step
        assert each.is_reported == (not last_told <= step < resumed)


def test_of_earlier_segments_old_reports_say_only_that_they_were():
    border = part(150, 200, version="v2", segment=120)
    told = settle([attempt(0, part(0, 100)), attempt(1, border, resumed=150)])
    assert [(each.range.version, each.range[:2]) for each in told if not each.is_reported] == [
        ("v2", (120, 150))
    ]
    assert served.holes(served.kept_spans(told)) == [(100, 120)]


def test_attempts_survive_the_ledger():
    one = attempt(3, part(0, 9), part(9, 12, version="v1.1"), resumed=0)
    assert served.from_body(json.loads(json.dumps(served.to_body(one)))) == one
    names = [name_attempt() for _ in range(3)]
    assert all(a[:19] <= b[:19] for a, b in itertools.pairwise(names))
