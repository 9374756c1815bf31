import sqlite3

import pytest

from wsdata import tables
from wsdata.cli.main import run_command
from wsdata.errors import CatalogError
from wsdata.ids import raw_key
from wsdata.lifecycle.fsck import check_store
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.patch_mend import mend_patch, mend_patches, objects_of_patches
from wsdata.lifecycle.snapshot import STEP as SNAPSHOT
from wsdata.records import Fact
from wsdata.store import FolderStore, open_store
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


LOST = ["pointer", "both", "damaged plan"]


class Patched:
    """A home with a patch of a patch, and ways to take its objects away."""

    def __init__(self, home):
        film, tape = clip_id("film", 0), clip_id("tape", 0)
        patch_version(home.ledger, home.store, "v1", [film], from_step=40)
        # Names the film once more, from an earlier step on than v1.1 does.
        self.subjects, self.home = [film, tape], home
        made = patch_version(home.ledger, home.store, "v1.1", self.subjects, from_step=20)
        self.keys = {
            "pointer": "training/datasets/v1.2.json", "plan": f"training/plans/{made.plan_id}.json"
        }  # fmt: skip
        self.good = self.now()

    def now(self):
        return {key: self.home.store.get(key) for key in self.keys.values()}

    def lose(self, lost):
        gone = [key for name, key in self.keys.items() if name in lost or lost == "both"]
        for key in gone:
            _replace(self.home, key, self.good[key][:-1])
            if "damaged" not in lost:
                self.home.store.delete(key)
        return gone

    def is_whole(self):
        return self.now() == self.good and _check(self.home, is_deep=True)["ok"]


@pytest.fixture
def patched(home):
    made = Patched(home)
    assert made.is_whole()
    return made


@pytest.mark.parametrize("lost", LOST)
def test_a_patch_that_lost_its_objects_is_told_and_made_again_by_the_same_patch(
    home, patched, lost, capsys
):
    gone = patched.lose(lost)
    found = _check(home, is_deep=True)
    told = found["damaged" if "damaged" in lost else "missing"]
    assert [(each["key"], each["named_by"]) for each in told] == [
        (key, "patch v1.2") for key in gone
    ]
    named = sorted(each for clip in patched.subjects for each in sample_ids(clip))
    assert all(each["exclude"] == named for each in told)
    assert "`wsdata dataset patch v1.2 --again`" in told[0]["to_do"]
    assert "`wsdata dataset patch v1.1 --exclude FILE --from-step 20`" in told[0]["to_do"]
    assert run_command(["fsck", "--deep", "--home", str(home.path)]) == 1
    assert capsys.readouterr().out.count(f"patch v1.2: {told[0]['to_do']}") == 1
    seq = home.ledger.seq
    for key in gone:
        home.store.delete(key)
    again = patch_version(home.ledger, home.store, "v1.1", told[0]["exclude"], from_step=20)
    assert (again.version, home.ledger.seq) == ("v1.2", seq)
    assert patched.is_whole()


@pytest.mark.parametrize("lost", ["plan", "damaged pointer"])
def test_the_command_that_fsck_names_publishes_a_patch_again(home, patched, lost, capsys):
    patched.lose(lost)
    words = ["dataset", "patch", "v1.2", "--again", "--home", str(home.path)]
    assert run_command(words) == 0
    assert patched.is_whole()
    assert "published again: " in capsys.readouterr().out
    assert run_command(words) == 0
    assert capsys.readouterr().out == "v1.2 is whole\n"


def test_lost_patches_are_published_again_from_the_catalog_whatever_of_them_is_left(home, patched):
    plans = {each.key: home.store.get(each.key) for each in objects_of_patches(home.ledger)}
    for key in plans:
        home.store.delete(key)
    seq = home.ledger.seq
    mended, failed = mend_patches(home.ledger, home.store)
    assert {name: len(keys) for name, keys in mended.items()} == {"v1.1": 2, "v1.2": 2}
    assert not failed
    assert {key: home.store.get(key) for key in plans} == plans
    assert patched.is_whole()
    assert mend_patches(home.ledger, home.store) == ({}, {})
    assert home.ledger.seq == seq


def test_a_patch_that_cannot_be_made_again_is_told_and_nothing_is_written(home, patched):
    patched.lose("both")
    body = home.ledger.present("dataset_version")["v1.2"]
    older = {**body, "patch": {n: v for n, v in body["patch"].items() if n != "again"}}
    home.ledger.state([Fact(kind="dataset_version", subject="v1.2", body=older)], step="test")
    mended, failed = mend_patches(home.ledger, home.store)
    assert not mended
    assert "what the ledger says of v1.2 makes plan" in failed["v1.2"]
    assert not {*home.keys()} & {*patched.keys.values()}
    home.ledger.state([Fact(kind="dataset_version", subject="v1.2", body=body)], step="test")
    base = home.store.get("training/datasets/v1.json")
    home.store.delete("training/datasets/v1.json")
    assert "v1.json is gone" in mend_patches(home.ledger, home.store)[1]["v1.2"]
    home.store.put("training/datasets/v1.json", base)
    assert mend_patches(home.ledger, home.store)[1] == {}
    assert patched.is_whole()


def test_only_patches_are_made_again_so(home, patched):
    with pytest.raises(CatalogError, match=r"v1 is no patch: `wsdata run` puts back"):
        mend_patch(home.ledger, home.store, "v1")
    with pytest.raises(CatalogError, match=r"no dataset version 'v1\.3'"):
        mend_patch(home.ledger, home.store, "v1.3")


class Dying(FolderStore):
    """Ends the process, as it were, instead of its n-th change."""

    def __init__(self, root, num_left):
        super().__init__(root)
        self.num_left = num_left

    def _change(self):
        if not self.num_left:
            raise KeyboardInterrupt
        self.num_left -= 1

    def put(self, key, data):
        self._change()
        return super().put(key, data)

    def delete(self, key):
        self._change()
        super().delete(key)


def test_a_mending_that_ends_anywhere_is_finished_by_the_next(home, patched):
    for num_changes in range(4):
        for key, data in patched.good.items():
            _replace(home, key, data[:-1])
        with pytest.raises(KeyboardInterrupt):
            mend_patch(home.ledger, Dying(home.store.root, num_changes), "v1.2")
        assert mend_patch(home.ledger, home.store, "v1.2")
        assert patched.is_whole()
    assert mend_patch(home.ledger, Dying(home.store.root, 0), "v1.2") == []
