"""What a cast to eight bits costs latents: e4m3 and int8, one scale for each channel.

Prints JSON: of latents of real clips by the embedded tokenizer, and of drawn ones (Gaussian, and
Laplacian for heavier tails), the error of the cast and the PSNR with and without it. Beside ours
stands what a user would do instead: torch's cast with one scale for the whole sample, and with
none. `shard.fidelity` takes its floors from here.

    python benchmarks/latent_fidelity.py --windows 3
"""

import argparse
import json
import platform
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray

from wsdata.shard.analytic import AnalyticTokenizer
from wsdata.shard.fidelity import cast_error
from wsdata.shard.latents import psnr_db
from wsdata.shard.quantize import DTYPES, FP8_MAX, dequantize, quantize

MEDIA = Path(__file__).parent.parent / "samples" / "media"
NUM_FRAMES = 33
HEIGHT_PX = 256

Array = NDArray[np.float32]


def windows(path: Path, count: int) -> Iterator[NDArray[np.uint8]]:
    """Up to `count` windows of 33 frames at about 256p, spread over the first half minute."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        width = 16 * round(HEIGHT_PX * stream.width / stream.height / 16)
        frames: list[NDArray[np.uint8]] = []
        skipped = 0
        for frame in container.decode(stream):
            if skipped:
                skipped -= 1
                continue
            frames.append(frame.reformat(width, HEIGHT_PX, "rgb24").to_ndarray())
            if len(frames) == NUM_FRAMES:
                yield np.stack(frames)
                frames, skipped, count = [], 150, count - 1
                if not count:
                    return


def ours(latents_tchw: Array, dtype: str) -> Array:
    """Cast and read back as the encode step does."""
    made = quantize(latents_tchw, dtype)
    return dequantize(made.codes_tchw, made.scale_c, dtype)


def torch_cast(latents_tchw: Array, *, is_scaled: bool) -> Array:
    """Cast to e4m3 by torch, with one scale for all channels or none, and back."""
    scale = float(np.abs(latents_tchw).max()) / FP8_MAX if is_scaled else 1.0
    cast = (torch.from_numpy(latents_tchw) / scale).to(torch.float8_e4m3fn)
    return (cast.to(torch.float32) * scale).numpy()


WAYS = {
    **{f"{dtype}, scale per channel": lambda x, d=dtype: ours(x, d) for dtype in DTYPES},
    "torch e4m3, one scale": lambda x: torch_cast(x, is_scaled=True),
    "torch e4m3, no scale": lambda x: torch_cast(x, is_scaled=False),
}


def of_latents(samples: list[Array]) -> dict[str, dict[str, float]]:
    """Errors of every way, over samples."""
    told = {}
    for name, cast in WAYS.items():
        errors = [cast_error(latents, cast(latents)) for latents in samples]
        shares = [error.rms_share for error in errors]
        told[name] = {
            "rms_percent_median": round(100 * statistics.median(shares), 3),
            "rms_percent_max": round(100 * max(shares), 3),
            "max_percent_max": round(100 * max(error.max_share for error in errors), 3),
            "snr_db_median": round(-20 * float(np.log10(statistics.median(shares))), 2),
        }
    return told


def of_pictures(samples: list[NDArray[np.uint8]], tokenizer: AnalyticTokenizer) -> dict[str, Any]:
    """PSNR without the cast, and what each dtype takes off it."""
    latents = [tokenizer.encode(pixels) for pixels in samples]
    plain = [psnr_db(p, tokenizer.decode(x)) for p, x in zip(samples, latents, strict=True)]
    told: dict[str, Any] = {"psnr_db": [round(value, 2) for value in plain]}
    for dtype in DTYPES:
        stored = [
            psnr_db(p, tokenizer.decode(ours(x, dtype)))
            for p, x in zip(samples, latents, strict=True)
        ]
        lost = [before - after for before, after in zip(plain, stored, strict=True)]
        told[dtype] = {
            "psnr_db": [round(value, 2) for value in stored],
            "loss_db_median": round(statistics.median(lost), 3),
            "loss_db_max": round(max(lost), 3),
        }
    return told | {"cast": of_latents(latents)}


def drawn(kind: str, count: int) -> list[Array]:
    """Latents of no picture, 33 frames of 256p, channels of several spreads."""
    draw = np.random.default_rng(5)
    spread_c = np.linspace(0.5, 2.0, 16)[:, None, None]
    shape = (9, 16, 32, 56)
    make = draw.standard_normal if kind == "gaussian" else lambda size: draw.laplace(size=size)
    return [(make(shape) * spread_c).astype(np.float32) for _ in range(count)]


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=3, help="of each clip")
    count = parser.parse_args().windows
    torch.set_num_threads(1)
    tokenizer = AnalyticTokenizer()
    suffixes = {".mp4", ".webm", ".mkv"}
    clips = {
        path.name: of_pictures(samples, tokenizer)
        for path in sorted(MEDIA.iterdir())
        if path.suffix in suffixes and (samples := list(windows(path, count)))
    }
    result = {
        "cpu": platform.processor() or platform.machine(),
        "tokenizer": tokenizer.version,
        "drawn": {kind: of_latents(drawn(kind, 8)) for kind in ("gaussian", "laplacian")},
        "clips": clips,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
