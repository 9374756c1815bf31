"""Causal 3D VAEs of the Wan and Hunyuan classes through diffusers, from a local weights folder.

diffusers and torch are imported only when such a tokenizer is opened. Nothing is downloaded:
weights come by path, as a folder with ``config.json`` and safetensors, such as the ``vae`` folder
of a published model. On a GPU its results are not bitwise reproducible; the first result under a
key is kept, as for every engine of that kind.

Memory is bounded by tiles, whatever the rung and the frame count, and tiles are a part of what
latents are: their sizes are fixed here, and the version digests them.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.digest import short_digest
from wsdata.errors import RecipeError, StepFailed
from wsdata.shard.latents import (
    NUM_CHANNELS,
    SPATIAL_FACTOR,
    TEMPORAL_FACTOR,
    Latents,
    Pixels,
    Reference,
    Tokenizer,
    check_frames,
    check_latents,
)

ENCODING_REVISION = 2  # of what this module does around the model

PROBE_FRAMES = 33  # beyond one temporal tile of any class
PROBE_SIDE_PX = 64
PROBE_PREFIXES = (1, 5, 17, 29)
MAX_PREFIX_ERROR = 1e-4  # standard deviations; a cast to eight bits errs by some hundred times that

_READ_BYTES = 1 << 20


class _Family(NamedTuple):
    """What is peculiar to a class of models.

    Attributes:
        sizes: Keys of its configuration, and the value that this geometry wants; a key that an
            older file lacks stands for that value.
        tiles: Arguments of its ``enable_tiling``.
    """

    channels_key: str
    sizes: dict[str, Any]
    tiles: dict[str, int]


def _tiles(side_px: int, stride_px: int) -> dict[str, int]:
    sides = ("height", "width")
    return {f"tile_sample_min_{side}": side_px for side in sides} | {
        f"tile_sample_stride_{side}": stride_px for side in sides
    }


# Wan encodes a frame, then four at a time, and keeps what a convolution needs of those before; so
# time needs no tiles. Its tile leaves 256p to 960x960 whole, and holds 1.4 GB of activations a
# layer in float32. Hunyuan takes 17 frames at once: its own tile is of 256 pixels and 16 frames.
_FAMILIES = {
    "AutoencoderKLWan": _Family(
        "z_dim",
        {"scale_factor_spatial": 8, "scale_factor_temporal": 4, "patch_size": None},
        _tiles(960, 720),
    ),
    "AutoencoderKLHunyuanVideo": _Family(
        "latent_channels",
        {"spatial_compression_ratio": 8, "temporal_compression_ratio": 4},
        _tiles(256, 192) | {"tile_sample_min_num_frames": 16, "tile_sample_stride_num_frames": 12},
    ),
}
CLASSES = tuple(_FAMILIES)


def read_config(weights: str) -> dict[str, Any]:
    """Read and check the configuration in a weights folder.

    Raises:
        RecipeError: No folder is named, it lacks configuration or weights, or it holds a model
            of another class or geometry.
    """
    if not weights:
        raise RecipeError("tokenizer.weights: engine 'diffusers' needs the path of a local folder")
    folder = Path(weights)
    path = folder / "config.json"
    if not path.is_file():
        raise RecipeError(f"tokenizer.weights: no config.json in {folder}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(f"{path} is not JSON: {error}") from error
    family = _FAMILIES.get(config.get("_class_name"))
    if family is None:
        raise RecipeError(
            f"{path}: class {config.get('_class_name')!r}; known are {', '.join(CLASSES)}"
        )
    if config.get(family.channels_key) != NUM_CHANNELS:
        raise RecipeError(
            f"{path}: {family.channels_key} {config.get(family.channels_key)}; expected "
            f"{NUM_CHANNELS} channels"
        )
    for key, wanted in family.sizes.items():
        if (found := config.get(key, wanted)) != wanted:
            raise RecipeError(
                f"{path}: {key} is {found}, expected {wanted}: latents are of "
                f"{SPATIAL_FACTOR}x{SPATIAL_FACTOR} pixels and {TEMPORAL_FACTOR} frames"
            )
    _channel_statistics(config, path)
    if not any(folder.glob("*.safetensors")):
        raise RecipeError(f"tokenizer.weights: no .safetensors in {folder}")
    return config


def _channel_statistics(
    config: dict[str, Any], path: Path
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation of each channel of the model's own latents, as it states them.

    Wan states both for each channel, Hunyuan one factor for all.
    """
    if not _states_each_channel(config):
        factor = config.get("scaling_factor", 0)
        if not isinstance(factor, (int, float)) or factor <= 0:
            raise RecipeError(f"{path}: scaling_factor {factor!r}, expected a positive number")
        deviation = np.float32(1 / factor)
        return np.zeros(NUM_CHANNELS, np.float32), np.full(NUM_CHANNELS, deviation)
    stated = [
        np.array(config.get(name, ()), np.float32) for name in ("latents_mean", "latents_std")
    ]
    if {values.shape for values in stated} != {(NUM_CHANNELS,)} or not (stated[1] > 0).all():
        raise RecipeError(
            f"{path}: latents_mean and latents_std of {[len(values) for values in stated]} "
            f"values; expected {NUM_CHANNELS} of each, deviations above 0"
        )
    return stated[0], stated[1]


def _states_each_channel(config: dict[str, Any]) -> bool:
    return config["_class_name"] == "AutoencoderKLWan"


def weights_version(weights: str) -> str:
    """Version of the model in a folder: a digest over its configuration and weight files.

    How it is used here, tiles included, counts too. A file is read once in a process, and again
    only when its size or time changes.

    Raises:
        RecipeError: As `read_config`.
    """
    config = read_config(weights)
    files = {
        path.name: _file_digest(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns)
        for path in Path(weights).iterdir()
        if path.suffix in (".safetensors", ".json")
    }
    name = config["_class_name"]
    return f"{name}-{short_digest([files, ENCODING_REVISION, _FAMILIES[name].tiles])}"


@functools.cache
def _file_digest(path: str, _size: int, _mtime_ns: int) -> str:
    hasher = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(_READ_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


class DiffusersTokenizer:
    """A loaded VAE behind the `latents.Tokenizer` protocol.

    Latents are the mode of the posterior (nothing is sampled), less the configuration's mean,
    over its standard deviation; so where it states both for each channel, the reference is 0 and 1.
    Where it states one factor for all, that is known of all together, and nothing of each.
    """

    def __init__(self, model: Any, config: dict[str, Any], version: str, *, path: Path) -> None:
        self.version = version
        self.reference = Reference(std=1.0)
        if _states_each_channel(config):
            self.reference = Reference(
                np.zeros(NUM_CHANNELS, np.float32), np.ones(NUM_CHANNELS, np.float32)
            )
        self._model = model
        mean_c, std_c = _channel_statistics(config, path)
        self._mean_c, self._std_c = mean_c[:, None, None, None], std_c[:, None, None, None]
        model.enable_tiling(**_FAMILIES[config["_class_name"]].tiles)
        self.is_prefix_exact = probe_prefixes(self)

    def encode(self, frames_thwc: Pixels) -> Latents:
        """Encode RGB frames, 4k + 1 of them, into latents (t, c, h, w).

        Raises:
            ValueError: Frames of another dtype, shape or geometry.
            StepFailed: The model is not of the geometry that its configuration promised.
        """
        import torch

        shape = check_frames(frames_thwc)
        with torch.inference_mode():
            pixels = torch.from_numpy(np.ascontiguousarray(frames_thwc)).to(self._model.device)
            pixels = pixels.permute(3, 0, 1, 2)[None].to(torch.float32).div_(127.5).sub_(1)
            latents = self._model.encode(pixels.to(self._model.dtype)).latent_dist.mode()[0]
            latents_cthw = latents.to(device="cpu", dtype=torch.float32).numpy()
        normal_tchw = ((latents_cthw - self._mean_c) / self._std_c).transpose(1, 0, 2, 3)
        if normal_tchw.shape != shape:
            raise StepFailed(
                f"tokenizer {self.version} made latents {normal_tchw.shape} of frames "
                f"{frames_thwc.shape}, expected {shape}: the weights are of another geometry"
            )
        return np.ascontiguousarray(normal_tchw)

    def decode(self, latents_tchw: Latents) -> Pixels:
        """Decode latents into RGB frames (t, h, w, c).

        Raises:
            ValueError: Latents of another shape.
        """
        import torch

        check_latents(latents_tchw)
        latents_cthw = latents_tchw.transpose(1, 0, 2, 3) * self._std_c + self._mean_c
        with torch.inference_mode():
            batch = torch.from_numpy(np.ascontiguousarray(latents_cthw, np.float32))[None]
            batch = batch.to(device=self._model.device, dtype=self._model.dtype)
            levels = self._model.decode(batch).sample[0].to(torch.float32).add_(1).mul_(127.5)
            levels = levels.round_().clamp_(0, 255).to(torch.uint8)
            return levels.permute(1, 2, 3, 0).contiguous().cpu().numpy()


def probe_prefixes(tokenizer: Tokenizer) -> bool:
    """Find out whether the latents of prefixes are prefixes of the latents.

    A causal convolution alone does not make it so: a norm that looks at all frames, or a blend of
    temporal tiles, lets later frames change earlier latents. So it is tried, on noise, with a
    length beyond one tile.
    """
    shape = (PROBE_FRAMES, PROBE_SIDE_PX, PROBE_SIDE_PX, 3)
    frames_thwc = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    whole_tchw = tokenizer.encode(frames_thwc)
    for length in PROBE_PREFIXES:
        prefix_tchw = tokenizer.encode(frames_thwc[:length])
        error_tchw = np.abs(prefix_tchw - whole_tchw[: len(prefix_tchw)])
        if not (error_tchw <= MAX_PREFIX_ERROR).all():  # NaN is no prefix either
            return False
    return True


def open_diffusers_vae(weights: str, *, num_threads: int = 1) -> DiffusersTokenizer:
    """Load the VAE in a folder, onto a GPU where there is one, in float32.

    Raises:
        RecipeError: As `read_config`; or diffusers is not installed.
    """
    config, version = read_config(weights), weights_version(weights)
    try:
        import diffusers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RecipeError(
            "tokenizer.engine 'diffusers' needs the extra: pip install 'wsdata[vae]'"
        ) from error
    import torch

    torch.set_num_threads(num_threads)
    model = getattr(diffusers, config["_class_name"]).from_pretrained(
        weights, torch_dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = Path(weights) / "config.json"
    return DiffusersTokenizer(model.to(device).eval(), config, version, path=path)
