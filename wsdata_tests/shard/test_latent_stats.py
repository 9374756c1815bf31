"""Numbers of a job against a tokenizer's reference, as far as there is one."""

from types import SimpleNamespace

import numpy as np
import pytest

from wsdata.errors import StepFailed
from wsdata.shard.latent_stats import MIN_JOB_SAMPLES, channel_sums, check_job, job_display
from wsdata.shard.latents import Reference


def units_of(scale_c, mean_c=0.0, *, count=MIN_JOB_SAMPLES):
    draw = np.random.default_rng(0)
    noise = draw.normal(size=(count, 2, 16, 8, 8))
    latents = noise * np.reshape(scale_c, (-1, 1, 1)) + np.reshape(mean_c, (-1, 1, 1))
    columns = {"remarks": {}, "has_audio": False, "channels_json": None}
    return [
        {"psnr_db": 30.0, "channels": channel_sums(each.astype(np.float32)), "columns": columns}
        for each in latents
    ], latents


def tokenizer_with(reference):
    return SimpleNamespace(version="tok-1", reference=reference)


def shown(reference, units):
    display = job_display(tokenizer_with(reference), units, [], [])
    return display["reference"]["raw_value"], display["channels"]["raw_value"]


def test_a_known_reference_is_compared_channel_by_channel():
    reference = Reference(np.full(16, 2.0, np.float32), np.full(16, 0.5, np.float32))
    units, _ = units_of(0.5, 2.0)
    check_job("g", tokenizer_with(reference), units)
    words, channels = shown(reference, units)
    assert "each channel's mean and deviation were compared" in words
    assert "unknown" not in channels
    shifted, _ = units_of(0.5, [*[2.0] * 15, 9.0])
    with pytest.raises(StepFailed, match=r"channel 15: mean off by 1[34]\.\d+ deviations"):
        check_job("g", tokenizer_with(reference), shifted)


def test_one_deviation_for_all_channels_says_nothing_of_each():
    reference = Reference(std=1.0)
    scale_c, mean_c = np.linspace(0.2, 3, 16), np.linspace(-4, 4, 16)
    units, latents = units_of(scale_c, mean_c)
    check_job("g", tokenizer_with(reference), units)
    words, channels = shown(reference, units)
    assert (
        f"unknown of each channel; the deviation of all together is x{latents.std():.3g}" in words
    )
    assert channels.count("unknown") == 32
    for scale in (1e-4, 40.0):
        with pytest.raises(StepFailed, match="deviation of all channels together"):
            check_job("g", tokenizer_with(reference), units_of(scale)[0])


def test_no_reference_is_told_as_unknown_and_not_as_passed():
    units, _ = units_of(1e9)
    check_job("g", tokenizer_with(Reference()), units)
    words, channels = shown(Reference(), units)
    assert words == "unknown: tok-1 has no reference, so nothing was compared with it"
    assert channels.count("unknown") == 32


def test_few_samples_are_told_as_not_compared():
    units, _ = units_of(1.0, count=3)
    words, _ = shown(Reference(std=1.0), units)
    assert words == f"not compared: 3 samples, {MIN_JOB_SAMPLES} are needed"
