"""Worker metrics and the catalog's numbers, beside slow counts of the same."""

import contextlib
import logging
import random
import threading
import urllib.error
import urllib.request
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from wsdata.errors import ObjectMissing, StoreError
from wsdata.ids import parse_drop_key
from wsdata.lifecycle.quarantine import list_quarantined
from wsdata.observability import metrics
from wsdata.observability.killrates import STEP as KILL_RATES
from wsdata.observability.metrics import CatalogMetrics
from wsdata.observability.scrape import TEXT, ScrapeServer
from wsdata.observability.worker_metrics import LoggedProgress, serving
from wsdata.records import Fact
from wsdata.s3_client import S3Bucket, parse_s3_address
from wsdata.s3_store import S3Store
from wsdata.store import FolderStore
from wsdata_tests.lifecycle.fabricated import A, B
from wsdata_tests.lifecycle.trained import train
from wsdata_tests.observability.scraped import samples
from wsdata_tests.ports import free_port


@contextlib.contextmanager
def worker(pool="nvdec"):
    """A worker under watch, and a function that scrapes it."""
    port = free_port()
    with serving("preprocess", "decode", port, pool, address="127.0.0.1") as watch:
        yield watch, lambda: scrape(port)


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return samples(text_string_to_metric_families(answer.read().decode()))


STEP = ("nvdec", "preprocess", "decode")  # labels pool, stage, step


def test_units_are_counted_over_phases_and_jumps():
    with worker() as (watch, scraped):
        for done, total in ((1, 3), (3, 3), (0, 2), (2, 2), (2, 2), (0, 4), (1, 4)):
            watch(done, total, "x")
        found = scraped()
    assert found["wsdata_units_done_total", *STEP] == 3 + 2 + 1
    assert found["wsdata_units_total", *STEP] == 4
    assert found["wsdata_units_left", *STEP] == 3
    assert found["wsdata_unit_seconds_count", *STEP] == 4  # reports that brought units


def test_units_told_from_many_threads_are_all_counted():
    with worker() as (watch, scraped):
        for start in (0, 100):
            threads = [threading.Thread(target=watch, args=(start + 100, 200, "")) for _ in "1234"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert scraped()["wsdata_units_done_total", *STEP] == 200


def test_store_traffic_is_counted_as_it_ends(tmp_path):
    inner = FolderStore(tmp_path / "store")
    (tmp_path / "file").write_bytes(b"12345")
    with worker() as (watch, scraped):
        store = watch.metered(inner)
        assert isinstance(store, FolderStore)  # steps read its files in place
        assert store.put("a/1", b"123")
        assert not store.put("a/1", b"other")
        assert store.put_file(key="a/2", path=tmp_path / "file")
        assert store.get("a/1") == b"123"
        assert store.get_range("a/2", 1, 2) == b"23"
        assert store.fetch("a/2", tmp_path / "copy") == 5
        assert store.size("a/none") is None
        with pytest.raises(ObjectMissing):
            store.get("a/none")
        with pytest.raises(ValueError, match="object key"):
            store.get("")
        assert [key for key, _ in store.list("a/")] == ["a/1", "a/2"]
        found = scraped()
    assert found["wsdata_store_bytes_total", "written", "nvdec"] == 3 + 5
    assert found["wsdata_store_bytes_total", "read", "nvdec"] == 3 + 2 + 5
    counts = {k[1:3]: n for k, n in found.items() if k[0].endswith("requests_total") and n}
    assert counts == {
        ("put", "ok"): 1, ("put", "taken"): 1, ("put_file", "ok"): 1, ("get", "ok"): 1,
        ("get_range", "ok"): 1, ("fetch", "ok"): 1, ("size", "missing"): 1, ("get", "missing"): 1,
        ("get", "error"): 1, ("list", "ok"): 1,
    }  # fmt: skip
    assert found["wsdata_store_request_seconds_count", "get", "nvdec"] == 3
    assert inner.get("a/1") == b"123"  # and the store itself goes on uncounted


def test_tries_of_a_store_that_answers_slow_down_are_told(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    busy = b"<Error><Code>SlowDown</Code></Error>"
    server = ScrapeServer(
        0, {"/bucket/k": lambda: (503, "application/xml", busy)}, address="127.0.0.1"
    )
    address = parse_s3_address(f"s3://bucket?endpoint=http://127.0.0.1:{server.port}")
    try:
        with worker() as (watch, scraped):
            with pytest.raises(StoreError):
                watch.metered(S3Store(S3Bucket(address, max_tries=3))).get("k")
            found = scraped()
    finally:
        server.close()
    assert found["wsdata_store_retries_total", "nvdec"] == 2
    assert found["wsdata_store_requests_total", "get", "error", "nvdec"] == 1


def test_two_stores_of_one_worker_give_one_series(tmp_path):
    with worker() as (watch, scraped):
        for name in ("a", "b"):
            watch.metered(FolderStore(tmp_path / name)).put("k", b"1")
        assert scraped()["wsdata_store_bytes_total", "written", "nvdec"] == 2


def test_a_worker_tells_its_memory_and_its_childrens_cpu():
    with worker() as (_, scraped):
        found = scraped()
    assert found["wsdata_worker_process_resident_memory_bytes",] > 1e6
    assert found["wsdata_worker_children_cpu_seconds_total",] >= 0


@pytest.mark.parametrize("port", ["nonsense", "0", -1, 2**16, "7.5"])
def test_a_bad_port_is_a_warning_and_the_step_goes_on(port, caplog, tmp_path):
    with serving("s", "t", port, "cpu", address="127.0.0.1") as watch:
        watch(1, 2, "x")
        assert watch.metered(FolderStore(tmp_path)).put("k", b"1")
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert str(port) in warning.getMessage()


def test_a_taken_port_is_a_warning_and_the_step_goes_on(caplog):
    taken = ScrapeServer(0, {}, address="127.0.0.1")
    try:
        with serving("s", "t", taken.port, "cpu", address="127.0.0.1") as watch:
            watch(1, 2, "x")
    finally:
        taken.close()
    assert "no metrics" in caplog.text


@pytest.mark.parametrize("port", [None, ""])
def test_without_a_port_nothing_is_served(port, caplog):
    with caplog.at_level(logging.INFO), serving("s", "t", port) as watch:
        assert isinstance(watch, LoggedProgress)
        watch(1, 2, "x")
    assert "1/2 x" in caplog.text  # what the terminal and the UI read


def test_the_port_is_free_again_after_a_step_that_failed():
    port = free_port()
    for _ in range(2):
        with (
            pytest.raises(RuntimeError, match="the step"),
            serving("s", "t", port, "cpu", address="127.0.0.1"),
        ):
            raise RuntimeError(f"the step, after {len(scrape(port))} series")


def test_a_scrape_of_an_unknown_path_says_which_there_are():
    server = ScrapeServer(0, {"/healthz": lambda: (200, TEXT, b"ok")}, address="127.0.0.1")
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/x")
        assert caught.value.code == 404
        assert b"/healthz" in caught.value.read()
    finally:
        server.close()


# the catalog ---------------------------------------------------------------------------------


def collected(catalog):
    return samples(family for collect in catalog.collectors().values() for family in collect())


def slow_counts(home):
    """The same numbers by reading everything."""
    commits = home.ledger.commits()
    per_step = Counter(tuple(c["step"].split("/")) for c in commits)
    expected = {("wsdata_commits_total", *key): n for key, n in per_step.items()}
    expected["wsdata_ledger_seq",] = commits[-1]["seq"]
    for table in {ref.table for ref in home.ledger.all_objects()}:
        mine = [ref for ref in home.ledger.all_objects() if ref.table == table]
        expected["wsdata_catalog_rows", table] = sum(ref.num_rows for ref in mine)
        expected["wsdata_catalog_objects", table] = len(mine)
    held = Counter(parse_drop_key(q["drop"]).source for q in list_quarantined(home.ledger))
    expected |= {("wsdata_quarantined_assets", source): n for source, n in held.items()}
    for source, count in Counter(home.rows("clips")["source"]).items():
        expected["wsdata_clips", source] = count
    for source, count in Counter(home.rows("provenance")["source"]).items():
        expected["wsdata_assets", source] = count
    return expected


def test_the_catalogs_numbers_are_what_a_slow_count_finds(home):
    for drop in (A, B):
        home.run_step(KILL_RATES, drop)
    found = collected(CatalogMetrics(home.ledger, home.store))
    for key, value in slow_counts(home).items():
        assert found[key] == value, key
    rates = home.rows("kill_rates").to_dicts()
    for row in rates:
        series = (row["filter"], row["source"])
        same = [r for r in rates if (r["filter"], r["source"]) == series]
        assert found["wsdata_filter_seen_clips", *series] == sum(r["num_in"] for r in same)
        assert found["wsdata_filter_stopped_clips", *series] == sum(r["num_stopped"] for r in same)
        assert found["wsdata_filter_failed_clips", *series] == sum(r["num_errors"] for r in same)
    clips = home.rows("clips").to_dicts()
    for source in {clip["source"] for clip in clips}:
        seconds = sum(clip["duration_s"] for clip in clips if clip["source"] == source)
        assert found["wsdata_clip_seconds", source] == pytest.approx(seconds)
    assert found["wsdata_dataset_samples", "v1"] == home.rows("manifests", "v1").height
    assert found["wsdata_drops", "gated"] == 2
    assert found["wsdata_kill_rates_unread_objects",] == 0


def test_an_empty_ledger_has_numbers_too(tmp_path):
    from wsdata.catalog.ledger import Ledger

    found = collected(CatalogMetrics(Ledger(str(tmp_path / "c.db")), FolderStore(tmp_path)))
    assert found["wsdata_ledger_seq",] == 0
    assert found["wsdata_drops", "landed"] == 0


def test_what_came_between_collections_is_added_once(home):
    catalog = CatalogMetrics(home.ledger, home.store)
    before = collected(catalog)
    assert collected(catalog) == before
    home.run_step(KILL_RATES, A)
    home.run_step(KILL_RATES, B)
    after, fresh = collected(catalog), collected(CatalogMetrics(home.ledger, home.store))
    assert after == fresh != before
    assert after["wsdata_commits_total", "observability", "kill_rates"] == 2
    assert after["wsdata_rows_committed_total", "kill_rates"] == home.rows("kill_rates").height


def test_quarantine_is_counted_as_the_newest_statements_say(home):
    rng = random.Random(5)  # noqa: S311
    subjects = [f"{n:064x}" for n in range(30)]
    for turn in range(8):
        facts = []
        for subject in rng.sample(subjects, 10):
            body = {"drop": rng.choice((A, B)), "reason": 'said "withdrawn":true', "attempts": turn}
            if rng.random() < 0.5:
                body |= {"withdrawn": True}
            facts.append(Fact(kind="quarantine", subject=subject, body=body))
        drop = rng.choice((A, B))
        rows = {"decode_status": [{"asset_id": f"{turn}", "status": "ok"}]}
        home.commit(drop, rows, tuple(facts), version=f"t{turn}")
    found = collected(CatalogMetrics(home.ledger, home.store))
    held = sum(value for key, value in found.items() if key[0] == "wsdata_quarantined_assets")
    assert held == len(list_quarantined(home.ledger)) > 1
    assert found["wsdata_facts", "quarantine"] == held


def test_a_lost_object_hides_no_other(home, caplog):
    home.run_step(KILL_RATES, A)
    lost = home.run_step(KILL_RATES, B).objects["kill_rates"]
    kept = home.store.get(lost.key)
    home.store.delete(lost.key)
    catalog = CatalogMetrics(home.ledger, home.store)
    found = collected(catalog)
    assert found["wsdata_kill_rates_unread_objects",] == 1
    assert found["wsdata_filter_seen_clips", "safety", "acme"] == 5
    assert ("wsdata_filter_seen_clips", "safety", "web") not in found
    assert B in caplog.text
    home.store.put(lost.key, kept)
    assert collected(catalog)["wsdata_filter_seen_clips", "safety", "web"] == 12


class CountingStore(FolderStore):
    """Remembers what was read."""

    reads: list[str]

    def get(self, key):
        self.reads.append(key)
        return super().get(key)


def test_one_collection_reads_few_objects_and_each_object_once(home, tmp_path):
    num_drops = 12
    row = {"filter": "safety", "source": "web", "num_stopped": 1, "num_errors": 0,
           "duration_s": 1.5}  # fmt: skip
    for number in range(num_drops):
        drop = f"crawl.web.20261103.{number:03d}"
        home.commit(drop, {"kill_rates": [{**row, "num_in": number}]})
    store = CountingStore(home.store.root)
    store.reads = []
    catalog = CatalogMetrics(home.ledger, store, max_reads=5)
    unread = [collected(catalog)["wsdata_kill_rates_unread_objects",] for _ in range(4)]
    assert unread == [7, 2, 0, 0]
    assert len(store.reads) == len(set(store.reads)) == num_drops
    found = collected(catalog)
    assert found["wsdata_filter_seen_clips", "safety", "web"] == sum(range(num_drops))
    assert found["wsdata_clip_seconds", "web"] == 1.5 * num_drops
    again = {**row, "num_in": 100}
    home.commit("crawl.web.20261103.000", {"kill_rates": [again]}, version="2")
    found = collected(catalog)
    assert found["wsdata_filter_seen_clips", "safety", "web"] == sum(range(num_drops)) + 100
    assert len(store.reads) == num_drops + 1


def test_very_many_sources_give_few_series_and_lose_no_clip(home, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_SOURCES", 3)
    total = home.rows("raw_assets").height
    for number in range(6):
        drop = f"crawl.s{number}.20261103.001"
        rows = [{"asset_id": f"{number}-{n}"} for n in range(number + 10)]
        rate = {"filter": "safety", "source": f"s{number}", "num_in": 1, "num_stopped": 0,
                "num_errors": 0, "duration_s": float(number + 1)}  # fmt: skip
        home.commit(drop, {"raw_assets": rows})
        home.commit(drop, {"kill_rates": [rate]})
        total += len(rows)
    found = collected(CatalogMetrics(home.ledger, home.store))
    assets = {key[1]: value for key, value in found.items() if key[0] == "wsdata_assets"}
    assert set(assets) == {"s5", "s4", "s3", metrics.OTHER}
    assert sum(assets.values()) == total
    seen = {k[2]: v for k, v in found.items() if k[0] == "wsdata_filter_seen_clips"}
    assert seen == {"s5": 1, "s4": 1, "s3": 1, metrics.OTHER: 3}


def test_a_training_run_is_told_by_what_it_was_served_and_how_it_kept_up(home):
    train(home, (0, 20), (10, 47), run="fast")
    train(home, (0, 9), (30, 60), run="slow", fetch_s=5.0)
    told = collected(CatalogMetrics(home.ledger, home.store))
    assert told["wsdata_run_steps", "fast", "kept"] == 47
    assert told["wsdata_run_steps", "fast", "replayed"] == 10
    assert told["wsdata_run_steps", "slow", "unknown"] == 21
    assert told["wsdata_run_end_step", "slow"] == 60
    assert told["wsdata_run_ranks", "fast", "too_slow"] == 0
    assert told["wsdata_run_ranks", "slow", "too_slow"] == 1
    assert told["wsdata_run_fetch_seconds", "0.999", "slow"] == pytest.approx(5.0, rel=0.1)
    assert told["wsdata_run_cache_hit_share", "fast"] == 28 / 37  # of its last attempt
    assert told["wsdata_run_order_off", "fast"] == 0
