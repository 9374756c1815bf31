"""The main job on the sample drops, once, through Dagster; then every question about it."""

import hashlib
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from wsdata.catalog.objects import read_table
from wsdata.ids import raw_key
from wsdata.loader.dataset import PlanDataset
from wsdata.media.audio import read_audio
from wsdata.shard.reader import read_sample
from wsdata.steps import STEPS

ROOT = Path(__file__).parents[2]
MEDIA = ROOT / "samples" / "media"


def _sha(name: str) -> str:
    return hashlib.sha256((MEDIA / name).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def funnel(sample_home):
    return sample_home.ask("funnel")


def _rows(home, table, partition=None):
    return read_table(home.ledger, home.store, table, partition)


def test_every_file_is_accounted_for(funnel):
    files = {f["path"]: f for f in funnel["files"]}
    assert len(files) == 18
    assert files["flower.webm"]["status"] == "vault"
    others = [f for f in files.values() if f["path"] != "flower.webm"]
    assert {f["status"] for f in others} == {"ok"}
    assert all(f["clips"] >= 1 for f in others)


def test_the_funnel_adds_up(funnel, sample_home):
    totals = funnel["totals"]
    assert totals["raw_assets"] == 18
    assert totals["vault"] == 1
    assert totals["near_duplicates"] == 1
    assert totals["quarantined"] == totals["exact_duplicates"] == totals["lost"] == 0
    assert totals["purged"] >= 1
    assert sum(totals["tiers"].values()) == totals["in_manifest"] > 0
    clips = set(_rows(sample_home, "clips")["clip_id"])
    kept = set(_rows(sample_home, "manifests", "v1")["clip_id"])
    gone = _rows(sample_home, "exclusions", "v1")["subject"]
    prefixes = tuple(asset[:24] for asset in gone)
    unexplained = [c for c in clips - kept - set(gone) if not c.startswith(prefixes)]
    assert unexplained == []


def test_the_re_encode_of_the_vault_member_is_purged(sample_home):
    twin = _sha("derived_flower_av1.mp4")
    exclusions = _rows(sample_home, "exclusions", "v1").filter(pl.col("asset_id") == twin)
    assert "purged" in exclusions["reason"].to_list()
    assert twin not in set(_rows(sample_home, "manifests", "v1")["asset_id"])
    hits = _rows(sample_home, "eval_matches").filter(pl.col("asset_id") == twin)
    assert set(hits["eval_asset_id"]) == {_sha("flower.webm")}
    files = {f["path"]: f for f in sample_home.ask("funnel", "--version", "v1")["files"]}
    assert "purged" in files["derived_flower_av1.mp4"]["reason"]
    (clip,) = sample_home.ask("lineage", "asset", twin[:16])["clips"]
    assert [e["reason"] for e in clip["exclusions"]] == ["purged"]


def test_the_better_copy_of_a_near_duplicate_stays(sample_home):
    pairs = _rows(sample_home, "match_pairs")
    both = {_sha("stream_of_water.webm"), _sha("derived_stream_vp9_opus.webm")}
    assert both in [{row["asset_a"], row["asset_b"]} for row in pairs.to_dicts()]
    near = _rows(sample_home, "exclusions", "v1").filter(pl.col("reason") == "near_duplicate")
    assert len(set(near["asset_id"]) & both) == 1


def test_rungs_never_upscale(sample_home):
    probes = {row["asset_id"]: row for row in _rows(sample_home, "probes").to_dicts()}
    for rung in ("256p", "512p", "720p"):
        for row in _rows(sample_home, f"transcodes_{rung}").to_dicts():
            source = probes[row["asset_id"]]
            assert row["width_px"] <= row["crop_width_px"] <= source["width_px"]
            assert row["height_px"] <= row["crop_height_px"] <= source["height_px"]
    assert _rows(sample_home, "transcodes_720p").height > 0


def test_different_clips_have_different_captions(sample_home):
    dense = _rows(sample_home, "captions").filter(pl.col("variant") == "dense")
    assert dense.height > 10
    assert dense["text"].n_unique() == dense.height
    assert set(dense["status"]) == {"ok"}


def test_nothing_but_the_hash_reads_a_vault_member(sample_home):
    lines = (sample_home.path / "audit.log").read_text().splitlines()
    opened = [line.split("\t") for line in lines]
    in_vault = [(mode, who) for mode, path, who in opened if f"{sample_home.path}/vault/" in path]
    assert in_vault, "the audit sees the vault's own steps"
    for _mode, who in in_vault:
        assert "stage ingest land" in who or "stage ingest vault_prints" in who, who
    landing = [who for _, path, who in opened if path.endswith("/flower.webm")]
    assert landing
    assert all("stage ingest land" in who or "make_drops" in who for who in landing)
    assert sample_home.store.size(raw_key(_sha("flower.webm"))) is None


def test_the_loader_proof_holds(sample_home):
    proofs = _rows(sample_home, "loader_proofs", "v1")
    assert proofs.height >= 4
    assert proofs["passed"].all(), proofs.filter(~pl.col("passed")).to_dicts()


def test_a_training_process_reads_batches_with_captions(sample_home):
    batches = PlanDataset(version="v1", store=sample_home.deployment.store, num_steps=3)
    seen = []
    for batch in batches:
        b, _t, c, _h, _w = batch["latents"].shape
        assert (b, c) == (len(batch["clip_ids"]), 16)
        assert batch["latents"].isfinite().all()
        assert all(batch["captions"])
        seen.append(batch["clip_ids"])
    assert len(seen) == 3
    again = PlanDataset(version="v1", store=sample_home.deployment.store, start_step=1, num_steps=2)
    assert [batch["clip_ids"] for batch in again] == seen[1:]


def test_sound_of_their_own_span_lies_beside_latents(sample_home):
    placed = {row["sample_id"]: row for row in _rows(sample_home, "placements").to_dicts()}
    wanting = _rows(sample_home, "manifests", "v1").drop_nulls("audio_key").sort("sample_id")
    assert wanting["clip_id"].n_unique() > 3
    for row in wanting.unique("clip_id", keep="last", maintain_order=True).head(3).to_dicts():
        found = read_sample(sample_home.store, placed[row["sample_id"]]).audio_n
        sound, rate_hz = read_audio(sample_home.store.get(row["audio_key"]))
        assert len(found) == round(rate_hz * row["num_frames"] / row["fps"])
        first = round(rate_hz * row["start_frame"] / row["fps"])
        expected = sound[first : first + len(found)]
        assert len(found) - len(expected) <= rate_hz / row["fps"]
        assert np.abs(found[: len(expected)] / 32768 - expected).max() < 1e-4
        assert found.any()


def test_plan_show_and_where_agree(sample_home):
    step = sample_home.ask("plan", "show", "v1", "--step", "7")
    assert (step["version"], step["step"]) == ("v1", 7)
    for slot, sample in enumerate(step["samples"]):
        assert {"clip_id", "stream", "epoch", "shard", "row"} <= set(sample)
        clip = sample["clip_id"]
        where = sample_home.ask("plan", "where", "v1", "--clip", clip, "--until", "8")
        assert {"step": 7, "slot": slot, "epoch": sample["epoch"]} in where["served"]


def test_lineage_both_ways(sample_home):
    sample = sample_home.ask("lineage", "sample", "v1:3:0")
    clip = sample_home.ask("lineage", "clip", sample["clip_id"])
    assert clip["provenance"][0]["license_id"]
    assert {s["filter"] for s in clip["scores"]} >= {"technical", "motion", "quality", "safety"}
    assert {c["variant"] for c in clip["captions"]} == {"dense", "short"}
    assert clip["placements"]
    assert [m["version"] for m in clip["manifests"]] == ["v1"]
    assert clip["tombstoned"] is False
    asset = sample_home.ask("lineage", "asset", clip["asset_id"][:16])
    assert clip["clip_id"] in [each["clip_id"] for each in asset["clips"]]
    sample_home.ask("lineage", "asset", "0" * 16, code=1)
    sample_home.ask("lineage", "clip", "nonsense", code=2)


def test_runs_partitions_and_checks_are_in_the_instance(sample_home, monkeypatch):
    import dagster as dg

    monkeypatch.setenv("DAGSTER_HOME", str(sample_home.path / "dagster"))
    with dg.DagsterInstance.get() as instance:
        assert len(instance.get_dynamic_partitions("drops")) == 3
        made = {key.to_user_string() for key in instance.all_asset_keys()}
        for key in (
            "ingest/raw_assets",
            "preprocess/clips",
            "curate/manifest",
            "loader/loader_proof",
        ):
            assert key in made
        runs = instance.get_runs()
        assert runs
        assert {run.status.value for run in runs} == {"SUCCESS"}


def test_a_pass_builds_the_orders_that_the_ledger_gives(sample_home):
    from assets.work import Workbench
    from resources.deployments import bundle

    ledger = sample_home.ledger
    bench = Workbench(
        deployment=sample_home.deployment, ledger=ledger, store=sample_home.store,
        recipes=bundle(ROOT, sample_home.path)["recipes"],
    )  # fmt: skip
    asked, num_done = bench.for_one_pass(), 0
    for step in STEPS.values():
        for ref in ledger.live(step.tables[0]):
            order = bench.order(step, ref.partition)
            assert asked.order(step, ref.partition, is_for_work=False).digest == order.digest
            is_done = bench.finished(step, order) is not None
            assert asked.is_finished(step, ref.partition) == is_done
            num_done += is_done
    assert num_done > len(STEPS)


def test_a_second_run_finds_everything_done(sample_home):
    before = sample_home.objects()
    summary = sample_home.run("run")
    assert summary["runs"] == []
    assert sample_home.objects() == before


def test_fsck_finds_what_is_lost_and_a_run_makes_it_again_alone(sample_home):
    assert sample_home.ask("fsck")["ok"]
    store = sample_home.store
    shard = _rows(sample_home, "placements")["shard_key"][0]
    pack = _rows(sample_home, "frame_packs")["key"][0]
    before = {key: store.get(key) for key in (shard, pack)}
    for key, step in ((shard, "shard/latent_shards"), (pack, "preprocess/decode")):
        store.delete(key)
        found = sample_home.ask("fsck", code=1)
        assert [m["key"] for m in found["missing"]][:1] == [key]
        summary = sample_home.run("run")
        assert [run["steps"] for run in summary["runs"]] == [[step]]
        assert store.get(key) == before[key]
    assert sample_home.ask("fsck", "--deep")["ok"]


def test_gc_collects_nothing_that_is_used(sample_home):
    sample_home.run("gc", "--apply", "--min-age-hours", "0")
    assert sample_home.ask("fsck")["ok"]


# The tests below cut versions and take material out: they come last.


def _clip_that_can_be_spared(home):
    """The first clip that is served whose pools all hold other clips: a patch empties no pool."""
    pool = ("stream", "bucket", "tier")
    index = _rows(home, "dataset_index", "v1").with_columns(
        others=pl.col("clip_id").n_unique().over(pool)
    )
    least = dict(index.group_by("clip_id").agg(pl.col("others").min()).iter_rows())
    for step in range(20, 60):
        for sample in home.ask("plan", "show", "v1", "--step", str(step))["samples"]:
            if least[sample["clip_id"]] > 1:
                return sample["clip_id"]
    raise AssertionError("every clip is alone in some pool")


def test_a_patch_leaves_a_cohort_out_from_a_step_on(sample_home, tmp_path):
    clip = _clip_that_can_be_spared(sample_home)
    names = tmp_path / "exclude.txt"
    names.write_text(f"{clip}  # the cohort\n")
    made = sample_home.ask("dataset", "patch", "v1", "--exclude", str(names), "--from-step", "10")
    assert made["version"] == "v1.1"
    for step in (5, 9):
        old = sample_home.ask("plan", "show", "v1", "--step", str(step))
        new = sample_home.ask("plan", "show", "v1.1", "--step", str(step))
        assert old["samples"] == new["samples"]
    where = sample_home.ask("plan", "where", "v1.1", "--clip", clip, "--until", "60")
    assert all(each["step"] < 10 for each in where["served"])
    listed = {v["version"]: v for v in sample_home.ask("dataset", "list")}
    assert listed["v1.1"]["num_samples"] < listed["v1"]["num_samples"]
    diff = sample_home.ask("dataset", "diff", "v1", "v1.1")
    assert len(diff["changes"]) == len(made["excluded"])


def test_a_takedown_takes_it_and_its_twins_out_of_the_next_version(sample_home):
    named, twin = _sha("stream_of_water.webm"), _sha("derived_stream_vp9_opus.webm")
    dry = sample_home.ask("takedown", "request", "--asset", named, "--reason", "r", "--dry-run")
    assert sample_home.ledger.present("tombstone") == {}
    request = sample_home.ask("takedown", "request", "--asset", named, "--reason", "r")
    assert request["request_id"] == dry["request_id"]
    assert request["twins"] == [twin]
    assert request["next_version"] == "v2"
    by_version = {each["version"]: each for each in request["versions"]}
    assert set(by_version) >= {"v1"}
    summary = sample_home.run("run")
    assert summary["version"] == "v2"
    decoded = [run for run in summary["runs"] if "preprocess/decode" in run["steps"]]
    assert decoded == [], "nothing is decoded again"
    assert not set(_rows(sample_home, "manifests", "v2")["asset_id"]) & {named, twin}
    gone = _rows(sample_home, "exclusions", "v2").filter(pl.col("reason") == "tombstoned")
    assert set(gone["asset_id"]) == {named, twin}
    report = sample_home.ask("takedown", "report", request["request_id"])
    v2 = next(each for each in report["versions"] if each["version"] == "v2")
    assert v2["samples"] == 0
    assert sample_home.ask("funnel")["totals"]["tombstoned"] >= 1
    assert sample_home.ask("fsck")["ok"]


def test_new_versions_list_old_shards_in_place(sample_home):
    first = set(_rows(sample_home, "dataset_index", "v1")["shard_key"])
    second = set(_rows(sample_home, "dataset_index", "v2")["shard_key"])
    assert second & first
    pointer = json.loads(sample_home.store.get("training/datasets/v2.json"))
    assert pointer["version"] == "v2"
