"""A small published dataset version, made without media: latents are seeded noise."""

import json

import numpy as np
import polars as pl

from wsdata.digest import canonical_json, sha256_bytes
from wsdata.ids import make_clip_id, make_sample_id
from wsdata.shard.captions import captions_of
from wsdata.shard.format import Sample, encode_sample
from wsdata.shard.latents import latent_shape
from wsdata.shard.packs import build_pack, pack_key
from wsdata.shard.plan_patch import apply_patch
from wsdata.shard.plan_step import STEP as PLAN_STEP
from wsdata.shard.plan_step import plan_key
from wsdata.shard.publish import publish_dataset, read_dataset
from wsdata.shard.quantize import dequantize, quantize
from wsdata.shard.writer import write_shard
from wsdata_tests.orders_support import order_of, put_rows, run_step

BUCKETS = {"video": ("256p/64x32/5", "256p/32x64/9"), "image": ("256p/64x32/1",)}
PARAMS = {
    "seed": 11,
    "phases": [
        {
            "name": "all",
            "steps": 60,
            "rungs": ["256p"],
            "tiers": ["T0", "T1"],
            "weights": {"video": 0.8, "image": 0.2},
        }
    ],
    "streams": {"video": {"max_epochs": 0.0}, "image": {}},
    "samples": {"global_batch": 4, "batch_of_bucket": {}},
}


def sample_rows(num_clips=24):
    """Rows that name samples, without a place: two samples of each video clip, one of an image."""
    return [
        _sample_row(number, start)
        for number in range(num_clips)
        for start in range(1 if number % 3 == 2 else 2)
    ]


def _sample_row(number, start):
    stream = "image" if number % 3 == 2 else "video"
    bucket = BUCKETS[stream][number % len(BUCKETS[stream])]
    rung, size, frames = bucket.split("/")
    width, height = (int(side) for side in size.split("x"))
    asset_id = sha256_bytes(f"asset {number // 2}".encode())
    clip_id = make_clip_id(asset_id, track=0, start_ms=number * 1000, end_ms=number * 1000 + 900)
    shape = latent_shape(int(frames), height, width)
    return {
        "sample_id": make_sample_id(
            clip_id, rung=rung, start_frame=start * 9, num_frames=int(frames)
        ),
        "clip_id": clip_id,
        "asset_id": asset_id,
        "stream": stream,
        "tier": f"T{number % 2}",
        "source": f"source-{number % 5}",
        "cluster": 0,
        "bucket": bucket,
        "weight": 1.0,
        "num_tokens": shape[0] * shape[2] * shape[3] // 4,
        "shape": shape,
    }


def latents_of(sample_id, shape):
    """The latents of a sample as a reader must see them: cast to eight bits and back."""
    quantized = _quantized(sample_id, shape)
    return dequantize(quantized.codes_tchw, quantized.scale_c, "fp8")


def columns_of(sample_id, shape):
    """Sound and actions of a sample that has them."""
    rng = np.random.default_rng(len(sample_id) + int(sha256_bytes(sample_id.encode())[:6], 16))
    num_frames = 4 * (shape[0] - 1) + 1
    audio = rng.integers(-999, 999, num_frames * 667).astype(np.int16)
    return audio, rng.normal(size=(num_frames, 3)).astype(np.float32)


def _quantized(sample_id, shape):
    seed = int(sha256_bytes(sample_id.encode())[:8], 16)
    return quantize(np.random.default_rng(seed).normal(size=shape).astype(np.float32), "fp8")


def publish(store, version="v1", *, params=PARAMS, rows=None, lost=0):
    """Write shards, packs and index of some samples, plan them, and publish the version.

    Args:
        store: Where to.
        version: Its name.
        params: Of the plan's step.
        rows: What `sample_rows` makes.
        lost: How many of the samples that sort first by bucket have no latents, images first.

    Returns the rows of the dataset index, by sample id, and the report of the plan's step.
    """
    rows = sample_rows() if rows is None else rows
    wanted = sorted(rows, key=lambda row: (row["stream"], row["sample_id"]))
    rows = wanted[lost:]
    placed = []
    for bucket in sorted({row["bucket"] for row in rows}):
        mine = {row["sample_id"]: row for row in rows if row["bucket"] == bucket}
        placed += _place(store, mine)
    index = put_rows(store, "dataset_index", placed, version)
    manifest = put_rows(
        store,
        "manifests",
        [{name: row[name] for name in ("sample_id", "clip_id", "bucket")} for row in wanted],
        version,
    )
    inputs = {"dataset_index": [index], "manifests": [manifest]}
    report = run_step(PLAN_STEP, order_of(PLAN_STEP, version, inputs, params=params), store)
    return {row["sample_id"]: row for row in placed}, report


def _place(store, rows):
    def read(sample_id):
        row = rows[sample_id]
        quantized = _quantized(sample_id, row["shape"])
        audio, actions = (
            columns_of(sample_id, row["shape"]) if row.get("has_columns") else (None,) * 2
        )
        return encode_sample(
            Sample(sample_id, row["clip_id"], "fp8", "noise-1", *quantized, audio, actions)
        )

    shard = write_shard(store, sorted(rows), read, max_bytes=1 << 20)
    pack = _pack(shard["samples"], rows)
    key = pack_key(sha256_bytes(pack.data))
    store.put(key, pack.data)
    return [
        {
            **{
                name: value
                for name, value in rows[entry["sample_id"]].items()
                if name not in ("shape", "has_columns")
            },
            **{name: value for name, value in entry.items() if name != "sample_id"},
            "tokenizer_version": "noise-1",
            "latent_dtype": "fp8",
            "latent_shape_json": json.dumps(rows[entry["sample_id"]]["shape"]),
            "shard": shard["shard"],
            "shard_key": shard["shard_key"],
            "psnr_db": 30.0,
            "caption_pack_key": key,
            "caption_version": "told-1",
            "caption_offset": pack.offsets[entry["row"]],
            "caption_length": pack.lengths[entry["row"]],
            "caption_xxh3": pack.digests[entry["row"]],
        }
        for entry in shard["samples"]
    ]


def _pack(entries, rows):
    named = pl.DataFrame(
        [
            {
                "row": entry["row"],
                "sample_id": entry["sample_id"],
                "clip_id": rows[entry["sample_id"]]["clip_id"],
            }
            for entry in entries
        ]
    )
    captions = pl.DataFrame(
        [
            {
                "clip_id": clip_id,
                "variant": variant,
                "captioner_version": "told-1",
                "text": f"{variant} words on {clip_id}",
            }
            for clip_id in sorted(set(named["clip_id"]))
            for variant in ("dense", "short")
        ]
    )
    return build_pack(named, captions_of(named, captions))


def publish_patch(store, plan, name, excluded, from_step):
    """Publish a patch of version v1, without a ledger; return its plan."""
    patched = apply_patch(plan, excluded, from_step)
    store.put(plan_key(patched.plan_id), canonical_json(patched.to_json()).encode())
    pointer = read_dataset(store, "v1")
    body = {key: pointer[key] for key in pointer if key not in ("format_version", "version")}
    body |= {"plan_key": plan_key(patched.plan_id), "plan_id": patched.plan_id}
    publish_dataset(store, name, body)
    return patched
