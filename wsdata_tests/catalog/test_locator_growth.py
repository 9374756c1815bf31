"""The locator while drops come and go, against a dict; and when what it keeps is lost."""

import random
import threading

import polars as pl
import pytest

from wsdata import tables
from wsdata.catalog import coverage, segments
from wsdata.catalog.coverage import extend_locator
from wsdata.catalog.locator import drops_of_asset, rows_of_asset
from wsdata.catalog.objects import WHOLE_ROWS, _scan, read_rows, starts_with
from wsdata.digest import sha256_bytes
from wsdata.errors import CatalogError, IntegrityError, ObjectMissing
from wsdata.lifecycle.retention import collect_garbage
from wsdata.store import open_store
from wsdata_tests.cluster.s3_servers import running_moto
from wsdata_tests.lifecycle.fabricated import Home
from wsdata_tests.orders_support import put_rows

NUM_DROPS = 40


def _make_segments_small(monkeypatch) -> None:
    """Many segments, parts and buckets of few rows."""
    monkeypatch.setattr(coverage, "FOLD_OBJECTS", 2)
    monkeypatch.setattr(coverage, "FOLD_ROWS", 20)
    monkeypatch.setattr(coverage, "_FAN_IN", 2)
    monkeypatch.setattr(segments, "ROWS_PER_BUCKET", 4)
    monkeypatch.setattr(segments, "ROWS_PER_PART", 32)
    monkeypatch.setattr(coverage, "ROWS_PER_PART", 32)


def _drop(number: int) -> str:
    return f"licensed.acme.20261101.{number:03d}"


def _land(home: Home, drop: str, ids: set[str]) -> None:
    rows = [{"asset_id": each, "in_vault": False, "num_files": 1} for each in ids]
    home.commit(drop, {"raw_assets": rows})


class _Oracle:
    """What each commit left in each drop."""

    def __init__(self, states: list[dict[str, set[str]]] | None = None) -> None:
        self.states = list(states or [{}])

    def land(self, drop: str, ids: set[str]) -> None:
        self.states.append({**self.states[-1], drop: ids})

    def drops(self, asset: str, as_of: int = -1) -> list[str]:
        return sorted(drop for drop, ids in self.states[as_of].items() if asset in ids)


@pytest.fixture(scope="module")
def grown_once(tmp_path_factory):
    """Drops that share assets, some landed anew with others, asked now and then on the way."""
    draw = random.Random(5)  # noqa: S311
    home, oracle = Home(tmp_path_factory.mktemp("grown") / "home"), _Oracle()
    pool = [sha256_bytes(str(n).encode()) for n in range(150)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        _make_segments_small(monkeypatch)
        for number in range(NUM_DROPS):
            drop, ids = _drop(number if number % 7 else number // 2), set(draw.sample(pool, 6))
            _land(home, drop, ids)
            oracle.land(drop, ids)
            if number % 5 == 0:
                asset = draw.choice(pool)
                assert drops_of_asset(home.ledger, home.store, asset) == oracle.drops(asset)
    return home, oracle, pool


@pytest.fixture
def grown(grown_once, tmp_path, monkeypatch):
    _make_segments_small(monkeypatch)
    home, oracle, pool = grown_once
    return home.copy_to(tmp_path / "home"), _Oracle(oracle.states), pool


def _assert_right(home: Home, oracle: _Oracle, pool: list[str]) -> None:
    for number, asset in enumerate(pool[::11]):
        prefix = asset[: (8, 24, 64)[number % 3]]
        assert drops_of_asset(home.ledger, home.store, prefix) == oracle.drops(asset)


def test_drops_are_found_whatever_was_merged_and_replaced(grown):
    home, oracle, pool = grown
    _assert_right(home, oracle, pool)
    held = coverage.segments(home.ledger)
    assert len(held) <= 8, "about one segment of each size"
    assert max(segment.num_parts for segment in held.values()) >= 4
    assert set(home.store.list("locator/")) == {
        (key, home.store.size(key)) for segment in held.values() for key in segment.keys
    }
    assert drops_of_asset(home.ledger, home.store, "0" * 24) == []


def test_reads_as_of_a_commit_find_the_drops_of_then(grown):
    home, oracle, pool = grown
    for seq in range(0, NUM_DROPS + 1, 6):
        for asset in pool[::20]:
            found = drops_of_asset(home.ledger, home.store, asset, as_of=seq)
            assert found == oracle.drops(asset, seq)


@pytest.mark.parametrize("what", ["damaged", "cut", "no bytes", "no rows"])
def test_what_is_lost_or_damaged_is_made_anew(grown, what):
    home, oracle, pool = grown
    drops_of_asset(home.ledger, home.store, pool[0])
    for segment in coverage.segments(home.ledger).values():
        for key in segment.keys[:: 1 if what == "no bytes" else 2]:
            data = home.store.get(key)
            home.store.delete(key)
            if what == "damaged":
                home.store.put(key, data[:-8] + bytes(8))
            elif what == "cut":
                home.store.put(key, bytes(len(data)))
    if what == "no rows":
        with home.ledger.database.engine.begin() as connection:
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql("DELETE FROM locator_objects")
            connection.exec_driver_sql("DELETE FROM locator_segments")
    _assert_right(home, oracle, pool)
    assert home.ledger.verify_chain() is None
    extend_locator(home.ledger, home.store, is_forced=True)
    assert coverage.segments(home.ledger)
    _assert_right(home, oracle, pool)


def test_two_may_cover_at_once(grown):
    home, oracle, pool = grown
    for number in range(NUM_DROPS, NUM_DROPS + 8):
        _land(home, _drop(number), set(pool[number : number + 3]))
        oracle.land(_drop(number), set(pool[number : number + 3]))
    threads = [
        threading.Thread(target=extend_locator, args=(Home(home.path).ledger, home.store))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _assert_right(home, oracle, pool)


def test_the_collector_leaves_segments(grown):
    home, oracle, pool = grown
    drops_of_asset(home.ledger, home.store, pool[0])
    collect_garbage(home.ledger, home.store, is_applied=True, min_age_s=0)
    assert list(home.store.list("locator/"))
    _assert_right(home, oracle, pool)


def test_few_drops_need_no_segment(home):
    drops_of_asset(home.ledger, home.store, "0" * 8)
    assert list(home.store.list("locator/")) == []
    assert extend_locator(home.ledger, home.store, is_forced=True) == 2
    assert list(home.store.list("locator/"))


@pytest.mark.parametrize("prefix", ["", "abcdefg0", "0" * 7, "0" * 65, "ABCDEF01"])
def test_what_is_no_prefix_of_an_asset_is_refused(home, prefix):
    with pytest.raises(CatalogError, match="at least 8 hex digits"):
        drops_of_asset(home.ledger, home.store, prefix)


def _many_clips() -> list[str]:
    return [f"{sha256_bytes(str(n).encode())[:24]}-0-000000000-000005000" for n in range(12_000)]


def test_of_large_objects_the_same_rows_are_read(tmp_path):
    home = Home(tmp_path / "home")
    clips = _many_clips()
    rows = [
        {"clip_id": clip, "variant": variant, "captioner_version": "c", "text": clip[:4]}
        for clip in clips
        for variant in ("dense", "short")
    ]
    home.commit(_drop(1), {"captions": rows})
    (ref,) = home.ledger.live("captions")
    assert ref.num_rows > WHOLE_ROWS
    whole = home.rows("captions")
    for prefix in (clips[7], clips[7][:24], clips[9][:2], "zz", min(clips), max(clips)):
        found = rows_of_asset(home.ledger, home.store, "captions", [_drop(1)], prefix)
        assert found.equals(whole.filter(pl.col("clip_id").str.starts_with(prefix)))
    data = home.store.get(ref.key)
    home.store.delete(ref.key)
    with pytest.raises(ObjectMissing):
        read_rows(home.store, [(ref, starts_with("clip_id", clips[0]))])
    home.store.put(ref.key, data[:100] + bytes(len(data) - 200) + data[-100:])
    with pytest.raises(IntegrityError, match="captions of"):
        read_rows(home.store, [(ref, starts_with("clip_id", clips[0]))])


def test_columns_that_a_large_object_lacks_are_null(tmp_path):
    home = Home(tmp_path / "home")
    frame = tables.rows_of("captions", [{"clip_id": c, "variant": "v"} for c in _many_clips()])
    older = tables.to_parquet(frame.drop("num_words").with_columns(gone=pl.lit(1)))
    home.commit(_drop(1), {"captions": frame})
    (ref,) = home.ledger.live("captions")
    home.store.delete(ref.key)
    home.store.put(ref.key, older)
    clip = _many_clips()[5]
    (found,) = read_rows(home.store, [(ref, starts_with("clip_id", clip))])
    assert found.equals(frame.filter(pl.col("clip_id") == clip))


def test_a_bucket_is_read_by_ranges_as_a_folder_is(tmp_path, monkeypatch):
    with running_moto() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        server.client().create_bucket(Bucket="rows")
        store = open_store(f"s3://rows/some/prefix?endpoint={server.endpoint}")
        clips = _many_clips()
        frame = tables.rows_of("captions", [{"clip_id": c, "variant": "v"} for c in clips])
        ref = put_rows(store, "captions", frame)
        plan = _scan(store, ref).filter(starts_with("clip_id", clips[3][:24]))
        expected = frame.filter(pl.col("clip_id") == clips[3])
        assert plan.collect().equals(expected)
        (found,) = read_rows(store, [(ref, starts_with("clip_id", clips[3]))])
        assert found.equals(expected)
        asset = sha256_bytes(b"1")
        segment = segments.plan_segment(["a"], 1)
        segments.write_segment(store, segment, segments.entries_of(pl.Series([asset]), 4))
        assert segments.find_ordinals(store, segment, asset[:8]) == [4]
        store.delete(ref.key)
        with pytest.raises(ObjectMissing):
            read_rows(store, [(ref, starts_with("clip_id", clips[3]))])
