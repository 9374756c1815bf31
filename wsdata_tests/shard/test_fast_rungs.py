"""Rungs of 48 frames a second, from a source of 60 to latents that show each 1/48 s."""

import numpy as np
import polars as pl
import pytest

from wsdata import tables
from wsdata.curate.cut import make_cut
from wsdata.digest import sha256_bytes
from wsdata.preprocess.onepass import decode_job
from wsdata.recipe import Recipe
from wsdata.shard import latent_shards
from wsdata.shard.analytic import AnalyticTokenizer
from wsdata.shard.reader import read_latents
from wsdata.store import FolderStore
from wsdata_tests import synthetic
from wsdata_tests.curate.catalog_support import DROP, Catalog, make_recipe
from wsdata_tests.shard.shard_support import execute, order_of, put_rows

SIZE = (256, 144)
GROUP = "v1.0000"
PHASES = [{"name": "p", "steps": 1, "rungs": ["256p", "256p48"], "tiers": ["T0"],
           "weights": {"video": 1.0}}]  # fmt: skip


def _catalog(store, folder):
    """A drop of one clip of 60 frames a second, its transcodes made by the decode pass."""
    path = synthetic.make_video(folder / "fast.mp4", (("gradient", 2.1),), size=SIZE, fps=60)
    args = {"path": "plain", "window_min_s": 2.0, "window_target_s": 8.0, "window_max_s": 20.0}
    out = folder / "out"
    out.mkdir()
    with path.open("rb") as source:
        (clip,) = decode_job({**args, "makes_pack": False}, source, out)["clips"]
    catalog = Catalog()
    asset = catalog.add_asset("fast", clips=((0.0, 2.1),), rungs=())
    (clip_id,) = (row["clip_id"] for row in catalog.read["clips"][DROP].to_dicts())
    for name, made in clip["transcodes"].items():
        content = (out / made["file"]).read_bytes()
        key = f"derived/transcodes_{name}/x/{clip_id}.mp4"
        store.put(key, content)
        row = {k: v for k, v in made.items() if k in tables.TABLES[f"transcodes_{name}"].columns}
        about = {"clip_id": clip_id, "asset_id": asset, "transcode_version": "t1", "key": key,
                 "sha256": sha256_bytes(content), "size_bytes": len(content)}  # fmt: skip
        catalog.add(f"transcodes_{name}", DROP, **row | about)
    return catalog


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The store, manifest rows and placements of that clip under a recipe of both rates."""
    folder = tmp_path_factory.mktemp("fast")
    store = FolderStore(folder / "store")
    recipe = make_recipe(phases=PHASES, samples={"global_batch": 1, "frame_counts": [1, 33, 65]})
    cut = make_cut(_catalog(store, folder).read, recipe, as_of_date="2026-11-01", tombstones={})
    manifest = cut.manifest.to_dicts()
    assigned = [{"sample_id": row["sample_id"], "shard_group": GROUP} for row in manifest]
    order = order_of(
        latent_shards.STEP,
        GROUP,
        params=latent_shards._params(Recipe(name="test")),
        inputs={
            "manifests": [put_rows(store, "manifests", "v1", manifest)],
            "shard_assignments": [put_rows(store, "shard_assignments", "v1", assigned)],
        },
    )
    _, rows = execute(latent_shards.STEP, order, store)
    return store, cut.manifest, rows


def test_both_rates_are_cut_into_samples_of_their_own_buckets(made):
    _, manifest, rows = made
    assert set(manifest["bucket", "start_frame", "fps"].rows()) == {
        ("256p/256x144/33", 0, 24.0),
        ("256p48/256x144/65", 0, 48.0),
        ("256p48/256x144/33", 65, 48.0),
    }
    assert set(manifest["num_tokens", "num_frames"].rows()) == {(9 * 144, 33), (17 * 144, 65)}
    assert rows["latent_losses"].is_empty()
    assert set(rows["placements"]["bucket"]) == set(manifest["bucket"])


@pytest.mark.parametrize("start", [0, 65])
def test_every_frame_of_a_fast_sample_shows_its_forty_eighth_of_a_second(made, start):
    store, manifest, rows = made
    (sample,) = manifest.filter(pl.col("rung") == "256p48", start_frame=start).to_dicts()
    (placed,) = rows["placements"].filter(sample_id=sample["sample_id"]).to_dicts()
    latents_tchw = read_latents(store, placed)
    assert len(latents_tchw) == (sample["num_frames"] - 1) // 4 + 1
    frames_thwc = AnalyticTokenizer().decode(latents_tchw)
    for k in range(0, sample["num_frames"], 8):
        shown_s = int((start + k) / 48 * 60 + 1e-6) / 60  # by the source's own frames
        errors = {
            at: np.abs(frames_thwc[k].astype(int) - synthetic.picture("gradient", SIZE, at)).mean()
            for at in (shown_s, shown_s + 0.1, shown_s - 0.1)
        }
        assert min(errors, key=errors.__getitem__) == shown_s
