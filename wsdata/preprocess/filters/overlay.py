"""Overlay filter: text burned into the picture, detected and confirmed by reading it.

Detection alone fires on fog and gravel, so only what can be read as a word counts. What was read
is noted in the detail, with where and on what ground: `text_tags` tells plates and documents from
that, so text is read once per clip. Who must not miss text, as `curate.flips`, asks ``text_seen``:
it counts every mark in which any sign was read, though that is often texture.
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

TextLine = tuple[str, float, NDArray[np.int64]]  # text, confidence, corners (4, 2) in pixels

FILTER = Filter(
    name="overlay",
    model_version="rapidocr-3.10.0-ppocrv6-640-3",
    score_names=(
        "text_share",  # of the frame's area under read text, mean over the frames looked at
        "lasting_share",  # of the area, under read text in every frame looked at
        "text_seen",  # of a frame's area under anything read, sure or not: the most of any frame
    ),
)

STEP = pack_step(
    FILTER, "How much of the picture lies under text: detected, then confirmed by recognition."
)

NUM_FRAMES = 3  # the costliest of the filters: first, middle and last frame of the pack
DETECT_SIDE_PX = 640
MIN_CONFIDENCE = 0.8
MIN_LETTERS = 2  # single signs are what texture is read as
MAX_HEIGHT_SHARE = 0.3  # a "letter" taller than that is an object
MAX_WORDS = 12
MAX_LINES = 60  # of a frame, in its detail: a page of print
GROUND_BINS = 16  # of luma, the fullest of which is a line's ground


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop from a few colour frames of its pack."""
    return score_packs(
        run, FILTER, lambda pack, clip: overlay_scores(color_frames(pack)), load=_model
    )


def overlay_scores(frames_hwc: Sequence[NDArray[np.uint8]]) -> Entries:
    """Score how much of one clip lies under text.

    Args:
        frames_hwc: RGB frames in [0, 255], in the order of the clip.

    Returns:
        By name, see `FILTER`; the words are in the detail of ``text_share``, and under
        ``frames`` the lines of each frame with text, as `noted_frame` gives them.
    """
    if not frames_hwc:
        return dict.fromkeys(FILTER.score_names, unscored("no colour frame"))
    chosen = sorted({round(i) for i in np.linspace(0, len(frames_hwc) - 1, NUM_FRAMES)})
    masks_hw: list[NDArray[np.bool_]] = []
    seen_shares: list[float] = []
    words: list[str] = []
    noted: list[dict[str, Any]] = []
    for index in chosen:
        mask_hw, seen_hw, found = _read_text(frames_hwc[index])
        masks_hw.append(mask_hw)
        seen_shares.append(float(seen_hw.mean()))
        words += [text for text, _, _ in found if text not in words]
        if found:
            noted.append(noted_frame(frames_hwc[index], found))
    lasting_hw = np.logical_and.reduce([_at_size(mask_hw, masks_hw[0]) for mask_hw in masks_hw])
    return {
        "text_share": scored(
            float(np.mean([mask_hw.mean() for mask_hw in masks_hw])),
            {"words": words[:MAX_WORDS], "frames": noted} if words else None,
        ),
        "lasting_share": scored(float(lasting_hw.mean()))
        if len(chosen) > 1
        else unscored("one frame"),
        "text_seen": scored(max(seen_shares)),
    }


def _read_text(
    frame_hwc: NDArray[np.uint8],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], list[TextLine]]:
    """Where words are, where anything is that was read as a sign, and the lines of the words."""
    import cv2

    height_px, width_px = frame_hwc.shape[:2]
    mask_hw = np.zeros((height_px, width_px), np.uint8)
    seen_hw = np.zeros((height_px, width_px), np.uint8)
    lines: list[TextLine] = []
    found = _model()(np.ascontiguousarray(frame_hwc[..., ::-1]))  # it takes BGR
    if found.boxes is None or found.txts is None:
        return mask_hw.astype(bool), seen_hw.astype(bool), lines
    for box, text, confidence in zip(found.boxes, found.txts, found.scores, strict=True):
        cv2.fillPoly(seen_hw, [np.round(box).astype(np.int32)], (1,))
        tall = float(np.ptp(box[:, 1])) > MAX_HEIGHT_SHARE * height_px
        letters = sum(sign.isalnum() for sign in text)
        if tall or letters < MIN_LETTERS or confidence < MIN_CONFIDENCE:
            continue
        cv2.fillPoly(mask_hw, [np.round(box).astype(np.int32)], (1,))
        lines.append((text, float(confidence), np.round(box).astype(np.int64)))
    return mask_hw.astype(bool), seen_hw.astype(bool), lines


def noted_frame(frame_hwc: NDArray[np.uint8], lines: Sequence[TextLine]) -> dict[str, Any]:
    """What is kept of a frame's text, as JSON.

    Returns:
        ``size``, [width, height] in pixels; ``lines``, of each the text, its confidence, the
        eight coordinates of its corners clockwise from the upper left, and luma and share of the
        ground that it stands on; the most confident ones.
    """
    height_px, width_px = frame_hwc.shape[:2]
    surest = sorted(lines, key=lambda line: (-line[1], line[0], line[2].tolist()))[:MAX_LINES]
    return {
        "size": [width_px, height_px],
        "lines": [
            [text, round(confidence, 3), box.ravel().tolist(), *_ground(frame_hwc, box)]
            for text, confidence, box in surest
        ],
    }


def _ground(frame_hwc: NDArray[np.uint8], box: NDArray[np.int64]) -> tuple[int, float]:
    """Luma that most of a line's surroundings have, in [0, 255], and the share that has it."""
    height_px, width_px = frame_hwc.shape[:2]
    margin = int(np.ptp(box[:, 1])) // 4
    left, top = np.clip(box.min(axis=0) - margin, 0, [width_px - 1, height_px - 1])
    right, bottom = np.clip(box.max(axis=0) + margin + 1, 1, [width_px, height_px])
    cut = frame_hwc[top:bottom, left:right].astype(np.uint32)
    luma = (cut @ np.array([77, 150, 29], np.uint32)) >> 8
    bins = np.bincount((luma * GROUND_BINS // 256).ravel(), minlength=GROUND_BINS)
    # Two neighbouring bins: a ground that lies across their border is one.
    pairs = bins[:-1] + bins[1:]
    fullest = int(pairs.argmax())
    return (fullest + 1) * 256 // GROUND_BINS, round(float(pairs[fullest] / luma.size), 3)


def _at_size(mask_hw: NDArray[np.bool_], like_hw: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask at another's size: a stream may change its frame size within a clip."""
    height_px, width_px = like_hw.shape
    rows = np.arange(height_px) * mask_hw.shape[0] // height_px
    columns = np.arange(width_px) * mask_hw.shape[1] // width_px
    return mask_hw[np.ix_(rows, columns)]


@functools.cache
def _model() -> Any:
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    model = RapidOCR(
        params={
            "Global.use_cls": False,
            "Global.text_score": 0.0,  # what is sure enough for what is decided here
            "Global.log_level": "error",
            "Det.limit_type": "max",
            "Det.limit_side_len": DETECT_SIDE_PX,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )
    model(np.zeros((64, 64, 3), np.uint8))  # it loads its networks at the first call
    return model
