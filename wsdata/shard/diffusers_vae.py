"""Causal 3D VAEs of the Wan class through diffusers, from a local weights folder.

diffusers and torch are imported only when such a tokenizer is opened. Nothing is downloaded:
weights come by path, as a folder with ``config.json`` and safetensors, such as the ``vae`` folder
of a published model. On a GPU its results are not bitwise reproducible; the first result under a
key is kept, as for every engine of that kind.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from wsdata.digest import short_digest
from wsdata.errors import RecipeError, StepFailed
from wsdata.shard.latents import NUM_CHANNELS, Latents, Pixels, check_frames, check_latents

CLASSES = ("AutoencoderKLWan",)

_READ_BYTES = 1 << 20


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
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("_class_name") not in CLASSES:
        raise RecipeError(
            f"{path}: class {config.get('_class_name')!r}; known are {', '.join(CLASSES)}"
        )
    sizes = {name: len(config.get(name, ())) for name in ("latents_mean", "latents_std")}
    if config.get("z_dim") != NUM_CHANNELS or set(sizes.values()) != {NUM_CHANNELS}:
        raise RecipeError(
            f"{path}: z_dim {config.get('z_dim')} with {sizes}; expected {NUM_CHANNELS} channels, "
            "each with a mean and a standard deviation"
        )
    if not any(folder.glob("*.safetensors")):
        raise RecipeError(f"tokenizer.weights: no .safetensors in {folder}")
    return config


def weights_version(weights: str) -> str:
    """Version of the model in a folder: a digest over its configuration and weight files.

    A file is read once in a process, and again only when its size or time changes.

    Raises:
        RecipeError: As `read_config`.
    """
    config = read_config(weights)
    files = {
        path.name: _file_digest(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns)
        for path in Path(weights).iterdir()
        if path.suffix in (".safetensors", ".json")
    }
    return f"{config['_class_name']}-{short_digest(files)}"


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
    over its standard deviation; so the reference statistics are 0 and 1.
    """

    def __init__(self, model: Any, config: dict[str, Any], version: str) -> None:
        self.version = version
        self.reference_mean_c = np.zeros(NUM_CHANNELS, np.float32)
        self.reference_std_c = np.ones(NUM_CHANNELS, np.float32)
        self._model = model
        self._mean_c = np.array(config["latents_mean"], np.float32)[:, None, None, None]
        self._std_c = np.array(config["latents_std"], np.float32)[:, None, None, None]

    def encode(self, frames_thwc: Pixels) -> Latents:
        """Encode RGB frames, 4k + 1 of them, into latents (t, c, h, w).

        Raises:
            ValueError: Frames of another dtype, shape or geometry.
            StepFailed: The model is not of the geometry that its configuration promised.
        """
        shape = check_frames(frames_thwc)
        pixels_cthw = np.ascontiguousarray(frames_thwc.transpose(3, 0, 1, 2), dtype=np.float32)
        pixels_cthw /= np.float32(127.5)
        pixels_cthw -= np.float32(1)
        latents_cthw = self._through(
            pixels_cthw, lambda batch: self._model.encode(batch).latent_dist.mode()
        )
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
        check_latents(latents_tchw)
        latents_cthw = latents_tchw.transpose(1, 0, 2, 3) * self._std_c + self._mean_c
        pixels_cthw = self._through(latents_cthw, lambda batch: self._model.decode(batch).sample)
        levels_cthw = np.clip(np.rint((pixels_cthw + 1) * 127.5), 0, 255).astype(np.uint8)
        return np.ascontiguousarray(levels_cthw.transpose(1, 2, 3, 0))

    def _through(self, values_cthw: np.ndarray, apply: Any) -> np.ndarray:
        import torch

        with torch.inference_mode():
            batch = torch.from_numpy(np.ascontiguousarray(values_cthw))[None]
            batch = batch.to(device=self._model.device, dtype=self._model.dtype)
            return apply(batch)[0].to(device="cpu", dtype=torch.float32).numpy()


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
    return DiffusersTokenizer(model.to(device).eval(), config, version)
