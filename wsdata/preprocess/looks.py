"""Small pictures that shots are told apart by, and how unlike two of them are.

A look is a yuv420p picture of some 64 x 36, limited range, planes below one another as PyAV
lays them out. What a difference means for shots is told by `shots` and `gradual`.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

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
BAR_EDGE = 1  # rows beside a bar that are half bar: an edge that unlike pictures share
PLAIN_SHARE = 0.15
PLAIN_TEXTURE, PLAIN_TINT = 2.0, 6.0
ALIKE, FOUND = 0.3, 0.2
WHITE_LEVEL = 215

Look = NDArray[np.uint8]


def look_size(width: int, height: int) -> tuple[int, int]:
    """Return width and height of the look of a picture of that size."""
    scale = LONG_SIDE_PX / max(width, height)
    wide, high = (max(MIN_SIDE_PX, round(side * scale / 4) * 4) for side in (width, height))
    return wide, high


def feature_picture(small: "VideoFrame") -> Look:
    """Return the look of a small yuv420p frame, limited range."""
    import cv2

    width, height = small.width, small.height
    half_width, half_height = -(-width // 2), -(-height // 2)
    planes = small.to_ndarray()
    to_width, to_height = look_size(width, height)
    look = np.empty((to_height * 3 // 2, to_width), np.uint8)
    cv2.resize(planes[:height], (to_width, to_height), look[:to_height], 0, 0, cv2.INTER_AREA)
    # both chroma planes as one of twice the height: the seam falls between two rows
    chroma = planes.reshape(-1)[width * height :][: 2 * half_width * half_height]
    tall, to = chroma.reshape(2 * half_height, half_width), (to_width // 2, to_height)
    cv2.resize(tall, to, look[to_height:].reshape(to[::-1]), 0, 0, cv2.INTER_AREA)
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
    import cv2

    return cv2.mean(luma(look))[0]


def white_share(look: Look) -> float:
    """Share of the picture that is washed out."""
    return float((luma(look) >= WHITE_LEVEL).mean())


def detail(look: Look) -> float:
    """Mean square of the luma's second difference along rows, in levels; exact in any order.

    Along rows alone: the edges of letterbox bars would drown the rest.
    """
    import cv2

    fine = cv2.Sobel(luma(look), cv2.CV_16S, 2, 0, ksize=1)[:, 1:-1]
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
    blocks, others = _blocks(one), _blocks(two)
    textures, textures_there = _textures(blocks), _textures(others)
    unlike = _unlike_in_place(blocks, others, textures, textures_there)
    if unlike >= ALIKE:
        there = _unlike(one, two, textures.tolist())
        if there >= FOUND:
            unlike = (there + _unlike(two, one, textures_there.tolist())) / 2
        else:
            unlike = there
    return Likeness(unlike, (float(textures.mean()), float(textures_there.mean())))


def _without_bars(one: Look, two: Look) -> tuple[Look, Look]:
    import cv2

    low, high = cv2.min(one, two), cv2.max(one, two)
    top, bottom = _shown(_is_bar(low, high, along=1))
    left, right = _shown(_is_bar(low, high, along=0))
    height, width = one.shape
    if (bottom - top, right - left) == (height, width):
        return one, two
    kept = [cv2.resize(picture[top:bottom, left:right], (width, height)) for picture in (one, two)]
    return np.asarray(kept[0], np.uint8), np.asarray(kept[1], np.uint8)


def _is_bar(low: Any, high: Any, along: int) -> list[bool]:
    """Rows or columns that are black, or of one shade that does not change."""
    import cv2

    lows = cv2.reduce(low, along, cv2.REDUCE_MIN).reshape(-1).tolist()
    highs = cv2.reduce(high, along, cv2.REDUCE_MAX).reshape(-1).tolist()
    return [
        most <= BAR_LEVEL or most - least <= BAR_RANGE
        for least, most in zip(lows, highs, strict=True)
    ]


def _shown(is_bar: list[bool]) -> tuple[int, int]:
    """Return [first, end) of what no bar touches; all where the bars would take too much."""
    count = len(is_bar)
    if all(is_bar):
        return 0, count
    first, end = is_bar.index(False), count - is_bar[::-1].index(False)
    most = MAX_BAR_SHARE * count
    first = 0 if first > most else first
    end = count if count - end > most else end
    return first + BAR_EDGE * (first > 0), end - BAR_EDGE * (end < count)


def _blocks(picture: Look) -> NDArray[np.float32]:
    """Return blocks of a picture less their means, shape (blocks, pixels)."""
    rows, columns = BLOCKS
    high, wide = picture.shape[0] // rows, picture.shape[1] // columns
    whole = picture[: rows * high, : columns * wide].astype(np.float32)
    parted = whole.reshape(rows, high, columns, wide).transpose(0, 2, 1, 3)
    flat = parted.reshape(rows * columns, high * wide)
    return flat - flat.mean(axis=1, keepdims=True)


def _textures(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Standard deviation inside each block, in levels."""
    return np.sqrt(np.einsum("ij,ij->i", blocks, blocks) / np.float32(blocks.shape[1]))


def _unlike_in_place(
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    first_textures: NDArray[np.float32],
    second_textures: NDArray[np.float32],
) -> float:
    shared = np.einsum("ij,ij->i", first, second) / np.float32(first.shape[1])
    likeness = shared / np.maximum(first_textures * second_textures, MIN_TEXTURE**2)
    weights = np.maximum(first_textures, second_textures)
    total = float(weights.sum())
    if total <= MIN_TEXTURE * len(weights):
        return 0.0
    return 1 - float(weights @ np.maximum(0, likeness)) / total


def _unlike(one: Look, two: Look, textures: list[float]) -> float:
    import cv2

    height, width = one.shape
    rows, columns = BLOCKS
    high, wide = height // rows, width // columns
    up, aside = round(high * REACH[0]), round(wide * REACH[1])
    found = 0.0
    for index, texture in enumerate(textures):
        if texture < MIN_TEXTURE:
            found += texture
            continue
        top, left = index // columns * high, index % columns * wide
        block = one[top : top + high, left : left + wide]
        around = two[max(0, top - up) : top + high + up, max(0, left - aside) : left + wide + aside]
        match = cv2.matchTemplate(around, block, cv2.TM_CCOEFF_NORMED)
        found += texture * max(0.0, cv2.minMaxLoc(match)[1])
    total = sum(textures)
    return 1 - found / total if total else 0.0


def is_plain(look: Look) -> bool:
    """Whether a picture is one shade of grey, or black or white: a title's ground is not."""
    return float(luma(look).std()) < PLAIN_TEXTURE and tint(look) < PLAIN_TINT
