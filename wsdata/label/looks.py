"""What a picture looks like in plain words: its colours, where they are, how bright it is.

Integer arithmetic over small block means, so that the same frames give the same words
everywhere. What is in the picture is for `embed` and the captioners.

Array axes: h height, w width, c channels (red, green, blue), f frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GRID = 24  # blocks per side: coarse enough that texture and noise average out
_MIN_SHARE = 12  # percent of the picture below which a colour goes unmentioned
_REGIONS = {
    "left": (slice(None), slice(0, GRID // 3)),
    "right": (slice(None), slice(-GRID // 3, None)),
    "upper part": (slice(0, GRID // 3), slice(None)),
    "lower part": (slice(-GRID // 3, None), slice(None)),
    "centre": (slice(GRID // 3, -GRID // 3), slice(GRID // 3, -GRID // 3)),
}
COLORS = (
    "black", "dark grey", "grey", "light grey", "white", "red", "dark red", "orange", "brown",
    "beige", "yellow", "olive", "green", "dark green", "turquoise", "blue", "dark blue",
    "pale blue", "purple", "pink",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """Colour and brightness of a clip.

    Attributes:
        colors: (name, percent of the picture), most of it first.
        places: (name, region) of colours that lie in one region above all.
        luma: Mean luma in [0, 255]; `contrast` is its spread over the picture.
        luma_change: Luma of the last third less that of the first.
        brighter: Region that is clearly brighter than its opposite, or None.
        saturation: Mean spread between the largest and the smallest channel, in [0, 255].
    """

    colors: tuple[tuple[str, int], ...]
    places: tuple[tuple[str, str], ...]
    luma: int
    contrast: int
    luma_change: int
    brighter: str | None
    saturation: int


def _block_means(frame_hwc: NDArray[np.uint8]) -> NDArray[np.int64]:
    height, width = frame_hwc.shape[:2]
    rows = np.arange(GRID + 1) * height // GRID
    columns = np.arange(GRID + 1) * width // GRID
    sums = np.add.reduceat(frame_hwc.astype(np.int64), np.minimum(rows[:-1], height - 1), axis=0)
    sums = np.add.reduceat(sums, np.minimum(columns[:-1], width - 1), axis=1)
    # reduceat takes one line where a block is empty, so count such blocks as one line too
    area = np.maximum(np.diff(rows), 1)[:, None] * np.maximum(np.diff(columns), 1)[None, :]
    return sums // area[:, :, None]


def _color_index(rgb: NDArray[np.int64]) -> NDArray[np.int64]:
    """Name every block mean: its index into COLORS. Hue in degrees, all else in [0, 255]."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    high, low = rgb.max(axis=-1), rgb.min(axis=-1)
    spread = high - low
    safe = np.maximum(spread, 1)
    hue = np.where(
        high == red,
        60 * (green - blue) // safe,
        np.where(high == green, 120 + 60 * (blue - red) // safe, 240 + 60 * (red - green) // safe),
    )
    hue %= 360
    is_grey = spread * 100 < np.maximum(high, 60) * 18
    named = [
        (high < 36, "black"),
        (is_grey & (high < 85), "dark grey"),
        (is_grey & (high < 150), "grey"),
        (is_grey & (high < 215), "light grey"),
        (is_grey, "white"),
        ((hue < 12) | (hue >= 345), "red"),
        ((hue < 45) & (high < 150), "brown"),
        ((hue < 60) & (spread < 90), "beige"),
        (hue < 42, "orange"),
        ((hue < 70) & (high < 150), "olive"),
        (hue < 66, "yellow"),
        (hue < 165, "green"),
        (hue < 192, "turquoise"),
        ((hue < 255) & (high >= 170) & (spread < 100), "pale blue"),
        (hue < 255, "blue"),
        ((hue >= 315) | (high >= 200), "pink"),
        (high >= 0, "purple"),
    ]
    conditions = [condition for condition, _ in named]
    index = np.select(conditions, [COLORS.index(name) for _, name in named])
    is_dark = high < 110
    for bright in ("red", "green", "blue"):
        dark = COLORS.index(f"dark {bright}")
        index = np.where((index == COLORS.index(bright)) & is_dark, dark, index)
    return index


def _shares(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Percent of each colour."""
    return np.bincount(index.ravel(), minlength=len(COLORS)) * 100 // max(index.size, 1)


def _places(index_fhw: NDArray[np.int64]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    whole = _shares(index_fhw)
    for region, (rows, columns) in _REGIONS.items():
        inside = _shares(index_fhw[:, rows, columns])
        strongest = int(np.argmax(inside - whole))
        if inside[strongest] >= 40 and inside[strongest] >= 2 * whole[strongest]:
            found.append((COLORS[strongest], region))
    return tuple(found)


def _brighter_side(luma_hw: NDArray[np.int64]) -> str | None:
    means = {name: int(luma_hw[where].mean()) for name, where in _REGIONS.items()}
    sides = [
        (means["left"] - means["right"], "left", "right"),
        (means["upper part"] - means["lower part"], "upper part", "lower part"),
    ]
    difference, first, second = max(sides, key=lambda side: abs(side[0]))
    if abs(difference) < 30:
        return None
    return first if difference > 0 else second


def measure_looks(frames: Sequence[NDArray[np.uint8]]) -> Looks | None:
    """Measure the colours and the brightness of a clip's frames.

    Args:
        frames: RGB frames in [0, 255], each of shape (height, width, 3), in order of time.

    Returns:
        The looks, or None where there is no frame.
    """
    if not frames:
        return None
    rgb_fhwc = np.stack([_block_means(frame) for frame in frames])
    luma_fhw = (299 * rgb_fhwc[..., 0] + 587 * rgb_fhwc[..., 1] + 114 * rgb_fhwc[..., 2]) // 1000
    index_fhw = _color_index(rgb_fhwc)
    shares = _shares(index_fhw)
    third = max(len(frames) // 3, 1)
    by_share = sorted(range(len(COLORS)), key=lambda color: (-int(shares[color]), color))
    return Looks(
        colors=tuple((COLORS[i], int(shares[i])) for i in by_share if shares[i] >= _MIN_SHARE),
        places=_places(index_fhw),
        luma=int(luma_fhw.mean()),
        contrast=int(luma_fhw.std()),
        luma_change=int(luma_fhw[-third:].mean()) - int(luma_fhw[:third].mean()),
        brighter=_brighter_side(luma_fhw.sum(axis=0) // len(frames)),
        saturation=int((rgb_fhwc.max(axis=-1) - rgb_fhwc.min(axis=-1)).mean()),
    )
