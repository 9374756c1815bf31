"""What is said of a version that cannot be opened: from the catalog, and from a store alone."""

import pytest

from wsdata.cli.main import run_command
from wsdata.errors import CatalogError, StoreDenied
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.plans import load_plan
from wsdata.loader.version import open_version
from wsdata.records import Fact
from wsdata.store import FolderStore
from wsdata_tests.lifecycle.fabricated import clip_id


def _told(ask, *args):
    with pytest.raises(CatalogError) as caught:
        ask(*args)
    return str(caught.value)


def _says(told, *parts):
    for part in parts:
        assert part in told


def test_the_catalog_says_whether_a_version_was_published_and_how_it_comes_back(home, capsys):
    patch_version(home.ledger, home.store, "v1", [clip_id("film", 0)], from_step=20)
    seq = home.ledger.seq
    for version, remedy in (("v1", "wsdata run"), ("v1.1", "wsdata dataset patch v1.1 --again")):
        home.store.delete(f"training/datasets/{version}.json")
        told = _told(load_plan, home.ledger, home.store, version)
        is_patch = version == "v1.1"
        _says(
            told, f"{version} was {'made' if is_patch else 'cut'} at 20", "and published",
            f"its pointer training/datasets/{version}.json is gone from {home.store.address}",
            f"published there are {'none' if is_patch else 'v1.1'}", f"run `{remedy}`",
        )  # fmt: skip
        assert not is_patch or f"(commit {seq})" in told
    words = ["plan", "show", "v1.1", "--step", "3", "--home", str(home.path)]
    assert run_command(words) == 1
    assert "was made at" in capsys.readouterr().err


def test_the_catalog_says_what_a_version_is_that_cannot_be_opened_yet_or_any_more(home):
    assert "no dataset version 'v7', nor was there ever: there are v1" in _told(
        load_plan, home.ledger, home.store, "v7"
    )
    home.commit("v2", {"manifests": home.rows("manifests", "v1")})
    told = _told(load_plan, home.ledger, home.store, "v2")
    _says(told, "v2 was cut and is not published yet", "published there are v1: run `wsdata run`")
    for body, words in (
        ({"recipe": {}}, "it was named at 20"),
        ({"withdrawn": True, "reason": "wrong rights"}, "it was withdrawn at 20"),
    ):
        home.ledger.state([Fact(kind="dataset_version", subject="v3", body=body)], step="test")
        told = _told(load_plan, home.ledger, home.store, "v3")
        _says(told, "no dataset version 'v3'", words, f"(commit {home.ledger.seq})", "v1, v2")
    assert "(wrong rights)" in told


def test_a_store_alone_says_what_it_shows(home, tmp_path):
    patch_version(home.ledger, home.store, "v1", [clip_id("film", 0)], from_step=20)
    second = patch_version(home.ledger, home.store, "v1.1", [clip_id("tape", 0)], from_step=30)
    store = home.store
    assert second.parent == "v1.1"
    told = _told(open_version, store, "v4")
    _says(
        told, f"v4 is not published in {store.address}; published are v1, v1.1, v1.2. All that",
        "are older", "`wsdata dataset sync v4 STORE`", "`wsdata dataset list`", "run `wsdata run`",
    )  # fmt: skip
    store.delete("training/datasets/v1.1.json")
    told = _told(open_version, store, "v1.1")
    _says(told, "published are v1, v1.2. It was once, as its patch v1.2 shows: its pointer was")
    assert "`wsdata dataset patch v1.1 --again`" in told
    store.delete("training/datasets/v1.json")
    assert "as its patch v1.2 shows" in _told(open_version, store, "v1")
    store.delete("training/datasets/v1.2.json")
    told = _told(open_version, store, "v1")
    _says(told, "published are none", "Plans lie there without a pointer")
    told = _told(open_version, FolderStore(tmp_path / "empty"), "v1")
    _says(told, "published are none", "Nothing of any version lies there: is it the store")


class Unlistable(FolderStore):
    def list(self, prefix):
        raise StoreDenied(f"this identity may not list {prefix}")


def test_a_store_that_may_not_be_listed_still_says_what_is_not_there(tmp_path):
    told = _told(open_version, Unlistable(tmp_path), "v1")
    _says(told, "v1 is not published in", "cannot be listed: this identity may not list")
