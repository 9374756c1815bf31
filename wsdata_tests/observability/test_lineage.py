import pytest

from wsdata import tables
from wsdata.cli.main import run_command
from wsdata.errors import CatalogError
from wsdata.lifecycle.export import export_version
from wsdata.lifecycle.export_choice import ExportOptions
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.takedown import request_takedown
from wsdata.lifecycle.tombstone import Criteria
from wsdata.observability.lineage import lineage_asset, lineage_clip, lineage_sample
from wsdata.shard.export_check import check_export
from wsdata_tests.lifecycle.fabricated import LOST, A, B, asset_id, clip_id, sample_ids

FILM = clip_id("film", 1)


def test_a_clip_tells_all_that_is_behind_it_and_where_it_went(home):
    told = lineage_clip(home.ledger, home.store, FILM)
    assert (told["clip_id"], told["asset_id"]) == (FILM, asset_id("film"))
    assert [p["drop"] for p in told["provenance"]] == sorted([A, B])
    assert {p["license_id"] for p in told["provenance"]} == {"acme-1", "web-1"}
    assert (told["span"]["start_s"], told["span"]["end_s"]) == (5.0, 10.0)
    assert {s["filter"] for s in told["scores"]} == set(tables.FILTERS)
    assert all(s["model_version"] == f"{s['filter']}-1" for s in told["scores"])
    captions = [(c["variant"], c["status"]) for c in told["captions"]]
    assert captions == [("dense", "ok"), ("short", "ok")]
    where = home.rows("placements")
    where = where.filter(where["clip_id"] == FILM).sort("sample_id").select("shard", "row")
    assert [(p["shard"], p["row"]) for p in told["placements"]] == where.rows()
    assert {(p["rung"], p["tokenizer"]) for p in told["placements"]} == {("256p", "noise-1")}
    assert told["manifests"] == [
        {"version": "v1", "stream": "video", "tier": "T1", "samples": sample_ids(FILM)}
    ]
    assert (told["exports"], told["tombstoned"]) == ([], False)


def test_a_clip_tells_who_else_holds_it(home, tmp_path):
    options = ExportOptions(format="webdataset", order="plan", steps=(0, 1))
    made = export_version(home.ledger, home.store, "v1", tmp_path / "out", options)
    samples = check_export(tmp_path / "out").sample_ids
    for clip in (clip_id("film", n) for n in range(3)):
        told = lineage_clip(home.ledger, home.store, clip)["exports"]
        there = len(set(sample_ids(clip)) & set(samples))
        assert [(e["export_id"], e["samples"]) for e in told] == (
            [(made.export_id, there)] if there else []
        )


def test_every_version_of_a_score_is_told(home):
    clip = clip_id("lake", 0)
    newer = home.rows("quality_scores", A).to_dicts()
    newer = [{**row, "model_version": "quality-2", "score": 0.9} for row in newer]
    home.commit(A, {"quality_scores": newer}, version="2")
    scores = lineage_clip(home.ledger, home.store, clip)["scores"]
    found = [(s["model_version"], s["score"]) for s in scores if s["filter"] == "quality"]
    assert found == [("quality-1", 0.3), ("quality-2", 0.9)]


def test_a_clip_that_is_in_no_version_has_no_placement(home):
    told = lineage_clip(home.ledger, home.store, clip_id("copy", 0))
    assert told["placements"] == told["manifests"] == []
    lost = lineage_clip(home.ledger, home.store, clip_id("lake", 1))
    assert LOST in lost["manifests"][0]["samples"]
    assert LOST not in {p["sample_id"] for p in lost["placements"]}


def test_an_asset_lists_its_clips_as_each_tells_itself(home):
    told = lineage_asset(home.ledger, home.store, asset_id("lake")[:8])
    assert (told["asset_id"], told["drops"], told["in_vault"]) == (asset_id("lake"), [A], False)
    each = [lineage_clip(home.ledger, home.store, clip_id("lake", n)) for n in range(2)]
    assert told["clips"] == each
    assert told["decode_status"]["status"] == "ok"
    assert told["probe"]["media_kind"] == "video"


def test_assets_without_clips_tell_why(home):
    broken = lineage_asset(home.ledger, home.store, asset_id("broken"))
    assert broken["clips"] == []
    assert broken["decode_status"]["status"] == "quarantined"
    sealed = lineage_asset(home.ledger, home.store, asset_id("sealed"))
    assert (sealed["in_vault"], sealed["clips"], sealed["probe"]) == (True, [], None)


@pytest.mark.parametrize("step", [0, 17, 59])
def test_a_slot_leads_to_its_clip_and_back(home, step):
    plan = load_plan(home.ledger, home.store, "v1")
    for planned in plan.samples(step):
        told = lineage_sample(home.ledger, home.store, f"v1:{step}:{planned.slot}")
        assert told["sample_id"] == planned.sample_id
        assert told["epoch"] == planned.epoch
        clip = lineage_clip(home.ledger, home.store, planned.clip_id)
        assert {**told, **clip} == told
        assert (step, planned.slot, planned.epoch) in plan.where(told["clip_id"])


def test_a_patch_is_a_version_that_the_cohort_is_not_in(home):
    patch_version(home.ledger, home.store, "v1", [FILM], from_step=5)
    found = lineage_clip(home.ledger, home.store, FILM)["manifests"]
    assert [m["version"] for m in found] == ["v1"]
    other = lineage_clip(home.ledger, home.store, clip_id("film", 0))["manifests"]
    assert [m["version"] for m in other] == ["v1", "v1.1"]


def test_a_patch_tells_from_which_step_on_it_leaves_a_clip_out(home, capsys):
    one, two = sample_ids(FILM)
    patch_version(home.ledger, home.store, "v1", [one], from_step=40)
    patch_version(home.ledger, home.store, "v1.1", [two], from_step=9)
    told = lineage_clip(home.ledger, home.store, FILM)
    assert told["patched"] == [
        {"version": "v1.1", "from_step": 40, "samples": [one]},
        {"version": "v1.2", "from_step": 9, "samples": [two]},
        {"version": "v1.2", "from_step": 40, "samples": [one]},
    ]
    served = {s.sample_id for n in range(40) for s in _samples(home, "v1.2", n)}
    assert one in served
    assert not {one} & {s.sample_id for n in range(40, 60) for s in _samples(home, "v1.2", n)}
    assert lineage_clip(home.ledger, home.store, clip_id("film", 0))["patched"] == []
    assert run_command(["lineage", "clip", FILM, "--home", str(home.path)]) == 0
    assert "v1.1 leaves 1 samples of it out from step 40 on" in capsys.readouterr().out


def _samples(home, version, step):
    return load_plan(home.ledger, home.store, version).samples(step)


def test_a_taken_asset_and_its_twins_are_marked(home):
    criteria = Criteria(assets=(asset_id("copy"),))
    request_takedown(home.ledger, home.store, criteria, reason="asked")
    for name, is_out in (("copy", True), ("film", True), ("tape", False)):
        assert lineage_clip(home.ledger, home.store, clip_id(name, 0))["tombstoned"] is is_out
        assert lineage_asset(home.ledger, home.store, asset_id(name))["tombstoned"] is is_out


def test_ids_that_lead_nowhere_are_told_apart(home):
    ask = home.ledger, home.store
    with pytest.raises(ValueError, match="expected <24 hex>"):
        lineage_clip(*ask, "nonsense")
    with pytest.raises(CatalogError, match="its asset was never landed"):
        lineage_clip(*ask, f"{'0' * 24}-0-000000000-000001000")
    with pytest.raises(CatalogError, match=f"its asset is in {A}"):
        lineage_clip(*ask, f"{asset_id('lake')[:24]}-0-000000000-000001000")
    with pytest.raises(CatalogError, match="was ever landed"):
        lineage_asset(*ask, "0" * 16)
    with pytest.raises(CatalogError, match="at least 8"):
        lineage_asset(*ask, asset_id("lake")[:7])
    for where in ("v1:1", "v1:a:b", "v1:1:2:3", "v1:-1:0"):
        with pytest.raises(ValueError, match="expected VERSION:STEP:SLOT"):
            lineage_sample(*ask, where)
    with pytest.raises(CatalogError, match="has 4 slots, no slot 4"):
        lineage_sample(*ask, "v1:3:4")
    with pytest.raises(CatalogError, match="no dataset version 'v2'"):
        lineage_sample(*ask, "v2:3:0")


def test_a_prefix_that_fits_two_assets_asks_for_more_digits(home):
    other = "0" if asset_id("lake")[12] != "0" else "1"
    twin = asset_id("lake")[:12] + other * 52
    rows = [*home.rows("raw_assets", B).to_dicts(), {"asset_id": twin}]
    home.commit(B, {"raw_assets": rows})
    with pytest.raises(CatalogError, match="fits 2 assets: give more digits"):
        lineage_asset(home.ledger, home.store, asset_id("lake")[:12])
    assert lineage_asset(home.ledger, home.store, asset_id("lake")[:13])["drops"] == [A]
