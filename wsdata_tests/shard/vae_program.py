"""Run by the interpreter of `tools/vae.sh`: the encoding step with a VAE of random weights.

Usage: python -m wsdata_tests.shard.vae_program CLASS FOLDER. Prints what a test asserts, as JSON.
"""

import json
import sys
from pathlib import Path

import diffusers  # pyright: ignore[reportMissingImports]
import numpy as np
import torch

from wsdata.digest import sha256_bytes
from wsdata.media.decode import read_transcode
from wsdata.recipe import Recipe, Tokenizer
from wsdata.shard import latent_shards
from wsdata.shard.latents import open_tokenizer
from wsdata.shard.reader import read_latents
from wsdata.store import FolderStore
from wsdata_tests.shard.shard_support import execute, moving_gradient, mp4_of, order_of, put_rows

SMALL = {
    "AutoencoderKLWan": {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1},
    "AutoencoderKLHunyuanVideo": {
        "block_out_channels": (8, 8, 16, 16),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "scaling_factor": 4.0,
    },
}
HEIGHT, WIDTH = 64, 96


def save_model(name: str, folder: Path) -> None:
    """Save a small model of a class, of seeded random weights, as its publishers save theirs."""
    torch.manual_seed(0)
    getattr(diffusers, name)(**SMALL[name]).save_pretrained(folder)


def encode_as_documented(model, pixels_thwc, config):
    """Latents as the library's own pipelines make them of pixels in [-1, 1]."""
    batch = torch.from_numpy(pixels_thwc).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    with torch.no_grad():
        latents = model.encode(batch).latent_dist.mode()
    if "latents_mean" in config:
        mean = torch.tensor(config["latents_mean"]).view(1, -1, 1, 1, 1)
        std = torch.tensor(config["latents_std"]).view(1, -1, 1, 1, 1)
        latents = (latents - mean) * (1.0 / std)
    else:
        latents = latents * config["scaling_factor"]
    return latents[0].permute(1, 0, 2, 3).numpy()


def sample_row(store, index: int, num_frames: int) -> dict:
    """Store a transcode and name a sample of it."""
    content = mp4_of(moving_gradient(num_frames, HEIGHT, WIDTH, seed=index))
    store.put(f"derived/{index}.mp4", content)
    return {
        "sample_id": f"sample-{index}", "clip_id": f"clip-{index}", "variant": "plain",
        "bucket": f"256p/{WIDTH}x{HEIGHT}/{num_frames}", "rung": "256p", "fps": 24.0,
        "width_px": WIDTH, "height_px": HEIGHT, "num_frames": num_frames, "start_frame": 0,
        "transcode_key": f"derived/{index}.mp4", "transcode_sha256": sha256_bytes(content),
    }  # fmt: skip


def run_step(store, weights: Path, rows: list[dict]):
    """Encode samples through the step, as a worker of the encode pool does."""
    recipe = Recipe(name="t", tokenizer=Tokenizer(engine="diffusers", weights=str(weights)))
    assigned = [{"sample_id": row["sample_id"], "shard_group": "v1.0000"} for row in rows]
    order = order_of(
        latent_shards.STEP,
        "v1.0000",
        params=latent_shards._params(recipe),
        inputs={
            "manifests": [put_rows(store, "manifests", "v1", rows)],
            "shard_assignments": [put_rows(store, "shard_assignments", "v1", assigned)],
        },
        settings={"weights": str(weights), "num_threads": 1},
    )
    return execute(latent_shards.STEP, order, store)


def main(name: str, folder: Path) -> None:
    """See the module docstring."""
    weights, store = folder / "weights", FolderStore(folder / "store")
    save_model(name, weights)
    rows = [sample_row(store, index, count) for index, count in enumerate((1, 5, 33))]
    report, made = run_step(store, weights, rows)
    model = getattr(diffusers, name).from_pretrained(weights).eval()
    config = json.loads((weights / "config.json").read_text())
    placements = {row["sample_id"]: row for row in made["placements"].to_dicts()}
    errors = []
    for row in rows:
        read = read_latents(store, placements[row["sample_id"]])
        pixels = read_transcode(store.get(row["transcode_key"]))
        expected = encode_as_documented(model, pixels, config)
        largest = np.abs(expected).max(axis=(0, 2, 3), keepdims=True)
        errors.append(float((np.abs(read - expected) / largest).max()))
    tokenizer = open_tokenizer({"engine": "diffusers", "weights": str(weights)})
    wide = np.random.default_rng(3).integers(0, 256, (5, 64, 1040, 3), np.uint8)
    whole, prefix = tokenizer.encode(wide), tokenizer.encode(wide[:1])
    told = {
        "versions": sorted({row["tokenizer_version"] for row in placements.values()}),
        "is_prefix_exact": sorted({row["is_prefix_exact"] for row in placements.values()}),
        "losses": made["latent_losses"].height,
        "largest_errors": errors,
        "metrics": report.metrics,
        "wide_shape": whole.shape,
        "is_wide_prefix_equal": bool(np.array_equal(whole[:1], prefix)),
        "decoded_shape": tokenizer.decode(whole).shape,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
