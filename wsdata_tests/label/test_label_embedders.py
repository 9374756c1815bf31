"""Embedders at their border: a stand-in for transformers, and the arithmetic of clip vectors."""

import sys
import types

import numpy as np
import pytest
import torch

from wsdata.label.embed import build_embedder, mean_tags, mean_unit_vector


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A weights folder, and a transformers module whose image tower takes channel means."""

    class Inputs(dict):
        def to(self, device):
            return self

    class Model:
        def eval(self):
            return self

        def to(self, device):
            return self

        def get_image_features(self, pixels):
            return types.SimpleNamespace(pooler_output=5.0 * pixels)

    def process(images, return_tensors):
        means = [np.asarray(image, np.float32).mean(axis=(0, 1)) for image in images]
        return Inputs(pixels=torch.from_numpy(np.stack(means)))

    opened = []

    def open_as(made):
        def from_pretrained(folder, *, local_files_only):
            opened.append((folder, local_files_only))
            return made

        return types.SimpleNamespace(from_pretrained=from_pretrained)

    fake = types.ModuleType("transformers")
    fake.AutoImageProcessor, fake.AutoModel = open_as(process), open_as(Model())
    monkeypatch.setitem(sys.modules, "transformers", fake)
    folder = tmp_path / "siglip-base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return types.SimpleNamespace(folder=folder, opened=opened)


def test_a_siglip_class_engine_gives_unit_vectors_from_a_local_folder(weights):
    embedder = build_embedder({"engine": "siglip", "weights": str(weights.folder)})
    frames = [np.full((8, 8, 3), rgb, np.uint8) for rgb in ((30, 40, 0), (0, 0, 9))]
    vectors, tags = embedder.embed(frames)

    assert vectors == pytest.approx(np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]), abs=1e-6)
    assert tags is None
    assert weights.opened == [(weights.folder, True)] * 2


def test_its_version_follows_the_bytes_of_the_weights(weights):
    params = {"engine": "siglip", "weights": str(weights.folder)}
    first = build_embedder(params).version
    assert first == build_embedder(params).version
    (weights.folder / "model.safetensors").write_bytes(b"other weights")
    assert first != build_embedder(params).version


def test_a_clips_vector_is_the_renormalised_mean():
    mean = mean_unit_vector(np.array([[1, 0, 0], [0, 1, 0]], np.float32))
    assert mean == pytest.approx([2**-0.5, 2**-0.5, 0], abs=1e-6)
    assert mean_unit_vector(np.array([[1, 0], [-1, 0]], np.float32)) == [0.0, 0.0]


def test_a_clips_tags_are_averaged_over_all_frames():
    tags = mean_tags([[("cat", 0.9), ("sock", 0.1)], [("sock", 0.5)], []])
    assert tags == [("cat", 0.3), ("sock", 0.2)]
