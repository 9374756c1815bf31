import sqlite3

import pytest

from wsdata import tables
from wsdata.cli.main import run_command
from wsdata.ids import raw_key
from wsdata.lifecycle.fsck import check_store
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.snapshot import STEP as SNAPSHOT
from wsdata.store import open_store
from wsdata_tests.lifecycle.fabricated import A, B, asset_id, clip_id, sample_ids


def _check(home, *, is_deep=False):
    return check_store(home.ledger, home.store, vault=home.deployment.vault, is_deep=is_deep)


def _replace(home, key, data=b"other bytes"):
    home.store.delete(key)
    home.store.put(key, data)


def _one(home, table, column="key"):
    return home.rows(table)[column].drop_nulls().sort()[0]


def test_a_whole_home_has_no_fault(home):
    home.run_step(SNAPSHOT, "v1")
    found = _check(home, is_deep=True)
    assert found["ok"]
    assert not any(found[name] for name in ("missing", "damaged", "orphans", "broken_commit"))
    assert found["objects"] == len(home.ledger.all_objects())
    named = {
        *home.rows("raw_assets")["key"].drop_nulls(), *home.rows("transcodes_256p")["key"],
        *home.rows("frame_packs")["key"], *home.rows("placements")["shard_key"],
        *home.rows("caption_packs")["key"],
        *home.rows("step_plans").select(tables.TABLES["step_plans"].blobs).row(0),
        *home.rows("training_index_parts")["key"],
    }  # fmt: skip
    assert found["blobs"] == len(named)


@pytest.mark.parametrize("table", ["clips", "placements"])
def test_a_missing_object_of_rows_is_told_with_its_partition(home, table):
    ref = home.ledger.live(table)[0]
    home.store.delete(ref.key)
    found = _check(home)
    assert not found["ok"]
    assert {"key": ref.key, "named_by": f"{table} of {ref.partition}"} in found["missing"]


@pytest.mark.parametrize("table", ["clips", "placements"])
def test_a_damaged_object_of_rows_is_told(home, table):
    ref = home.ledger.live(table)[0]
    _replace(home, ref.key)
    found = _check(home)
    assert not found["ok"]
    assert [each["key"] for each in found["damaged"]] == [ref.key]
    assert "bytes have digest" in found["damaged"][0]["fault"]


@pytest.mark.parametrize(
    ("table", "column"),
    [("raw_assets", "key"), ("frame_packs", "key"), ("placements", "shard_key"),
     ("step_plans", "pointer_key"), ("training_index_parts", "key")],
)  # fmt: skip
def test_a_missing_blob_is_told_once(home, table, column):
    key = _one(home, table, column)
    home.store.delete(key)
    found = _check(home)
    assert not found["ok"]
    assert [each["key"] for each in found["missing"]] == [key]


@pytest.mark.parametrize(
    ("table", "column"),
    [("raw_assets", "key"), ("transcodes_256p", "key"), ("placements", "shard_key"),
     ("caption_packs", "key"), ("training_index_parts", "key")],
)  # fmt: skip
def test_a_damaged_blob_is_seen_by_a_deep_check_alone(home, table, column):
    key = _one(home, table, column)
    _replace(home, key)
    assert _check(home)["ok"]
    found = _check(home, is_deep=True)
    assert not found["ok"]
    assert [each["key"] for each in found["damaged"]] == [key]


def test_a_vault_member_that_is_gone_is_told(home):
    open_store(home.deployment.vault).delete(raw_key(asset_id("sealed")))
    found = _check(home)
    assert not found["ok"]
    assert found["missing"] == [
        {"key": f"vault:{asset_id('sealed')}", "named_by": f"raw_assets of {A}"}
    ]


def test_a_pinned_object_that_is_gone_is_told_once(home):
    home.run_step(SNAPSHOT, "v1")
    (ref,) = home.ledger.live("manifests")
    for key in (ref.key, "training/datasets/v1.json"):
        home.store.delete(key)
    keys = [each["key"] for each in _check(home)["missing"]]
    assert sorted(keys) == sorted([ref.key, "training/datasets/v1.json"])


def test_an_orphan_is_listed_and_is_no_fault(home):
    home.store.put("derived/frame_packs/t0/old.tar", b"loose")
    found = _check(home)
    assert found["ok"]
    assert found["orphans"] == ["derived/frame_packs/t0/old.tar"]


@pytest.mark.parametrize("column", ["body", "step", "partition"])
def test_a_commit_that_was_rewritten_breaks_the_chain(home, column):
    home.ledger.state([], step="nothing")
    with sqlite3.connect(home.deployment.catalog) as connection:
        (old,) = connection.execute("SELECT body FROM commits WHERE seq = 3").fetchone()
        new = old.replace('"facts":[]', '"facts":[["pin","v1","0"]]') if column == "body" else "x"
        connection.execute(f"UPDATE commits SET {column} = ? WHERE seq = 3", (new,))  # noqa: S608
    found = _check(home)
    assert not found["ok"]
    assert found["broken_commit"] == 3
    assert B not in str(found["missing"])


@pytest.mark.parametrize("lost", ["pointer", "plan", "both", "damaged pointer", "damaged plan"])
def test_a_patch_that_lost_its_objects_is_told_and_made_again_by_the_same_patch(home, lost, capsys):
    first = patch_version(home.ledger, home.store, "v1", [clip_id("film", 0)], from_step=40)
    second = patch_version(home.ledger, home.store, "v1.1", [clip_id("tape", 0)], from_step=20)
    assert _check(home, is_deep=True)["ok"]
    keys = {
        "pointer": "training/datasets/v1.2.json", "plan": f"training/plans/{second.plan_id}.json"
    }  # fmt: skip
    good = {key: home.store.get(key) for key in keys.values()}
    gone = [key for name, key in keys.items() if name in lost or lost == "both"]
    for key in gone:
        _replace(home, key, good[key][:-1])
        if "damaged" not in lost:
            home.store.delete(key)
    found = _check(home, is_deep=True)
    told = found["damaged" if "damaged" in lost else "missing"]
    assert [(each["key"], each["named_by"]) for each in told] == [
        (key, "patch v1.2") for key in gone
    ]
    assert all(each["exclude"] == sample_ids(clip_id("tape", 0)) for each in told)
    assert "wsdata dataset patch v1.1 --exclude FILE --from-step 20`" in told[0]["to_do"]
    assert run_command(["fsck", "--deep", "--home", str(home.path)]) == 1
    assert f"patch v1.2: {told[0]['to_do']}" in capsys.readouterr().out
    seq = home.ledger.seq
    for key in gone:
        home.store.delete(key)
    again = patch_version(home.ledger, home.store, "v1.1", told[0]["exclude"], from_step=20)
    assert (again.version, home.ledger.seq) == ("v1.2", seq)
    assert {key: home.store.get(key) for key in keys.values()} == good
    assert _check(home, is_deep=True)["ok"]
    assert first.plan_id != second.plan_id
