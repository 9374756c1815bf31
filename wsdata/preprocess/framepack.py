"""Frame packs: what the decode pass leaves of a clip for every later model.

Up to 8 colour frames spread evenly over the clip, and up to 16 pairs of neighbouring luma
pictures for motion, in one small Parquet file. What reads them is none of this module's business.
"""

import io
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed
from wsdata.media.encode import encode_jpeg

if TYPE_CHECKING:
    from av import VideoFrame

MAX_COLOR, COLOR_EVERY_S, COLOR_SIDE_PX = 8, Fraction(1), 640
MAX_PAIRS, PAIR_EVERY_S, LUMA_SIDE_PX = 16, Fraction(1, 2), 320
PAIR_APART_S = Fraction(1, 24)

_FULL_RANGE = np.clip(np.rint((np.arange(256) - 16) * 255 / 219), 0, 255).astype(np.uint8)
_SCHEMA = {
    "kind": pl.String,
    "frame_index": pl.Int64,
    "time_s": pl.Float64,
    "image": pl.Binary,
    "width_px": pl.Int64,
    "height_px": pl.Int64,
}


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


class PackBuilder:
    """Collects the pictures of one clip while its frames pass; holds at most one pack's worth.

    Memory: a 640 px colour picture a second and two 320 px luma pictures a half second, about
    2 MB per second of the clip.
    """

    def __init__(self, start_pts: int, time_base: Fraction) -> None:
        self._start = start_pts
        self._time_base = time_base
        self._colors: list[PackedFrame] = []
        self._pairs: list[tuple[PackedFrame, PackedFrame]] = []
        self._first: PackedFrame | None = None
        self._num_pair_times = 0

    def add(
        self,
        pts: int,
        end_pts: int,
        color: NDArray[np.uint8] | None,
        luma: NDArray[np.uint8] | None,
    ) -> None:
        """Take the clip's next frame, shown in [pts, end_pts)."""
        time = (pts - self._start) * self._time_base
        if color is not None and wants_color(pts, end_pts, self._start, self._time_base):
            self._colors.append(PackedFrame(float(time), color))
        if luma is None:
            return
        frame = PackedFrame(float(time), luma)
        tick = self._time_base
        if self._first is not None and time - Fraction(self._first.time_s) >= PAIR_APART_S - tick:
            self._pairs.append((self._first, frame))
            self._first = None
        due = PAIR_EVERY_S * (self._num_pair_times + Fraction(1, 2))
        if self._first is None and (end_pts - self._start) * self._time_base > due:
            self._first = frame
            passed = (end_pts - self._start) * self._time_base / PAIR_EVERY_S + Fraction(1, 2)
            self._num_pair_times = int(passed)

    def add_first(self, color: NDArray[np.uint8]) -> None:
        """Take the only picture of a still."""
        self._colors.append(PackedFrame(0.0, color))

    def finish(self) -> FramePack:
        """Choose evenly from what was collected."""
        return FramePack(
            colors=[self._colors[i] for i in spread(len(self._colors), MAX_COLOR)],
            luma_pairs=[self._pairs[i] for i in spread(len(self._pairs), MAX_PAIRS)],
        )


def full_range_luma(small: "VideoFrame") -> NDArray[np.uint8]:
    """Return luma in [0, 255] of a limited-range yuv420p frame, shape (height, width)."""
    planes = small.to_ndarray().astype(np.uint8)
    return _FULL_RANGE[planes[: small.height]]


def wants_color(pts: int, end_pts: int, start_pts: int, time_base: Fraction) -> bool:
    """Whether a frame is shown at one of the times 0.5, 1.5, 2.5 s ... of a clip."""
    begin = (max(pts, start_pts) - start_pts) * time_base / COLOR_EVERY_S
    end = (end_pts - start_pts) * time_base / COLOR_EVERY_S
    half = Fraction(1, 2)
    return max(0, math.ceil(begin - half)) < end - half


def spread(count: int, wanted: int) -> list[int]:
    """Indices of at most `wanted` of `count` items, evenly spread, both halves alike."""
    if count <= wanted:
        return list(range(count))
    return [(2 * i + 1) * count // (2 * wanted) for i in range(wanted)]


def write_framepack(pack: FramePack) -> bytes:
    """Write a pack as Parquet with JPEG pictures; the same pack gives the same bytes."""
    rows = [_row("color", i, frame) for i, frame in enumerate(pack.colors)]
    flat = [frame for pair in pack.luma_pairs for frame in pair]
    rows += [_row("luma", i, frame) for i, frame in enumerate(flat)]
    buffer = io.BytesIO()
    table = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    table.write_parquet(buffer, compression="uncompressed", statistics=False)
    return buffer.getvalue()


def _row(kind: str, index: int, frame: PackedFrame) -> tuple:
    height, width = frame.pixels.shape[:2]
    return kind, index, frame.time_s, encode_jpeg(frame.pixels), width, height


def read_framepack(data: bytes) -> FramePack:
    """Read a pack.

    Args:
        data: What `write_framepack` wrote.

    Raises:
        DecodeFailed: It is not a pack, or a picture in it does not decode.
    """
    import cv2

    try:
        table = pl.read_parquet(io.BytesIO(data)).sort("kind", "frame_index")
        rows = table.select(list(_SCHEMA)).rows(named=True)
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
