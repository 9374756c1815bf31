"""Samples for the loader's benchmark: random codes of real sizes, as ours, as MDS, as tars."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wsdata.digest import sha256_bytes
from wsdata.ids import make_clip_id, make_sample_id
from wsdata.shard.export_items import Exported
from wsdata.shard.export_tar import write_tar
from wsdata.shard.format import Sample, encode_sample, mds_index
from wsdata.shard.latents import latent_shape
from wsdata.shard.placement import placement_of
from wsdata.shard.plan_step import STEP as PLAN_STEP
from wsdata.shard.writer import plan_shards, write_shard
from wsdata.store import FolderStore
from wsdata_tests.orders_support import order_of, put_rows, run_step

MAX_SHARD_BYTES = 128 << 20
TAR_SAMPLES = 400
NUM_STEPS = 2_000_000


class Made(NamedTuple):
    """A dataset version, and the folders in which peers find the same samples."""

    version: str
    bucket: str
    batch: int
    num_samples: int


SIZES = {
    "256p": Made("v1", "256p/448x256/33", 32, 1000),
    "512p": Made("v2", "512p/896x512/121", 8, 72),
}


def make(root: Path, made: Made) -> None:
    """Write one version's samples in all three forms under `root`."""
    store = FolderStore(root / "store")
    rows = [_row(made, number) for number in range(made.num_samples)]
    by_id = {row["sample_id"]: row for row in rows}
    shape = rows[0]["shape"]
    encoded = {row["sample_id"]: _encode(row, number) for number, row in enumerate(rows)}
    placed = []
    shards = []
    for ids in plan_shards({key: len(data) for key, data in encoded.items()}, MAX_SHARD_BYTES):
        shard = write_shard(store, ids, encoded.__getitem__, max_bytes=MAX_SHARD_BYTES)
        shards.append(shard)
        placed += [
            _placed(by_id[entry["sample_id"]], entry, shard, shape) for entry in shard["samples"]
        ]
    _publish(store, made, placed)
    _as_mds(root / "mds" / made.version, store, shards)
    _as_tars(root / "tars" / made.version, placed, encoded)


def _row(made: Made, number: int) -> dict:
    rung, size, frames = made.bucket.split("/")
    width, height = (int(side) for side in size.split("x"))
    asset_id = sha256_bytes(f"{made.bucket} {number}".encode())
    clip_id = make_clip_id(asset_id, track=0, start_ms=0, end_ms=5000)
    shape = latent_shape(int(frames), height, width)
    return {
        "sample_id": make_sample_id(clip_id, rung=rung, start_frame=0, num_frames=int(frames)),
        "clip_id": clip_id,
        "asset_id": asset_id,
        "stream": "video",
        "tier": "T0",
        "source": "made",
        "cluster": 0,
        "bucket": made.bucket,
        "weight": 1.0,
        "num_tokens": shape[0] * shape[2] * shape[3] // 4,
        "shape": shape,
    }


def _encode(row: dict, number: int) -> bytes:
    codes = np.random.default_rng(number).integers(0, 256, row["shape"], dtype=np.uint8)
    codes[codes & 127 == 127] = 0  # the two codes that stand for no number
    scale = np.full(16, 0.01, np.float32)
    return encode_sample(Sample(row["sample_id"], row["clip_id"], "fp8", "made-1", codes, scale))


def _placed(row: dict, entry: dict, shard: dict, shape: tuple[int, ...]) -> dict:
    return {
        **{name: value for name, value in row.items() if name != "shape"},
        **{name: value for name, value in entry.items() if name != "sample_id"},
        "tokenizer_version": "made-1",
        "latent_dtype": "fp8",
        "latent_shape_json": json.dumps(shape),
        "shard": shard["shard"],
        "shard_key": shard["shard_key"],
        "psnr_db": 30.0,
        "is_prefix_exact": True,
        "caption_pack_key": None,
        "caption_version": None,
    }


def _publish(store: FolderStore, made: Made, placed: list[dict]) -> None:
    named = [{key: row[key] for key in ("sample_id", "clip_id", "bucket")} for row in placed]
    phase = {
        "name": "all",
        "steps": NUM_STEPS,
        "rungs": [made.bucket.split("/")[0]],
        "tiers": ["T0"],
        "weights": {"video": 1.0},
    }
    params = {
        "seed": 1,
        "phases": [phase],
        "streams": {"video": {"max_epochs": 0.0}},
        "samples": {"global_batch": made.batch, "batch_of_bucket": {}},
    }
    inputs = {
        "dataset_index": [put_rows(store, "dataset_index", placed, made.version)],
        "manifests": [put_rows(store, "manifests", named, made.version)],
    }
    run_step(PLAN_STEP, order_of(PLAN_STEP, made.version, inputs, params=params), store)


def _as_mds(folder: Path, store: FolderStore, shards: list[dict]) -> None:
    """The very same files, with the index that the library wants beside them."""
    folder.mkdir(parents=True)
    told = []
    for number, shard in enumerate(shards):
        name = f"shard.{number:05d}.mds"
        os.link(store.path_of(shard["shard_key"]), folder / name)
        told.append(
            {
                "basename": name,
                "size_bytes": shard["size_bytes"],
                "num_samples": len(shard["samples"]),
            }
        )
    (folder / "index.json").write_bytes(mds_index(told, MAX_SHARD_BYTES))


def _as_tars(folder: Path, placed: list[dict], encoded: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, len(placed), TAR_SAMPLES)):
        items = [
            Exported(placement_of(row), None, encoded[row["sample_id"]], {})
            for row in placed[start : start + TAR_SAMPLES]
        ]
        write_tar(folder / f"{number:05d}.tar", items)
