"""The ladder: display geometry, aspect buckets, and every rung of a clip from one decode.

Sizes are width x height in pixels of what a person sees (after sample aspect ratio and
rotation). A rung is never larger than what it is made from. Encoders are in `media.encode`;
which frames make a clip is told by `windows`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from wsdata.media.encode import FPS, ClipEncoder
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
    "1080p": {"16:9": (1920, 1080), "9:16": (1080, 1920), "1:1": (1440, 1440), "4:3": (1440, 1080)},
}
RUNGS_OF_ALL = ("256p", "512p", "720p", "48fps")
MIN_TOP_BITS = 0.08  # per pixel and frame: 4 Mb/s of h264 at 1080p24
MIN_TOP_BITS_NEW = 0.04  # of codecs that need half of that
MIN_TOP_BITS_STILL = 0.5
NEW_CODECS = ("hevc", "av1", "vp9", "vvc")
FAST_FPS = 48
FAST_TABLE = "48fps"  # ending of the name of the table that holds rungs of such rates
FAST_RUNGS = ("256p", "512p", "720p")
MIN_FAST_FPS = 47.9  # 48 / 1.001 counts
SCALER = "bicubic+accurate_rnd"
MIN_SHRINK = 2.5  # a rung is scaled from the smallest that is so many times as wide
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


def make_geometry(
    width: int,
    height: int,
    sar: Fraction | None,
    rotation: int,
    wanted: tuple[str, ...] = tuple(RUNG_SIZES),
) -> Geometry:
    """Work out how a decoded frame is shown and cropped.

    Args:
        width: Of the decoded frame.
        height: Of the decoded frame.
        sar: Sample aspect ratio; None or 0 for square.
        rotation: Degrees clockwise that put it upright: 0, 90, 180 or 270.
        wanted: Rungs to choose from; what else it names is passed over.
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
        if rung in wanted and crop[2] >= sizes[aspect][0] and crop[3] >= sizes[aspect][1]
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


def frame_span(
    pts: int, end_pts: int, start_pts: int, time_base: Fraction, fps: int = FPS
) -> tuple[int, int]:
    """Frames [first, end) of a clip, at `fps` a second, that show the source frame [pts, end_pts).

    Frame k shows what is displayed at start + k / fps. One tick of the time base is allowed for:
    coarse time bases round, and 24 a second in milliseconds must not stutter.
    """
    scale, below = fps * time_base.numerator, time_base.denominator
    first = 0 if pts <= start_pts else -((start_pts + 1 - pts) * scale // below)
    return first, max(first, -((start_pts + 1 - end_pts) * scale // below))


def rungs_by_probe(probe: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Endings of the tables of transcodes that a file is a candidate for, by its probe's row.

    All but 1080p are for every file. That one is for files whose bits per pixel say that there
    is something to see in it; whether a picture is large enough is asked of its frames.
    """
    if probe is None or probe["status"] != "ok" or not probe["bit_rate"]:
        return RUNGS_OF_ALL
    pixels = (probe["width_px"] or 0) * (probe["height_px"] or 0)
    if probe["media_kind"] == "image":
        least = MIN_TOP_BITS_STILL * pixels
    else:
        bits = MIN_TOP_BITS_NEW if probe["codec"] in NEW_CODECS else MIN_TOP_BITS
        least = bits * pixels * (probe["source_fps"] or FPS)
    return (*RUNGS_OF_ALL, "1080p") if pixels and probe["bit_rate"] >= least else RUNGS_OF_ALL


def fast_rung(rungs: tuple[str, ...], source_fps: float | None) -> str | None:
    """The rung that is made at 48 a second too: the largest up to 720p of a source that has 48."""
    reached = [rung for rung in rungs if rung in FAST_RUNGS]
    return reached[-1] if reached and source_fps and source_fps >= MIN_FAST_FPS else None


def fast_name(rung: str) -> str:
    """Name of a rung at 48 frames a second."""
    return f"{rung}{FAST_FPS}"


@dataclass(slots=True)
class _Speed:
    """The encoders of one frame rate, and how many frames each has."""

    encoders: "dict[str, ClipEncoder]"
    num_frames: int = 0

    def repeat(self, frames: "dict[str, VideoFrame]", end_frame: int) -> None:
        for _ in range(self.num_frames, end_frame):
            for rung, encoder in self.encoders.items():
                encoder.write(frames[rung])
        self.num_frames = max(self.num_frames, end_frame)


class LadderWriter:
    """All rungs of one clip, fed with frames of its top rung.

    Args:
        geometry: Names the rungs and their sizes.
        fast: The rung that is made at 48 frames a second as well, one of the geometry's.
        encoder: One of `media.encode.ENCODERS`.
    """

    def __init__(
        self, geometry: Geometry, *, fast: str | None = None, encoder: str = "x264"
    ) -> None:
        self._geometry = geometry
        self._fast = fast
        rates = [(FPS, tuple(reversed(geometry.rungs))), (FAST_FPS, (fast,) if fast else ())]
        self._speeds = {
            fps: _Speed(
                {rung: ClipEncoder(*geometry.size_of(rung), fps, encoder) for rung in rungs}
            )
            for fps, rungs in rates
        }
        self._scalers: dict[str, Any] = {}
        self._last: dict[str, VideoFrame] = {}

    def write(self, top: "VideoFrame", end_frame: int, fast_end: int = 0) -> None:
        """Show a frame of the top rung up to a frame of the clip, exclusive, at 24 and at 48."""
        if end_frame <= self._speeds[FPS].num_frames:
            if not self._fast or fast_end <= self._speeds[FAST_FPS].num_frames:
                return
            self._last = self._last | self._cascade(top, down_to=self._fast)
        else:
            self._last = self._cascade(top)
        self._repeat(end_frame, fast_end)

    def finish(self, num_frames: int, num_fast: int = 0) -> dict[str, bytes]:
        """Hold the last frame up to the clip's length, and return the mp4 of every rung.

        Returns:
            By rung, smallest first; the one at 48 frames a second by `fast_name`.
        """
        self._repeat(num_frames, num_fast)
        made: dict[str, bytes] = {}
        for fps, wanted in ((FPS, num_frames), (FAST_FPS, num_fast)):
            for rung, encoder in reversed(self._speeds[fps].encoders.items()):
                if encoder.num_frames != wanted:
                    raise ValueError(
                        f"{rung} at {fps} has {encoder.num_frames} frames, the clip {wanted}"
                    )
                made[rung if fps == FPS else fast_name(rung)] = encoder.finish()
        return made

    def _repeat(self, end_frame: int, fast_end: int) -> None:
        self._speeds[FPS].repeat(self._last, end_frame)
        if self._fast:
            self._speeds[FAST_FPS].repeat(self._last, fast_end)

    def _cascade(self, top: "VideoFrame", down_to: str = "") -> "dict[str, VideoFrame]":
        """Scale each rung from the top or from one well above it, as far down as is asked for.

        Lanczos: what the top rung has lost already is not lost a second time.
        """
        from av.video.reformatter import Interpolation, VideoReformatter

        frames: dict[str, VideoFrame] = {}
        for rung in reversed(self._geometry.rungs):
            width, height = self._geometry.size_of(rung)
            larger = (made for made in frames.values() if made.width >= MIN_SHRINK * width)
            frame = min(larger, key=lambda made: made.width, default=top)
            if (frame.width, frame.height) != (width, height):
                scaler = self._scalers.setdefault(rung, VideoReformatter())
                frame = scaler.reformat(
                    frame,
                    width,
                    height,
                    interpolation=int(Interpolation.LANCZOS | Interpolation.ACCURATE_RND),
                    threads=1,
                )
            frames[rung] = frame
            if rung == down_to:
                break
        return frames
