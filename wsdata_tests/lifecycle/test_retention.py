import pytest

from wsdata.errors import CatalogError
from wsdata.lifecycle.fsck import check_store
from wsdata.lifecycle.retention import STEP, collect_garbage, verdicts
from wsdata.lifecycle.snapshot import STEP as SNAPSHOT
from wsdata_tests.lifecycle.fabricated import A, asset_id

GARBAGE = ("derived/frame_packs/t0/old.tar", "tables/00/" + "0" * 64 + ".parquet", "raw/sha256/x")


def _by_verdict(home):
    found = {}
    for each in verdicts(home.ledger, home.store):
        found.setdefault(each.verdict, set()).add(each.key)
    return found


def test_every_object_gets_one_verdict_and_none_of_a_whole_home_is_garbage(home):
    found = _by_verdict(home)
    assert set().union(*found.values()) == set(home.keys())
    assert sum(map(len, found.values())) == len(home.keys())
    assert set(found) <= {"live", "kept", "spare"}


def test_collecting_takes_what_nothing_names_and_that_alone(home):
    before = home.keys()
    for key in GARBAGE:
        home.store.put(key, b"loose")
    listed = collect_garbage(home.ledger, home.store, is_applied=False, min_age_s=0)
    assert {each.key for each in listed} == set(GARBAGE)
    assert set(home.keys()) == {*before, *GARBAGE}
    assert collect_garbage(home.ledger, home.store, is_applied=True, min_age_s=0) == listed
    assert home.keys() == before
    whole = check_store(home.ledger, home.store, vault=home.deployment.vault, is_deep=True)
    assert whole["ok"]


def test_what_was_live_once_is_history_and_what_it_named_is_not(home):
    (old,) = home.ledger.live("frame_packs", A)
    packs = home.rows("frame_packs", A)
    home.commit(A, {"frame_packs": packs.filter(packs["asset_id"] != asset_id("lake"))})
    found = _by_verdict(home)
    assert found["history"] == {old.key}
    loose = set(packs.filter(packs["asset_id"] == asset_id("lake"))["key"])
    assert found["collectable"] == loose
    collect_garbage(home.ledger, home.store, is_applied=True, min_age_s=0)
    assert home.store.size(old.key) is not None


def test_what_a_pin_holds_is_never_garbage(home):
    home.run_step(SNAPSHOT, "v1")
    pinned = set(home.ledger.present("pin")["v1"]["keys"])
    assert _by_verdict(home)["pinned"] == pinned
    shards = set(home.rows("placements")["shard_key"])
    home.commit("v1.0000", {"placements": home.rows("placements").clear()})
    assert shards <= pinned
    assert collect_garbage(home.ledger, home.store, is_applied=True, min_age_s=0) == []
    assert all(home.store.size(key) is not None for key in pinned)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_nothing_is_collected_while_live_rows_cannot_be_read(home, is_damaged):
    (ref,) = home.ledger.live("placements")
    home.store.delete(ref.key)
    if is_damaged:
        home.store.put(ref.key, b"PAR1 is not")
    before = home.keys()
    with pytest.raises(CatalogError, match=r"placements of v1\.0000"):
        collect_garbage(home.ledger, home.store, is_applied=True, min_age_s=0)
    assert home.keys() == before


def test_the_step_lists_what_could_go(home):
    home.store.put(GARBAGE[0], b"loose")
    report = home.run_step(STEP, "all")
    rows = home.rows("retention")
    assert rows.select("key", "size_bytes", "verdict").rows() == [(GARBAGE[0], 5, "collectable")]
    assert "| collectable | 1 | 5 |" in report.display["retention"]["totals"]["raw_value"]


def test_what_is_young_is_left_alone(home):
    home.store.put(GARBAGE[0], b"a running step is about to name this")
    assert collect_garbage(home.ledger, home.store, is_applied=True) == []
    assert home.store.size(GARBAGE[0]) is not None
