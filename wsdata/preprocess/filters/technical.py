"""Technical filter: is the clip whole, long and large enough? Read from rows, not from pixels."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess.filters.rows import Entries, Entry, Filter, score_clips, scored, unscored
from wsdata.tables import RUNGS

FILTER = Filter(
    name="technical",
    model_version="technical-1",
    score_names=(
        "is_decodable",  # 1.0, or 0.0 with the reason in its detail
        "duration_s",  # of the shortest produced file; of videos alone
        "rung_px",  # of the largest rung; 0.0 below the smallest
        "error_share",  # decoding errors per decoded frame of the asset, at most 1
        "missing_share",  # promised frames of the asset that never decoded
        "bits_per_pixel",  # of the source, per pixel and frame
    ),
)

STEP = Step(
    stage="preprocess",
    name="technical_scores",
    function="wsdata.preprocess.filters.technical:run",
    code_version=FILTER.model_version,
    partition="drop",
    assets={"technical_scores": ("technical_scores",)},
    inputs=(
        Input(table="clips"),
        Input(table="decode_status"),
        Input(table="probes"),
        *(Input(table=f"transcodes_{rung}") for rung in RUNGS),
    ),
    description="Is each clip whole, long and large enough: length, rung, decoding errors, bits.",
)

Row = Mapping[str, Any]


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop from the rows of its decode pass."""
    statuses = _by(run.read("decode_status"), "asset_id")
    probes = _by(run.read("probes"), "asset_id")
    rungs: dict[str, list[Row]] = {}
    for rung in RUNGS:
        for row in run.read(f"transcodes_{rung}").iter_rows(named=True):
            rungs.setdefault(row["clip_id"], []).append(row)

    def compute(clip: dict[str, Any]) -> Entries:
        return technical_scores(
            clip,
            status=statuses.get(clip["asset_id"]),
            probe=probes.get(clip["asset_id"]),
            transcodes=rungs.get(clip["clip_id"], []),
        )

    return score_clips(run, FILTER, compute)


def technical_scores(
    clip: Row, *, status: Row | None, probe: Row | None, transcodes: Sequence[Row]
) -> Entries:
    """Score one clip.

    Args:
        clip: Its row of ``clips``.
        status: Its asset's row of ``decode_status``, if there is one.
        probe: Its asset's row of ``probes``, if there is one.
        transcodes: The clip's own rows of all rungs.

    Returns:
        By name, see `FILTER`. What was not told is unscored, never zero.
    """
    return {
        "is_decodable": _is_decodable(clip, status, transcodes),
        "duration_s": _duration_s(clip, transcodes),
        "rung_px": scored(_rung_px(clip["top_rung"])),
        "error_share": _error_share(status),
        "missing_share": _missing_share(status),
        "bits_per_pixel": _bits_per_pixel(clip, probe),
    }


def _is_decodable(clip: Row, status: Row | None, transcodes: Sequence[Row]) -> Entry:
    if status is None:
        return unscored("no decode status")
    if status["status"] not in ("ok", "salvaged"):
        return scored(0.0, {"why": f"{status['status']}: {status['reason']}"})
    top = clip["top_rung"]
    wanted = RUNGS[: RUNGS.index(top) + 1] if top in RUNGS else ()
    if lost := sorted(set(wanted) - {row["rung"] for row in transcodes}):
        return scored(0.0, {"why": f"no transcode at {', '.join(lost)}"})
    if empty := sorted(row["rung"] for row in transcodes if not row["num_frames"]):
        return scored(0.0, {"why": f"no frame in the transcode at {', '.join(empty)}"})
    return scored(1.0)


def _duration_s(clip: Row, transcodes: Sequence[Row]) -> Entry:
    if clip["media_kind"] != "video":
        return unscored("still")
    produced = [row["num_frames"] / row["fps"] for row in transcodes if row["fps"]]
    return scored(min([clip["duration_s"], *produced]))


def _rung_px(rung: str | None) -> float:
    return float(rung.removesuffix("p")) if rung else 0.0


def _error_share(status: Row | None) -> Entry:
    if status is None or status["num_errors"] is None:
        return unscored("no count of decoding errors")
    return scored(min(1.0, status["num_errors"] / max(1, status["frames_decoded"] or 0)))


def _missing_share(status: Row | None) -> Entry:
    if status is None or not status["frames_promised"] or status["frames_decoded"] is None:
        return unscored("the container promises no number of frames")
    return scored(max(0.0, 1.0 - status["frames_decoded"] / status["frames_promised"]))


def _bits_per_pixel(clip: Row, probe: Row | None) -> Entry:
    if clip["media_kind"] != "video":
        return unscored("still")
    if probe is None or not probe["bit_rate"] or not clip["source_fps"]:
        return unscored("no bit rate in the probe")
    pixels = clip["width_px"] * clip["height_px"] * clip["source_fps"]
    return scored(probe["bit_rate"] / pixels) if pixels else unscored("no frame size in the probe")


def _by(rows: pl.DataFrame, key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows.iter_rows(named=True)}
