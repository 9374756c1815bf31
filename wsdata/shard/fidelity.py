"""What a cast to eight bits costs, what a tokenizer gives back, and which figures are alarms.

Floors are golden values: what was measured on real material, with room for other material
(benchmarks/latent_fidelity.py, its figures in LATENT_FIDELITY_CPU2_202611.md). They stand here
and nowhere else. A job beyond them is not stopped, since hard material is no fault; what cannot be
right is stopped by `latent_stats`.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.digest import digest

COMPARED_ONE_IN = 4
MIN_GROUP_SAMPLES = 16  # fewer may be of one odd clip
MIN_GROUP_SHIFT_DB = 1.0  # of a job's median PSNR from that of other jobs: less is no alarm
GROUP_ERRORS = 5.0  # standard errors beyond which it is no chance
MEDIAN_ERROR = 1.2533  # standard error of a median, as a multiple of that of a mean
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


# Of the cast alone, whatever the tokenizer. The largest error follows from the format: half a step
# at the top of the range, 16 of 448 for e4m3 and a half of 127 for int8, and a little for rounding.
# The RMS: measured are at most 2.69 % for e4m3, which hardly depends on the values, and 2.79 % for
# int8, which spends its steps on a channel's largest value: more where tails are heavier.
_CAST = {
    "fp8": {"cast_rms_share": 0.03, "cast_max_share": 0.0358},
    "int8": {"cast_rms_share": 0.04, "cast_max_share": 0.00395},
}
# By the tokenizer's family, which its version begins with. Analytic: the hardest sample clip has
# 23.6 dB, and the cast takes 0.69 dB off a clip's median at most as e4m3, 0.05 dB as int8. Of the
# others no published weights were at hand, so their PSNR has no floor yet.
_LOSS_DB = {"fp8": 1.0, "int8": 0.1}


def _floors(psnr_db: float | None) -> dict[str, Floor]:
    return {
        dtype: Floor(psnr_db=psnr_db, cast_loss_db=_LOSS_DB[dtype], **cast)
        for dtype, cast in _CAST.items()
    }


FLOORS = {
    "analytic-lofi-1": _floors(20.0),
    "AutoencoderKLWan": _floors(None),
    "AutoencoderKLHunyuanVideo": _floors(None),
}


def is_compared(sample_id: str) -> bool:
    """Whether a sample is decoded without the cast too: one in COMPARED_ONE_IN, by its id.

    Decoding is the dearer half of most tokenizers, and what the cast takes off is told by a part
    of the samples; the error of the latents themselves is known of all.
    """
    return int(digest(["compared", sample_id])[:8], 16) % COMPARED_ONE_IN == 0


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
    medians = rows.select(pl.col("psnr_db", "cast_rms_share").median()).row(0, named=True)
    if floor.psnr_db is not None and medians["psnr_db"] < floor.psnr_db:
        faults.append(f"median PSNR {medians['psnr_db']:.1f} dB, floor {floor.psnr_db}")
    loss_db = _loss_db(rows)
    if loss_db is not None and loss_db > floor.cast_loss_db:
        faults.append(f"the cast costs {loss_db:.2f} dB, {floor.cast_loss_db} at most")
    if medians["cast_rms_share"] > floor.cast_rms_share:
        faults.append(
            f"the cast errs by {medians['cast_rms_share']:.2%} RMS, "
            f"{floor.cast_rms_share:.2%} at most"
        )
    return faults


def _loss_db(rows: pl.DataFrame) -> float | None:
    """What the cast takes off the PSNR of the median sample; None where too few were compared."""
    losses = (rows["uncast_psnr_db"] - rows["psnr_db"]).drop_nulls().to_list()
    return statistics.median(losses) if len(losses) >= MIN_GROUP_SAMPLES // 2 else None


def _odd_jobs(placements: pl.DataFrame) -> list[str]:
    """Jobs whose median PSNR is far from that of the other jobs of the same tokenizer and dtype.

    Groups are seeded hashes of clips, so their medians differ by chance alone, and by less the
    more clips they have: one that is further off had other weights.
    """
    by_job = (
        placements.group_by("tokenizer_version", "latent_dtype", "job")
        .agg(
            pl.len().alias("num_samples"),
            pl.col("clip_id").n_unique().alias("num_clips"),
            pl.col("psnr_db").median(),
            pl.col("psnr_db").std().alias("spread_db"),
        )
        .filter(pl.col("num_samples") >= MIN_GROUP_SAMPLES)
        .sort("job")
    )
    faults: list[str] = []
    for _, jobs in by_job.group_by("tokenizer_version", "latent_dtype", maintain_order=True):
        for job in jobs.iter_rows(named=True):
            others = jobs.filter(pl.col("job") != job["job"])
            if others.is_empty():
                continue
            usual_db = statistics.median(others["psnr_db"])
            spread_db = max(statistics.median(others["spread_db"]), job["spread_db"])
            by_chance_db = MEDIAN_ERROR * spread_db / job["num_clips"] ** 0.5
            bound_db = max(MIN_GROUP_SHIFT_DB, GROUP_ERRORS * by_chance_db)
            if abs(job["psnr_db"] - usual_db) > bound_db:
                faults.append(
                    f"shard group {job_group(job['job'])}: median PSNR {job['psnr_db']:.1f} dB, "
                    f"that of other groups is {usual_db:.1f}, {bound_db:.1f} off at most: were "
                    "the weights stale?"
                )
    return faults


def job_group(job: str) -> str:
    """Shard group that a placement's ``job`` names."""
    return job.partition("@")[0]


def fidelity_metrics(units: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Numbers of one encoding job, at least one sample; names say what they are of."""
    losses = [
        unit["uncast_psnr_db"] - unit["psnr_db"]
        for unit in units
        if unit["uncast_psnr_db"] is not None
    ]
    return ({"cast_loss_median_db": statistics.median(losses)} if losses else {}) | {
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
