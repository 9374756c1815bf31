"""Option B: the pixels behind the latents, in the same order, by a decoder from outside."""

import shutil

import numpy as np
import pytest

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, ObjectMissing, StoreDenied
from wsdata.ids import make_clip_id, make_sample_id
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.pixels import pixel_frames
from wsdata.media.transcode_frames import transcode_decoder
from wsdata.shard.analytic import AnalyticTokenizer
from wsdata.shard.latent_shards import STEP as LATENTS
from wsdata.shard.plan_step import STEP as PLAN
from wsdata.shard.quantize import quantize
from wsdata.store import FolderStore
from wsdata.tables import TABLES
from wsdata_tests.orders_support import order_of, put_rows, rows_made, run_step
from wsdata_tests.shard.shard_support import moving_gradient, mp4_of

GROUP, BUCKETS = "v1.0000", ("256p/64x32/5", "256p/48x48/17")
PARAMS = {
    "seed": 5,
    "phases": [{"name": "all", "steps": 12, "rungs": ["256p"], "tiers": ["T0"],
                "weights": {"video": 1.0}}],
    "streams": {"video": {}},
    "samples": {"global_batch": 2, "batch_of_bucket": {}},
}  # fmt: skip


def manifest_rows(store):
    """Two samples of each of four clips, from several frames on, cut out and mirrored."""
    for number in range(4):
        content = mp4_of(moving_gradient(45, 56, 80, seed=number))
        sha256 = sha256_bytes(content)
        key = f"derived/transcodes_256p/t1/{number}.mp4"
        store.put(key, content)
        asset_id = sha256_bytes(f"{number}".encode())
        clip_id = make_clip_id(asset_id, track=0, start_ms=0, end_ms=1875)
        _, size, frames = (bucket := BUCKETS[number % 2]).split("/")
        width, height = (int(side) for side in size.split("x"))
        for start, variant in ((number, "plain"), (20 + number, "flip")):
            cut = {"start_frame": start, "num_frames": int(frames), "variant": variant}
            yield {
                "sample_id": make_sample_id(clip_id, rung="256p", **cut),
                "clip_id": clip_id, "asset_id": asset_id, "stream": "video", "tier": "T0",
                "source": "s", "cluster": 0, "bucket": bucket, "weight": 1.0, "num_tokens": 8,
                "rung": "256p", "fps": 24.0, "width_px": width, "height_px": height,
                "crop_x": 8 + number, "crop_y": 3, "transcode_key": key,
                "transcode_sha256": sha256, **cut,
            }  # fmt: skip


class OfTrainers(FolderStore):
    """What is derived is for others."""

    def size(self, key):
        raise StoreDenied(f"identity of_trainers may not read {key}")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A version whose latents the real step encoded, planned and published."""
    store = FolderStore(tmp_path_factory.mktemp("store"))
    manifest = list(manifest_rows(store))
    assigned = [{"sample_id": row["sample_id"], "shard_group": GROUP} for row in manifest]
    version = AnalyticTokenizer().version
    tokenizer = {"engine": "analytic", "dtype": "fp8", "version": version}
    inputs = {
        "manifests": [put_rows(store, "manifests", manifest, "v1")],
        "shard_assignments": [put_rows(store, "shard_assignments", assigned, "v1")],
    }
    params = {"tokenizer": tokenizer, "max_bytes": 1 << 20}
    encoded = run_step(LATENTS, order_of(LATENTS, GROUP, inputs, params=params), store)
    placed = rows_made(store, encoded, "placements").drop("clip_id", "bucket").to_dicts()
    rows = {row["sample_id"]: row for row in manifest}
    index = [
        {name: value for name, value in (rows[place["sample_id"]] | place).items()
         if name in TABLES["dataset_index"].columns}
        for place in placed
    ]  # fmt: skip
    inputs = {
        "dataset_index": [put_rows(store, "dataset_index", index, "v1")],
        "manifests": inputs["manifests"],
    }
    run_step(PLAN, order_of(PLAN, "v1", inputs, params=PARAMS), store)
    return store


def dataset(store, **options):
    return PlanDataset(version="v1", store=store, **options)


def pixels(store, **options):
    return dataset(store, decoder=transcode_decoder, **options)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_the_pixels_are_those_that_the_tokenizer_made_the_latents_of(published, num_threads):
    tokenizer = AnalyticTokenizer()
    seen = set()
    options = {"num_threads": num_threads, "columns": ("audio",)}
    latents = dataset(published, latents="stored", **options)
    for stored, decoded in zip(latents, pixels(published, **options), strict=True):
        for name in ("step", "bucket", "sample_ids", "clip_ids", "captions", "epochs", "cursor"):
            assert stored[name] == decoded[name]
        assert [len(each) for each in decoded["audio"]] == [len(each) for each in stored["audio"]]
        assert "latents" not in decoded
        assert str(decoded["pixels"].dtype) == "torch.uint8"
        for codes, frames in zip(stored["latents"], decoded["pixels"].numpy(), strict=True):
            again = quantize(tokenizer.encode(frames), stored["latent_dtype"])
            assert np.array_equal(again.codes_tchw, codes.numpy())
        seen |= {decoded["bucket"], *decoded["sample_ids"]}
    assert len(seen) == len(BUCKETS) + 8


def test_ranks_prefixes_and_resumes_are_slices_of_the_same_pixels(published):
    whole = list(pixels(published, num_steps=6, num_threads=0))
    ranks = [pixels(published, rank=rank, world_size=2, num_steps=6) for rank in (0, 1)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        joined = np.concatenate([part["pixels"] for part in parts])
        assert np.array_equal(joined, batch["pixels"])
    short = list(pixels(published, num_steps=6, max_frames=2))
    for batch, prefix in zip(whole, short, strict=True):
        assert np.array_equal(prefix["pixels"], batch["pixels"][:, :5])
        assert list(prefix["frames"]) == [0, 5, batch["pixels"].shape[1]]
    halves = [pixels(published, sp_rank=rank, sp_size=2, num_steps=6) for rank in (0, 1)]
    for batch, *parts in zip(whole, *halves, strict=True):
        joined = np.concatenate([part["pixels"] for part in parts], axis=1)
        assert np.array_equal(joined, batch["pixels"])
    late = pixels(published, num_threads=0)
    late.load_state_dict(whole[3]["cursor"])
    assert np.array_equal(next(iter(late))["pixels"], whole[4]["pixels"])


def test_transcodes_may_lie_elsewhere_and_come_from_the_cache(published, tmp_path):
    shutil.copytree(published.root / "derived", tmp_path / "media" / "derived")
    shutil.copytree(published.root / "training", tmp_path / "node" / "training")
    node = FolderStore(tmp_path / "node")
    with pytest.raises(ObjectMissing, match="transcodes="):
        list(pixels(node, num_threads=0))
    with pytest.raises(StoreDenied, match=r"of_trainers may not.*trainers_read_transcodes"):
        list(pixels(node, num_threads=0, transcodes=OfTrainers(tmp_path / "media")))
    media = FolderStore(tmp_path / "media")
    options = {"transcodes": media, "cache_dir": tmp_path / "cache", "num_threads": 0}
    wanted = [batch["pixels"] for batch in pixels(published, num_threads=0)]
    for _ in range(2):
        found = [batch["pixels"] for batch in pixels(node, **options)]
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_damage_and_short_transcodes_name_clip_and_step(published, tmp_path):
    store = FolderStore(shutil.copytree(published.root, tmp_path / "store"))
    batch = next(iter(pixels(store, num_threads=0)))
    for path in (store.root / "derived" / "transcodes_256p" / "t1").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(IntegrityError, match=batch["clip_ids"][0]) as error:
        list(pixels(store, num_threads=0))
    assert "wanted by step 0" in "\n".join(error.value.__notes__)

    def ends_early(content, frames):
        return list(transcode_decoder(content, frames))[:-1]

    with pytest.raises(IntegrityError, match="the transcode ends"):
        list(dataset(published, decoder=ends_early, num_threads=0))


def test_latent_frames_stand_for_one_frame_and_then_for_four():
    assert pixel_frames(range(3)) == range(9)
    assert pixel_frames(range(1, 3)) == range(1, 9)
    assert pixel_frames(range(2, 5)) == range(5, 17)
    assert not pixel_frames(range(2, 2))
