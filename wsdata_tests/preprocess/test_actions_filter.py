"""Alignment of a track with the pictures: known camera motion, tracks of known lags."""

import json

import cv2
import numpy as np
import polars as pl
import pytest

from wsdata.digest import sha256_bytes
from wsdata.media.encode import ClipEncoder
from wsdata.preprocess import actions
from wsdata.preprocess.filters import actions as actions_filter
from wsdata.preprocess.filters.actions import alignment_scores, motion_energy
from wsdata_tests.preprocess.score_support import asset_id, clip, step_run

FPS, SECONDS = 24, 6
SIZE = (256, 144)


def speed(time_s):
    """Pixels a second of a camera that goes now faster, now slower; never the same twice."""
    time_s = np.asarray(time_s)
    return 60 * (
        1.2 + np.sin(2.1 * time_s) + 0.8 * np.sin(5.3 * time_s + 1) + 0.3 * np.sin(11 * time_s)
    )


def flow(num_frames=FPS * SECONDS):
    return np.abs(speed((np.arange(num_frames) - 0.5) / FPS)) / FPS / SIZE[0]


def track(lag_s, num_frames=FPS * SECONDS):
    return speed(np.arange(num_frames) / FPS - lag_s)[:, None]


CHANNEL = {"name": "vx", "unit": None, "kind": "continuous"}


@pytest.mark.parametrize("lag_s", [0.0, 0.2, -0.5, 0.77])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_known_lag_is_found(lag_s, noise):
    rng = np.random.default_rng(1)
    seen = flow() * np.exp(noise * rng.normal(size=FPS * SECONDS))
    found = alignment_scores(seen, track(lag_s), [CHANNEL])
    assert found["lag_s"]["score"] == pytest.approx(lag_s, abs=0.03)
    assert found["correlation"]["score"] > 0.8


def test_a_track_of_places_tells_by_its_change():
    places = np.cumsum(speed(np.arange(FPS * SECONDS) / FPS - 0.2))[:, None]
    channel = CHANNEL | {"name": "easting", "unit": "m"}
    assert alignment_scores(flow(), places, [channel])["lag_s"]["score"] == pytest.approx(
        0.2, abs=0.05
    )


def test_a_rate_counts_and_what_stands_beside_it_does_not():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(FPS * SECONDS, 1)) * 1e6
    channels = [CHANNEL, CHANNEL | {"name": "temperature", "unit": "C"}]
    energy, used = motion_energy(np.hstack([track(0.0), noise]), channels)
    assert used == ["vx"]
    assert np.corrcoef(energy, np.abs(track(0.0)[:, 0]))[0, 1] > 0.95


@pytest.mark.parametrize(
    ("flow_t", "values", "why"),
    [
        (np.zeros(144), track(0.0), "too little"),
        (np.full(144, 0.02), track(0.0), "too evenly"),
        (flow(), np.full((144, 1), 3.0), "no channel"),
        (flow(), np.full((144, 1), np.nan), "no channel"),
        (flow(40), track(0.0, 40), "40 frames"),
        (flow(), np.where(np.arange(144)[:, None] < 110, np.nan, track(0.0)), "too few values"),
    ],
)
def test_what_cannot_tell_is_unscored(flow_t, values, why):
    found = alignment_scores(flow_t, values, [CHANNEL])
    for entry in found.values():
        assert (entry["status"], entry["score"]) == ("unscored", None)
        assert why in entry["reason"]


def test_a_lag_that_is_not_one_alone_is_not_told():
    seconds = np.arange(144) / FPS
    even = 0.02 * (1.5 + np.sin(2 * np.pi * 2.5 * seconds))
    several = alignment_scores(even, even[:, None], [CHANNEL])
    assert several["correlation"]["score"] > 0.9
    assert several["lag_s"]["reason"] == "several lags fit as well"
    other = np.random.default_rng(3).normal(size=(144, 1)) + 5
    none = alignment_scores(flow(), other, [CHANNEL])
    assert none["correlation"]["status"] == "ok"
    assert "at no lag" in none["lag_s"]["reason"]


def _pan(seconds=SECONDS):
    """A rung whose camera pans over a textured wall, as `speed` says."""
    rng = np.random.default_rng(7)
    wall = cv2.GaussianBlur(rng.integers(0, 256, (SIZE[1], 1200)).astype(np.uint8), (0, 0), 2)
    wall = cv2.normalize(wall, None, 0, 255, cv2.NORM_MINMAX)
    encoder = ClipEncoder(*SIZE)
    import av

    for index in range(seconds * FPS):
        times = np.linspace(0, index / FPS, 50 * index + 1)
        at = 160 + np.trapezoid(speed(times), times)
        grey = cv2.getRectSubPix(wall, SIZE, (at, SIZE[1] / 2))
        frame = av.VideoFrame.from_ndarray(np.repeat(grey[..., None], 3, axis=2), format="rgb24")
        encoder.write(frame.reformat(format="yuv420p"))
    return encoder.finish()


def test_a_pan_with_its_track_is_scored_by_the_step(tmp_path):
    lags_s = [0.0, 0.2, -0.5]
    times = np.arange(-2, SECONDS + 2, 0.01)
    texts = [
        "time_s,vx [px/s]\n"
        + "".join(f"{t:.2f},{v:.4f}\n" for t, v in zip(times, speed(times - lag), strict=True))
        for lag in lags_s
    ]
    length = {"end_s": float(SECONDS), "duration_s": float(SECONDS), "num_frames": SECONDS * FPS}
    clips = [clip(index, **length) for index in range(4)]
    provenance = [
        {"asset_id": asset_id(index), "path": f"{index}.mp4", "in_vault": False,
         "actions_key": f"raw/{index}" if index < 3 else None, "actions_suffix": ".csv"}
        for index in range(4)
    ]  # fmt: skip
    cutting = step_run(tmp_path, actions.STEP, {"clips": clips, "provenance": provenance})
    for index, text in enumerate(texts):
        cutting.store.put(f"raw/{index}", text.encode())
    cut = actions.run(cutting).tables["action_tracks"]
    rung = _pan()
    rungs = [
        {
            "clip_id": c["clip_id"],
            "asset_id": c["asset_id"],
            "key": "rung",
            "sha256": sha256_bytes(rung),
        }
        for c in clips
    ]
    inputs = {"clips": clips, "action_tracks": cut.to_dicts(), "transcodes_256p": rungs}
    run = step_run(tmp_path, actions_filter.STEP, inputs)
    run.store.put("rung", rung)
    table = actions_filter.run(run).tables["actions_scores"]
    found = {(row["clip_id"], row["score_name"]): row for row in table.sort("clip_id").to_dicts()}
    for index, lag_s in enumerate(lags_s):
        row = found[clips[index]["clip_id"], "lag_s"]
        assert row["score"] == pytest.approx(lag_s, abs=0.04)
        assert found[clips[index]["clip_id"], "correlation"]["score"] > 0.8
    assert found[clips[3]["clip_id"], "correlation"]["status"] == "unscored"
    detail = found[clips[0]["clip_id"], "correlation"]["detail_json"]
    assert json.loads(detail)["channels"] == ["vx"]
    assert table.filter(pl.col("status") == "error").is_empty()
