"""Safety lists from the file to the report: a list that comes late, on the fabricated home."""

import json

import pytest

from wsdata.catalog.presence import finished
from wsdata.cli.main import run_command
from wsdata.errors import CatalogError
from wsdata.ids import raw_key
from wsdata.lifecycle.retention import verdicts
from wsdata.lifecycle.safety_reports import listed_assets, lists_in_force, report_asset
from wsdata.orders import build_order
from wsdata.preprocess.filters import safety_list
from wsdata.recipe import Recipe
from wsdata_tests.lifecycle.fabricated import A, B, asset_id, clip_id

STEP = safety_list.STEP


@pytest.fixture
def listed(home):
    """The home, its drops printed and screened, and ``lists`` with one that names a tape frame."""
    for drop, names in ((A, ("film", "lake")), (B, ("copy", "film", "tape"))):
        prints = [
            {"asset_id": asset_id(name), "frame_index": index, "time_s": 5.0 * index + 1,
             "hash": bytes.fromhex(asset_id(f"{name}{index}")), "quality": 90, "method": "pass"}
            for name in names
            for index in range(3)
        ]  # fmt: skip
        home.commit(drop, {"fingerprints": []})
        home.commit(drop, {"pass_fingerprints": prints}, version="2")
        sealed = [
            {"asset_id": asset_id("sealed"), "level": "frame", "frame_index": 0, "time_s": 2.0,
             "hash": bytes.fromhex(asset_id("sealed0")), "quality": 90}
        ]  # fmt: skip
        home.commit(drop, {"vault_prints": sealed if drop == A else []})
        home.run_step(STEP, drop)
    return home


def add_to_list(home, *names):
    folder = home.path / "safety_lists"
    folder.mkdir(exist_ok=True)
    with (folder / "police.txt").open("a") as handle:
        handle.writelines(f"{asset_id(name)} case-{name} hotline\n" for name in names)


def is_done(home, drop):
    order = build_order(
        STEP, drop, ledger=home.ledger, deployment=home.deployment, recipe=Recipe(name="test"),
        is_for_work=False,
    )  # fmt: skip
    return finished(order, home.ledger, home.store) is not None


def test_a_late_list_screens_all_drops_again_and_touches_nothing_else(listed):
    assert is_done(listed, A)
    assert is_done(listed, B)
    before = {ref.table: ref.sha256 for ref in listed.ledger.all_objects() if ref.partition == B}
    add_to_list(listed, "tape1")
    assert not is_done(listed, A)
    assert not is_done(listed, B)
    listed.run_step(STEP, B)
    after = {ref.table: ref.sha256 for ref in listed.ledger.all_objects() if ref.partition == B}
    changed = {table for table in after if after[table] != before[table]}
    assert changed == {"safety_list_scores"}
    (row,) = listed_assets(listed.ledger)
    assert (row["asset_id"], row["num_clips"], len(row["hits"])) == (asset_id("tape"), 6, 1)
    assert lists_in_force(listed.ledger)[0]["num_entries"] == 1


def test_the_report_tells_where_it_came_from_and_where_it_went(listed):
    add_to_list(listed, "film1", "sealed0")
    for drop in (A, B):
        listed.run_step(STEP, drop)
    film = report_asset(listed.ledger, listed.store, asset_id("film")[:10], note="reported, no. 7")
    assert [hit["drop"] for hit in film["hits"]] == [A, B] or len(film["hits"]) == 2
    assert film["twins"] == [asset_id("copy")]
    assert set(film["clips"]) == {clip_id(name, n) for name in ("film", "copy") for n in range(3)}
    assert {file["path"] for file in film["files"]} == {"film.mp4"}
    assert (film["versions"][0]["samples"], film["exports"]) == (6, [])
    assert film["notes"][0]["note"] == "reported, no. 7"
    sealed = report_asset(listed.ledger, listed.store, asset_id("sealed"))
    assert (sealed["bytes"]["where"], sealed["clips"]) == ("vault", [])
    with pytest.raises(CatalogError, match="fits 0 raw assets of 2 that match a safety list"):
        report_asset(listed.ledger, listed.store, asset_id("lake"))


def test_what_was_reported_is_held(listed):
    key = raw_key(asset_id("tape"))
    add_to_list(listed, "tape1")
    listed.run_step(STEP, B)
    found = {each.key: each for each in verdicts(listed.ledger, listed.store)}
    assert (found[key].verdict, found[key].reason) == ("held", "safety report: list police")


def test_the_commands_speak_in_words_and_numbers(listed, capsys):
    home = ("--home", str(listed.path))
    assert run_command(["safety", "list", *home]) == 0
    assert "nothing matches a safety list" in capsys.readouterr().out
    add_to_list(listed, "tape1")
    listed.run_step(STEP, B)
    assert run_command(["safety", "list", *home]) == 0
    said = capsys.readouterr().out
    assert "police case-tape1 at 0 bits" in said
    assert "nothing yet" in said
    assert run_command(["safety", "report", asset_id("tape")[:12], "--note", "told", *home]) == 0
    said = capsys.readouterr().out
    assert "matches police case-tape1 (hotline) at 0 of 256 bits, at 6.00 s" in said
    assert "https://example.org/tape" in said
    assert run_command(["safety", "list", "--json", *home]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["assets"][0]["notes"][0]["note"] == "told"
    assert asset_id("tape1") not in json.dumps(told)  # a hash is the list's to give
    assert run_command(["safety", "report", "0" * 9, *home]) == 1
