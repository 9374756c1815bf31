"""What a cast costs, and which groups are told to be worse than their tokenizer promises."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata import tables
from wsdata.shard.fidelity import (
    FLOORS,
    cast_error,
    fidelity_faults,
    fidelity_table,
    floor_of,
    is_compared,
)
from wsdata.shard.quantize import dequantize, quantize

ANALYTIC = "analytic-lofi-1-0123456789abcdef"


def _read_back(latents, dtype):
    made = quantize(latents, dtype)
    return dequantize(made.codes_tchw, made.scale_c, dtype)


def test_the_error_of_a_cast_is_that_of_its_definition():
    latents = np.array([3.0, -4.0, 0.0, 0.0], np.float32).reshape(1, 1, 2, 2)
    read = np.array([3.0, -4.5, 0.0, 0.5], np.float32).reshape(1, 1, 2, 2)
    error = cast_error(latents, read)
    assert error.rms_share == pytest.approx((0.5 / 25) ** 0.5)
    assert error.max_share == pytest.approx(0.5 / 4)
    assert cast_error(np.zeros_like(latents), np.zeros_like(latents)) == (0, 0)


@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["fp8", "int8"]),
    power=st.floats(-30, 30),
    kind=st.sampled_from(["normal", "laplace", "uniform"]),
)
@settings(max_examples=60, deadline=None)
def test_no_cast_errs_by_more_than_half_a_step_at_the_top_of_its_range(seed, dtype, power, kind):
    values = getattr(np.random.default_rng(seed), kind)(size=(2, 16, 4, 5)) * 2.0**power
    latents = values.astype(np.float32)
    error = cast_error(latents, _read_back(latents, dtype))
    assert error.max_share <= FLOORS["analytic-lofi-1"][dtype].cast_max_share


@pytest.mark.parametrize(("dtype", "share"), [("fp8", 0.0265), ("int8", 0.0094)])
def test_gaussian_latents_err_as_was_measured(dtype, share):
    latents = np.random.default_rng(5).standard_normal((9, 16, 32, 56)).astype(np.float32)
    error = cast_error(latents, _read_back(latents, dtype))
    assert error.rms_share == pytest.approx(share, rel=0.03)


def _placements(*groups, version=ANALYTIC, dtype="fp8", num_samples=16):
    good = {"psnr_db": 30.0, "uncast_psnr_db": 30.4, "cast_rms_share": 0.026}
    good |= {"cast_max_share": 0.0357, "tokenizer_version": version, "latent_dtype": dtype}
    rows = [
        good | {"sample_id": f"{group}-{i}", "clip_id": f"{i}", "job": f"{group}@x"} | changes
        for group, changes in groups
        for i in range(num_samples)
    ]
    return tables.rows_of("placements", rows)


def test_jobs_within_the_floors_raise_no_alarm():
    assert fidelity_faults(_placements(("v1.0000", {}), ("v1.0001", {}))) == []
    assert fidelity_faults(tables.empty("placements")) == []
    older = _placements(("v1.0000", {"cast_rms_share": None, "psnr_db": 1.0}))
    assert fidelity_faults(older) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"psnr_db": 19.0, "uncast_psnr_db": 19.1}, "median PSNR 19.0 dB, floor 20.0"),
        ({"uncast_psnr_db": 31.2}, "the cast costs 1.20 dB, 1.0 at most"),
        ({"cast_rms_share": 0.031}, "the cast errs by 3.10% RMS, 3.00% at most"),
        ({"cast_max_share": 0.05}, "16 samples err by more than 3.58% of their largest value"),
    ],
)
def test_a_job_below_a_floor_is_named(changes, told):
    rows = pl.concat([_placements(("v1.0000", {})), _placements(("v1.0007", changes))])
    faults = [fault for fault in fidelity_faults(rows) if "other groups" not in fault]
    assert len(faults) == 1
    assert faults[0].startswith(f"shard group v1.0007: {ANALYTIC} as fp8: {told}")


def test_a_few_samples_tell_nothing_but_a_broken_cast():
    low = {"psnr_db": 10.0, "uncast_psnr_db": 10.0, "cast_max_share": 0.05}
    (fault,) = fidelity_faults(_placements(("v1.0000", low), num_samples=3))
    assert "3 samples err by more than" in fault


def test_one_sample_in_four_is_compared_and_a_loss_is_told_of_those_alone():
    share = np.mean([is_compared(f"sample-{index}") for index in range(4000)])
    assert share == pytest.approx(0.25, abs=0.02)
    rows = _placements(("v1.0000", {"uncast_psnr_db": 31.2}), num_samples=32)
    some = pl.when(pl.int_range(pl.len()) % 4 == 0).then(pl.col("uncast_psnr_db"))
    (fault,) = fidelity_faults(rows.with_columns(some.alias("uncast_psnr_db")))
    assert "the cast costs 1.20 dB" in fault
    none = rows.with_columns(pl.lit(None, pl.Float64).alias("uncast_psnr_db"))
    assert fidelity_faults(none) == []


def test_a_tokenizer_without_a_floor_is_told():
    (fault,) = fidelity_faults(_placements(("v1.0000", {}), version="novel-1"))
    assert "no floor is known" in fault
    assert floor_of("AutoencoderKLWan-12", "int8").psnr_db is None


def test_a_group_unlike_the_others_of_its_version_is_named():
    stale = {"psnr_db": 28.5, "uncast_psnr_db": 28.6}
    rows = _placements(("v1.0000", {}), ("v1.0001", {}), ("v1.0002", stale), ("v1.0003", {}))
    assert fidelity_faults(rows) == [
        "shard group v1.0002: median PSNR 28.5 dB, that of other groups is 30.0, 1.0 off at most: "
        "were the weights stale?"
    ]


def test_groups_that_differ_by_chance_alone_raise_no_alarm():
    draw = np.random.default_rng(11)
    rows = _placements(*((f"v1.{group:04}", {}) for group in range(40)), num_samples=30)
    psnr = pl.Series("psnr_db", 32 + 7 * draw.standard_normal(rows.height))
    rows = rows.with_columns(psnr, (psnr + 0.3).alias("uncast_psnr_db"))
    assert fidelity_faults(rows) == []


def test_figures_are_told_by_tokenizer_version_and_dtype():
    rows = [_placements(("v1.0000", {})), _placements(("v2.0000", {}), dtype="int8")]
    assert fidelity_table(pl.concat(rows)) == [
        [ANALYTIC, "fp8", 16, 30.0, 0.4, 2.6, 3.57],
        [ANALYTIC, "int8", 16, 30.0, 0.4, 2.6, 3.57],
    ]
