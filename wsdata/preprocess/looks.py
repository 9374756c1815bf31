"""Small pictures that shots are told apart by, and how unlike two of them are.

A look is a yuv420p picture of some 64 x 36, limited range, planes below one another as PyAV
lays them out. What a difference means for shots is told by `shots` and `gradual`.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import VideoFrame

LONG_SIDE_PX = 64
MIN_SIDE_PX = 16
BLOCKS = 3, 4  # rows and columns of blocks that are looked for in the other picture
REACH = 0.5, 9 / 16  # how far they may have moved, in blocks
MIN_TEXTURE = 0.5  # standard deviation in levels below which a block says nothing
BAR_LEVEL = 26  # luma of black bars, with noise
BAR_RANGE = 6  # of one that is not black
MAX_BAR_SHARE = 0.4
PLAIN_SHARE = 0.15
PLAIN_TEXTURE, PLAIN_TINT = 2.0, 6.0
ALIKE, FOUND = 0.3, 0.2
WHITE_LEVEL = 215

Look = NDArray[np.uint8]


def feature_picture(small: "VideoFrame") -> Look:
    """Return the look of a small yuv420p frame, limited range."""
    import cv2

    width, height = small.width, small.height
    half_width, half_height = -(-width // 2), -(-height // 2)
    planes = small.to_ndarray()
    flat = planes.reshape(-1)
    scale = LONG_SIDE_PX / max(width, height)
    to_width, to_height = (max(MIN_SIDE_PX, round(n * scale / 4) * 4) for n in (width, height))
    look = np.empty((to_height * 3 // 2, to_width), np.uint8)
    cv2.resize(planes[:height], (to_width, to_height), look[:to_height], 0, 0, cv2.INTER_AREA)
    at, rest = width * height, look[to_height:].reshape(2, to_height // 2, to_width // 2)
    for index in range(2):
        plane = flat[at : at + half_width * half_height].reshape(half_height, half_width)
        rest[index] = cv2.resize(
            plane, (to_width // 2, to_height // 2), interpolation=cv2.INTER_AREA
        )
        at += half_width * half_height
    return look


def luma(look: Look) -> Look:
    """Return the luma plane of a look."""
    return look[: look.shape[0] * 2 // 3]


def difference(before: Look, after: Look) -> float:
    """Mean absolute difference over luma and chroma, in levels of 255."""
    import cv2

    return cv2.norm(before, after, cv2.NORM_L1) / before.size


def brightness(look: Look) -> float:
    """Mean luma, in levels of 255."""
    return float(luma(look).mean())


def white_share(look: Look) -> float:
    """Share of the picture that is washed out."""
    return float((luma(look) >= WHITE_LEVEL).mean())


def detail(look: Look) -> float:
    """Mean square of the luma's second difference along rows, in levels; exact in any order.

    Along rows alone: the edges of letterbox bars would drown the rest.
    """
    import cv2

    plane = luma(look).astype(np.int16)
    fine = 2 * plane[:, 1:-1] - plane[:, :-2] - plane[:, 2:]
    return cv2.norm(fine, cv2.NORM_L2SQR) / fine.size


def tint(look: Look) -> float:
    """How far the mean colour is from grey, in levels of chroma."""
    height = look.shape[0]
    chroma = look[height * 2 // 3 :].reshape(2, -1)
    return float(np.abs(chroma.mean(axis=1) - 128.0).max())


class Likeness(NamedTuple):
    """How two pictures compare, whatever moved and however the light changed.

    Attributes:
        unlike: 0 where the one is found again in the other, block by block, at another place
            and brightness; about 0.6 for pictures that have nothing to do with one another.
        texture: Mean standard deviation inside the blocks of either, in levels.
    """

    unlike: float
    texture: tuple[float, float]

    @property
    def is_one_plain(self) -> bool:
        """Whether one picture is as good as one colour beside the other."""
        return min(self.texture) < PLAIN_SHARE * max(self.texture)


def compare(first: Look, second: Look) -> Likeness:
    """Look for each picture's blocks in the other, near where they were; black bars aside.

    Where most are found without a search, or in one picture, the rest is spared: `unlike` is
    then an upper bound below `ALIKE`.
    """
    one, two = _without_bars(luma(first), luma(second))
    unlike, texture = _unlike_in_place(one, two)
    if unlike >= ALIKE:
        there = _unlike(one, two)
        unlike = there if there < FOUND else (there + _unlike(two, one)) / 2
    return Likeness(unlike, texture)


def _without_bars(one: Look, two: Look) -> tuple[Look, Look]:
    import cv2

    top, bottom = _shown(_is_bar(one, two, axis=1))
    left, right = _shown(_is_bar(one, two, axis=0))
    height, width = one.shape
    if (bottom - top, right - left) == (height, width):
        return one, two
    kept = [cv2.resize(picture[top:bottom, left:right], (width, height)) for picture in (one, two)]
    return np.asarray(kept[0], np.uint8), np.asarray(kept[1], np.uint8)


def _is_bar(one: Look, two: Look, axis: int) -> NDArray[np.bool_]:
    """Rows or columns that are black, or of one shade that does not change."""
    low = np.minimum(one.min(axis=axis), two.min(axis=axis)).astype(np.int16)
    high = np.maximum(one.max(axis=axis), two.max(axis=axis)).astype(np.int16)
    return (high <= BAR_LEVEL) | (high - low <= BAR_RANGE)


def _shown(is_dark: NDArray[np.bool_]) -> tuple[int, int]:
    """Return [first, end) of what is not a bar; all where the bars would take too much."""
    lit = np.flatnonzero(~is_dark)
    count = len(is_dark)
    if not len(lit):
        return 0, count
    first, end = int(lit[0]), int(lit[-1]) + 1
    most = MAX_BAR_SHARE * count
    return (0 if first > most else first), (count if count - end > most else end)


def _blocks(picture: Look) -> NDArray[np.float32]:
    """Return blocks of a picture less their means, shape (blocks, pixels)."""
    rows, columns = BLOCKS
    high, wide = picture.shape[0] // rows, picture.shape[1] // columns
    whole = picture[: rows * high, : columns * wide].astype(np.float32)
    parted = whole.reshape(rows, high, columns, wide).transpose(0, 2, 1, 3)
    flat = parted.reshape(rows * columns, high * wide)
    return flat - flat.mean(axis=1, keepdims=True)


def _unlike_in_place(one: Look, two: Look) -> tuple[float, tuple[float, float]]:
    first, second = _blocks(one), _blocks(two)
    count = first.shape[1]
    textures = [np.sqrt((part * part).sum(axis=1) / count) for part in (first, second)]
    shared = (first * second).sum(axis=1) / count
    likeness = shared / np.maximum(textures[0] * textures[1], MIN_TEXTURE**2)
    weights = np.maximum(textures[0], textures[1])
    total = float(weights.sum())
    found = float((weights * np.maximum(0, likeness)).sum())
    unlike = 1 - found / total if total > MIN_TEXTURE * len(weights) else 0.0
    return unlike, (float(textures[0].mean()), float(textures[1].mean()))


def _unlike(one: Look, two: Look) -> float:
    import cv2

    height, width = one.shape
    rows, columns = BLOCKS
    high, wide = height // rows, width // columns
    up, aside = round(high * REACH[0]), round(wide * REACH[1])
    textures = np.sqrt((_blocks(one) ** 2).mean(axis=1)).tolist()
    found = 0.0
    for index, texture in enumerate(textures):
        if texture < MIN_TEXTURE:
            found += texture
            continue
        top, left = index // columns * high, index % columns * wide
        block = one[top : top + high, left : left + wide]
        around = two[max(0, top - up) : top + high + up, max(0, left - aside) : left + wide + aside]
        match = cv2.matchTemplate(around, block, cv2.TM_CCOEFF_NORMED)
        found += texture * max(0.0, float(match.max()))
    total = sum(textures)
    return 1 - found / total if total else 0.0


def is_plain(look: Look) -> bool:
    """Whether a picture is one shade of grey, or black or white: a title's ground is not."""
    return float(luma(look).std()) < PLAIN_TEXTURE and tint(look) < PLAIN_TINT
