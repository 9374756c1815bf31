import pytest

from wsdata.errors import CatalogError
from wsdata.lifecycle.patch import patch_version
from wsdata.observability.funnel import funnel
from wsdata_tests.lifecycle.fabricated import LISTED, A, B, Home, asset_id, clip_id, pair


def _totals(home, **options):
    return funnel(home.ledger, home.store, **options)["totals"]


def test_the_whole_funnel(home):
    assert _totals(home) == {
        "raw_assets": 6, "vault": 1, "exact_duplicates": 1, "near_duplicates": 1,
        "quarantined": 1, "salvaged": 0, "clips": 14, "gated": {"safety": 1}, "purged": 1,
        "semantic_duplicates": 0, "refused_rights": 0, "tombstoned": 0,
        "excluded": {"gated": 1, "near_duplicate": 3},
        "partly": {},
        "tiers": {"T0": 5, "T1": 4, "T2": 0, "T3": 0}, "in_manifest": 9, "samples": 18, "lost": 1,
    }  # fmt: skip


def test_every_clip_is_in_the_manifest_or_told_why_not(home):
    totals = _totals(home)
    out = sum(totals["excluded"].values()) + totals["purged"]
    assert totals["clips"] == totals["in_manifest"] + out
    assert sum(totals["tiers"].values()) == totals["in_manifest"] == len(LISTED)


def test_every_file_has_one_fate(home):
    found = funnel(home.ledger, home.store)["files"]
    fates = {(f["drop"], f["path"]): (f["status"], f["clips"]) for f in found}
    assert fates == {
        (B, "broken.mp4"): ("quarantined", 0), (B, "copy.mp4"): ("ok", 3),
        (B, "film.mp4"): ("ok", 3), (B, "tape.mp4"): ("ok", 6),
        (A, "film.mp4"): ("duplicate", 0), (A, "lake.mp4"): ("ok", 2),
        (A, "sealed.mp4"): ("vault", 0),
    }  # fmt: skip
    reasons = {f["path"]: f["reason"] for f in found}
    assert reasons["broken.mp4"] == "could not be read"
    assert sum(clips for _, clips in fates.values()) == _totals(home)["clips"]


def test_one_drop_or_one_source_is_counted_alone(home):
    of_a = _totals(home, drop=A)
    assert of_a == _totals(home, source="acme")
    assert (of_a["raw_assets"], of_a["vault"], of_a["near_duplicates"]) == (3, 1, 0)
    assert (of_a["clips"], of_a["in_manifest"], of_a["lost"]) == (5, 5, 1)
    of_b = _totals(home, drop=B)
    assert (of_b["near_duplicates"], of_b["quarantined"], of_b["purged"]) == (1, 1, 1)
    assert _totals(home, drop="licensed.none.20261101.001")["raw_assets"] == 0


def test_a_better_copy_that_never_decoded_stands_for_nobody(home):
    """`broken` ranks above `lake` by bit rate, and is in quarantine."""
    ranks = dict(home.rows("asset_quality").select("asset_id", "rank_value").iter_rows())
    assert ranks[asset_id("broken")] > ranks[asset_id("lake")]
    assert _totals(home)["near_duplicates"] == 1  # copy, of film
    home.commit(A, {"match_pairs": [pair("lake", "copy")]})
    assert _totals(home)["near_duplicates"] == 2  # lake too, of film


def test_a_file_that_is_not_decoded_yet_waits_and_one_that_decode_left_out_failed(home):
    new = "licensed.acme.20261201.001"
    row = home.rows("provenance", A).row(0, named=True)
    landed = {"asset_id": asset_id("late"), "drop": new, "path": "late.mp4", "in_vault": False}
    home.commit(new, {"provenance": [row | landed]})
    home.commit(B, {"decode_status": home.rows("decode_status", B).clear()})
    (waiting,) = funnel(home.ledger, home.store, drop=new)["files"]
    assert (waiting["status"], waiting["clips"]) == ("waiting", 0)
    assert "not decoded yet" in waiting["reason"]
    fates = {f["path"]: f for f in funnel(home.ledger, home.store, drop=B)["files"]}
    assert {f["status"] for f in fates.values()} == {"failed"}
    assert "nothing is told of it" in fates["tape.mp4"]["reason"]


def test_a_patch_counts_what_is_left_of_its_base(home):
    patch_version(home.ledger, home.store, "v1", [clip_id("film", 0)], from_step=3)
    assert _totals(home, version="v1.1")["in_manifest"] == len(LISTED) - 1
    assert _totals(home, version="v1")["in_manifest"] == len(LISTED)
    with pytest.raises(CatalogError, match="no dataset version 'v9'"):
        _totals(home, version="v9")


def test_a_home_without_anything_counts_nothing(tmp_path):
    empty = funnel(Home(tmp_path).ledger, Home(tmp_path).store)
    assert empty["files"] == []
    assert empty["totals"]["raw_assets"] == empty["totals"]["in_manifest"] == 0
