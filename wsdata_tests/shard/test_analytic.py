"""The embedded tokenizer: exact prefixes, any thread count, and how faithful it is."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.shard.analytic import AnalyticTokenizer
from wsdata.shard.latents import latent_shape, open_tokenizer, psnr_db, tokenizer_version
from wsdata_tests.shard.analytic_pictures import PICTURES, golden_digest, noise
from wsdata_tests.shard.shard_support import moving_gradient

TOKENIZER = AnalyticTokenizer()

# Of this code on these pictures: a change of basis or rounding shows here, and changes VERSION.
GOLDEN_PSNR_DB = {"gradient": 31.44, "cartoon": 31.86, "noise": 10.86}
GOLDEN_DIGEST = "0da2ddbd4b8dd1d5"


@given(
    num_groups=st.integers(0, 3),
    prefix=st.integers(0, 3),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_latents_of_a_prefix_are_a_prefix_of_the_latents(num_groups, prefix, rows, columns, seed):
    frames = noise(1 + 4 * num_groups, 8 * rows, 8 * columns, seed)
    latents = TOKENIZER.encode(frames)
    assert latents.shape == latent_shape(*frames.shape[:3]) == (1 + num_groups, 16, rows, columns)
    kept = min(prefix, num_groups)
    np.testing.assert_array_equal(TOKENIZER.encode(frames[: 1 + 4 * kept]), latents[: 1 + kept])


def test_blocks_do_not_see_each_other():
    frames = noise(5, 32, 48)
    whole = TOKENIZER.encode(frames)
    part = TOKENIZER.encode(np.ascontiguousarray(frames[:, 8:24, 16:40]))
    np.testing.assert_array_equal(part, whole[:, :, 1:3, 2:5])


def test_latents_equal_a_slow_projection_on_the_orthonormal_basis():
    """Oracle: inner products one by one with integer basis functions, in Python integers."""
    frames = noise(5, 8, 8)
    latents = TOKENIZER.encode(frames)[:, :, 0, 0]
    for block, pixels, latent in (
        (TOKENIZER._first, frames[:1], latents[0]),
        (TOKENIZER._group, frames[1:], latents[1]),
    ):
        values = [int(value) - 128 for value in pixels.ravel()]
        for function, gain, found in zip(block.basis_kp, block.gain_k, latent, strict=True):
            exact = sum(value * int(weight) for value, weight in zip(values, function, strict=True))
            assert found == np.float32(exact * gain)
        products = block.basis_kp @ block.basis_kp.T
        assert np.count_nonzero(products - np.diag(np.diag(products))) == 0


def test_decoding_is_the_best_that_the_sixteen_functions_can_do():
    """Oracle: least squares on the same functions, in floating point."""
    frames = moving_gradient(1, 8, 8, seed=3)
    basis = TOKENIZER._first.basis_kp.astype(float)
    values = frames.ravel().astype(float) - 128
    fit = np.linalg.lstsq(basis.T, values, rcond=None)[0] @ basis + 128
    decoded = TOKENIZER.decode(TOKENIZER.encode(frames)).ravel()
    assert np.abs(decoded - np.clip(fit, 0, 255)).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("level", [0, 1, 127, 128, 200, 255])
def test_a_flat_grey_clip_comes_back_exactly_and_has_one_value_a_channel(level):
    frames = np.full((9, 16, 16, 3), level, np.uint8)
    latents = TOKENIZER.encode(frames)
    assert (latents == latents[:1, :, :1, :1]).all()
    np.testing.assert_array_equal(TOKENIZER.decode(latents), frames)


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_fidelity_is_what_it_was(name):
    frames = PICTURES[name]
    found = psnr_db(frames, TOKENIZER.decode(TOKENIZER.encode(frames)))
    assert found == pytest.approx(GOLDEN_PSNR_DB[name], abs=0.01)


def test_bits_are_what_they_were():
    assert golden_digest(TOKENIZER)[:16] == GOLDEN_DIGEST


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_are_the_same_for_any_number_of_threads(threads):
    code = (
        "from wsdata.shard.analytic import AnalyticTokenizer\n"
        "from wsdata_tests.shard.analytic_pictures import golden_digest\n"
        "print(golden_digest(AnalyticTokenizer())[:16])"
    )
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    root = str(Path(__file__).parents[2])
    env = {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONPATH": root}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == GOLDEN_DIGEST


def test_its_name_says_that_it_is_of_low_fidelity():
    assert TOKENIZER.version.startswith("analytic-lofi-1-")
    assert tokenizer_version({"engine": "analytic"}) == open_tokenizer({}).version


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [
        ((4, 8, 8, 3), np.uint8, "4k \\+ 1"),
        ((1, 12, 8, 3), np.uint8, "multiples of 8"),
        ((1, 8, 8), np.uint8, r"expected uint8 \(t, h, w, 3\)"),
        ((1, 8, 8, 3), np.float32, "expected uint8"),
    ],
)
def test_frames_of_another_kind_are_refused(shape, dtype, told):
    with pytest.raises(ValueError, match=told):
        TOKENIZER.encode(np.zeros(shape, dtype))


def test_latents_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="expected"):
        TOKENIZER.decode(np.zeros((1, 8, 2, 2), np.float32))
    with pytest.raises(ValueError, match="NaN"):
        TOKENIZER.decode(np.full((1, 16, 2, 2), np.nan, np.float32))


def test_huge_latents_saturate():
    decoded = TOKENIZER.decode(np.full((1, 16, 1, 1), 1e30, np.float32))
    assert set(np.unique(decoded)) <= {0, 255, *range(256)}
