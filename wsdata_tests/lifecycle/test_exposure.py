"""Eval material that was listed after it had been landed."""

import json

import pytest

from assets.ingest import none_exposed
from resources import deployments
from wsdata.cli.main import run_command
from wsdata.deployment import load_deployment, parse_eval_list
from wsdata.errors import WsdataError
from wsdata.lifecycle.takedown import request_takedown
from wsdata.lifecycle.tombstone import Criteria
from wsdata_tests.graph.graph_support import ROOT
from wsdata_tests.lifecycle.fabricated import A, B, asset_id, clip_id

NEVER = "0" * 64


@pytest.fixture
def ask(home, capsys):
    def ask(*words, code=0):
        assert run_command([*words, "--json", "--home", str(home.path)]) == code
        return json.loads(capsys.readouterr().out)

    return ask


def listed(home, tmp_path, *names):
    path = tmp_path / "late.txt"
    path.write_text("".join(f"{asset_id(name)} films # {name}\n" for name in names) + NEVER)
    assert run_command(["vault", "add", str(path), "--home", str(home.path)]) == 0


def test_a_late_listing_tells_where_it_was_used_and_what_to_do(home, ask, tmp_path, capsys):
    listed(home, tmp_path, "film", "sealed")
    capsys.readouterr()
    out = str(tmp_path / "out")
    made = ask("dataset", "export", "v1", "--format", "mds", "--out", out)
    data = ask("vault", "exposure", code=1)
    (film,) = data["exposed"]
    assert [each["export_id"] for each in film["exports"]] == [made["export_id"]]
    assert any(step.startswith(f"delete the export in file://{out}") for step in film["to_do"])
    assert (film["asset_id"], film["state"], film["sets"]) == (
        asset_id("film"), "exposed", ["films"]
    )  # fmt: skip
    assert {row["drop"] for row in film["landed"]} == {A, B}
    assert {clip_id("film", n) for n in range(3)} <= set(film["clips"])
    assert film["twins"] == [asset_id("copy")]
    tried = request_takedown(
        home.ledger, home.store, Criteria(assets=(asset_id("film"),)), reason="x", is_dry_run=True
    )
    assert film["versions"] == tried["versions"]
    assert film["versions"][0]["num_steps"] > 0
    assert film["versions"][0]["shards"]
    assert film["to_do"][0].startswith(f"wsdata takedown request --asset {asset_id('film')}")
    states = {each["asset_id"]: each["state"] for each in ask("vault", "list")}
    assert states == {
        asset_id("film"): "exposed", asset_id("sealed"): "sealed", NEVER: "not_landed"
    }  # fmt: skip
    assert run_command(["vault", "exposure", "--home", str(home.path)]) == 1
    out = capsys.readouterr().out
    assert "v1: 6 samples, planned at" in out
    assert "to do: wsdata takedown request --asset" in out


def test_the_ui_alarms_while_listed_material_lies_outside(home, tmp_path, capsys):
    held = deployments.bundle(ROOT, home.path)
    asked = {name: held[name] for name in ("deployment", "catalog", "blob_store")}
    assert none_exposed(**asked).passed
    listed(home, tmp_path, "film")
    found = none_exposed(**asked)
    assert not found.passed
    assert asset_id("film")[:12] in found.description
    request_takedown(home.ledger, home.store, Criteria(assets=(asset_id("film"),)), reason="x")
    assert none_exposed(**asked).passed


def test_once_taken_down_it_is_told_and_no_longer_an_alarm(home, ask, tmp_path, capsys):
    listed(home, tmp_path, "film")
    capsys.readouterr()
    request_takedown(home.ledger, home.store, Criteria(assets=(asset_id("film"),)), reason="x")
    (film,) = ask("vault", "exposure")["exposed"]
    assert film["state"] == "taken_down"
    assert not any(step.startswith("wsdata takedown") for step in film["to_do"])


def test_what_is_listed_in_time_exposes_nothing(home, ask, tmp_path, capsys):
    listed(home, tmp_path, "sealed")
    capsys.readouterr()
    assert ask("vault", "exposure") == {"listed": 2, "exposed": []}


def test_the_list_only_grows(home, tmp_path):
    listed(home, tmp_path, "film")
    listed(home, tmp_path, "film")
    path = tmp_path / "more.txt"
    path.write_text(asset_id("film"))
    words = ["vault", "add", str(path), "--set", "robots", "--home", str(home.path)]
    assert run_command(words) == 0
    deployment = load_deployment(home.path)
    assert deployment.read_eval_sets()[asset_id("film")] == ["films", "robots"]
    assert deployment.read_eval_list() == sorted([NEVER, asset_id("film")])
    assert run_command([*words[:4], "two words", *words[5:]]) == 1


def test_a_line_that_names_no_asset_is_told():
    with pytest.raises(WsdataError, match=r"line 2: 'film\.mp4' is no asset id"):
        parse_eval_list(f"{NEVER} # fine\nfilm.mp4\n")
