import polars as pl
import pytest

from wsdata.cli.main import run_command
from wsdata.errors import CatalogError
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.takedown import STEP, report_takedown, request_takedown
from wsdata.lifecycle.tombstone import Criteria, is_withheld, named_assets, twins_of
from wsdata_tests.lifecycle.fabricated import URL, A, asset_id, clip_id, pair, sample_ids

FIELDS = {"request_id", "assets", "twins", "clips", "versions", "next_version"}
FILM = Criteria(assets=(asset_id("film")[:12],))


def _request(home, criteria=FILM, **options):
    return request_takedown(home.ledger, home.store, criteria, reason="asked", **options)


def test_a_dry_run_reports_and_states_nothing(home):
    before = home.ledger.seq
    report = _request(home, is_dry_run=True)
    assert set(report) >= FIELDS
    assert home.ledger.seq == before
    assert not home.ledger.present("tombstone")
    assert {**_request(home), "is_dry_run": True} == report


def test_a_request_takes_the_asset_its_twins_and_all_their_clips(home):
    report = _request(home)
    assert report["assets"] == [asset_id("film")]
    assert report["twins"] == [asset_id("copy")]
    wanted = [clip_id(name, n) for name in ("film", "copy") for n in range(3)]
    assert report["clips"] == sorted(wanted)
    assert report["next_version"] == "v2"
    stones = home.ledger.present("tombstone")
    assert {key: body["role"] for key, body in stones.items()} == {
        asset_id("film"): "named", asset_id("copy"): "twin"
    }  # fmt: skip
    assert {body["request_id"] for body in stones.values()} == {report["request_id"]}


def test_the_first_step_is_where_a_walk_of_the_plan_meets_it(home):
    (use,) = _request(home)["versions"]
    plan = load_plan(home.ledger, home.store, "v1")
    taken = {clip_id("film", n) for n in range(3)}
    steps = [
        step for step in range(plan.num_steps)
        if taken & {sample.clip_id for sample in plan.samples(step)}
    ]  # fmt: skip
    assert (use["version"], use["samples"]) == ("v1", 6)
    assert (use["first_step"], use["num_steps"]) == (steps[0], len(steps))
    index = home.rows("dataset_index", "v1").filter(pl.col("clip_id").is_in(sorted(taken)))
    assert use["shards"] == sorted(index["shard"].unique())


@pytest.mark.parametrize("first_patch", [0, 7, 40, 999_999])
def test_what_a_patch_leaves_out_was_used_before_its_first_step(home, first_patch):
    taken = [clip_id("film", n) for n in range(3)]
    for version, start in (("v1", first_patch), ("v1.1", 20)):
        subjects = [taken[0]] if version == "v1" else [*taken, clip_id("tape", 0)]
        patch_version(home.ledger, home.store, version, subjects, from_step=start)
    uses = {use["version"]: use for use in _request(home)["versions"]}
    assert list(uses) == ["v1", "v1.1", "v1.2"]
    index = home.rows("dataset_index", "v1")
    for version, use in uses.items():
        plan = load_plan(home.ledger, home.store, version)
        walked = [
            (step, sample.sample_id) for step in range(plan.num_steps)
            for sample in plan.samples(step) if sample.clip_id in taken
        ]  # fmt: skip
        steps = {step for step, _ in walked}
        left = set(sample_ids(taken[1]) + sample_ids(taken[2])) if version == "v1.1" else set()
        samples = sorted({sample for _, sample in walked} | left)
        assert (use["first_step"], use["num_steps"]) == (min(steps), len(steps))
        assert use["samples"] == len(samples)
        rows = index.filter(pl.col("sample_id").is_in(samples))
        assert use["shards"] == sorted(rows["shard"].unique())
    assert uses["v1.2"]["num_steps"] < uses["v1"]["num_steps"]


def test_a_person_is_told_at_how_many_steps_and_not_that_it_goes_on(home, capsys):
    patch_version(home.ledger, home.store, "v1", [asset_id("film")], from_step=20)
    request = ["takedown", "request", "--asset", asset_id("film"), "--reason", "asked", "--dry-run"]
    assert run_command([*request, "--home", str(home.path)]) == 0
    out = capsys.readouterr().out
    for use in _request(home, is_dry_run=True)["versions"]:
        planned = f"planned at {use['num_steps']} steps, first at {use['first_step']}"
        assert f"  {use['version']}: 6 samples, {planned}\n" in out


def test_of_a_patch_whose_plan_cannot_be_asked_no_sample_is_taken_for_unused(home):
    patch_version(home.ledger, home.store, "v1", [asset_id("film")], from_step=20)
    home.store.delete("training/datasets/v1.1.json")
    use = _request(home)["versions"][1]
    assert (use["version"], use["samples"], use["first_step"]) == ("v1.1", 6, None)


def test_a_second_request_is_no_change(home):
    first = _request(home)
    before = home.ledger.seq
    assert _request(home) == first
    assert home.ledger.seq == before
    assert len(home.ledger.present("takedown")) == 1


@pytest.mark.parametrize(
    ("criteria", "names"),
    [
        (Criteria(urls=(URL,)), {"tape"}),
        (Criteria(sources=("acme",)), {"film", "lake", "sealed"}),
        (Criteria(licenses=("web-1",)), {"film", "copy", "broken", "tape"}),
        (Criteria(assets=(asset_id("lake"),), urls=(URL,)), {"lake", "tape"}),
    ],
)
def test_criteria_name_assets(home, criteria, names):
    found = named_assets(home.ledger, home.store, criteria)
    assert found == sorted(asset_id(name) for name in names)


def test_a_request_that_names_nothing_is_refused(home):
    with pytest.raises(CatalogError, match="none was given"):
        Criteria()
    with pytest.raises(CatalogError, match="names nothing that was landed"):
        _request(home, Criteria(sources=("acme", "nobody")))
    with pytest.raises(CatalogError, match="at least 8"):
        _request(home, Criteria(assets=(asset_id("film")[:7],)))
    assert not home.ledger.present("tombstone")


def test_the_twin_of_a_taken_asset_may_never_have_decoded(home):
    assert twins_of(home.ledger, home.store, [asset_id("lake")]) == [asset_id("broken")]
    assert twins_of(home.ledger, home.store, [asset_id("tape")]) == []


def test_a_copy_that_lands_later_is_told_under_the_original_request(home):
    request_id = _request(home)["request_id"]
    assert not is_withheld(home.ledger, home.store, asset_id("tape"))
    home.commit(A, {"match_pairs": [pair("copy", "tape")]})
    assert is_withheld(home.ledger, home.store, asset_id("tape"))
    report = report_takedown(home.ledger, home.store, request_id)
    assert report["twins"] == sorted([asset_id("copy"), asset_id("tape")])
    assert clip_id("tape", 0) in report["clips"]


def test_clips_that_excerpt_taken_material_are_in_the_report(home):
    side = {"film": "a", "tape": "b"} if asset_id("film") < asset_id("tape") else (
        {"film": "b", "tape": "a"}
    )  # fmt: skip
    span = {f"{side['tape']}_start_s": 6.0, f"{side['tape']}_end_s": 9.0}
    home.commit(A, {"match_pairs": [pair("film", "tape", kind="span", **span)]})
    report = _request(home)
    assert asset_id("tape") not in report["twins"]
    assert [c for c in report["clips"] if c.startswith(asset_id("tape")[:24])] == [
        clip_id("tape", 1)
    ]


def test_a_report_is_the_request_s_and_carries_a_digest(home):
    made = _request(home)
    report = report_takedown(home.ledger, home.store, made["request_id"])
    digest = report.pop("report_digest")
    assert {**report, "is_dry_run": False} == made
    assert len(digest) == 64
    with pytest.raises(CatalogError, match="no takedown 't0'"):
        report_takedown(home.ledger, home.store, "t0")


def test_a_version_without_a_plan_yet_is_told_without_steps(home):
    home.store.delete("training/datasets/v1.json")
    (use,) = _request(home)["versions"]
    assert (use["samples"], use["first_step"], use["num_steps"]) == (6, None, 0)


def test_material_in_no_version_has_no_first_step(home):
    (use,) = _request(home, Criteria(assets=(asset_id("sealed"),)))["versions"]
    assert (use["samples"], use["first_step"]) == (0, None)


def test_the_step_lists_every_request_once(home):
    _request(home)
    request_takedown(home.ledger, home.store, Criteria(urls=(URL,)), reason="too")
    home.run_step(STEP, "all")
    rows = home.rows("takedowns")
    assert rows.select("asset_id", "role", "num_clips").sort("num_clips", "role").rows() == [
        (asset_id("film"), "named", 3),
        (asset_id("copy"), "twin", 3),
        (asset_id("tape"), "named", 6),
    ]
