"""Action filter: does a track of actions fit what is seen, and by how much is it late?

The motion energy of the track is cross-correlated with the optical flow of the clip's smallest
rung. What does not move cannot tell, and is unscored, not misaligned. Axes: t frames at 24 a
second, c channels.
"""

import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.deployment import Deployment
from wsdata.media.jobs import Limits
from wsdata.media.sandbox import SandboxPool
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess.action_parse import COLUMNS, FRAMES_PER_S
from wsdata.preprocess.filters.rows import (
    Entries,
    Entry,
    Filter,
    filter_settings,
    gate_inputs,
    read_blob,
    score_clips,
    scored,
    unscored,
)
from wsdata.recipe import Recipe

FILTER = Filter(
    name="actions",
    model_version="flow-correlation-1",
    score_names=(
        "correlation",  # of the track's motion energy with the flow, at the best lag; in [-1, 1]
        "lag_s",  # how much later than the pictures the track tells of it; negative: earlier
    ),
)


def _settings(deployment: Deployment, recipe: Recipe) -> dict[str, Any]:
    minimum = {"sandbox_minimum": deployment.sandbox_minimum}
    return filter_settings(deployment, recipe) | minimum


STEP = Step(
    stage="preprocess",
    name="actions_scores",
    function="wsdata.preprocess.filters.actions:run",
    code_version=FILTER.model_version,
    partition="drop",
    assets={"actions_scores": ("actions_scores",)},
    inputs=(
        Input(table="clips"),
        Input(table="action_tracks"),
        Input(table="transcodes_256p"),
        *gate_inputs(FILTER.name),
    ),
    pool="nvdec",
    units_of="clips",
    settings_of=_settings,
    description="Does the track of actions fit what is seen, and by how much is it late.",
)

JOB = "wsdata.preprocess.action_flow:flow_job"
WALL_S = 300.0
LIMITS = Limits(memory_bytes=2 << 30, file_bytes=1 << 20)
MAX_LAG_S = 1.0
MAX_LAG_SHARE = 0.25  # of the clip's length
MIN_FRAMES = 2 * FRAMES_PER_S
MIN_FLOW_SPREAD = 0.0005  # standard deviation, share of the width a frame; below, too still
MIN_SPREAD_SHARE = 0.1  # of the mean flow; below, it moves too evenly
MIN_CORRELATION = 0.5  # from which on a lag is believed
MIN_LEAD = 0.05  # by which the best lag beats those further than NEAR_S from it
NEAR_S = 0.25
SMOOTH_T = np.array([0.25, 0.5, 0.25])

# Channels that say how fast something moves, by name or unit; of all others the change says it.
_RATE_NAME = re.compile(
    r"(^|[^a-z])(v|vx|vy|vz|wx|wy|wz|vel|velocity|speed|rate|gyro|omega|angular|steer|steering|"
    r"throttle|twist)([^a-z]|$)|_rate|gyro|velocity|speed|steer"
)
_RATE_UNITS = ("m/s", "km/h", "mph", "rad/s", "deg/s", "px/s")


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop that has a track of actions."""
    tracks = {row["clip_id"]: row for row in run.read("action_tracks").iter_rows(named=True)}
    rungs = {row["clip_id"]: row for row in run.read("transcodes_256p").iter_rows(named=True)}

    def subject(clip: dict[str, Any]) -> str:
        told = [rows.get(clip["clip_id"]) for rows in (tracks, rungs)]
        return "/".join([clip["clip_id"], *(str(row and row["sha256"]) for row in told)])

    with SandboxPool(1) as pool:

        def compute(clip: dict[str, Any]) -> Entries:
            track, rung = tracks.get(clip["clip_id"]), rungs.get(clip["clip_id"])
            if track is None or track["status"] != "kept":
                return _unscored(f"no track: {track['reason'] if track else 'none was cut'}")
            if rung is None or clip["media_kind"] != "video":
                return _unscored("no rung of moving pictures")
            flow_t = _flow(run, pool, rung)
            values_tc = read_frame_values(read_blob(run, track))
            return alignment_scores(flow_t, values_tc, json.loads(track["channels_json"]))

        return score_clips(run, FILTER, compute, subject=subject)


def _unscored(reason: str) -> Entries:
    return dict.fromkeys(FILTER.score_names, unscored(reason))


def _flow(run: StepRun, pool: SandboxPool, rung: dict[str, Any]) -> NDArray[np.float64]:
    with tempfile.TemporaryDirectory(prefix="wsdata-flow-") as folder:
        source, out_dir = Path(folder) / "rung", Path(folder) / "out"
        source.write_bytes(read_blob(run, rung))
        out_dir.mkdir()
        report = pool.run(
            JOB,
            {},
            source=source,
            out_dir=out_dir,
            wall_s=WALL_S,
            limits=LIMITS,
            minimum_level=run.settings.get("sandbox_minimum", "seccomp"),
        )
    if report.status != "ok" or report.result is None:
        raise ValueError(f"no flow of {rung['key']}: {report.status}, {report.detail}")
    return np.asarray(report.result["flow"], np.float64)


def read_frame_values(data: bytes) -> NDArray[np.float64]:
    """Read the values of a cut track at its clip's frames, (t, c); NaN where there is none."""
    table = pl.read_parquet(io.BytesIO(data)).filter(pl.col("kind") == "frame")
    values = table.drop(COLUMNS).fill_null(float("nan"))
    return values.to_numpy().astype(np.float64)


def alignment_scores(
    flow_t: NDArray[np.float64], values_tc: NDArray[np.float64], channels: list[dict[str, Any]]
) -> Entries:
    """Score how one track fits one clip.

    Args:
        flow_t: Length of the flow that leads to each frame, as a share of the width.
        values_tc: The track at the same frames, NaN where it has no value.
        channels: ``name``, ``unit`` and ``kind`` of each.

    Returns:
        By name, see `FILTER`. A clip that is too short, still or even to tell is unscored; so is
        the lag where no single one fits best.
    """
    num_frames = min(len(flow_t), len(values_tc))
    if num_frames < MIN_FRAMES:
        return _unscored(f"{num_frames} frames, {MIN_FRAMES} are needed to tell")
    flow_t = _smooth(flow_t[:num_frames])
    if _spread(flow_t) < max(MIN_FLOW_SPREAD, MIN_SPREAD_SHARE * float(flow_t.mean())):
        return _unscored("the pictures move too little or too evenly to tell")
    energy_t, used = motion_energy(values_tc[:num_frames], channels)
    if not used:
        return _unscored("no channel of the track changes")
    fits = _fits(flow_t, _smooth(energy_t))
    if not fits:
        return _unscored("the track has too few values beside the pictures")
    lags = sorted(fits)
    best = max(lags, key=lambda lag: fits[lag])
    detail = {"channels": used, "max_lag_s": lags[-1] / FRAMES_PER_S}
    return {
        "correlation": scored(fits[best], detail),
        "lag_s": _lag(fits, best, lags),
    }


def motion_energy(
    values_tc: NDArray[np.float64], channels: list[dict[str, Any]]
) -> tuple[NDArray[np.float64], list[str]]:
    """How strongly a track says that something moves, from each frame to the next.

    Channels that tell a rate of motion count with their size; where there is none, all others
    count with their change, and where those are discrete alone, like keys, with their size.

    Returns:
        Of each frame, in no unit, NaN where it is unknown; and the names of the channels that
        took part, none where nothing changes.
    """
    is_rate = [_is_rate(channel) for channel in channels]
    is_smooth = [channel["kind"] == "continuous" for channel in channels]
    if any(is_rate):
        taken, by_change = is_rate, False
    elif any(is_smooth):
        taken, by_change = is_smooth, True
    else:
        taken, by_change = [True] * len(channels), False
    parts: list[NDArray[np.float64]] = []
    used: list[str] = []
    for index in np.flatnonzero(taken).tolist():
        value_t = values_tc[:, index]
        before_t = np.concatenate([value_t[:1], value_t[:-1]])
        part_t = np.abs(value_t - before_t) if by_change else np.abs(value_t + before_t) / 2
        spread = _spread(part_t)
        if spread > 1e-9 * float(np.nanmax(np.abs(part_t), initial=0)) > 0:
            parts.append((part_t - np.nanmin(part_t)) / spread)
            used.append(channels[index]["name"])
    if not parts:
        return np.full(len(values_tc), np.nan), []
    return np.sqrt(np.mean(np.square(np.stack(parts)), axis=0)), used


def _is_rate(channel: dict[str, Any]) -> bool:
    unit = (channel["unit"] or "").lower().replace(" ", "")
    return unit in _RATE_UNITS or bool(_RATE_NAME.search(channel["name"].lower()))


def _spread(values_t: NDArray[np.float64]) -> float:
    known_t = values_t[np.isfinite(values_t)]
    return float(known_t.std()) if len(known_t) else 0.0


def _smooth(values_t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weigh each frame with its neighbours: a source of fewer frames repeats some."""
    return np.convolve(np.pad(values_t, 1, mode="edge"), SMOOTH_T, mode="valid")


def _fits(flow_t: NDArray[np.float64], energy_t: NDArray[np.float64]) -> dict[int, float]:
    """Correlation by lag in frames, where half of the frames at least can be compared."""
    num_frames = len(flow_t)
    longest = int(min(MAX_LAG_S * FRAMES_PER_S, MAX_LAG_SHARE * num_frames))
    fits: dict[int, float] = {}
    for lag in range(-longest, longest + 1):
        late_t = energy_t[max(lag, 0) : num_frames + min(lag, 0)]
        seen_t = flow_t[max(-lag, 0) : num_frames + min(-lag, 0)]
        is_known_t = np.isfinite(late_t)
        if np.count_nonzero(is_known_t) < num_frames / 2:
            continue
        late_t, seen_t = late_t[is_known_t], seen_t[is_known_t]
        spread = float(late_t.std() * seen_t.std())
        if spread > 0:
            product_t = (late_t - late_t.mean()) * (seen_t - seen_t.mean())
            fits[lag] = float(product_t.mean()) / spread
    return fits


def _lag(fits: dict[int, float], best: int, lags: list[int]) -> Entry:
    if fits[best] < MIN_CORRELATION:
        return unscored(f"at no lag does the track follow the pictures: {fits[best]:.2f} at most")
    if best in (lags[0], lags[-1]):
        return unscored(f"the best lag lies at {best / FRAMES_PER_S:+.2f} s or beyond")
    others = [fits[lag] for lag in lags if abs(lag - best) > NEAR_S * FRAMES_PER_S]
    if others and fits[best] - max(others) < MIN_LEAD:
        return unscored("several lags fit as well")
    before, at, after = (fits.get(best + by, fits[best]) for by in (-1, 0, 1))
    bend = before - 2 * at + after
    offset = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return scored((best + offset) / FRAMES_PER_S)
