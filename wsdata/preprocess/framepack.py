"""Frame packs: what the decode pass leaves of a clip for every later model.

Up to 8 colour frames spread evenly over the clip, and up to 16 pairs of neighbouring luma
pictures for motion, in one small Parquet file. What reads them is none of this module's business.
"""

import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed
from wsdata.media.encode import encode_jpeg

if TYPE_CHECKING:
    from av import VideoFrame

MAX_COLOR, COLOR_SIDE_PX = 8, 640  # one a second
MAX_PAIRS, LUMA_SIDE_PX = 16, 320  # one each half second
PAIR_APART_S = Fraction(1, 24)

_FULL_RANGE = np.clip(np.rint((np.arange(256) - 16) * 255 / 219), 0, 255).astype(np.uint8)
_COLUMNS = ("kind", "frame_index", "time_s", "image", "width_px", "height_px")


class PackedFrame(NamedTuple):
    """A picture and when it stands, in seconds from the clip's start.

    `pixels` are uint8 in [0, 255]: RGB of shape (height, width, 3), or luma (height, width).
    """

    time_s: float
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class FramePack:
    """A clip's sampled frames, in display geometry, in order of time.

    `colors` are RGB; each of `luma_pairs` is two pictures of equal size, 1/24 to 1/12 s apart
    where the source has that many frames, and its next frame where it does not.
    """

    colors: list[PackedFrame]
    luma_pairs: list[tuple[PackedFrame, PackedFrame]]


class Due(NamedTuple):
    """What a frame is to the luma pairs: the second of one, the first of one, both or neither."""

    ends: bool
    begins: bool


NOT_DUE = Due(ends=False, begins=False)


class PairTimes:
    """Tells which frames luma is kept of: pairs begin at 1/4, 3/4, 5/4 s ... after an origin.

    Where that is the track's, frames are chosen before it is known which clip they will be in,
    as `wants_color` does; a pair that two clips share is then in neither.
    """

    def __init__(self, origin_pts: int, time_base: Fraction) -> None:
        self._origin = origin_pts
        self._num, self._den = time_base.numerator, time_base.denominator
        self._first_pts: int | None = None
        self._num_times = 0

    def see(self, pts: int, end_pts: int) -> Due:
        """Take the next frame, shown in [pts, end_pts)."""
        ends = False
        if self._first_pts is not None:
            ticks = PAIR_APART_S.denominator * (pts - self._first_pts + 1) * self._num
            ends = ticks >= PAIR_APART_S.numerator * self._den
        # counted in quarters of a second
        quarters, below = 4 * (end_pts - self._origin) * self._num, self._den
        is_free = ends or self._first_pts is None
        begins = is_free and quarters > (2 * self._num_times + 1) * below
        if begins:
            self._first_pts = pts
            self._num_times = (quarters + below) // (2 * below)
        elif ends:
            self._first_pts = None
        return Due(ends, begins)


class _Jpeg(NamedTuple):
    time_s: float
    image: bytes
    width_px: int
    height_px: int


class Picture(NamedTuple):
    """A picture of a pack without its bytes, of which it says how many there are."""

    kind: str  # color | luma
    frame_index: int
    time_s: float
    num_bytes: int
    width_px: int
    height_px: int


class LoosePack(NamedTuple):
    """A pack before it is Parquet: its pictures, and their JPEGs one behind the other."""

    pictures: list[Picture]
    data: bytes


class PackBuilder:
    """Collects the pictures of one clip while its frames pass.

    Memory: a 640 px colour picture a second and two 320 px luma pictures a half second, as JPEGs
    from the moment that they pass: some 0.2 MB per second of the clip, a tenth of their pixels.
    """

    def __init__(self, start_pts: int, time_base: Fraction) -> None:
        self._start = start_pts
        self._num, self._den = time_base.numerator, time_base.denominator
        self._colors: list[_Jpeg] = []
        self._pairs: list[tuple[_Jpeg, _Jpeg]] = []
        self._first: _Jpeg | None = None
        self._times = PairTimes(start_pts, time_base)

    def add(
        self,
        pts: int,
        end_pts: int,
        color: NDArray[np.uint8] | None,
        get_luma: Callable[[], NDArray[np.uint8]] | None,
        due: Due | None = None,
    ) -> None:
        """Take the clip's next frame, shown in [pts, end_pts).

        Args:
            pts: Where it starts.
            end_pts: Where it ends.
            color: Its picture, of one that is to be kept in colour.
            get_luma: Makes its small luma picture; called only where that is kept.
            due: What it is to the pairs, where that is not told from the clip's start.
        """
        time_s = (pts - self._start) * self._num / self._den
        if color is not None:
            self._colors.append(_packed(time_s, color))
        if get_luma is None:
            return
        due = due or self._times.see(pts, end_pts)
        is_second = due.ends and self._first is not None
        kept = _packed(time_s, get_luma()) if is_second or due.begins else None
        if self._first is not None and kept is not None and is_second:
            self._pairs.append((self._first, kept))
            self._first = None
        if due.begins:
            self._first = kept

    def add_first(self, color: NDArray[np.uint8]) -> None:
        """Take the only picture of a still."""
        self._colors.append(_packed(0.0, color))

    def finish(self) -> LoosePack:
        """Choose evenly from what was collected; `write_loose_pack` writes it."""
        colors = [self._colors[i] for i in spread(len(self._colors), MAX_COLOR)]
        pairs = [self._pairs[i] for i in spread(len(self._pairs), MAX_PAIRS)]
        return _loose(colors, [frame for pair in pairs for frame in pair])


def full_range_luma(small: "VideoFrame") -> NDArray[np.uint8]:
    """Return luma in [0, 255] of a limited-range yuv420p frame, shape (height, width)."""
    planes = small.to_ndarray().astype(np.uint8)
    return _FULL_RANGE[planes[: small.height]]


def wants_color(pts: int, end_pts: int, origin_pts: int, time_base: Fraction) -> bool:
    """Whether a frame is shown at one of the times 0.5, 1.5, 2.5 s ... after `origin_pts`.

    The origin is the track's, not a clip's: frames are chosen while it is not yet known which
    clip they will be in. A clip of n seconds has n of them, give or take one.
    """
    num, den = 2 * time_base.numerator, time_base.denominator
    first = max(0, -((den - (max(pts, origin_pts) - origin_pts) * num) // (2 * den)))
    return (2 * first + 1) * den < (end_pts - origin_pts) * num


def spread(count: int, wanted: int) -> list[int]:
    """Indices of at most `wanted` of `count` items, evenly spread, both halves alike."""
    if count <= wanted:
        return list(range(count))
    return [(2 * i + 1) * count // (2 * wanted) for i in range(wanted)]


def write_framepack(pack: FramePack) -> bytes:
    """Write a pack as Parquet with JPEG pictures; the same pack gives the same bytes."""
    flat = [frame for pair in pack.luma_pairs for frame in pair]
    return write_loose_pack(
        *_loose([_packed(*frame) for frame in pack.colors], [_packed(*frame) for frame in flat])
    )


def write_loose_pack(pictures: Sequence[Sequence[Any]], data: bytes) -> bytes:
    """Write what a `PackBuilder` collected as Parquet.

    Args:
        pictures: The fields of each `Picture`.
        data: Their JPEGs.

    Raises:
        DecodeFailed: They are not those of these bytes.
    """
    import polars as pl  # of no use to the child, which has little memory

    told = [Picture(*picture) for picture in pictures]
    ends = list(itertools.accumulate(picture.num_bytes for picture in told))
    if (ends[-1] if ends else 0) != len(data) or any(each.num_bytes < 0 for each in told):
        raise DecodeFailed(f"{len(told)} pictures of a frame pack are not its {len(data)} bytes")
    rows = [
        (each.kind, each.frame_index, each.time_s, data[end - each.num_bytes : end],
         each.width_px, each.height_px)
        for each, end in zip(told, ends, strict=True)
    ]  # fmt: skip
    types = (pl.String, pl.Int64, pl.Float64, pl.Binary, pl.Int64, pl.Int64)
    table = pl.DataFrame(rows, schema=dict(zip(_COLUMNS, types, strict=True)), orient="row")
    buffer = io.BytesIO()
    table.write_parquet(buffer, compression="uncompressed", statistics=False)
    return buffer.getvalue()


def _packed(time_s: float, pixels: NDArray[np.uint8]) -> _Jpeg:
    height, width = pixels.shape[:2]
    return _Jpeg(time_s, encode_jpeg(pixels), width, height)


def _loose(colors: list[_Jpeg], luma: list[_Jpeg]) -> LoosePack:
    pictures = [
        Picture(kind, index, frame.time_s, len(frame.image), frame.width_px, frame.height_px)
        for kind, frames in (("color", colors), ("luma", luma))
        for index, frame in enumerate(frames)
    ]
    return LoosePack(pictures, b"".join(frame.image for frame in (*colors, *luma)))


def read_framepack(data: bytes) -> FramePack:
    """Read a pack.

    Args:
        data: What `write_framepack` wrote.

    Raises:
        DecodeFailed: It is not a pack, or a picture in it does not decode.
    """
    import cv2
    import polars as pl

    try:
        table = pl.read_parquet(io.BytesIO(data)).sort("kind", "frame_index")
        rows = table.select(_COLUMNS).rows(named=True)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DecodeFailed(f"frame pack of {len(data)} bytes is not readable: {error}") from error
    frames: dict[str, list[PackedFrame]] = {"color": [], "luma": []}
    for row in rows:
        flag = cv2.IMREAD_COLOR if row["kind"] == "color" else cv2.IMREAD_GRAYSCALE
        pixels = cv2.imdecode(np.frombuffer(row["image"], np.uint8), flag)
        if pixels is None:
            raise DecodeFailed(f"frame pack: {row['kind']} picture {row['frame_index']} is broken")
        upright = np.ascontiguousarray(pixels[..., ::-1]) if pixels.ndim == 3 else pixels
        frames[row["kind"]].append(PackedFrame(row["time_s"], upright.astype(np.uint8)))
    luma = frames["luma"]
    return FramePack(
        colors=frames["color"], luma_pairs=list(zip(luma[::2], luma[1::2], strict=True))
    )
