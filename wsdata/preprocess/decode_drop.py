"""Decode a drop: one sandboxed child per raw asset, its blobs stored, its outcome recorded.

What happens inside the child is `onepass`. A file that cannot be read harms no neighbour: after
two retries it is quarantined, and stays so until a release names it. Vault members are never
read.
"""

import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from wsdata.digest import canonical_json, short_digest
from wsdata.errors import DecodeFailed
from wsdata.ids import make_clip_id, parse_drop_key
from wsdata.media.bwrap import gpu_devices
from wsdata.media.engines import ENGINE_PARAMS, Engines, path_with_engine
from wsdata.media.heard import check_installed
from wsdata.media.jobs import JobReport, Limits
from wsdata.media.sandbox import SandboxPool
from wsdata.orders import StepResult, StepRun
from wsdata.preprocess.decode_display import decode_display
from wsdata.preprocess.framepack import write_loose_pack
from wsdata.preprocess.ladder import RUNGS_OF_ALL, rungs_by_probe
from wsdata.preprocess.onepass import PATHS
from wsdata.preprocess.shot_engines import check_engine, engine_modules
from wsdata.records import Fact
from wsdata.store import BlobStore, FolderStore
from wsdata.tables import TRANSCODES, rows_of

JOB = "wsdata.preprocess.onepass:decode_job"
BASE_WALL_S = 60.0
WALL_PER_SECOND = 20.0
UNKNOWN_DURATION_S = 600.0
LIMITS = Limits(memory_bytes=4 << 30, file_bytes=2 << 30)
BLOBS = ("clips.*.transcodes.*.key", "clips.*.audio.key", "clips.*.pack.key")
GPU_ADDRESS_BYTES = 1 << 40  # its driver maps all memory there is, of host and device
MAX_REASON_LENGTH = 500

_FILE = re.compile(r"[0-9a-z_.]{1,80}")
_CLIP_COLUMNS = (
    "track", "start_pts", "end_pts", "time_base", "start_s", "end_s", "duration_s", "shot_index",
    "window_index", "width_px", "height_px", "source_fps", "num_frames", "aspect", "top_rung",
    "start_kind", "end_kind",
)  # fmt: skip
_HASHES = ("hash", "mirror_hash", "core_hash", "core_mirror_hash")
_COUNTS = (
    "frames_promised", "frames_decoded", "num_errors", "decoded_s", "num_shots",
    "num_transitions",
)  # fmt: skip

RunJob = Callable[..., JobReport]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asset:
    """A raw asset to decode."""

    asset_id: str
    key: str
    size_bytes: int
    duration_s: float | None
    release: dict[str, Any] | None
    is_continuous: bool = False
    rungs: tuple[str, ...] = RUNGS_OF_ALL

    @property
    def subject(self) -> str:
        """The asset and its releases: a released one is tried again, and only that."""
        kind = "#continuous" if self.is_continuous else ""
        if self.release is None:
            return self.asset_id + kind
        return f"{self.asset_id}{kind}#{short_digest(self.release)}"

    @property
    def wall_s(self) -> float:
        duration_s = UNKNOWN_DURATION_S if self.duration_s is None else self.duration_s
        return BASE_WALL_S + WALL_PER_SECOND * duration_s


def run(run: StepRun, *, job_runner: RunJob | None = None) -> StepResult:
    """Decode every raw asset of a drop.

    Args:
        run: The order's run.
        job_runner: Runs a job, as `media.sandbox.run_job` does; None for warm sandboxes, one per
            worker.

    Returns:
        Rows of all tables of the step, and a quarantine fact for each file given up on.

    Raises:
        StepFailed: What the pass hears with, or the detector of shots needs, is not installed.
    """
    check_installed()  # a lack of ours would be taken for a fault of each file
    check_engine(run.params)
    workers = max(1, int(run.settings.get("num_threads", 2)))
    assets = _assets(run)
    seconds: dict[str, float] = {}
    preload = (JOB.partition(":")[0], *engine_modules(run.params))
    with (
        ThreadPoolExecutor(max_workers=workers) as executor,
        SandboxPool(workers, preload=preload, devices=_devices(run)) as pool,
    ):
        ordered = _decode_all(run, assets, job_runner or pool.run, executor, seconds)
    tables = _tables(run.order.partition, ordered)
    return StepResult(
        tables=tables,
        facts=_facts(run, assets, ordered),
        metrics=_metrics(ordered, seconds),
        display=decode_display(tables, _paths(run)),
    )


def _decode_all(
    run: StepRun,
    assets: list[_Asset],
    job_runner: RunJob,
    executor: ThreadPoolExecutor,
    seconds: dict[str, float],
) -> dict[str, dict[str, Any]]:
    """Return the result of each asset, in the order given, and note how long each took."""
    results: dict[str, dict[str, Any]] = {}

    def work(asset: _Asset) -> dict[str, Any]:
        begun = time.monotonic()
        kept = run.unit(
            asset.subject,
            lambda: _decode_asset(run, asset, job_runner),
            blobs=BLOBS,
            amounts=lambda told: {"media_s": told.get("decoded_s") or 0.0},
        )
        seconds[asset.asset_id] = time.monotonic() - begun
        return kept

    # Longest first, so that no long file is begun when the others are done.
    by_length = sorted(assets, key=lambda asset: asset.wall_s, reverse=True)
    waiting = {executor.submit(work, asset): asset for asset in by_length}
    try:
        for done in as_completed(waiting):
            asset = waiting[done]
            results[asset.asset_id] = done.result()
            told = results[asset.asset_id]
            note = f"{asset.asset_id[:12]} {told['status']}, {len(told['clips'])} clips"
            run.progress(len(results), len(assets), note)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    return {asset.asset_id: results[asset.asset_id] for asset in assets}


def _assets(run: StepRun) -> list[_Asset]:
    raw = run.read("raw_assets").filter(~pl.col("in_vault") & pl.col("key").is_not_null())
    probes = {row["asset_id"]: row for row in run.read("probes").iter_rows(named=True)}
    releases = run.order.facts.get("release", {})
    stated = run.read("provenance").filter(pl.col("is_continuous").fill_null(value=False))
    continuous = set(stated["asset_id"].to_list())
    return [
        _Asset(
            asset_id=row["asset_id"],
            key=row["key"],
            size_bytes=row["size_bytes"],
            duration_s=probes.get(row["asset_id"], {}).get("duration_s"),
            release=releases.get(row["asset_id"]),
            is_continuous=row["asset_id"] in continuous,
            rungs=rungs_by_probe(probes.get(row["asset_id"])),
        )
        for row in raw.sort("asset_id").iter_rows(named=True)
        if run.is_mine(row["asset_id"])
    ]


def _devices(run: StepRun) -> tuple[str, ...]:
    """Device files of GPUs, where the order's engines are on one."""
    engines = Engines(**{name: run.params[name] for name in ENGINE_PARAMS if name in run.params})
    return gpu_devices() if engines.uses_gpu else ()


# one asset -----------------------------------------------------------------------------------


def _decode_asset(run: StepRun, asset: _Asset, job_runner: RunJob) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="wsdata-decode-") as folder:
        source = _local_file(run.store, asset, Path(folder))
        limits = replace(LIMITS, stall_s=run.settings.get("sandbox_stall_s", LIMITS.stall_s))
        if _devices(run):
            limits = replace(limits, memory_bytes=GPU_ADDRESS_BYTES)
        failures: list[str] = []
        how: dict[str, Any] = {}
        for attempt, path in enumerate(PATHS, 1):
            out_dir = Path(folder) / f"out{attempt}"
            out_dir.mkdir()
            report = job_runner(
                JOB,
                {
                    **run.params,
                    "path": path,
                    "is_continuous": asset.is_continuous,
                    "rungs": asset.rungs,
                },
                source=source,
                out_dir=out_dir,
                wall_s=asset.wall_s,
                limits=limits,
                minimum_level=run.settings.get("sandbox_minimum", "seccomp"),
            )
            used = path_with_engine(path, report.result or {})
            how = {"attempts": attempt, "path_used": used, "sandbox_level": report.level}
            if report.status != "ok" or report.result is None:
                failures.append(_failure(report))
                continue
            try:
                return how | _store(run, asset, report.result, out_dir)
            except (DecodeFailed, KeyError, TypeError, ValueError) as error:
                # the child parsed outside bytes: an answer that makes no sense is its file's
                failures.append(f"the decoder gave a broken answer: {error}"[:MAX_REASON_LENGTH])
    return how | {
        "status": "quarantined",
        "reason": _quarantine_reason(failures),
        "clips": [],
        "prints": [],
    }


def _failure(report: JobReport) -> str:
    detail = report.detail.removeprefix("DecodeFailed: ")
    text = detail if report.status == "failed" else f"{report.status}: {detail}"
    return text[:MAX_REASON_LENGTH]


def _quarantine_reason(failures: list[str]) -> str:
    """Name every failure once, with the attempts that ended in it."""
    told = {
        text: [str(i) for i, other in enumerate(failures, 1) if other == text]
        for text in dict.fromkeys(failures)
    }
    parts = [f"attempt {', '.join(numbers)}: {text}" for text, numbers in told.items()]
    return f"could not be read in {len(failures)} attempts; " + "; ".join(parts)


def _local_file(store: BlobStore, asset: _Asset, folder: Path) -> Path:
    """Return a file with the asset's bytes: the store's own, or a copy."""
    if isinstance(store, FolderStore):
        if store.size(asset.key) is None:
            store.get(asset.key)  # raises with what to do
        return store.path_of(asset.key)
    path = folder / "source"
    store.fetch(asset.key, path)
    return path


def _store(run: StepRun, asset: _Asset, told: dict[str, Any], out_dir: Path) -> dict[str, Any]:
    """Store the blobs that a child left, and return the unit's result with their keys."""
    clips: list[dict[str, Any]] = []
    for clip in told["clips"]:
        clip_id = make_clip_id(
            asset.asset_id, track=clip["track"], start_ms=clip["start_ms"], end_ms=clip["end_ms"]
        )
        row = {name: clip[name] for name in _CLIP_COLUMNS} | {"clip_id": clip_id}
        row["media_kind"] = told["media_kind"]
        row["transcodes"] = {
            rung: _with_blob(run, f"transcodes_{rung}", clip_id, clip["transcodes"][rung], out_dir)
            for rung in TRANSCODES
            if rung in clip["transcodes"]
        }
        row["audio"] = _with_blob(run, "audio_tracks", clip_id, clip["audio"], out_dir)
        row["pack"] = _with_pack(run, clip_id, clip["pack"], out_dir)
        clips.append(row)
    counts = {name: told.get(name) for name in _COUNTS}
    return {
        "status": told["status"], "reason": told["reason"], **counts,
        "clips": clips, "prints": told["prints"],
    }  # fmt: skip


def _with_blob(
    run: StepRun, table: str, clip_id: str, made: dict[str, Any], out_dir: Path
) -> dict[str, Any]:
    row = {name: value for name, value in made.items() if name != "file"}
    if "file" not in made:
        return row
    path = _left(out_dir, clip_id, made["file"])
    key = run.blob_key(table, clip_id, path.suffix)
    return row | run.put_blob(key, path)


def _with_pack(run: StepRun, clip_id: str, made: dict[str, Any], out_dir: Path) -> dict[str, Any]:
    """As `_with_blob`, for a pack, which the child left loose."""
    data = _left(out_dir, clip_id, made["file"]).read_bytes()
    row = {name: value for name, value in made.items() if name not in ("file", "pictures")}
    key = run.blob_key("frame_packs", clip_id, ".parquet")
    return row | run.put_blob(key, write_loose_pack(made["pictures"], data))


def _left(out_dir: Path, clip_id: str, name: str) -> Path:
    """Path of a plain file that the child left; nothing else may be named."""
    path = out_dir / name
    if _FILE.fullmatch(name) is None or path.is_symlink() or not path.is_file():
        raise DecodeFailed(f"{clip_id}: it named {name!r}, which it did not leave")
    return path


# rows ----------------------------------------------------------------------------------------


def _tables(drop: str, results: dict[str, dict[str, Any]]) -> dict[str, pl.DataFrame]:
    parts = parse_drop_key(drop)
    origin = {"drop": drop, "source": parts.source, "source_tier": parts.source_tier}
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("clips", "audio_tracks", "frame_packs", "pass_fingerprints")
    }
    rows |= {f"transcodes_{rung}": [] for rung in TRANSCODES} | {"decode_status": []}
    for asset_id, told in results.items():
        for clip in told["clips"]:
            _add_clip(rows, asset_id, origin, clip, is_salvaged=told["status"] == "salvaged")
        for stamp in told["prints"]:
            hashes = {name: bytes.fromhex(stamp[name]) if stamp[name] else None for name in _HASHES}
            rows["pass_fingerprints"].append({"asset_id": asset_id, **stamp, **hashes})
        kept = ("status", "reason", "attempts", "sandbox_level", "path_used", *_COUNTS)
        rows["decode_status"].append(
            {"asset_id": asset_id, "num_clips": len(told["clips"])}
            | {name: told.get(name) for name in kept}
        )
    return {table: rows_of(table, records) for table, records in rows.items()}


def _add_clip(
    rows: dict[str, list[dict[str, Any]]],
    asset_id: str,
    origin: dict[str, str],
    clip: dict[str, Any],
    *,
    is_salvaged: bool,
) -> None:
    names = {"clip_id": clip["clip_id"], "asset_id": asset_id}
    rows["clips"].append(
        {**names, **origin}
        | {name: clip[name] for name in (*_CLIP_COLUMNS, "media_kind")}
        | {"is_salvaged": is_salvaged, "has_audio": clip["audio"]["status"] == "kept"}
    )
    for rung, made in clip["transcodes"].items():
        rows[f"transcodes_{rung}"].append(
            {**names, **made} | {"transcode_version": made["key"].split("/")[2]}
        )
    rows["audio_tracks"].append(names | clip["audio"])
    rows["frame_packs"].append(names | clip["pack"])


def _facts(run: StepRun, assets: list[_Asset], results: dict[str, dict[str, Any]]) -> list[Fact]:
    """State what is newly quarantined, and withdraw what a release has made readable."""
    known = run.settings.get("facts", {}).get("quarantine", {})
    facts: list[Fact] = []
    for asset in assets:
        told = results[asset.asset_id]
        body: dict[str, Any] = {"drop": run.order.partition}
        if told["status"] == "quarantined":
            body |= {"reason": told["reason"], "attempts": told["attempts"]}
        elif asset.asset_id in known:
            body |= {"withdrawn": True, "reason": f"released, then decoded: {told['status']}"}
        else:
            continue
        if asset.release is not None:
            body["release"] = short_digest(asset.release)
        if canonical_json(known.get(asset.asset_id)) != canonical_json(body):
            facts.append(Fact(kind="quarantine", subject=asset.asset_id, body=body))
    return facts


# numbers -------------------------------------------------------------------------------------


def _metrics(results: dict[str, dict[str, Any]], seconds: dict[str, float]) -> dict[str, float]:
    statuses = [told["status"] for told in results.values()]
    clips = [clip for told in results.values() for clip in told["clips"]]
    return {
        "num_assets": float(len(results)),
        "num_clips": float(len(clips)),
        "num_quarantined": float(statuses.count("quarantined")),
        "quarantined_share": statuses.count("quarantined") / max(1, len(statuses)),
        "decoded_s": sum(told.get("decoded_s") or 0.0 for told in results.values()),
        "wall_s_sum": sum(seconds.values()),
    }


def _paths(run: StepRun) -> dict[str, str]:
    rows = run.read("provenance").sort("asset_id", "path")
    first = rows.group_by("asset_id", maintain_order=True).first()
    return dict(first.select("asset_id", "path").iter_rows())
