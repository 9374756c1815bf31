"""Quality filter: how well a clip is pictured, without a reference and without a network.

No learned scorer of aesthetics ships its weights in a package, so this measures what such
scorers agree on: sharpness, contrast, exposure, colour and noise, each in [0, 1]. Noise is no
sharpness: detail is looked for in a picture that a median has calmed, and counts the less the
noisier even the calmest parts are. A frame that is all black shows nothing, which is known: it
counts as 0.

Constants were set on the real clips of the samples: their calmest tiles have a noise of up to 1.8
luma levels, those of gravel, water and a star field up to 3.3; Gaussian noise of 20 levels at full
size leaves 4.5 and more.
Axes: h height, w width, c colour (RGB).
"""

from collections.abc import Sequence

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
    name="quality",
    model_version="no-reference-2",
    score_names=(
        "quality",
        "sharpness",
        "contrast",
        "exposure",
        "colorfulness",
        "cleanness",
        "black_share",  # of the frames, those that are all black; in no other score's weight
    ),
)

STEP = pack_step(
    FILTER, "How well each clip is pictured, in [0, 1]: sharpness, contrast, exposure, colour."
)

WEIGHTS = {
    "sharpness": 0.45,
    "contrast": 0.25,
    "exposure": 0.15,
    "colorfulness": 0.10,
    "cleanness": 0.05,
}
SIDE_PX = 448  # one scale for all, so that a small source is not sharp for being small
_NOTHING: dict[str, float] = dict.fromkeys(WEIGHTS, 0.0)
TILES = 4  # per axis
BLUR_PX = 11
SHARPEST_BLUR = 0.345  # blur index of sharp footage here, calmed; 1.0 is no detail at all
FULL_CONTRAST = 0.6  # spread of the middle 90 % of luma
DARK, BRIGHT = 4, 251
FULL_COLOR = 40.0  # "moderately colourful" lies at 33, "quite colourful" at 59
WORST_NOISE = 8.0  # luma levels in the calmest tiles
TEXTURE_NOISE = 3.3  # what texture alone looks like; above it is noise
CALM_TILE = 1  # of the tiles in order of noise: the calmest may be a black corner
COLOR_SHRINK = 4  # colour noise averages out, colour does not
BAR_LUMA = 20


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop from the colour frames of its pack."""
    return score_packs(run, FILTER, lambda pack, clip: quality_scores(color_frames(pack)))


def quality_scores(frames_hwc: Sequence[NDArray[np.uint8]]) -> Entries:
    """Score how well one clip is pictured: the median of its frames.

    Args:
        frames_hwc: RGB frames in [0, 255].

    Returns:
        By name, each in [0, 1]; ``quality`` is the weighted mean of the others.
    """
    if not frames_hwc:
        return dict.fromkeys(FILTER.score_names, unscored("no colour frame"))
    frames = [_without_bars(frame) for frame in frames_hwc]
    parts: list[dict[str, float]] = [
        _NOTHING if frame is None else _frame_parts(frame) for frame in frames
    ]
    medians = {name: float(np.median([part[name] for part in parts])) for name in WEIGHTS}
    quality = sum(WEIGHTS[name] * medians[name] for name in WEIGHTS)
    return {
        "quality": scored(quality),
        **{name: scored(value) for name, value in medians.items()},
        "black_share": scored(sum(frame is None for frame in frames) / len(frames)),
    }


def _frame_parts(frame_hwc: NDArray[np.uint8]) -> dict[str, float]:
    import cv2

    luma_hw = cv2.cvtColor(frame_hwc, cv2.COLOR_RGB2GRAY).astype(np.float32)
    calm_hw = np.asarray(cv2.medianBlur(luma_hw, 3), np.float32)
    low, high = np.percentile(calm_hw, [5, 95])
    clipped = float(((luma_hw <= DARK) | (luma_hw >= BRIGHT)).mean())
    noise = _noise(luma_hw)
    detail = _share((1.0 - _blur_index(calm_hw)) / (1.0 - SHARPEST_BLUR))
    return {
        "sharpness": detail * (1 - _share((noise - TEXTURE_NOISE) / (WORST_NOISE - TEXTURE_NOISE))),
        "contrast": _share(float(high - low) / 255 / FULL_CONTRAST),
        "exposure": 1.0 - clipped,
        "colorfulness": _share(_colorfulness(frame_hwc) / FULL_COLOR),
        "cleanness": 1.0 - _share(noise / WORST_NOISE),
    }


def _blur_index(luma_hw: NDArray[np.float32]) -> float:
    """Blur of the sharper quarter of the picture's tiles, in [0, 1].

    Crete et al., "The blur effect: perception and estimation with a new no-reference perceptual
    blur metric", 2007: how little neighbouring pixels change more than they do after a low pass.
    Tiles, because a soft background behind a sharp subject is no fault.
    """
    import cv2

    worst = np.zeros((TILES, TILES))
    for dx, dy in ((1, 0), (0, 1)):
        size = (BLUR_PX, 1) if dx else (1, BLUR_PX)
        smooth_hw = cv2.blur(luma_hw, size, borderType=cv2.BORDER_REFLECT)
        sharp_hw = np.abs(cv2.Sobel(luma_hw, cv2.CV_32F, dx, dy))
        lost_hw = np.maximum(0, sharp_hw - np.abs(cv2.Sobel(smooth_hw, cv2.CV_32F, dx, dy)))
        total = _tile_sums(sharp_hw)
        # Tiles of next to no detail have no say: their index is noise.
        has_detail = total > 0.25 * total.mean()
        index = np.where(has_detail, 1.0 - _tile_sums(lost_hw) / np.maximum(total, 1e-6), 1.0)
        worst = np.maximum(worst, index)
    best = np.sort(worst.ravel())[: TILES * TILES // 4]
    return float(best.mean())


def _tile_sums(values_hw: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = np.array_split(values_hw.astype(np.float64), TILES, axis=0)
    return np.array([[tile.sum() for tile in np.array_split(row, TILES, axis=1)] for row in rows])


def _colorfulness(frame_hwc: NDArray[np.uint8]) -> float:
    """Hasler and Suesstrunk, "Measuring colourfulness in natural images", 2003; 0 is grey."""
    import cv2

    height_px, width_px = frame_hwc.shape[:2]
    size = (max(1, width_px // COLOR_SHRINK), max(1, height_px // COLOR_SHRINK))
    small_hwc = np.asarray(cv2.resize(frame_hwc, size, interpolation=cv2.INTER_AREA))
    red, green, blue = (small_hwc[..., c].astype(np.float32) for c in range(3))
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    spread = np.hypot(red_green.std(), yellow_blue.std())
    return float(spread + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean()))


def _noise(luma_hw: NDArray[np.float32]) -> float:
    """Noise of the calmest parts of a picture, as a standard deviation in luma levels.

    Immerkaer, "Fast noise variance estimation", 1996, in tiles: noise is everywhere, and texture,
    which looks like it, hardly ever.
    """
    import cv2

    mask = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
    response_hw = np.abs(cv2.filter2D(luma_hw, -1, mask))
    sizes = _tile_sums(np.ones_like(luma_hw))
    means = np.sort((_tile_sums(response_hw) / np.maximum(sizes, 1)).ravel())
    return float(np.sqrt(np.pi / 2) / 6 * means[CALM_TILE])


def _without_bars(frame_hwc: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """The frame at the common scale and without black bars; None where all of it is black."""
    import cv2

    cv2.setNumThreads(1)
    lit_hw = frame_hwc.max(axis=2) > BAR_LUMA
    rows, columns = np.flatnonzero(lit_hw.any(axis=1)), np.flatnonzero(lit_hw.any(axis=0))
    if len(rows) < BLUR_PX or len(columns) < BLUR_PX:
        return None
    frame_hwc = frame_hwc[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height_px, width_px = frame_hwc.shape[:2]
    scale = min(1.0, SIDE_PX / max(height_px, width_px))
    size = (max(1, round(width_px * scale)), max(1, round(height_px * scale)))
    return np.asarray(
        cv2.resize(np.ascontiguousarray(frame_hwc), size, interpolation=cv2.INTER_AREA), np.uint8
    )


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
