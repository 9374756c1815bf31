"""What a cast to eight bits costs, what a tokenizer gives back, and which figures are alarms.

Floors are golden values: what was measured on real material (benchmarks/latent_fidelity.py), with
room for other material. They stand here and nowhere else. A job beyond them is not stopped, since
hard material is no fault; `latent_stats` stops what cannot be right.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

MIN_GROUP_SAMPLES = 16  # fewer may be of one odd clip
MAX_GROUP_SHIFT_DB = 6.0  # of a job's median PSNR from that of its version's other jobs
NUM_NAMED = 3


class CastError(NamedTuple):
    """Error of a cast, as shares of the latents' root mean square, and of their maximum."""

    rms_share: float
    max_share: float


class Floor(NamedTuple):
    """What a tokenizer and a dtype must keep to, as medians over the samples of a job.

    Attributes:
        psnr_db: Least PSNR of stored latents; None where no real weights were measured.
        cast_loss_db: Most PSNR that the cast may cost.
        cast_rms_share: Most RMS error of the cast, as a share of the latents' own.
        cast_max_share: Most error of any value, as a share of the largest; of every sample.
    """

    psnr_db: float | None
    cast_loss_db: float
    cast_rms_share: float
    cast_max_share: float


# By dtype. The largest error follows from the format: half a step at the top of the range, 16 of
# 448 for e4m3 and a half of 127 for int8, each with a little for rounding of the scale. The RMS is
# that of Gaussian latents (0.0257 and 0.0101 at 16 x 10^5 values) with room for heavier tails:
# int8 spends its steps on the largest value, fp8 does not care.
_CAST = {
    "fp8": {"cast_rms_share": 0.035, "cast_max_share": 0.0375},
    "int8": {"cast_rms_share": 0.05, "cast_max_share": 0.0041},
}
# By the tokenizer's family, which its version begins with. Analytic: the lowest median of a sample
# clip is 21.7 dB. No weights of the others were at hand: their PSNR has no floor of ours, and
# `reference.json` beside the weights states one.
FLOORS = {
    "analytic-lofi-1": {
        dtype: Floor(psnr_db=18.0, cast_loss_db=0.5, **cast) for dtype, cast in _CAST.items()
    },
    "AutoencoderKLWan": {
        dtype: Floor(psnr_db=None, cast_loss_db=1.0, **cast) for dtype, cast in _CAST.items()
    },
    "AutoencoderKLHunyuanVideo": {
        dtype: Floor(psnr_db=None, cast_loss_db=1.0, **cast) for dtype, cast in _CAST.items()
    },
}


def cast_error(latents_tchw: NDArray[np.float32], read_tchw: NDArray[np.float32]) -> CastError:
    """Compare latents with what reading them back gives. Both finite, of one shape."""
    error_tchw = read_tchw - latents_tchw
    rms = float(np.sqrt(np.mean(np.square(latents_tchw, dtype=np.float64))))
    error_rms = float(np.sqrt(np.mean(np.square(error_tchw, dtype=np.float64))))
    largest = float(np.abs(latents_tchw).max())
    if not largest:
        return CastError(0.0, 0.0)
    return CastError(error_rms / rms, float(np.abs(error_tchw).max()) / largest)


def floor_of(tokenizer_version: str, dtype: str) -> Floor | None:
    """Find the floor of a tokenizer and dtype; None for a tokenizer of no known family."""
    for family, floors in FLOORS.items():
        if tokenizer_version.startswith(family):
            return floors[dtype]
    return None


def fidelity_faults(placements: pl.DataFrame) -> list[str]:
    """Shard groups whose stored latents are worse than their tokenizer and dtype promise.

    Args:
        placements: Rows of ``placements`` of one or more groups; those of before fidelity was
            recorded are passed over.
    """
    known = placements.drop_nulls("cast_rms_share")
    jobs = known.partition_by("tokenizer_version", "latent_dtype", "job", as_dict=True)
    faults: list[str] = []
    for (version, dtype, job), rows in sorted(jobs.items()):
        found = _job_faults(rows, floor_of(str(version), str(dtype)))
        faults += [f"shard group {job_group(str(job))}: {version} as {dtype}: {f}" for f in found]
    return faults + _odd_jobs(known)


def _job_faults(rows: pl.DataFrame, floor: Floor | None) -> list[str]:
    if floor is None:
        return ["no floor is known for this tokenizer: add it to shard.fidelity"]
    faults: list[str] = []
    above = rows.filter(pl.col("cast_max_share") > floor.cast_max_share)
    if above.height:
        faults.append(
            f"{above.height} samples err by more than {floor.cast_max_share:.2%} of their largest "
            f"value, such as {', '.join(above['sample_id'].head(NUM_NAMED))}"
        )
    if rows.height < MIN_GROUP_SAMPLES:
        return faults
    medians = rows.select(
        pl.col("psnr_db", "cast_rms_share").median(),
        (pl.col("uncast_psnr_db") - pl.col("psnr_db")).median().alias("loss_db"),
    ).row(0, named=True)
    if floor.psnr_db is not None and medians["psnr_db"] < floor.psnr_db:
        faults.append(f"median PSNR {medians['psnr_db']:.1f} dB, floor {floor.psnr_db}")
    if medians["loss_db"] > floor.cast_loss_db:
        faults.append(f"the cast costs {medians['loss_db']:.2f} dB, {floor.cast_loss_db} at most")
    if medians["cast_rms_share"] > floor.cast_rms_share:
        faults.append(
            f"the cast errs by {medians['cast_rms_share']:.2%} RMS, "
            f"{floor.cast_rms_share:.2%} at most"
        )
    return faults


def _odd_jobs(placements: pl.DataFrame) -> list[str]:
    """Jobs whose PSNR is far from that of the other jobs of the same tokenizer, dtype and bucket.

    Groups are seeded hashes of clips, so they are alike: one that is not had other weights.
    """
    by_job = (
        placements.group_by("tokenizer_version", "latent_dtype", "job")
        .agg(pl.len().alias("n"), pl.col("psnr_db").median())
        .filter(pl.col("n") >= MIN_GROUP_SAMPLES)
        .sort("job")
    )
    faults: list[str] = []
    for _, jobs in by_job.group_by("tokenizer_version", "latent_dtype", maintain_order=True):
        for job, own_db in jobs.select("job", "psnr_db").iter_rows():
            others = jobs.filter(pl.col("job") != job)["psnr_db"].to_list()
            if others and abs(own_db - statistics.median(others)) > MAX_GROUP_SHIFT_DB:
                faults.append(
                    f"shard group {job_group(job)}: median PSNR {own_db:.1f} dB, other groups of "
                    f"its tokenizer have {statistics.median(others):.1f}: were the weights stale?"
                )
    return faults


def job_group(job: str) -> str:
    """Shard group that a placement's ``job`` names."""
    return job.partition("@")[0]


def fidelity_metrics(units: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Numbers of one encoding job, at least one sample; names say what they are of."""
    return {
        "uncast_psnr_median_db": statistics.median(unit["uncast_psnr_db"] for unit in units),
        "cast_loss_median_db": statistics.median(
            unit["uncast_psnr_db"] - unit["psnr_db"] for unit in units
        ),
        "cast_rms_share": statistics.median(unit["cast_rms_share"] for unit in units),
        "cast_max_share": max(unit["cast_max_share"] for unit in units),
    }


def fidelity_table(placements: pl.DataFrame) -> list[list[Any]]:
    """One row for each tokenizer version and dtype: samples, PSNR, and what the cast costs."""
    table = (
        placements.group_by("tokenizer_version", "latent_dtype")
        .agg(
            pl.len(),
            pl.col("psnr_db").median().round(2),
            (pl.col("uncast_psnr_db") - pl.col("psnr_db")).median().round(3).alias("loss_db"),
            (pl.col("cast_rms_share").median() * 100).round(3),
            (pl.col("cast_max_share").max() * 100).round(3),
        )
        .sort("tokenizer_version", "latent_dtype")
    )
    return [list(row) for row in table.rows()]


FIDELITY_HEADER = (
    "tokenizer", "dtype", "samples", "median PSNR dB", "cast costs dB", "cast RMS %", "cast max %",
)  # fmt: skip
