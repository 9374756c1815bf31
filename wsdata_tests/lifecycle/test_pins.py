"""Pins of versions and patches: what they hold, what an unpin frees, and what stays."""

import shutil

import pytest

from wsdata.errors import CatalogError
from wsdata.lifecycle.fsck import check_store
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.pins import (
    keys_of_pins,
    list_pins,
    pin_forgotten_patches,
    pin_version,
    pinned_keys,
    unpin_version,
)
from wsdata.lifecycle.retention import collect_garbage, verdicts
from wsdata.lifecycle.snapshot import STEP as SNAPSHOT
from wsdata.loader.dataset import PlanDataset
from wsdata.records import Fact
from wsdata_tests.lifecycle.fabricated import clip_id


def _patch(home, name="film", version="v1"):
    return patch_version(home.ledger, home.store, version, [clip_id(name, 0)], from_step=20)


def _collect(home):
    return {
        each.key for each in collect_garbage(home.ledger, home.store, is_applied=True, min_age_s=0)
    }


def _forget_placements(home):
    """Rows name the shards no more: pins alone hold them, and packs."""
    for table in ("placements", "caption_packs"):
        home.commit("v1.0000", {table: home.rows(table).clear()})


def _served(store, version):
    return [
        (batch["sample_ids"], batch["captions"], batch["latents"].sum().item())
        for batch in PlanDataset(version=version, store=store, start_step=19, num_steps=4)
    ]


def test_a_store_of_what_a_patchs_pin_holds_serves_the_patch(home, tmp_path):
    home.run_step(SNAPSHOT, "v1")
    _patch(home)
    _patch(home, "tape", "v1.1")
    keys = keys_of_pins(home.ledger)["v1.2"]
    assert keys == sorted(set(keys))
    other = tmp_path / "other"
    for key in keys:
        (other / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home.store.path_of(key), other / key)
    for version in ("v1.2", "v1.1", "v1"):  # what it lies on is at hand too
        assert _served(str(other), version) == _served(home.store.address, version)


@pytest.mark.parametrize("is_base_pinned", [True, False])
def test_a_patch_is_pinned_when_it_is_made_and_holds_its_base(home, is_base_pinned):
    if is_base_pinned:
        home.run_step(SNAPSHOT, "v1")
    made = _patch(home)
    own = {"training/datasets/v1.1.json", f"training/plans/{made.plan_id}.json"}
    held = keys_of_pins(home.ledger)
    pin_version(home.ledger, home.store, "v1")
    base = set(keys_of_pins(home.ledger)["v1"])
    assert set(held["v1.1"]) == own | base
    shards = set(home.rows("placements")["shard_key"])
    assert shards <= base
    unpin_version(home.ledger, "v1", "no run trains on it")
    _forget_placements(home)
    assert _collect(home) == set(), "the patch holds what its base is made of"
    assert {v.reason for v in verdicts(home.ledger, home.store) if v.verdict == "pinned"} == {
        "pin of v1.1"
    }
    assert _served(home.store.address, "v1.1")
    unpin_version(home.ledger, "v1.1", "nor on this")
    assert shards <= _collect(home)


def test_an_unpinned_patch_frees_its_own_and_its_base_stays(home):
    home.run_step(SNAPSHOT, "v1")
    made = _patch(home)
    before = pinned_keys(home.ledger)
    unpin_version(home.ledger, "v1.1", "the cohort is back")
    after = pinned_keys(home.ledger)
    own = {"training/datasets/v1.1.json", f"training/plans/{made.plan_id}.json"}
    assert before.keys() - after.keys() == own
    assert {before[key] for key in own} == {"pin of v1.1"}
    assert "pin of v1 and of 1 more" in before.values()
    _forget_placements(home)
    assert _collect(home) == set()


def test_pins_are_listed_with_what_they_alone_hold(home):
    home.run_step(SNAPSHOT, "v1")
    _patch(home)
    _patch(home, "tape", "v1.1")
    num = len(keys_of_pins(home.ledger)["v1"])
    told = [(p.version, p.is_pinned, p.num_objects, p.num_own) for p in list_pins(home.ledger)]
    assert told == [
        ("v1", True, num, 0), ("v1.1", True, num + 2, 0), ("v1.2", True, num + 4, 2)
    ]  # fmt: skip
    unpin_version(home.ledger, "v1.2", "a test run")
    last = list_pins(home.ledger)[-1]
    assert (last.is_pinned, last.num_objects, last.reason) == (False, 0, "a test run")
    assert pin_version(home.ledger, home.store, "v1.2")
    assert not pin_version(home.ledger, home.store, "v1.2")
    assert list_pins(home.ledger)[-1].num_own == 2
    assert list_pins(home.ledger)[-1].reason is None


def test_patches_of_older_releases_are_pinned_once_and_unpinned_ones_are_left_alone(home):
    home.run_step(SNAPSHOT, "v1")
    _patch(home)
    stated = home.ledger.present("dataset_version")["v1.1"]
    old = Fact(kind="dataset_version", subject="v1.7", body=stated)
    home.ledger.state([old], step="test")
    unpin_version(home.ledger, "v1.1", "not needed")
    assert pin_forgotten_patches(home.ledger, home.store) == ["v1.7"]
    assert "training/datasets/v1.7.json" in keys_of_pins(home.ledger)["v1.7"]
    seq = home.ledger.seq
    assert pin_forgotten_patches(home.ledger, home.store) == []
    assert home.ledger.seq == seq


def test_a_pinned_object_of_a_patch_that_is_gone_is_told_once(home):
    home.run_step(SNAPSHOT, "v1")
    _patch(home)
    home.store.delete("training/datasets/v1.1.json")
    (told,) = check_store(home.ledger, home.store)["missing"]
    assert told["named_by"] == "patch v1.1"


def test_what_cannot_be_pinned_or_unpinned_says_so(home):
    with pytest.raises(CatalogError, match=r"no dataset version 'v1\.4'"):
        pin_version(home.ledger, home.store, "v1.4")
    with pytest.raises(CatalogError, match="v1 is not pinned: pinned are none"):
        unpin_version(home.ledger, "v1", "why")
    home.commit("v2", {"manifests": home.rows("manifests", "v1")})
    with pytest.raises(CatalogError, match="v2 cannot be pinned yet: it has no dataset_index"):
        pin_version(home.ledger, home.store, "v2")
    pin_version(home.ledger, home.store, "v1")
    with pytest.raises(ValueError, match="unpin v1: say why"):
        unpin_version(home.ledger, "v1", " ")
