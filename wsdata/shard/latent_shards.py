"""The step that encodes the samples of a shard group and lays them down in shards.

One group is one job on the ``encode`` pool. Every sample is a unit: encoded once, from its own
first frame, cast, decoded again for its PSNR (some without the cast too), and kept with the sound
and actions that its stream asks for, so that a killed job resumes. Then each bucket's samples are
joined into shards, each of which is a unit too. Numbers about the job are `latent_stats` and
`fidelity`; tokenizers are `latents`; bytes are `format` and `writer`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.curate.columns import NO_COLUMNS
from wsdata.deployment import Deployment
from wsdata.digest import canonical_json, digest, sha256_bytes
from wsdata.errors import StepFailed
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.shard.clip_source import ClipSource
from wsdata.shard.columns import Columns
from wsdata.shard.fidelity import cast_error, is_compared
from wsdata.shard.format import Sample, decode_sample, encode_sample
from wsdata.shard.latent_stats import (
    channel_sums,
    check_job,
    check_losses,
    job_display,
    job_metrics,
)
from wsdata.shard.latents import (
    Tokenizer,
    open_tokenizer,
    psnr_db,
    sample_pixels,
    tokenizer_version,
)
from wsdata.shard.quantize import dequantize, latent_fault, quantize
from wsdata.shard.writer import plan_shards, write_shard

# Columns of a placement that the manifest tells, and that the encoding of a sample measured.
_OF_SAMPLE = ("clip_id", "transcode_sha256", "columns_digest")
_OF_UNIT = ("psnr_db", "uncast_psnr_db", "cast_rms_share", "cast_max_share")


def latent_params(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe decides latents: engine, its version (not its path), and dtype."""
    section = {"engine": recipe.tokenizer.engine, "weights": recipe.tokenizer.weights}
    return {
        "engine": recipe.tokenizer.engine,
        "dtype": recipe.tokenizer.dtype,
        "version": tokenizer_version(section),
    }


def _params(recipe: Recipe) -> dict[str, Any]:
    return {"tokenizer": latent_params(recipe), "max_bytes": recipe.shards.max_bytes}


def _settings(deployment: Deployment, recipe: Recipe) -> dict[str, Any]:
    return {"weights": recipe.tokenizer.weights, "num_threads": deployment.num_threads}


STEP = Step(
    stage="shard",
    name="latent_shards",
    function="wsdata.shard.latent_shards:run",
    code_version="latent-shards-2",
    partition="shard_group",
    assets={"latent_shards": ("placements", "latent_losses")},
    inputs=(
        Input(table="manifests", scope="version_of_group"),
        Input(table="shard_assignments", scope="version_of_group"),
    ),
    pool="encode",
    params_of=_params,
    settings_of=_settings,
    description=(
        "Latents of every sample of one shard group, in shards of one tensor shape each, with the "
        "PSNR of what they decode to."
    ),
)


def run(run: StepRun) -> StepResult:
    """Encode the samples of one shard group and write their shards.

    Raises:
        ObjectMissing: A transcode is not in the store; clip and key are named.
        IntegrityError: A transcode's bytes are not those that the manifest names.
        StepFailed: The tokenizer here is not the ordered one, a sample cannot be cut out of its
            transcode, or the job's numbers are out of bounds.
    """
    wanted = run.params["tokenizer"]
    tokenizer = open_tokenizer(
        {"engine": wanted["engine"], "weights": run.settings.get("weights", "")},
        num_threads=run.settings.get("num_threads", 1),
    )
    if tokenizer.version != wanted["version"]:
        raise StepFailed(
            f"shard group {run.order.partition}: ordered is tokenizer {wanted['version']}, here "
            f"is {tokenizer.version}: this worker sees other weights than the cut did"
        )
    samples = _samples_of_group(run)
    units = {
        sample["sample_id"]: unit
        for sample, unit in _encode_all(run, tokenizer, wanted["dtype"], samples)
    }
    kept = [sample for sample in samples if units[sample["sample_id"]]["loss"] is None]
    losses = _losses(samples, units)
    check_losses(run.order.partition, len(samples), losses)
    encoded = [units[sample["sample_id"]] for sample in kept]
    check_job(run.order.partition, tokenizer, encoded)
    shards = _write_shards(run, kept, units)
    placed = _placements(run, tokenizer, kept, units, shards)
    return StepResult(
        tables={
            "placements": tables.rows_of("placements", placed),
            "latent_losses": tables.rows_of("latent_losses", losses),
        },
        metrics=job_metrics(tokenizer, encoded, shards, losses),
        display={"latent_shards": job_display(tokenizer, encoded, shards, losses)},
    )


class _SampleLostError(Exception):
    """A sample that has no latents to keep, and why."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def _losses(
    samples: list[dict[str, Any]], units: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {
            "sample_id": sample["sample_id"],
            "clip_id": sample["clip_id"],
            "reason": loss[0],
            "detail": loss[1],
        }
        for sample in samples
        if (loss := units[sample["sample_id"]]["loss"]) is not None
    ]


def _samples_of_group(run: StepRun) -> list[dict[str, Any]]:
    """Manifest rows of the group, those of one transcode together and in its order."""
    group = run.order.partition
    assigned = run.read("shard_assignments").filter(pl.col("shard_group") == group)
    manifest = run.read("manifests")
    if missing := set(assigned["sample_id"]) - set(manifest["sample_id"]):
        raise StepFailed(
            f"shard group {group}: {len(missing)} assigned samples are not in the manifest, such "
            f"as {min(missing)}: cut the version again"
        )
    rows = manifest.join(assigned.select("sample_id"), on="sample_id", how="semi")
    rows = rows.with_columns(pl.col("columns_digest").fill_null(NO_COLUMNS))
    return rows.sort("transcode_key", "start_frame", "sample_id").to_dicts()


def _encode_all(
    run: StepRun, tokenizer: Tokenizer, dtype: str, samples: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    source = ClipSource(run.store)
    for index, sample in enumerate(samples):
        cut = {name: sample[name] for name in ("crop_x", "crop_y", "width_px", "height_px")}
        made_of = [sample[name] for name in ("transcode_sha256", "audio_sha256", "actions_sha256")]
        subject = digest([sample["sample_id"], made_of, cut, tokenizer.version, dtype])
        rung: str = sample["rung"]
        try:
            unit = run.unit(
                subject,
                lambda sample=sample, subject=subject: _encode_one(
                    run, tokenizer, dtype, source, sample, subject
                ),
                blobs=("key",),
                kind=tables.FAST_RUNGS.get(rung, rung) if sample["num_frames"] > 1 else "still",
                amounts=lambda _, sample=sample: {"num_frames": sample["num_frames"]},
            )
        except _SampleLostError as error:  # not kept: a rerun looks again, lest a bad GPU decide
            unit = {"loss": [error.reason, error.detail]}
        yield sample, unit
        run.progress(index + 1, len(samples), sample["sample_id"])


def _encode_one(
    run: StepRun,
    tokenizer: Tokenizer,
    dtype: str,
    source: ClipSource,
    sample: dict[str, Any],
    subject: str,
) -> dict[str, Any]:
    """Encode, cast, keep and measure one sample.

    Raises:
        _SampleLostError: It cannot be kept.
        StepFailed: It cannot be cut out of its transcode.
    """
    frames_thwc = source.frames(sample)
    if len(frames_thwc) < sample["num_frames"]:
        end = sample["start_frame"] + sample["num_frames"]
        found = sample["start_frame"] + len(frames_thwc)
        raise _SampleLostError(
            "short_transcode", f"frame {end} is wanted, the transcode ends at {found}"
        )
    try:
        pixels_thwc = sample_pixels(frames_thwc, sample)
        latents_tchw = tokenizer.encode(pixels_thwc)
    except ValueError as error:
        raise StepFailed(f"sample {sample['sample_id']} of {sample['bucket']}: {error}") from error
    if fault := latent_fault(latents_tchw):
        raise _SampleLostError(*fault)
    columns = source.columns(sample)
    quantized = quantize(latents_tchw, dtype)
    data = encode_sample(
        Sample(
            sample_id=sample["sample_id"],
            clip_id=sample["clip_id"],
            dtype=dtype,
            tokenizer_version=tokenizer.version,
            codes_tchw=quantized.codes_tchw,
            scale_c=quantized.scale_c,
            audio_n=columns.audio_n,
            actions_fd=columns.actions_fd,
        )
    )
    key = run.blob_key("latents", subject, ".sample")
    if not run.store.put(key, data):  # an engine that is not deterministic: the first result stays
        data = run.store.get(key)
    stored = decode_sample(data)
    read_tchw = dequantize(stored.codes_tchw, stored.scale_c, stored.dtype)
    error = cast_error(latents_tchw, read_tchw)
    return {
        "key": key,
        "sha256": sha256_bytes(data),
        "size_bytes": len(data),
        "shape": list(read_tchw.shape),
        "psnr_db": psnr_db(pixels_thwc, tokenizer.decode(read_tchw)),
        "uncast_psnr_db": psnr_db(pixels_thwc, tokenizer.decode(latents_tchw))
        if is_compared(sample["sample_id"])
        else None,
        "cast_rms_share": error.rms_share,
        "cast_max_share": error.max_share,
        "channels": channel_sums(read_tchw),
        "columns": _told(columns),
        "loss": None,
    }


def _told(columns: Columns) -> dict[str, Any]:
    """What a unit keeps of its columns, beside their bytes."""
    return {
        "has_audio": columns.audio_n is not None,
        "channels_json": columns.channels_json,
        "remarks": columns.remarks,
    }


def _write_shards(
    run: StepRun, kept: list[dict[str, Any]], units: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Join each bucket's samples into shards; a shard that the store has is not made again."""
    max_bytes = run.params["max_bytes"]

    def read(sample_id: str) -> bytes:
        return run.store.get(units[sample_id]["key"])

    shards: list[dict[str, Any]] = []
    for bucket in sorted({sample["bucket"] for sample in kept}):
        sizes = {
            sample["sample_id"]: units[sample["sample_id"]]["size_bytes"]
            for sample in kept
            if sample["bucket"] == bucket
        }
        shapes = {tuple(units[sample_id]["shape"]) for sample_id in sizes}
        if len(shapes) > 1:
            raise StepFailed(f"bucket {bucket} holds latents of several shapes: {sorted(shapes)}")
        for sample_ids in plan_shards(sizes, max_bytes):
            content = [units[sample_id]["sha256"] for sample_id in sample_ids]
            written = run.unit(
                digest(["shard", max_bytes, content]),
                lambda sample_ids=sample_ids: write_shard(
                    run.store, sample_ids, read, max_bytes=max_bytes
                ),
                blobs=("shard_key",),
                kind="shard",
            )
            shards.append({"bucket": bucket, **written})
    return shards


def _placements(
    run: StepRun,
    tokenizer: Tokenizer,
    kept: Iterable[dict[str, Any]],
    units: Mapping[str, dict[str, Any]],
    shards: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    by_id = {sample["sample_id"]: sample for sample in kept}
    of_job = {
        "tokenizer_version": run.params["tokenizer"]["version"],
        "latent_dtype": run.params["tokenizer"]["dtype"],
        "is_prefix_exact": tokenizer.is_prefix_exact,
        "job": f"{run.order.partition}@{run.order.version_digest}",
    }
    placed: list[dict[str, Any]] = []
    for shard in shards:
        of_shard = {name: shard[name] for name in ("bucket", "shard", "shard_key")}
        for entry in shard["samples"]:
            sample, unit = by_id[entry["sample_id"]], units[entry["sample_id"]]
            own = {name: sample[name] for name in _OF_SAMPLE} | {n: unit[n] for n in _OF_UNIT}
            remarks = unit["columns"]["remarks"]
            columns = {
                "channels_json": unit["columns"]["channels_json"],
                "remarks_json": canonical_json(remarks) if remarks else None,
                "latent_shape_json": canonical_json(unit["shape"]),
            }
            placed.append(entry | own | columns | of_shard | of_job)
    return placed
