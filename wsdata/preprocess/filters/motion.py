"""Motion filter: how much a clip moves, and how unsteadily, from optical flow of frame pairs.

Axes: h height, w width, c flow component (x, y).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.orders import StepResult, StepRun
from wsdata.preprocess.filters.rows import (
    Entries,
    Filter,
    pack_step,
    score_packs,
    scored,
    unscored,
)
from wsdata.preprocess.framepack import FramePack

FILTER = Filter(
    name="motion",
    model_version="dis-flow-fast-1",
    score_names=(
        "magnitude",  # mean flow length, share of the frame's width per 1/24 s
        "jitter",  # mean change of the mean flow vector from pair to pair, in the same unit
        "moving_share",  # of all pixels, those that move more than MOVING_PX a 1/24 s
    ),
)

STEP = pack_step(
    FILTER, "How much and how unsteadily each clip moves: dense optical flow of its frame pairs."
)

REFERENCE_FPS = 24.0  # flow is stated per frame of the ladder, whatever the pair's distance
MOVING_SHARE_OF_WIDTH = 0.0015  # about half a pixel at 320, above the flow's noise floor


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop from the luma pairs of its frame pack."""
    return score_packs(run, FILTER, _score)


def _score(pack: FramePack, clip: dict[str, Any]) -> Entries:
    if clip["media_kind"] != "video":
        return dict.fromkeys(FILTER.score_names, unscored("still"))
    return motion_scores(
        [(first.pixels, second.pixels) for first, second in pack.luma_pairs],
        [second.time_s - first.time_s for first, second in pack.luma_pairs],
    )


def motion_scores(
    pairs_hw: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]], intervals_s: Sequence[float]
) -> Entries:
    """Score how one clip moves.

    Args:
        pairs_hw: Pairs of luma frames of one size, in [0, 255], in the order of the clip.
        intervals_s: Seconds between the two frames of each pair, positive.

    Returns:
        By name, see `FILTER`. A clip without a pair is unscored; one whose pairs are alike has 0.
        A jitter needs two pairs.
    """
    if not pairs_hw:
        return dict.fromkeys(FILTER.score_names, unscored("no frame pair"))
    lengths: list[float] = []
    moving: list[float] = []
    means_c: list[NDArray[np.float64]] = []
    for (first_hw, second_hw), interval_s in zip(pairs_hw, intervals_s, strict=True):
        flow_hwc = _flow(first_hw, second_hw) / (first_hw.shape[1] * interval_s * REFERENCE_FPS)
        length_hw = np.hypot(flow_hwc[..., 0], flow_hwc[..., 1])
        lengths.append(float(length_hw.mean()))
        moving.append(float((length_hw > MOVING_SHARE_OF_WIDTH).mean()))
        means_c.append(flow_hwc.mean(axis=(0, 1)))
    turns = [float(np.hypot(*(b - a))) for a, b in itertools.pairwise(means_c)]
    return {
        "magnitude": scored(
            float(np.mean(lengths)), {"pairs": [round(length, 6) for length in lengths]}
        ),
        "jitter": scored(float(np.mean(turns))) if turns else unscored("one frame pair"),
        "moving_share": scored(float(np.mean(moving))),
    }


def _flow(first_hw: NDArray[np.uint8], second_hw: NDArray[np.uint8]) -> NDArray[np.float64]:
    import cv2

    cv2.setNumThreads(1)
    # Made anew for each pair: no pair can then depend on the one before it.
    flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    first, second = np.ascontiguousarray(first_hw), np.ascontiguousarray(second_hw)
    return flow.calc(first, second, None).astype(np.float64)  # pyright: ignore[reportCallIssue, reportArgumentType]
