"""Tokenizers: what turns pixels into latents and back, behind one protocol.

The geometry that every tokenizer keeps, how one is opened from a recipe's section, and how far
its pixels are from the originals. Which engines there are: `analytic` (embedded), and
`diffusers_vae` (weights from a folder). The step that encodes samples is `latent_shards`.

Axes: t frames or latent frames, h rows, w columns, c channels.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import RecipeError

SPATIAL_FACTOR = 8
TEMPORAL_FACTOR = 4
NUM_CHANNELS = 16
ENGINES = ("analytic", "diffusers")
MAX_PSNR_DB = 100.0  # what identical pictures are recorded with

Pixels = NDArray[np.uint8]
Latents = NDArray[np.float32]


class Reference(NamedTuple):
    """What latents of reference material look like. What is not known is None, and no number.

    Attributes:
        mean_c: Mean of each channel.
        std_c: Standard deviation of each channel; known where the means are.
        std: Standard deviation of all channels together.
    """

    mean_c: NDArray[np.float32] | None = None
    std_c: NDArray[np.float32] | None = None
    std: float | None = None


class Tokenizer(Protocol):
    """A causal video tokenizer of the fixed geometry: 8x8 spatial, 4x temporal, 16 channels.

    Attributes:
        version: Digests configuration and weights, so that two tokenizers never share one.
        reference: What its latents look like, as far as that is known.
        is_prefix_exact: Whether the latents of a temporal prefix are a prefix of the latents, up
            to rounding of float32; if not, latents must not be cropped in time.
    """

    version: str
    is_prefix_exact: bool
    reference: Reference

    def encode(self, frames_thwc: Pixels) -> Latents:
        """Encode RGB frames in [0, 255], 4k + 1 of them, into latents of shape (t, c, h, w)."""
        ...

    def decode(self, latents_tchw: Latents) -> Pixels:
        """Decode latents into RGB frames of shape (t, h, w, c)."""
        ...


def latent_shape(num_frames: int, height_px: int, width_px: int) -> tuple[int, int, int, int]:
    """Shape (t, c, h, w) of the latents of some frames.

    Raises:
        ValueError: The frame count is not 4k + 1, or a side is no multiple of 8.
    """
    if num_frames < 1 or num_frames % TEMPORAL_FACTOR != 1:
        raise ValueError(f"{num_frames} frames: a causal tokenizer takes 1, 5, 9, ... (4k + 1)")
    if height_px < 1 or width_px < 1 or height_px % SPATIAL_FACTOR or width_px % SPATIAL_FACTOR:
        raise ValueError(
            f"frames of {width_px}x{height_px}: both sides must be multiples of {SPATIAL_FACTOR}"
        )
    return (
        1 + (num_frames - 1) // TEMPORAL_FACTOR,
        NUM_CHANNELS,
        height_px // SPATIAL_FACTOR,
        width_px // SPATIAL_FACTOR,
    )


def check_frames(frames_thwc: Pixels) -> tuple[int, int, int, int]:
    """Return the latent shape of an array of frames.

    Raises:
        ValueError: Not uint8, not (t, h, w, 3), or of impossible geometry.
    """
    if frames_thwc.dtype != np.uint8 or frames_thwc.ndim != 4 or frames_thwc.shape[3] != 3:
        raise ValueError(
            f"frames of {frames_thwc.dtype} {frames_thwc.shape}: expected uint8 (t, h, w, 3)"
        )
    num_frames, height_px, width_px, _ = frames_thwc.shape
    return latent_shape(num_frames, height_px, width_px)


def check_latents(latents_tchw: Latents) -> None:
    """Refuse an array that no tokenizer of this geometry makes.

    Raises:
        ValueError: Not (t, 16, h, w).
    """
    if latents_tchw.ndim != 4 or latents_tchw.shape[1] != NUM_CHANNELS:
        raise ValueError(
            f"latents of shape {latents_tchw.shape}: expected (t, {NUM_CHANNELS}, h, w)"
        )


def open_tokenizer(params: Mapping[str, Any], *, num_threads: int = 1) -> Tokenizer:
    """Open the tokenizer that a recipe's ``tokenizer`` section names.

    Args:
        params: ``engine`` and, for engines that have weights, ``weights``: a local folder.
        num_threads: For engines whose library takes a number of threads.

    Raises:
        RecipeError: An unknown engine, or a weights folder that is missing or unfit.
    """
    engine = params.get("engine", "analytic")
    if engine == "analytic":
        from wsdata.shard.analytic import AnalyticTokenizer

        return AnalyticTokenizer()
    if engine == "diffusers":
        from wsdata.shard.diffusers_vae import open_diffusers_vae

        return open_diffusers_vae(params.get("weights", ""), num_threads=num_threads)
    raise _unknown_engine(engine)


def tokenizer_version(params: Mapping[str, Any]) -> str:
    """Version of the tokenizer that `open_tokenizer` would open, without opening it.

    Raises:
        RecipeError: As `open_tokenizer`.
    """
    engine = params.get("engine", "analytic")
    if engine == "analytic":
        from wsdata.shard.analytic import VERSION

        return VERSION
    if engine == "diffusers":
        from wsdata.shard.diffusers_vae import weights_version

        return weights_version(params.get("weights", ""))
    raise _unknown_engine(engine)


def _unknown_engine(engine: Any) -> RecipeError:
    return RecipeError(f"tokenizer.engine: {engine!r} is unknown; known are {', '.join(ENGINES)}")


def psnr_db(frames_thwc: Pixels, decoded_thwc: Pixels) -> float:
    """Peak signal-to-noise ratio of decoded frames, in dB; at most MAX_PSNR_DB.

    Computed from an exact integer sum, so the same frames give the same number anywhere.

    Raises:
        ValueError: The shapes differ.
    """
    if frames_thwc.shape != decoded_thwc.shape:
        raise ValueError(f"shapes differ: {frames_thwc.shape} and {decoded_thwc.shape}")
    squares = 0
    for one_hwc, other_hwc in zip(frames_thwc, decoded_thwc, strict=True):
        delta_hwc = one_hwc.astype(np.int32) - other_hwc
        squares += int(np.sum(delta_hwc * delta_hwc, dtype=np.int64))
    if squares == 0:
        return MAX_PSNR_DB
    return min(MAX_PSNR_DB, 10 * math.log10(255 * 255 * frames_thwc.size / squares))


def sample_pixels(frames_thwc: Pixels, sample: Mapping[str, Any]) -> Pixels:
    """Cut a sample's pixels out of its frames: the crop, and the mirror image for ``flip``.

    Args:
        frames_thwc: The sample's frames, as the transcode has them.
        sample: Row of a manifest: ``crop_x``, ``crop_y``, ``width_px``, ``height_px`` and
            ``variant`` are read.

    Raises:
        ValueError: The crop does not lie inside the frames, or the variant is unknown.
    """
    x, y = sample["crop_x"] or 0, sample["crop_y"] or 0
    width, height = sample["width_px"], sample["height_px"]
    _, frame_height, frame_width, _ = frames_thwc.shape
    if x < 0 or y < 0 or x + width > frame_width or y + height > frame_height:
        raise ValueError(
            f"sample {sample['sample_id']}: crop {width}x{height} at ({x}, {y}) does not lie "
            f"inside frames of {frame_width}x{frame_height}"
        )
    cropped_thwc = frames_thwc[:, y : y + height, x : x + width]
    if sample["variant"] == "flip":
        cropped_thwc = cropped_thwc[:, :, ::-1]
    elif sample["variant"] != "plain":
        raise ValueError(f"sample {sample['sample_id']}: unknown variant {sample['variant']!r}")
    return np.ascontiguousarray(cropped_thwc)
