"""The perceptual hashes of one picture, and the distance of two.

Every print of the project is made here, so that prints of key frames, of the decode pass and of
the vault compare. Which frames are hashed belongs to the callers; what a distance means belongs
to the matchers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HASH_VERSION = "pdq-3"
HASH_BYTES = 32
HASH_BITS = 256
CARD_QUALITY = 40  # drawn pictures have no vote, and yet are not empty
MAX_SIDE_PX = 256  # PDQ looks at 64 x 64 of them

_BAR_LUMA = 32  # limited-range black with coding noise
_MAX_BAR_SHARE = 0.35
_BAR_PERCENTILE = 85  # of a line: a logo that a station puts into a bar does not end it
_MIN_SIDE_PX = 64
_CORE_MARGIN = 0.15  # of each side: logos, tickers and burned-in captions lie out there
_FLAT_SIDE_PX = 96
_FLAT_STEP = 1  # of 255, as coding noise leaves it
# Drawn pictures, measured: SMPTE and PAL bars, test patterns, titles .69 to .93 even at JPEG
# quality 30; filmed, rendered and animated ones up to .59.
_MAX_FLAT_SHARE = 0.65
_MIN_CORE_QUALITY = 50


class FrameHashes(NamedTuple):
    """What one picture is told by; hashes are 32 bytes each.

    Attributes:
        plain: Hash of the picture.
        mirror: Hash of the mirrored picture.
        quality: In [0, 100], how much there is in the picture to tell it by; at most
            `CARD_QUALITY` for drawn cards.
        core: Hash of its inner part; None where there is too little in that.
        core_mirror: The same of the mirrored picture.
    """

    plain: bytes
    mirror: bytes
    quality: int
    core: bytes | None
    core_mirror: bytes | None


def _bar_thickness(line_maxima: NDArray[np.uint8]) -> int:
    """Lines of black at both ends alike: a dark sky over a bright ground is no bar."""
    is_lit = np.flatnonzero(line_maxima > _BAR_LUMA)
    if is_lit.size == 0:
        return 0
    thickness = min(int(is_lit[0]), int(line_maxima.size - 1 - is_lit[-1]))
    return thickness if thickness <= _MAX_BAR_SHARE * line_maxima.size else 0


def crop_bars(rgb_hwc: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut off letterbox and pillarbox bars of one picture.

    Args:
        rgb_hwc: RGB in [0, 255], shape (height, width, 3).

    Returns:
        A view without the bars; the whole picture where there are none, or where all is black.
    """
    luma_hw = np.maximum(np.maximum(rgb_hwc[..., 0], rgb_hwc[..., 1]), rgb_hwc[..., 2])
    rows = np.percentile(luma_hw, _BAR_PERCENTILE, axis=1, method="lower").astype(np.uint8)
    columns = np.percentile(luma_hw, _BAR_PERCENTILE, axis=0, method="lower").astype(np.uint8)
    top, left = _bar_thickness(rows), _bar_thickness(columns)
    height, width = luma_hw.shape
    return rgb_hwc[top : height - top, left : width - left]


def _shrink(rgb_hwc: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import cv2

    height, width = rgb_hwc.shape[:2]
    scale = min(1.0, MAX_SIDE_PX / max(height, width))
    size = (max(_MIN_SIDE_PX, round(width * scale)), max(_MIN_SIDE_PX, round(height * scale)))
    if size == (width, height):
        return rgb_hwc
    return np.asarray(cv2.resize(rgb_hwc, size, interpolation=cv2.INTER_AREA), np.uint8)


def is_card(rgb_hwc: NDArray[np.uint8]) -> bool:
    """Whether a picture is drawn of flat areas: bars, a test card, a title, a plain colour.

    Many unrelated videos show the same one, so it tells nothing.
    """
    import cv2

    small = cv2.resize(rgb_hwc, (_FLAT_SIDE_PX, _FLAT_SIDE_PX), interpolation=cv2.INTER_AREA)
    luma_hw = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.int16)
    across = np.abs(np.diff(luma_hw, axis=1))[:-1]
    down = np.abs(np.diff(luma_hw, axis=0))[:, :-1]
    return float((across + down <= _FLAT_STEP).mean()) >= _MAX_FLAT_SHARE


def _pdq(rgb_hwc: NDArray[np.uint8]) -> tuple[bytes, bytes, int]:
    import pdqhash

    bits, quality = pdqhash.compute(rgb_hwc)
    mirrored, _ = pdqhash.compute(np.ascontiguousarray(rgb_hwc[:, ::-1]))
    return np.packbits(bits).tobytes(), np.packbits(mirrored).tobytes(), int(quality)


def hash_picture(rgb_hwc: NDArray[np.uint8]) -> FrameHashes:
    """Hash one picture as a person sees it: upright, pixels square.

    Args:
        rgb_hwc: RGB in [0, 255], shape (height, width, 3), of any size.

    Returns:
        PDQ hashes of the picture without its bars, and of its inner part, both mirrored too.
    """
    picture = np.ascontiguousarray(_shrink(crop_bars(rgb_hwc)))
    plain, mirror, quality = _pdq(picture)
    if is_card(picture):
        return FrameHashes(plain, mirror, min(quality, CARD_QUALITY), None, None)
    height, width = picture.shape[:2]
    top, left = round(height * _CORE_MARGIN), round(width * _CORE_MARGIN)
    inner = np.ascontiguousarray(picture[top : height - top, left : width - left])
    core, core_mirror, core_quality = _pdq(_shrink(inner))
    if core_quality < _MIN_CORE_QUALITY or is_card(inner):
        return FrameHashes(plain, mirror, quality, None, None)
    return FrameHashes(plain, mirror, quality, core, core_mirror)


def hamming(a: bytes, b: bytes) -> int:
    """Return the number of bits in which two hashes differ, in [0, 256]."""
    return (int.from_bytes(a) ^ int.from_bytes(b)).bit_count()


def distances(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return the distances of all pairs.

    Args:
        a: Hashes, shape (n, 32).
        b: Hashes, shape (m, 32).

    Returns:
        Differing bits, shape (n, m).
    """
    words_a = np.ascontiguousarray(a).view(np.uint64)
    words_b = np.ascontiguousarray(b).view(np.uint64)
    total = np.zeros((words_a.shape[0], words_b.shape[0]), np.uint16)
    for word in range(words_a.shape[1]):
        total += np.bitwise_count(words_a[:, word, None] ^ words_b[None, :, word])
    return total


def unpack_hashes(hashes: list[bytes]) -> NDArray[np.uint8]:
    """Return hashes as an array of shape (n, 32)."""
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH_BYTES)
