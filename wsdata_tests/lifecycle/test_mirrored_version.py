"""A version with mirror images, through the real steps: cut, encoded, planned, read, taken down."""

import json
from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest

from wsdata import tables
from wsdata.cli.main import run_command
from wsdata.curate.manifest import STEP as CUT
from wsdata.digest import sha256_bytes
from wsdata.ids import parse_sample_id
from wsdata.lifecycle.export import export_version
from wsdata.lifecycle.export_choice import ExportOptions
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.takedown import request_takedown
from wsdata.lifecycle.tombstone import Criteria
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.version import open_version
from wsdata.media.decode import read_transcode
from wsdata.media.transcode_frames import transcode_decoder
from wsdata.orders import build_order, execute
from wsdata.records import Fact
from wsdata.shard import captions, index, latent_shards, plan_step
from wsdata.shard.analytic import AnalyticTokenizer
from wsdata.shard.export_check import check_export
from wsdata.shard.latent_check import check_sample
from wsdata.shard.quantize import dequantize, quantize
from wsdata_tests.curate.catalog_support import CRAWL, DROP, Catalog, asset_id, make_recipe
from wsdata_tests.lifecycle.fabricated import Home
from wsdata_tests.lifecycle.test_served_use import train
from wsdata_tests.shard.shard_support import moving_gradient, mp4_of

NUM_FRAMES, NUM_STEPS = 24, 32
VARIANTS = ("plain", "flip")
FILMS = {"one": DROP, "titled": DROP, "other": DROP, "turned": CRAWL, "more": CRAWL}
STREAMS = {
    "both": {"flips": "both", "source_tiers": ["licensed"]},
    "half": {"flips": "half", "source_tiers": ["crawl"]},
}


def catalog_of_films(store):
    catalog = Catalog()
    for number, (name, drop) in enumerate(FILMS.items()):
        asset = catalog.add_asset(name, drop=drop, clips=((0.0, 1.0),), rungs=())
        (clip,) = catalog.read["clips"][drop].filter(pl.col("asset_id") == asset)["clip_id"]
        content = mp4_of(moving_gradient(NUM_FRAMES, 56, 80, seed=number))
        key = f"derived/transcodes_256p/t1/{clip}.mp4"
        store.put(key, content)
        catalog.add(
            "transcodes_256p", drop, clip_id=clip, asset_id=asset, rung="256p", key=key,
            sha256=sha256_bytes(content), width_px=80, height_px=56, num_frames=NUM_FRAMES,
            fps=24.0, transcode_version="t1",
        )  # fmt: skip
        if name == "titled":
            catalog._rows["overlay_scores"][drop][-1]["score"] = 0.0001
    return catalog


def run_real(home, step, partition, recipe, **extra):
    order = build_order(
        step, partition, ledger=home.ledger, deployment=home.deployment, recipe=recipe,
        extra_params=extra,
    )  # fmt: skip
    report = execute(order, step.function, home.store, lambda *_: None, home.ledger)
    home.ledger.commit(order, report)
    return report


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The home, its manifest (of each clip three samples in two buckets), and what the cut told."""
    home = Home(tmp_path_factory.mktemp("mirrored") / "home")
    rows = catalog_of_films(home.store).read
    for drop in (DROP, CRAWL):
        home.commit(drop, {name: rows[name].get(drop, tables.empty(name)) for name in rows})
    body = {"as_of_date": "2026-11-30", "parent": None, "recipe": {}}
    home.ledger.state([Fact(kind="dataset_version", subject="v1", body=body)], step="cut")
    recipe = make_recipe(
        gates={"min_duration_s": 0.5},
        samples={"global_batch": 2, "frame_counts": [5, 9]},
        streams=STREAMS,
        phases=[{"name": "all", "steps": NUM_STEPS, "rungs": ["256p"], "tiers": ["T0"],
                 "weights": {"both": 0.7, "half": 0.3}}],
    )  # fmt: skip
    cut = run_real(home, CUT, "v1", recipe, as_of_date="2026-11-30")
    for group in home.rows("shard_assignments", "v1")["shard_group"].unique().sort():
        run_real(home, latent_shards.STEP, group, recipe)
        run_real(home, captions.STEP, group, recipe)
    run_real(home, index.STEP, "v1", recipe)
    run_real(home, plan_step.STEP, "v1", recipe)
    return home, home.rows("manifests", "v1"), cut


def plain_name(sample_id):
    return f"{sample_id.removesuffix(parse_sample_id(sample_id).variant)}plain"


def latents_by_sample(home):
    data = PlanDataset(version="v1", store=home.store, num_threads=0)
    return {
        sample: latents
        for batch in data
        for sample, latents in zip(batch["sample_ids"], batch["latents"].numpy(), strict=True)
    }


def test_the_manifest_holds_what_the_recipe_asks_for_and_the_step_tells_why_not(made):
    _, manifest, cut = made
    halved = manifest.filter(pl.col("stream") == "half")
    assert len(set(map(plain_name, halved["sample_id"]))) == halved.height == 6
    num_halved = halved.filter(pl.col("variant") == "flip").height
    assert 0 < num_halved < 6
    variants = Counter(manifest.filter(pl.col("stream") == "both")["asset_id", "variant"].rows())
    fit = {(asset_id(name), variant): 3 for name in ("one", "other") for variant in VARIANTS}
    assert variants == {**fit, (asset_id("titled"), "plain"): 3}
    assert cut.metrics["num_mirrored"] == 6 + num_halved
    shown = cut.display["manifest"]["mirrored"]["raw_value"]
    assert shown.splitlines()[2:] == [
        "| both | mirrored | 6 |",
        "| both | not: text on screen | 3 |",
        f"| half | mirrored | {num_halved} |",
    ]


def test_latents_of_a_mirror_image_decode_to_the_mirror_image(made):
    home, manifest, _ = made
    tokenizer, latents = AnalyticTokenizer(), latents_by_sample(home)
    assert set(latents) == set(manifest["sample_id"])
    for row in manifest.filter(pl.col("variant") == "flip").iter_rows(named=True):
        x, y, start = row["crop_x"], row["crop_y"], row["start_frame"]
        pixels_thwc = read_transcode(home.store.get(row["transcode_key"]))[
            start : start + row["num_frames"], y : y + row["height_px"], x : x + row["width_px"]
        ]
        cast = quantize(tokenizer.encode(np.ascontiguousarray(pixels_thwc)), "fp8")
        plain_thwc = tokenizer.decode(dequantize(*cast, "fp8")).astype(int)
        decoded_thwc = tokenizer.decode(latents[row["sample_id"]]).astype(int)
        assert np.abs(decoded_thwc - plain_thwc[:, :, ::-1]).max() <= 1  # rounding of one level
        assert np.abs(decoded_thwc - plain_thwc).mean() > 10, "the picture is not its own mirror"
        if (beside := latents.get(plain_name(row["sample_id"]))) is not None:
            assert np.array_equal(tokenizer.decode(beside), plain_thwc)


def test_an_independent_encoding_gives_the_same_latents(made, tmp_path):
    home, manifest, _ = made
    placed = {row["sample_id"]: row for row in home.rows("placements").iter_rows(named=True)}
    latents = latents_by_sample(home)
    for row in manifest.filter(pl.col("variant") == "flip").iter_rows(named=True):
        path = tmp_path / "latents.npy"
        np.save(path, latents[row["sample_id"]])
        of_place = {n: placed[row["sample_id"]][n] for n in ("latent_dtype", "psnr_db")}
        asked = {**row, **of_place, "latents_path": path}
        told = check_sample(home.store, AnalyticTokenizer(), asked, is_exact=True)
        assert told["is_equal"]
        assert told["is_psnr_right"]


def test_each_variant_is_served_once_per_epoch_and_its_pixels_are_mirrored(made):
    home, manifest, _ = made
    served = defaultdict(Counter)
    pixels = {}
    for batch in PlanDataset(
        version="v1", store=home.store, decoder=transcode_decoder, num_threads=0
    ):
        for place, sample in enumerate(batch["sample_ids"]):
            pool = batch["bucket"], batch["streams"][place]
            served[*pool, batch["epochs"][place]][sample] += 1
            pixels[sample] = batch["pixels"][place].numpy()
    pools = manifest.group_by("bucket", "stream").agg(pl.col("sample_id"))
    for bucket, stream, samples in pools.iter_rows():
        assert served[bucket, stream, 0] == Counter(samples)
    assert all(set(counts.values()) == {1} for counts in served.values())
    beside = [s for s in pixels if s.endswith("flip") and plain_name(s) in pixels]
    assert len(beside) == 6
    for sample in beside:
        assert np.array_equal(pixels[sample], pixels[plain_name(sample)][:, :, ::-1])


@pytest.mark.parametrize(("name", "count"), [("one", 6), ("turned", 3)])
def test_what_is_asked_of_a_clip_is_told_of_all_its_variants(made, tmp_path, capsys, name, count):
    home, manifest, _ = made
    home = home.copy_to(tmp_path / "home")
    opened = open_version(home.store, "v1")
    mine = set(manifest.filter(pl.col("asset_id") == asset_id(name))["sample_id"])
    clip = parse_sample_id(min(mine)).clip_id
    assert len(mine) == count
    walked = [
        (step, each.slot, each.epoch, each.sample_id)
        for step in range(NUM_STEPS)
        for each in opened.plan.samples(step)
        if each.clip_id == clip
    ]
    assert {sample for *_, sample in walked} == mine
    places = [(step, slot, epoch) for step, slot, epoch, _ in walked]
    assert [tuple(each) for each in opened.plan.where(clip)] == places

    train(home, opened.plan, range(10))
    command = ["served", "where", "--clip", clip, "--json", "--home", str(home.path)]
    assert run_command(command) == 0
    times = json.loads(capsys.readouterr().out)["times"]
    assert [(t["step"], t["slot"], t["epoch"]) for t in times] == [p for p in places if p[0] < 10]
    assert run_command(["lineage", "clip", clip, "--json", "--home", str(home.path)]) == 0
    assert mine <= set(str(capsys.readouterr().out).replace('"', " ").split())

    export_version(home.ledger, home.store, "v1", tmp_path / "out", ExportOptions(format="mds"))
    assert set(check_export(tmp_path / "out").sample_ids) == set(manifest["sample_id"])
    asked = Criteria(assets=(asset_id(name),))
    report = request_takedown(home.ledger, home.store, asked, reason="asked", is_dry_run=True)
    (held,) = report["exports"]
    assert held["samples"] == len(mine)
    gone = patch_version(home.ledger, home.store, "v1", [clip], from_step=12).excluded
    assert set(gone) == mine
    patched = open_version(home.store, "v1.1").plan
    late = {each.sample_id for step in range(12, NUM_STEPS) for each in patched.samples(step)}
    assert late.isdisjoint(mine)
