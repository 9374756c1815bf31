"""An independent look at stored latents: encode the stored clip again, and compare.

A program of its own (``python -m wsdata.shard.latent_check REQUEST``), because whoever reads
latents for training decodes no media: the loader's proof hands over what it has read, and this
goes back to the transcode, by a shorter way than the encoding job. Making latents belongs to
`latent_shards`.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wsdata.digest import canonical_json
from wsdata.media.decode import read_transcode
from wsdata.shard.latents import Tokenizer, open_tokenizer, psnr_db
from wsdata.shard.quantize import dequantize, quantize
from wsdata.store import BlobStore, open_store

MAX_PSNR_OFF_DB = 0.01
EXACT_ENGINES = ("analytic",)  # the others need not give the same bits twice


def check_sample(
    store: BlobStore, tokenizer: Tokenizer, sample: Mapping[str, Any], *, is_exact: bool
) -> dict[str, Any]:
    """Compare latents that were read with an encoding of the stored clip.

    Args:
        store: Holds the transcode.
        tokenizer: The tokenizer of the dataset version.
        sample: Row of a manifest, and ``latents_path`` (a .npy file of float32, (t, c, h, w)),
            ``latent_dtype`` and ``psnr_db`` as recorded.
        is_exact: Whether the tokenizer gives the same bits every time.

    Returns:
        ``sample_id``, ``is_equal``, ``max_difference``, ``psnr_db``, ``recorded_psnr_db``,
        ``is_psnr_right``. Without `is_exact`, `is_equal` says that the PSNR is.
    """
    read_tchw = np.load(sample["latents_path"])
    start, end = sample["start_frame"], sample["start_frame"] + sample["num_frames"]
    x, y = sample["crop_x"] or 0, sample["crop_y"] or 0
    frames_thwc = read_transcode(store.get(sample["transcode_key"]))[
        start:end, y : y + sample["height_px"], x : x + sample["width_px"]
    ]
    if sample["variant"] == "flip":
        frames_thwc = frames_thwc[:, :, ::-1]
    frames_thwc = np.ascontiguousarray(frames_thwc)
    quantized = quantize(tokenizer.encode(frames_thwc), sample["latent_dtype"])
    again_tchw = dequantize(quantized.codes_tchw, quantized.scale_c, sample["latent_dtype"])
    found_db = psnr_db(frames_thwc, tokenizer.decode(read_tchw))
    is_psnr_right = abs(found_db - sample["psnr_db"]) <= MAX_PSNR_OFF_DB
    return {
        "sample_id": sample["sample_id"],
        "is_equal": bool(np.array_equal(again_tchw, read_tchw)) if is_exact else is_psnr_right,
        "max_difference": float(np.abs(again_tchw - read_tchw).max()),
        "psnr_db": round(found_db, 4),
        "recorded_psnr_db": round(sample["psnr_db"], 4),
        "is_psnr_right": is_psnr_right,
    }


def check_request(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Check all samples of a request: ``store``, ``tokenizer``, ``num_threads``, ``samples``."""
    store = open_store(request["store"])
    tokenizer = open_tokenizer(request["tokenizer"], num_threads=request["num_threads"])
    is_exact = request["tokenizer"]["engine"] in EXACT_ENGINES
    return [
        check_sample(store, tokenizer, sample, is_exact=is_exact) for sample in request["samples"]
    ]


def main() -> None:
    """Read a request (JSON), write one result for each sample to stdout (JSON)."""
    parser = argparse.ArgumentParser(description="Encode stored clips again and compare latents.")
    parser.add_argument("request", type=Path)
    request = json.loads(parser.parse_args().request.read_text())
    sys.stdout.write(canonical_json(check_request(request)))


if __name__ == "__main__":
    main()
