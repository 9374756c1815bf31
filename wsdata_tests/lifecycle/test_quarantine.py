import pytest

from wsdata.digest import short_digest
from wsdata.errors import CatalogError
from wsdata.lifecycle.quarantine import list_quarantined, release
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
