"""Tracks of actions and sensors, cut with their clips: the step.

A track is delivered beside its file, and lands as a raw object of its own that no asset row
names. Parsing and cutting happen in the sandboxed child, `action_parse`; whether a track fits
what is seen is scored by `filters.actions`. A track that cannot be used costs its clips nothing
but the track.
"""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from wsdata.digest import short_digest
from wsdata.errors import DecodeFailed
from wsdata.media.jobs import JobReport, Limits
from wsdata.media.sandbox import SandboxPool
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.tables import rows_of

JOB = "wsdata.preprocess.action_parse:cut_job"
CODE_VERSION = "action-tracks-1"
WALL_S = 600.0
LIMITS = Limits(memory_bytes=4 << 30, file_bytes=1 << 30, stall_s=WALL_S)
BLOBS = ("clips.*.key",)
MAX_REASON_CHARS = 500
STATUSES = ("kept", "none", "misaligned", "broken")

STEP = Step(
    stage="preprocess",
    name="action_tracks",
    function="wsdata.preprocess.actions:run",
    code_version=CODE_VERSION,
    partition="drop",
    assets={"action_tracks": ("action_tracks",)},
    inputs=(Input(table="clips"), Input(table="provenance")),
    pool="cpu",
    settings_of=lambda deployment, _recipe: {"sandbox_minimum": deployment.sandbox_minimum},
    description="The track of actions or sensors of each clip, on the clip's own time.",
)


def run(run: StepRun) -> StepResult:
    """Cut every track of a drop along the clips of its file."""
    clips = run.read("clips").sort("clip_id")
    tracks = _tracks(run.read("provenance"))
    rows: list[dict[str, Any]] = []
    assets = clips.partition_by("asset_id", as_dict=True, maintain_order=True)
    with SandboxPool(1) as pool:
        for index, ((asset_id,), mine) in enumerate(assets.items(), 1):
            spans = mine.select("clip_id", "start_s", "end_s", "num_frames").to_dicts()
            told = _no_track(spans)
            if track := tracks.get(str(asset_id)):
                told = run.unit(
                    _subject(str(asset_id), track, spans),
                    lambda track=track, spans=spans: _cut(run, track, spans, pool),
                    blobs=BLOBS,
                )["clips"]
            rows += [{"asset_id": asset_id, **row} for row in told]
            run.progress(index, len(assets), str(asset_id)[:12])
    table = rows_of("action_tracks", rows)
    return StepResult(
        tables={"action_tracks": table},
        metrics={
            "num_clips": table.height,
            **{f"num_{s}": table.filter(pl.col("status") == s).height for s in STATUSES},
        },
        display={"action_tracks": _show(table)},
    )


def _tracks(provenance: pl.DataFrame) -> dict[str, dict[str, str]]:
    """The track of each asset; of several files with the same bytes, that of the first path."""
    named = provenance.filter(pl.col("actions_key").is_not_null() & ~pl.col("in_vault"))
    first = named.sort("asset_id", "path").group_by("asset_id", maintain_order=True).first()
    return {
        row["asset_id"]: {"key": row["actions_key"], "suffix": row["actions_suffix"]}
        for row in first.iter_rows(named=True)
    }


def _subject(asset_id: str, track: dict[str, str], spans: list[dict[str, Any]]) -> str:
    """All that the result of one asset depends on: its track, and where its clips lie."""
    return f"{asset_id}/{track['key']}/{short_digest([span['clip_id'] for span in spans])}"


def _no_track(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    reason = "no track came with the file"
    return [{"clip_id": span["clip_id"], "status": "none", "reason": reason} for span in spans]


def _cut(
    run: StepRun, track: dict[str, str], spans: list[dict[str, Any]], pool: SandboxPool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="wsdata-actions-") as folder:
        source, out_dir = Path(folder) / "track", Path(folder) / "out"
        run.store.fetch(track["key"], source)
        out_dir.mkdir()
        report = pool.run(
            JOB,
            {"suffix": track["suffix"], "clips": spans},
            source=source,
            out_dir=out_dir,
            wall_s=WALL_S,
            limits=LIMITS,
            minimum_level=run.settings.get("sandbox_minimum", "seccomp"),
        )
        try:
            return {"clips": _stored(run, report, spans, out_dir)}
        except (DecodeFailed, KeyError, TypeError, ValueError) as error:
            reason = str(error)[:MAX_REASON_CHARS]
            broken = [
                {"clip_id": s["clip_id"], "status": "broken", "reason": reason} for s in spans
            ]
            return {"clips": broken}


def _stored(
    run: StepRun, report: JobReport, spans: list[dict[str, Any]], out_dir: Path
) -> list[dict[str, Any]]:
    """Rows of all clips, their blobs stored.

    Raises:
        DecodeFailed: The child did not cut the track, or its answer makes no sense.
    """
    if report.status != "ok" or report.result is None:
        detail = report.detail.removeprefix("DecodeFailed: ")
        raise DecodeFailed(detail if report.status == "failed" else f"{report.status}: {detail}")
    rows: list[dict[str, Any]] = []
    for span, told in zip(spans, report.result["clips"], strict=True):
        row = {name: value for name, value in told.items() if name != "file"}
        if row["clip_id"] != span["clip_id"] or row["status"] not in STATUSES:
            raise DecodeFailed(f"the child told of {row['clip_id']!r} as {row['status']!r}")
        if "file" in told:
            path = out_dir / Path(told["file"]).name
            if path.is_symlink() or not path.is_file():
                raise DecodeFailed(f"{span['clip_id']}: it named a file that it did not leave")
            key = run.blob_key("action_tracks", span["clip_id"], ".parquet")
            row |= run.put_blob(key, path)
        rows.append(row)
    rows_of("action_tracks", rows)  # an answer with other columns is the track's fault
    return rows


def _show(table: pl.DataFrame) -> dict[str, Any]:
    lines = ["| status | reason | clips |", "|---|---|---:|"]
    counted = table.group_by("status", "reason").len().sort("len", "status", "reason")
    lines += [
        f"| {status} | {reason or ''} | {count} |"
        for status, reason, count in counted.reverse().head(20).iter_rows()
    ]
    kept = table.filter(pl.col("status") == "kept")
    return {
        "clips": {"type": "int", "raw_value": table.height},
        "kept": {"type": "int", "raw_value": kept.height},
        "rows": {"type": "int", "raw_value": int(kept["num_rows"].sum())},
        "status": {"type": "md", "raw_value": "\n".join(lines)},
    }
