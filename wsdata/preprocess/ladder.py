"""The ladder: display geometry, aspect buckets, and every rung of a clip from one decode.

Sizes are width x height in pixels of what a person sees (after sample aspect ratio and
rotation). A rung is never larger than what it is made from. Encoders are in `media.encode`;
which frames make a clip is told by `windows`.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from wsdata.media.decode import canonical_color, is_hdr
from wsdata.media.encode import FPS, ClipEncoder, encode_png
from wsdata.media.probe import display_size

if TYPE_CHECKING:
    from av import VideoFrame

ASPECTS = {
    "16:9": Fraction(16, 9),
    "9:16": Fraction(9, 16),
    "1:1": Fraction(1),
    "4:3": Fraction(4, 3),
}
RUNG_SIZES = {  # (width, height); multiples of 16, for latents of 8 x 8 in 2 x 2 patches
    "256p": {"16:9": (256, 144), "9:16": (144, 256), "1:1": (192, 192), "4:3": (192, 144)},
    "512p": {"16:9": (512, 288), "9:16": (288, 512), "1:1": (384, 384), "4:3": (384, 288)},
    "720p": {"16:9": (1280, 720), "9:16": (720, 1280), "1:1": (960, 960), "4:3": (960, 720)},
}
SCALER = "bicubic+accurate_rnd"
MIN_SIDE_PX = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """How the coded pixels of a frame are shown, and what of them is kept.

    Attributes:
        coded: Width and height of the decoded frame.
        sar: Sample aspect ratio.
        turns: Quarter turns clockwise that put it upright, 0 to 3.
        display: Width and height as shown.
        aspect: Bucket, one of `ASPECTS`.
        crop: x, y, width and height of the kept centre, in display pixels.
        coded_crop: The same in coded pixels, all even where the frame allows.
        rungs: Rungs that the kept part is large enough for, smallest first.
    """

    coded: tuple[int, int]
    sar: Fraction
    turns: int
    display: tuple[int, int]
    aspect: str
    crop: tuple[int, int, int, int]
    coded_crop: tuple[int, int, int, int]
    rungs: tuple[str, ...]

    @property
    def top_rung(self) -> str | None:
        """The largest rung; None for a source below the smallest."""
        return self.rungs[-1] if self.rungs else None

    def size_of(self, rung: str) -> tuple[int, int]:
        """Width and height of a rung."""
        return RUNG_SIZES[rung][self.aspect]

    @property
    def uncropped(self) -> "Geometry":
        """The same frame with nothing cut off."""
        return replace(self, crop=(0, 0, *self.display), coded_crop=(0, 0, *self.coded))

    def fit(self, long_side_px: int) -> tuple[int, int]:
        """Size as shown, its long side at most so many pixels; even, and never enlarged."""
        scale = min(1.0, long_side_px / max(self.display))
        width, height = (max(2, 2 * round(side * scale / 2)) for side in self.display)
        return width, height


def aspect_bucket(width: int, height: int) -> str:
    """Return the bucket whose aspect ratio is nearest, by the logarithm of the ratio."""
    aspect = math.log(width / height)
    return min(ASPECTS, key=lambda name: abs(math.log(ASPECTS[name]) - aspect))


def make_geometry(width: int, height: int, sar: Fraction | None, rotation: int) -> Geometry:
    """Work out how a decoded frame is shown and cropped.

    Args:
        width: Of the decoded frame.
        height: Of the decoded frame.
        sar: Sample aspect ratio; None or 0 for square.
        rotation: Degrees clockwise that put it upright: 0, 90, 180 or 270.
    """
    sar = sar if sar and sar > 0 else Fraction(1)
    turns = rotation // 90
    display = display_size(width, height, sar, rotation)
    aspect = aspect_bucket(*display)
    kept = _kept_size(display, ASPECTS[aspect])
    # to coded pixels: turn back, then undo the stretch
    wide, high = kept[::-1] if turns % 2 else kept
    coded_kept = (_even_part(width, wide / sar), _even_part(height, Fraction(high)))
    x, y = (
        _even(Fraction(full - part, 2))
        for full, part in zip((width, height), coded_kept, strict=True)
    )
    crop = _as_shown((x, y, *coded_kept), (width, height), sar, turns)
    rungs = tuple(
        rung
        for rung, sizes in RUNG_SIZES.items()
        if crop[2] >= sizes[aspect][0] and crop[3] >= sizes[aspect][1]
    )
    return Geometry(
        coded=(width, height),
        sar=sar,
        turns=turns,
        display=display,
        aspect=aspect,
        crop=crop,
        coded_crop=(x, y, *coded_kept),
        rungs=rungs,
    )


def _kept_size(display: tuple[int, int], aspect: Fraction) -> tuple[int, int]:
    width, height = display
    if Fraction(width, height) > aspect:
        return max(1, round(height * aspect)), height
    return width, max(1, round(width / aspect))


def _even_part(full: int, wanted: Fraction) -> int:
    """An even number near `wanted` and at most `full`; `full` itself below 2."""
    return min(full, max(2, _even(min(Fraction(full), wanted))))


def _even(value: Fraction) -> int:
    return max(0, round(value) // 2 * 2)


def _as_shown(
    coded_crop: tuple[int, int, int, int], coded: tuple[int, int], sar: Fraction, turns: int
) -> tuple[int, int, int, int]:
    x, y, width, height = coded_crop
    full_width, full_height = coded
    left, right = round(x * sar), round((full_width - x - width) * sar)
    top, bottom = y, full_height - y - height
    wide = round(width * sar)
    if turns == 0:
        return left, top, wide, height
    if turns == 1:  # clockwise: what was at the bottom comes to the left
        return bottom, left, height, wide
    if turns == 2:
        return right, bottom, wide, height
    return top, right, height, wide


class Scaler:
    """Crops, scales and turns frames of one geometry to one size, on one thread."""

    def __init__(
        self,
        frame: "VideoFrame",
        geometry: Geometry,
        size: tuple[int, int],
        pixel_format: str,
        *,
        flags: str = SCALER,
    ) -> None:
        import av.filter

        source_is_rgb = not frame.format.name.startswith(("yuv", "nv", "p0", "gray"))
        matrix, is_full = canonical_color(frame)
        is_full = is_full or source_is_rgb
        x, y, crop_width, crop_height = geometry.coded_crop
        width, height = size[::-1] if geometry.turns % 2 else size
        is_rgb = pixel_format == "rgb24"
        graph = av.filter.Graph()
        graph.threads = 1
        color = f":colorspace={0 if source_is_rgb else matrix}:range={2 if is_full else 1}"
        nodes = [
            graph.add(
                "buffer",
                f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}"
                f":time_base=1/1000:pixel_aspect=1/1{color}",
            ),
            graph.add("crop", f"w={crop_width}:h={crop_height}:x={x}:y={y}"),
            graph.add(
                "scale",
                f"{width}:{height}:flags={flags}"
                + _color_of(is_rgb=is_rgb, is_mapped=is_hdr(frame)),
            ),
            graph.add("format", f"pix_fmts={pixel_format}"),
        ]
        if geometry.turns:
            turn = {1: "clock", 3: "cclock"}.get(geometry.turns)
            if turn:
                nodes.append(graph.add("transpose", f"dir={turn}"))
            else:
                nodes += [graph.add("hflip", ""), graph.add("vflip", "")]
        nodes.append(graph.add("buffersink"))
        graph.link_nodes(*nodes).configure()
        self._graph = graph
        self._matrix = 0 if source_is_rgb else matrix
        self._range = 2 if is_full else 1

    def scale(self, frame: "VideoFrame") -> "VideoFrame":
        """Return the frame at the wanted size and format."""
        before = frame.colorspace, frame.color_range
        frame.colorspace, frame.color_range = self._matrix, self._range
        self._graph.vpush(frame)
        scaled = self._graph.vpull()
        frame.colorspace, frame.color_range = before
        return scaled


def _color_of(*, is_rgb: bool, is_mapped: bool) -> str:
    color = "" if is_rgb else ":out_color_matrix=bt709:out_range=limited"
    return color + (":out_primaries=bt709:out_transfer=bt709" if is_mapped else "")


def frame_span(pts: int, end_pts: int, start_pts: int, time_base: Fraction) -> tuple[int, int]:
    """Frames [first, end) of a clip, at 24 a second, that show the source frame [pts, end_pts).

    Frame k shows what is displayed at start + k / 24. One tick of the time base is allowed for:
    coarse time bases round, and 24 a second in milliseconds must not stutter.
    """
    scale = FPS * time_base
    first = 0 if pts <= start_pts else math.ceil((pts - 1 - start_pts) * scale)
    return first, max(first, math.ceil((end_pts - 1 - start_pts) * scale))


class LadderWriter:
    """All rungs of one clip, fed with frames of its top rung."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._encoders = {
            rung: ClipEncoder(*geometry.size_of(rung)) for rung in reversed(geometry.rungs)
        }
        self._scalers: dict[str, Any] = {}
        self._last: dict[str, VideoFrame] = {}
        self.num_frames = 0

    def write(self, top: "VideoFrame", end_frame: int) -> None:
        """Show a frame of the top rung up to frame `end_frame` of the clip, exclusive."""
        if end_frame <= self.num_frames:
            return
        self._last = self._cascade(top)
        self._repeat(end_frame)

    def finish(self, num_frames: int) -> dict[str, bytes]:
        """Hold the last frame up to the clip's length, and return the mp4 of every rung."""
        self._repeat(num_frames)
        made = {rung: encoder.finish() for rung, encoder in self._encoders.items()}
        lengths = {encoder.num_frames for encoder in self._encoders.values()}
        if lengths - {num_frames}:
            raise ValueError(f"rungs of {lengths} frames, the clip has {num_frames}")
        return {rung: made[rung] for rung in self._geometry.rungs}

    def _repeat(self, end_frame: int) -> None:
        for _ in range(self.num_frames, end_frame):
            for rung, encoder in self._encoders.items():
                encoder.write(self._last[rung])
        self.num_frames = max(self.num_frames, end_frame)

    def _cascade(self, top: "VideoFrame") -> "dict[str, VideoFrame]":
        from av.video.reformatter import Interpolation, VideoReformatter

        frames: dict[str, VideoFrame] = {}
        frame = top
        for rung in self._encoders:
            width, height = self._geometry.size_of(rung)
            if (frame.width, frame.height) != (width, height):
                scaler = self._scalers.setdefault(rung, VideoReformatter())
                frame = scaler.reformat(
                    frame,
                    width,
                    height,
                    interpolation=int(Interpolation.BICUBIC | Interpolation.ACCURATE_RND),
                    threads=1,
                )
            frames[rung] = frame
        return frames


def still_rungs(frame: "VideoFrame", geometry: Geometry) -> dict[str, bytes]:
    """Return a PNG of every rung of one picture."""
    return {
        rung: encode_png(
            Scaler(frame, geometry, geometry.size_of(rung), "rgb24")
            .scale(frame)
            .to_ndarray()
            .astype(np.uint8)
        )
        for rung in geometry.rungs
    }
