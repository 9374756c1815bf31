"""What a rank tells: counts that add up over ranks, an alarm, a text that Prometheus reads."""

import json
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from wsdata.loader.telemetry import TELEMETRY_PREFIX, Telemetry, export, merge, prometheus
from wsdata.store import FolderStore


def rank(times, *, hits=(), stalls=()):
    made = Telemetry()
    for number, seconds in enumerate(times):
        made.fetched(
            seconds,
            1000,
            is_reread=number == 0,
            is_hit=number in hits if hits else None,
            num_retries=2 * (number == 1),
        )
    made.hedged(is_won=True)
    made.hedged(is_won=False)
    for number in range(4):
        made.delivered(0.25, is_stall=number in stalls)
    return made


def test_reports_of_ranks_add_up_whatever_their_order():
    parts = [[0.001 * (1 + n + 7 * r) for n in range(50)] for r in range(6)]
    reports = [rank(part, hits=(1, 2), stalls=(3,)).report(ring_depth=2) for part in parts]
    whole = merge(reports)
    assert merge(reversed(reports))["fetches"]["counts"] == whole["fetches"]["counts"]
    assert (
        merge([merge(reports[:2]), merge(reports[2:])])["fetches"]["counts"]
        == (whole["fetches"]["counts"])
    )
    assert whole["num_samples"] == 300
    assert whole["num_bytes"] == 300_000
    assert (whole["num_cache_hits"], whole["num_cache_misses"]) == (12, 288)
    assert (whole["num_reread"], whole["num_retries"]) == (6, 12)
    assert (whole["num_hedges"], whole["num_hedges_won"]) == (12, 6)
    assert (whole["num_batches"], whole["num_stalls"], whole["stalled_s"]) == (24, 6, 1.5)
    alone = rank([seconds for part in parts for seconds in part]).report(ring_depth=2)
    for name in ("fetch_p50_s", "fetch_p99_s", "fetch_p999_s"):
        assert whole[name] == alone[name]
    with pytest.raises(ValueError, match="no reports"):
        merge([])
    with pytest.raises(ValueError, match="expected telemetry-1"):
        merge([{**reports[0], "format": "telemetry-0"}])


def test_alarm_where_the_slowest_reads_outlast_the_ring():
    slow = rank([0.01] * 998 + [0.9, 0.9])
    assert slow.report(ring_depth=2, step_s=0.4)["is_too_slow"] is True
    assert slow.report(ring_depth=3, step_s=0.4)["is_too_slow"] is False
    assert Telemetry().report(ring_depth=2, step_s=0.4)["is_too_slow"] is None
    fresh = rank([0.01])
    assert fresh.report(ring_depth=2)["step_s"] is not None, "measured between deliveries"


def test_the_step_is_what_passes_between_deliveries_without_the_waits():
    told = Telemetry()
    assert told.report(ring_depth=1)["step_s"] is None
    for _ in range(4):
        time.sleep(0.02)
        told.delivered(0.015, is_stall=True)
    assert told.report(ring_depth=1)["step_s"] >= 0.004


def test_memory_does_not_grow_with_the_run():
    told = Telemetry()
    for _ in range(3):
        for number in range(20_000):
            told.fetched(1e-6 * number, 1)
        report = told.report(ring_depth=1)
    assert len(json.dumps(report)) < 6000
    assert report["num_samples"] == 60_000


def test_prometheus_reads_the_text_back():
    report = rank([0.001, 0.002, 0.5], hits=(1,)).report(ring_depth=2, step_s=0.1)
    text = prometheus(report, {"run": 'a "quoted"\nrun', "rank": "3"})
    found = {
        (sample.name, sample.labels.get("le")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["wsdata_loader_samples_total", None].value == 3
    assert found["wsdata_loader_stalled_seconds_total", None].value == 0
    assert found["wsdata_loader_too_slow", None].value == 1
    assert found["wsdata_loader_step_seconds", None].value == 0.1
    assert found["wsdata_loader_fetch_seconds_count", None].value == 3
    assert found["wsdata_loader_fetch_seconds_bucket", "+Inf"].value == 3
    bounds = [le for name, le in found if name.endswith("_bucket") and le != "+Inf"]
    counts = [found["wsdata_loader_fetch_seconds_bucket", le].value for le in bounds]
    assert counts == sorted(counts)
    for le, count in zip(bounds, counts, strict=True):
        assert count == sum(seconds <= float(le) for seconds in (0.001, 0.002, 0.5))
    labels = found["wsdata_loader_batches_total", None].labels
    assert labels == {"run": 'a "quoted"\nrun', "rank": "3"}
    assert len(list(text_string_to_metric_families(prometheus(report, {})))) == 14


def test_reports_go_to_the_inbox_each_under_a_name_of_its_own(tmp_path):
    store, one = FolderStore(tmp_path), rank([0.1])
    options = {"run": "r1", "rank": 12, "session": one.session}
    first = export(store, one.report(ring_depth=2), step=100, **options)
    one.fetched(0.2, 10)
    again = export(store, one.report(ring_depth=2), step=200, **options)
    assert first == f"{TELEMETRY_PREFIX}r1/rank-00012-{one.session}-000000000100.json"
    assert [key for key, _ in store.list(TELEMETRY_PREFIX)] == [first, again]
    body = json.loads(store.get(again))
    assert (body["run"], body["rank"], body["step"], body["num_samples"]) == ("r1", 12, 200, 2)
    assert merge([body])["num_samples"] == 2
    assert Telemetry().session != Telemetry().session, "a rank that starts again"
