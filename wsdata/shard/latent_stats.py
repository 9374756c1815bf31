"""Numbers about one encoding job, what they must not be, and how people see them.

A job whose weights are stale or broken shows in its channel statistics or in its PSNR long
before it shows in training.
"""

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import StepFailed
from wsdata.shard.fidelity import fidelity_metrics
from wsdata.shard.latents import Tokenizer

MIN_JOB_SAMPLES = 16  # fewer may be of one odd clip, and are only shown
MAX_MEAN_SHIFT = 4.0  # in standard deviations of the reference
STD_RATIOS = (1e-3, 32.0)  # of the job's standard deviation to the reference's, where it is known
MIN_MEDIAN_PSNR_DB = 5.0  # plain grey frames score 6
FAULT_REASONS = ("not_finite", "short_transcode")  # losses that speak against the job
MAX_FAULT_SHARE = 0.2

_PSNR_BIN_DB = 5

Unit = Mapping[str, Any]


def channel_sums(latents_tchw: NDArray[np.float32]) -> dict[str, Any]:
    """Count, sum and sum of squares of each channel, to be added up over a job."""
    values_tchw = latents_tchw.astype(np.float64)
    return {
        "count": values_tchw[:, 0].size,
        "sum": values_tchw.sum(axis=(0, 2, 3)).tolist(),
        "square_sum": np.square(values_tchw).sum(axis=(0, 2, 3)).tolist(),
    }


def job_channels(units: Sequence[Unit]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each channel over the samples of a job, at least one."""
    sums = [unit["channels"] for unit in units]
    count = sum(part["count"] for part in sums)
    mean_c = np.sum([part["sum"] for part in sums], axis=0) / count
    square_c = np.sum([part["square_sum"] for part in sums], axis=0) / count
    return mean_c, np.sqrt(np.maximum(square_c - mean_c**2, 0))


def check_job(group: str, tokenizer: Tokenizer, units: Sequence[Unit]) -> None:
    """Refuse a job whose latents are not of the tokenizer that they claim.

    Raises:
        StepFailed: A channel's statistics, or the median PSNR, are out of bounds.
    """
    if not units:
        return
    median_db = statistics.median(unit["psnr_db"] for unit in units)
    if median_db < MIN_MEDIAN_PSNR_DB:
        raise StepFailed(
            f"shard group {group}: latents of {tokenizer.version} decode at a median of "
            f"{median_db:.1f} dB, worse than plain grey: are the weights whole?"
        )
    if len(units) < MIN_JOB_SAMPLES:
        return
    low, high = STD_RATIOS
    ratio = _ratio_of_all(tokenizer, units)
    if ratio is not None and not low <= ratio <= high:
        raise StepFailed(
            f"shard group {group}: latents of {len(units)} samples do not look like those of "
            f"{tokenizer.version}: the deviation of all channels together is x{ratio:.3g} of its "
            f"reference; allowed are {low}..{high}"
        )
    against = _against_reference(tokenizer, units)
    if against is None:
        return
    shift_c, ratio_c = against
    bad_c = (shift_c > MAX_MEAN_SHIFT) | (ratio_c < low) | (ratio_c > high)
    if bad_c.any():
        told = ", ".join(
            f"channel {c}: mean off by {shift_c[c]:.2f} deviations, deviation x{ratio_c[c]:.3g}"
            for c in np.flatnonzero(bad_c)
        )
        raise StepFailed(
            f"shard group {group}: latents of {len(units)} samples do not look like those of "
            f"{tokenizer.version}: {told}; allowed are {MAX_MEAN_SHIFT} and {low}..{high}"
        )


def check_losses(group: str, num_samples: int, losses: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a job that lost too much to faults: something before it, or the model, is broken.

    Raises:
        StepFailed: More than MAX_FAULT_SHARE of at least MIN_JOB_SAMPLES are lost to faults.
    """
    faults = [loss for loss in losses if loss["reason"] in FAULT_REASONS]
    if num_samples < MIN_JOB_SAMPLES or len(faults) <= MAX_FAULT_SHARE * num_samples:
        return
    counts = Counter(loss["reason"] for loss in faults)
    raise StepFailed(
        f"shard group {group}: {len(faults)} of {num_samples} samples are lost "
        f"({', '.join(f'{reason}: {counts[reason]}' for reason in sorted(counts))}), such as "
        f"{faults[0]['sample_id']} ({faults[0]['detail']}); up to {MAX_FAULT_SHARE:.0%} is "
        "accepted: check the tokenizer's weights and the transcodes"
    )


def _against_reference(
    tokenizer: Tokenizer, units: Sequence[Unit]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """How far each channel's mean is off, and the ratio of deviations; None where unknown."""
    reference = tokenizer.reference
    if reference.mean_c is None or reference.std_c is None:
        return None
    mean_c, std_c = job_channels(units)
    reference_std_c = reference.std_c.astype(np.float64)
    return np.abs(mean_c - reference.mean_c) / reference_std_c, std_c / reference_std_c


def _ratio_of_all(tokenizer: Tokenizer, units: Sequence[Unit]) -> float | None:
    """Ratio of the deviation of all channels together to the reference's; None where unknown."""
    if tokenizer.reference.std is None:
        return None
    mean_c, std_c = job_channels(units)
    square = np.mean(np.square(std_c) + np.square(mean_c)) - np.square(np.mean(mean_c))
    return float(np.sqrt(max(float(square), 0.0)) / tokenizer.reference.std)


def reference_words(tokenizer: Tokenizer, units: Sequence[Unit]) -> str:
    """Against what a job that was not refused was compared, and what is not known."""
    if len(units) < MIN_JOB_SAMPLES:
        return f"not compared: {len(units)} samples, {MIN_JOB_SAMPLES} are needed"
    if tokenizer.reference.mean_c is not None:
        return "each channel's mean and deviation were compared with the tokenizer's reference"
    ratio = _ratio_of_all(tokenizer, units)
    if ratio is None:
        return f"unknown: {tokenizer.version} has no reference, so nothing was compared with it"
    return (
        f"unknown of each channel; the deviation of all together is x{ratio:.3g} of what "
        f"{tokenizer.version} states"
    )


def job_metrics(
    tokenizer: Tokenizer,
    units: Sequence[Unit],
    shards: Sequence[Mapping[str, Any]],
    losses: Sequence[Mapping[str, Any]],
) -> dict[str, float]:
    """Numbers of a job, by name."""
    metrics = {
        "num_samples": float(len(units)),
        "num_shards": float(len(shards)),
        "num_lost": float(len(losses)),
        "shard_bytes": float(sum(shard["size_bytes"] for shard in shards)),
    }
    if units:
        metrics |= {
            "psnr_median_db": statistics.median(unit["psnr_db"] for unit in units),
            "psnr_min_db": min(unit["psnr_db"] for unit in units),
            **_channel_metrics(tokenizer, units),
            "num_with_audio": float(sum(unit["columns"]["has_audio"] for unit in units)),
            "num_with_actions": float(
                sum(unit["columns"]["channels_json"] is not None for unit in units)
            ),
            **_num_remarks(units),
            **fidelity_metrics(units),
        }
    return metrics


def _channel_metrics(tokenizer: Tokenizer, units: Sequence[Unit]) -> dict[str, float]:
    """What is known of a job's channels; what is not is absent."""
    metrics: dict[str, float] = {}
    against = _against_reference(tokenizer, units)
    metrics["is_channel_reference_known"] = float(against is not None)
    if against is not None:
        shift_c, ratio_c = against
        metrics["channel_mean_shift_max"] = float(shift_c.max())
        metrics["channel_std_ratio_max"] = float(ratio_c.max())
    if (ratio := _ratio_of_all(tokenizer, units)) is not None:
        metrics["std_ratio"] = ratio
    return metrics


def _num_remarks(units: Sequence[Unit]) -> dict[str, float]:
    told = [unit["columns"]["remarks"] for unit in units]
    return {
        f"num_{column}_remarks": float(sum(column in remarks for remarks in told))
        for column in ("audio", "actions")
    }


def job_display(
    tokenizer: Tokenizer,
    units: Sequence[Unit],
    shards: Sequence[Mapping[str, Any]],
    losses: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """What a person looks at: shards by bucket, PSNR, channels, losses."""
    shown = {
        "samples": {"type": "int", "raw_value": len(units)},
        "shards": {"type": "int", "raw_value": len(shards)},
        "lost": {"type": "int", "raw_value": len(losses)},
        "tokenizer": {"type": "text", "raw_value": tokenizer.version},
        "reference": {"type": "text", "raw_value": reference_words(tokenizer, units)},
    }
    texts = {
        "buckets": _bucket_table(shards),
        "psnr": psnr_histogram([unit["psnr_db"] for unit in units]),
        "channels": _channel_table(tokenizer, units) if units else "",
        "columns": _remark_table(units),
        "losses": _loss_table(losses),
    }
    return shown | {
        label: {"type": "md", "raw_value": text} for label, text in texts.items() if text
    }


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Write a table in markdown; no rows give no text."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _bucket_table(shards: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for bucket in sorted({shard["bucket"] for shard in shards}):
        own = [shard for shard in shards if shard["bucket"] == bucket]
        size = sum(shard["size_bytes"] for shard in own)
        samples = sum(len(shard["samples"]) for shard in own)
        rows.append([bucket, samples, len(own), f"{size / 1e6:.2f}"])
    return markdown_table(["bucket", "samples", "shards", "MB"], rows)


def psnr_histogram(values_db: Sequence[float]) -> str:
    """Histogram of PSNR in bins of 5 dB, as a markdown table with bars."""
    counts = Counter(int(value // _PSNR_BIN_DB) * _PSNR_BIN_DB for value in values_db)
    rows = []
    for low in range(min(counts, default=0), max(counts, default=-1) + 1, _PSNR_BIN_DB):
        share = counts[low] / len(values_db)
        rows.append([f"{low}-{low + _PSNR_BIN_DB}", counts[low], "#" * round(40 * share)])
    return markdown_table(["PSNR dB", "samples", ""], rows)


def _channel_table(tokenizer: Tokenizer, units: Sequence[Unit]) -> str:
    mean_c, std_c = job_channels(units)
    against = _against_reference(tokenizer, units)
    unknown_c = np.full(len(mean_c), np.nan)
    shift_c, ratio_c = against if against is not None else (unknown_c, unknown_c)
    rows = [
        [channel, *("unknown" if np.isnan(value) else f"{value:.3f}" for value in values)]
        for channel, values in enumerate(zip(mean_c, std_c, shift_c, ratio_c, strict=True))
    ]
    header = ["channel", "mean", "deviation", "mean off by (reference deviations)", "ratio"]
    return markdown_table(header, rows)


def _remark_table(units: Sequence[Unit]) -> str:
    """What is to tell of sound and actions, with the numbers in it left out."""
    counts = Counter(
        (column, re.sub(r"[0-9.]+", "N", remark))
        for unit in units
        for column, remark in unit["columns"]["remarks"].items()
    )
    rows = [[*told, counts[told]] for told in sorted(counts)]
    return markdown_table(["column", "remark", "samples"], rows)


def _loss_table(losses: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(loss["reason"] for loss in losses)
    return markdown_table(
        ["reason", "samples", "such as"],
        [
            [
                reason,
                counts[reason],
                min(loss["sample_id"] for loss in losses if loss["reason"] == reason),
            ]
            for reason in sorted(counts)
        ],
    )
