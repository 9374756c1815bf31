"""Damaged files by the hundred through the public steps: each ends with a record, none harms.

The default suite takes some hundreds of files, ``slow`` thousands of others.
"""

from collections import Counter
from fractions import Fraction

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from wsdata.digest import sha256_bytes
from wsdata.ids import raw_key
from wsdata.ingest.fingerprint import STEP as PRINTS
from wsdata.media.sandbox import reachable_level
from wsdata.preprocess.decode_step import STEP as DECODE
from wsdata.recipe import Recipe
from wsdata_tests.media.mutations import KINDS, SUFFIXES, make_bases, mutate
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step

DROP = "crawl.damaged.20261101.001"
STATUSES = {"ok", "salvaged", "empty", "quarantined"}
DEFAULT_SEEDS = 2
SLOW_SEEDS = range(100, 140)
BLOBS = ("transcodes_256p", "audio_tracks", "frame_packs")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return make_bases(tmp_path_factory.mktemp("bases"))


def mutants(bases, seeds, suffixes=SUFFIXES, kinds=tuple(KINDS)):
    return {
        f"{kind}-{seed}.{suffix}": mutate(bases, suffix, kind, seed)
        for suffix in suffixes
        for kind in kinds
        for seed in seeds
    }


class Passed:
    """A drop of files that has gone through both steps that parse bytes from outside."""

    def __init__(self, path, files, *, num_threads=2):
        self.store = new_store(path)
        self.ids = {name: sha256_bytes(data) for name, data in files.items()}
        for name, data in files.items():
            self.store.put(raw_key(self.ids[name]), data)
        raw = [
            {"asset_id": asset_id, "key": raw_key(asset_id), "suffix": ".bin", "num_files": 1,
             "size_bytes": self.store.size(raw_key(asset_id)), "in_vault": False}
            for asset_id in sorted(set(self.ids.values()))
        ]  # fmt: skip
        provenance = [
            {"asset_id": asset_id, "drop": DROP, "path": name}
            for name, asset_id in self.ids.items()
        ]
        inputs = {
            "raw_assets": [put_rows(self.store, "raw_assets", raw, DROP)],
            "provenance": [put_rows(self.store, "provenance", provenance, DROP)],
        }
        self.settings = {
            "num_threads": num_threads, "sandbox_minimum": reachable_level(),
            "facts": {"quarantine": {}},
        }  # fmt: skip
        self.reports = {}
        self.tables = {}
        self._run(PRINTS, inputs)
        probes = self.tables["probes"].to_dicts()
        inputs["probes"] = [put_rows(self.store, "probes", probes, DROP)]
        self._run(DECODE, inputs)

    def _run(self, step, inputs):
        asked = {each.table: inputs[each.table] for each in step.inputs}
        params = step.params_of(Recipe(name="r"))
        if "window_min_s" in params:  # of files this short, a clean prefix is shorter still
            params["window_min_s"] = 0.5
        order = order_of(
            step, DROP, asked, params=params, settings=self.settings, facts={"release": {}}
        )  # fmt: skip
        report = run_step(step, order, self.store)
        for table in step.tables:
            self.tables[table] = rows_made(self.store, report, table)

    def rows_of(self, asset_ids):
        """All rows about some assets, by table, but for what names the worker."""
        return {
            name: rows.filter(pl.col("asset_id").is_in(asset_ids))
            for name, rows in self.tables.items()
        }


def check_records(passed):
    """Each file has its word in both steps; what is not well has a reason."""
    ids = set(passed.ids.values())
    for table, allowed in (("decode_status", STATUSES), ("probes", {"ok", "empty", "failed"})):
        rows = passed.tables[table]
        assert set(rows["asset_id"]) == ids
        assert rows.height == len(ids)
        assert set(rows["status"]) <= allowed
        assert rows.filter((pl.col("status") != "ok") & pl.col("reason").is_null()).is_empty()
    held = passed.tables["decode_status"].filter(pl.col("status") == "quarantined")
    assert set(held["attempts"]) <= {3}
    assert set(held["num_clips"]) <= {0}


def check_spans(passed):
    """H13: start < end <= duration, whatever the file says of itself."""
    status = passed.tables["decode_status"].select("asset_id", "decoded_s")
    clips = passed.tables["clips"].join(status, on="asset_id")
    for row in clips.iter_rows(named=True):
        assert 0 <= row["start_s"] < row["end_s"], row
        assert row["start_pts"] < row["end_pts"], row
        span_s = (row["end_pts"] - row["start_pts"]) * Fraction(row["time_base"])
        assert float(span_s) == pytest.approx(row["duration_s"], abs=1e-3), row
        if row["media_kind"] == "video":
            assert row["duration_s"] <= row["decoded_s"] + 1e-6, row
            assert row["end_s"] <= row["decoded_s"] + 1e-6, row


def check_blobs(passed):
    """What rows name is there, and nobody else's."""
    owners = Counter()
    for table in BLOBS:
        for row in passed.tables[table].filter(pl.col("key").is_not_null()).iter_rows(named=True):
            assert sha256_bytes(passed.store.get(row["key"])) == row["sha256"], row
            owners[row["key"]] += 1
    assert set(owners.values()) <= {1}


@pytest.fixture(scope="module")
def passed(bases, tmp_path_factory):
    files = mutants(bases, range(DEFAULT_SEEDS))
    files |= {f"whole.{suffix}": data for suffix, data in bases.items()}
    return Passed(tmp_path_factory.mktemp("damaged"), files)


def test_every_damaged_file_ends_with_a_record(passed):
    assert len(passed.ids) > DEFAULT_SEEDS * len(SUFFIXES) * len(KINDS)
    check_records(passed)
    statuses = Counter(passed.tables["decode_status"]["status"])
    assert all(statuses[each] > 10 for each in ("ok", "salvaged", "quarantined")), statuses


def test_spans_of_damaged_files_are_spans(passed):
    check_spans(passed)


def test_blobs_of_damaged_files_are_their_own(passed):
    check_blobs(passed)


def test_whole_files_among_them_come_out_as_if_alone(passed, bases, tmp_path):
    alone = Passed(tmp_path, {f"whole.{suffix}": data for suffix, data in bases.items()})
    assert set(alone.tables["decode_status"]["status"]) == {"ok"}
    among = passed.rows_of(list(alone.ids.values()))
    for table, rows in alone.tables.items():
        assert_frame_equal(among[table], rows)


def test_the_same_damage_gets_the_same_verdict(passed, bases, tmp_path):
    again = Passed(tmp_path, mutants(bases, [0], ("mp4", "gif", "avif")), num_threads=1)
    among = passed.rows_of(list(again.ids.values()))
    for table, rows in again.tables.items():
        assert_frame_equal(among[table], rows)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_thousands_of_damaged_files(bases, tmp_path, suffix):
    passed = Passed(tmp_path, mutants(bases, SLOW_SEEDS, (suffix,)))
    check_records(passed)
    check_spans(passed)
    check_blobs(passed)
