"""Opening tokenizers, and the diffusers engine with a fake of the library at its border."""

import json
import sys
import types

import numpy as np
import pytest
import torch

from wsdata.errors import RecipeError, StepFailed
from wsdata.shard.latents import open_tokenizer, sample_pixels, tokenizer_version

MEAN = [0.1 * channel for channel in range(16)]
STD = [1.0 + 0.1 * channel for channel in range(16)]


class FakeVae(torch.nn.Module):
    """Averages blocks of 4x8x8 (the first frame alone) into 16 equal channels, and back."""

    temporal = 4
    looks_ahead = False  # whether a frame's latents know of later frames, as a norm over time does

    def __init__(self, folder, options):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.folder, self.options = folder, options
        self.tiles = None

    def enable_tiling(self, **tiles):
        self.tiles = tiles

    @classmethod
    def from_pretrained(cls, folder, **options):
        return cls(folder, options)

    @property
    def device(self):
        return self.weight.device

    @property
    def dtype(self):
        return self.weight.dtype

    def encode(self, batch):
        assert batch.shape[0] == 1
        assert batch.shape[1] == 3
        assert batch.abs().max() <= 1
        grey = batch.mean(dim=1, keepdim=True)
        pooled = torch.nn.functional.avg_pool3d(grey, (1, 8, 8))
        later = pooled[:, :, 1:].split(self.temporal, 2)
        groups = [pooled[:, :, :1], *(part.mean(2, keepdim=True) for part in later if part.numel())]
        latents = torch.cat(groups, 2).repeat(1, 16, 1, 1, 1)
        if self.looks_ahead:
            latents = latents - latents.mean(2, keepdim=True)
        return types.SimpleNamespace(latent_dist=types.SimpleNamespace(mode=lambda: latents))

    def decode(self, latents):
        grey = latents[:, :1]
        frames = torch.cat([grey[:, :, :1], grey[:, :, 1:].repeat_interleave(4, 2)], 2)
        frames = frames.repeat_interleave(8, 3).repeat_interleave(8, 4)
        return types.SimpleNamespace(sample=frames.repeat(1, 3, 1, 1, 1))


@pytest.fixture
def weights(tmp_path):
    config = {
        "_class_name": "AutoencoderKLWan",
        "z_dim": 16,
        "latents_mean": MEAN,
        "latents_std": STD,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "diffusion_pytorch_model.safetensors").write_bytes(b"weights")
    return tmp_path


@pytest.fixture
def library(monkeypatch):
    module = types.ModuleType("diffusers")
    module.AutoencoderKLWan = module.AutoencoderKLHunyuanVideo = FakeVae
    monkeypatch.setitem(sys.modules, "diffusers", module)
    return module


def _params(weights):
    return {"engine": "diffusers", "weights": str(weights)}


def _set_config(weights, **changes):
    path = weights / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_vae_encodes_to_normal_latents_and_back(weights, library):
    tokenizer = open_tokenizer(_params(weights))
    frames = np.repeat(np.arange(0, 250, 50, dtype=np.uint8), 16 * 24 * 3).reshape(5, 16, 24, 3)
    latents = tokenizer.encode(frames)
    assert latents.shape == (2, 16, 2, 3)
    assert latents.dtype == np.float32
    grey = frames[:, 0, 0, 0] / 127.5 - 1
    expected = np.array([grey[0], grey[1:].mean()])[:, None]
    np.testing.assert_allclose(latents[:, :, 0, 0], (expected - MEAN) / np.array(STD), atol=1e-5)
    decoded = tokenizer.decode(latents)
    assert decoded.shape == frames.shape
    assert (decoded[0] == frames[0]).all()
    assert (decoded[1:] == 125).all()
    assert tokenizer.reference.mean_c.tolist() == [0.0] * 16
    assert tokenizer.reference.std_c.tolist() == [1.0] * 16


def test_weights_are_loaded_from_the_folder_alone_as_safetensors(weights, library):
    model = open_tokenizer(_params(weights))._model
    assert model.folder == str(weights)
    assert model.options["local_files_only"]
    assert model.options["use_safetensors"]
    assert not model.training
    assert model.tiles["tile_sample_min_height"] == 960


def test_prefixes_are_tried_and_not_assumed(weights, library, monkeypatch):
    assert open_tokenizer(_params(weights)).is_prefix_exact
    monkeypatch.setattr(FakeVae, "looks_ahead", True)
    assert not open_tokenizer(_params(weights)).is_prefix_exact
    assert open_tokenizer({"engine": "analytic"}).is_prefix_exact


def test_a_model_that_states_one_factor_for_all_channels_is_scaled_by_it(weights, library):
    config = {"_class_name": "AutoencoderKLHunyuanVideo", "latent_channels": 16}
    (weights / "config.json").write_text(json.dumps({**config, "scaling_factor": 0.5}))
    tokenizer = open_tokenizer(_params(weights))
    assert tokenizer.version.startswith("AutoencoderKLHunyuanVideo-")
    assert tokenizer._model.tiles["tile_sample_min_num_frames"] == 16
    frames = np.full((5, 16, 16, 3), 255, np.uint8)
    latents = tokenizer.encode(frames)
    np.testing.assert_array_equal(latents, np.full((2, 16, 2, 2), 0.5, np.float32))
    np.testing.assert_array_equal(tokenizer.decode(latents), frames)
    assert tokenizer.reference == (None, None, 1.0), "nothing is known of a channel by itself"
    (weights / "config.json").write_text(json.dumps(config))
    with pytest.raises(RecipeError, match="scaling_factor 0, expected a positive number"):
        tokenizer_version(_params(weights))


def test_the_version_digests_weights_and_config_and_not_the_path(
    weights, library, tmp_path_factory
):
    version = tokenizer_version(_params(weights))
    assert version == open_tokenizer(_params(weights)).version
    assert version.startswith("AutoencoderKLWan-")
    other = tmp_path_factory.mktemp("elsewhere")
    for path in weights.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert tokenizer_version(_params(other)) == version
    (other / "diffusion_pytorch_model.safetensors").write_bytes(b"other weights")
    assert tokenizer_version(_params(other)) != version
    _set_config(weights, base_dim=96)
    assert tokenizer_version(_params(weights)) != version


def test_asking_for_the_version_imports_no_library(weights, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    tokenizer_version(_params(weights))
    with pytest.raises(RecipeError, match=r"wsdata\[vae\]"):
        open_tokenizer(_params(weights))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"_class_name": "AutoencoderKL"}, "known are AutoencoderKLWan"),
        ({"z_dim": 48}, "expected 16 channels"),
        ({"latents_std": STD[:3]}, "of .16, 3. values; expected 16 of each"),
        ({"latents_std": [0.0, *STD[1:]]}, "deviations above 0"),
        ({"scale_factor_spatial": 16}, "scale_factor_spatial is 16, expected 8"),
        ({"patch_size": 2}, "patch_size is 2, expected None"),
    ],
)
def test_a_model_of_another_kind_is_refused_before_it_is_loaded(weights, changes, told):
    _set_config(weights, **changes)
    with pytest.raises(RecipeError, match=told):
        tokenizer_version(_params(weights))


def test_folders_that_hold_no_model_are_refused(weights, tmp_path):
    with pytest.raises(RecipeError, match="needs the path"):
        tokenizer_version({"engine": "diffusers"})
    with pytest.raises(RecipeError, match=r"no config\.json"):
        tokenizer_version(_params(tmp_path / "nowhere"))
    (weights / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(RecipeError, match=r"no \.safetensors"):
        tokenizer_version(_params(weights))
    (weights / "config.json").write_text("{")
    with pytest.raises(RecipeError, match=r"config\.json is not JSON"):
        tokenizer_version(_params(weights))


def test_a_model_whose_geometry_is_not_what_it_says_is_refused(weights, library, monkeypatch):
    monkeypatch.setattr(FakeVae, "temporal", 2)
    with pytest.raises(StepFailed, match="another geometry"):
        open_tokenizer(_params(weights))


def test_unknown_engines_are_refused_by_name():
    for ask in (open_tokenizer, tokenizer_version):
        with pytest.raises(RecipeError, match="'magic' is unknown; known are analytic, diffusers"):
            ask({"engine": "magic"})


def test_an_unknown_variant_is_a_bad_argument():
    sample = {"sample_id": "s", "crop_x": 0, "crop_y": 0, "width_px": 8, "height_px": 8}
    with pytest.raises(ValueError, match="unknown variant 'spin'"):
        sample_pixels(np.zeros((1, 8, 8, 3), np.uint8), {**sample, "variant": "spin"})
