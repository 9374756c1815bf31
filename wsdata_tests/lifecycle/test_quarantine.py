import pytest

from wsdata.digest import short_digest
from wsdata.errors import CatalogError
from wsdata.lifecycle.quarantine import Choice, list_quarantined, release, release_all
from wsdata.records import Fact
from wsdata_tests.lifecycle.fabricated import B, asset_id

BROKEN = asset_id("broken")


def test_a_release_is_waiting_until_a_run_has_tried_it(home):
    (row,) = list_quarantined(home.ledger)
    assert (row["asset_id"], row["drop"], row["attempts"], row["released"]) == (BROKEN, B, 3, False)
    assert release(home.ledger, BROKEN[:8], "a new decoder") == BROKEN
    assert list_quarantined(home.ledger)[0]["released"] is True
    body = home.ledger.present("release")[BROKEN]
    assert body == {"drop": B, "reason": "a new decoder", "number": 1}
    again = {"drop": B, "reason": "no better", "attempts": 3, "release": short_digest(body)}
    home.ledger.state([Fact(kind="quarantine", subject=BROKEN, body=again)], step="preprocess")
    assert list_quarantined(home.ledger)[0]["released"] is False
    release(home.ledger, BROKEN, "yet another")
    assert home.ledger.present("release")[BROKEN]["number"] == 2
    assert list_quarantined(home.ledger)[0]["released"] is True


def test_what_decoded_after_all_is_no_longer_listed(home):
    body = {"drop": B, "withdrawn": True, "reason": "released, then decoded: ok"}
    home.ledger.state([Fact(kind="quarantine", subject=BROKEN, body=body)], step="preprocess")
    assert list_quarantined(home.ledger) == []
    with pytest.raises(CatalogError, match="fits 0 quarantined assets of 0"):
        release(home.ledger, BROKEN, "why not")


def test_a_release_needs_one_asset_and_a_reason(home):
    with pytest.raises(CatalogError, match="needs a reason"):
        release(home.ledger, BROKEN, " ")
    with pytest.raises(CatalogError, match="fits 0 quarantined assets of 1"):
        release(home.ledger, asset_id("film"), "it is not held")
    assert not home.ledger.present("release")


def test_a_list_says_what_people_know_a_file_by(home, monkeypatch):
    (row,) = list_quarantined(home.ledger, home.store)
    assert row["path"]
    assert row["source"] == B.split(".")[1]
    first = row["since"]
    assert row["tried"] == first
    later = "2126-01-01T00:00:00+00:00"
    monkeypatch.setattr("wsdata.catalog.ledger._now", lambda: later)
    again = {"drop": B, "reason": "no better", "attempts": 3, "release": "x"}
    home.ledger.state([Fact(kind="quarantine", subject=BROKEN, body=again)], step="preprocess")
    (row,) = list_quarantined(home.ledger)
    assert (row["since"], row["tried"]) == (first, later)


def _hold(home, names, drop, reason):
    body = {"drop": drop, "reason": reason, "attempts": 3}
    facts = [Fact(kind="quarantine", subject=asset_id(name), body=body) for name in names]
    home.ledger.state(facts, step="preprocess")


def test_many_are_released_by_drop_source_or_reason(home):
    _hold(home, ("one", "two"), "crawl.shaky.20261101.001", "attempt 1: timeout: killed")
    _hold(home, ("three",), "crawl.shaky.20261101.001", "attempt 1: cannot be opened")
    timeouts = Choice(source="shaky", matching="TIMEOUT")
    wanted = sorted([asset_id("one"), asset_id("two")])
    assert release_all(home.ledger, timeouts, "more time", is_dry_run=True) == wanted
    assert not home.ledger.present("release"), "a dry run releases nothing"
    assert release_all(home.ledger, timeouts, "more time") == wanted
    assert sorted(home.ledger.present("release")) == wanted
    waiting = {r["asset_id"]: r["released"] for r in list_quarantined(home.ledger)}
    assert {key for key, is_waiting in waiting.items() if is_waiting} == set(wanted)
    (left,) = list_quarantined(home.ledger, choice=Choice(source="shaky", matching="opened"))
    assert left["asset_id"] == asset_id("three")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(), "needs assets"),
        (Choice(source="nowhere"), "nothing in quarantine fits"),
        (Choice(assets=("f" * 8,)), "fits 0 quarantined assets"),
        (Choice(assets=("",)), "fits 2 quarantined assets of 2"),
    ],
)
def test_a_release_of_nothing_or_of_more_than_was_meant_is_refused(home, choice, said):
    _hold(home, ("one",), "crawl.shaky.20261101.001", "cannot be opened")
    with pytest.raises(CatalogError, match=said):
        release_all(home.ledger, choice, "why not")
    assert not home.ledger.present("release")
