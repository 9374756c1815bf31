"""Contamination, costs and the engine mirror: steps that report on what is there."""

import polars as pl
import pytest

from wsdata import tables
from wsdata.observability import contamination, cost, mirror
from wsdata_tests.lifecycle.fabricated import LISTED, A, B, asset_id, clip_id


def test_coverage_counts_the_clips_that_were_compared(home):
    report = home.run_step(contamination.STEP, "v1")
    rows = {row["method"]: row for row in home.rows("contamination", "v1").to_dicts()}
    assert rows["fingerprint"]["num_checked"] == len(LISTED)
    assert rows["fingerprint"]["coverage_share"] == 1.0
    seen = len(LISTED) - 1  # one clip of tape has no vector
    assert (rows["embedding"]["num_checked"], rows["embedding"]["num_unchecked"]) == (seen, 1)
    assert rows["embedding"]["coverage_share"] == pytest.approx(seen / len(LISTED))
    assert report.metrics["purged"] == 1
    (fault,) = contamination.coverage_faults(home.rows("contamination", "v1"))
    assert fault.startswith(f"embedding: 1 of {len(LISTED)} clips")


def test_full_coverage_is_no_fault(home):
    missing = {"clip_id": clip_id("tape", 3), "asset_id": asset_id("tape"), "vector": [1.0, 0.0]}
    home.commit(B, {"clip_embeddings": [*home.rows("clip_embeddings", B).to_dicts(), missing]})
    home.run_step(contamination.STEP, "v1")
    assert contamination.coverage_faults(home.rows("contamination", "v1")) == []


def test_costs_account_for_every_byte_by_what_it_is(home):
    keys = home.keys()
    home.run_step(cost.STEP, "all")
    amounts = {
        row["item"].removeprefix("storage: "): row["amount"]
        for row in home.rows("costs").to_dicts()
    }
    assert sum(amounts.values()) == sum(keys.values())
    prefixes = {
        "raw": "raw/", "frame packs": "derived/frame_packs/", "rows": "tables/",
        "transcodes": "derived/transcodes_", "shards": "training/shards/",
    }  # fmt: skip
    for kind, prefix in prefixes.items():
        assert amounts[kind] == sum(size for key, size in keys.items() if key.startswith(prefix))
        assert amounts[kind] > 0
    for row in home.rows("costs").to_dicts():
        assert row["cost_usd"] == pytest.approx(row["amount"] / 1e12 * 11.0)


def test_another_engine_reads_the_very_rows(home):
    before = home.keys()
    report = home.run_step(mirror.STEP, "all")
    rows = {row["table"]: row for row in home.rows("engine_mirror").to_dicts()}
    assert set(rows) == {ref.table for ref in home.ledger.all_objects()} - {"engine_mirror"}
    for table in rows:
        spec = tables.TABLES[table]
        found = pl.read_delta(str(home.store.root / "mirror" / table)).select(list(spec.columns))
        wanted = home.rows(table)
        assert found.schema == wanted.schema
        order = [name for name, dtype in found.schema.items() if dtype != tables.VECTOR]
        assert found.sort(order).equals(wanted.sort(order)), table
        assert rows[table]["num_rows"] == wanted.height
    assert report.metrics["tables"] == len(rows)
    for ref in home.ledger.live("captions"):
        link = home.store.root / "mirror" / "captions" / f"{ref.sha256}.parquet"
        assert link.samefile(home.store.path_of(ref.key)), "linked, not copied"
    made = {key for key in set(home.keys()) - set(before) if not key.startswith("mirror/")}
    assert made == {ref.key for ref in home.ledger.live("engine_mirror")}


def test_the_mirror_can_name_the_type_of_every_column():
    dtypes = {dtype for spec in tables.TABLES.values() for dtype in spec.columns.values()}
    assert dtypes <= mirror.DELTA_TYPES.keys()


def test_the_mirror_follows_what_is_live(home):
    home.run_step(mirror.STEP, "all")
    (old,) = home.ledger.live("captions", A)
    home.commit(A, {"captions": home.rows("captions", A).head(2)})
    home.run_step(mirror.STEP, "all")
    assert home.store.size(f"mirror/captions/{old.sha256}.parquet") is None
    assert home.store.size(old.key) is not None
    found = mirror.read_mirror(home.store, "captions").sort("clip_id", "variant", "text")
    assert found.equals(home.rows("captions").sort("clip_id", "variant", "text"))
