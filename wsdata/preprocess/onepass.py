"""The one decode of a raw asset, which feeds all that follows: the step, and the child's job.

Frames stream through shots and windows to the ladder, the frame pack and the sound of each clip;
prints are taken on the way. What is done for a whole drop, and what is stored, belongs to
`decode_drop`.

Memory of the child: frames in flight are the three that the shot detector looks at, and at most
`WindowRule.min_s` of frames at the size of the top rung (2 s of 60 frames a second at 720p:
170 MB), beside the pictures of one or two frame packs (2 MB per second of clip), the sound since
the start of the oldest open clip (64 kB per second) and the encoders of one clip.
"""

import math
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed
from wsdata.media.decode import (
    canonical_color,
    describe_streams,
    is_hdr,
    main_audio,
    main_video,
    open_media,
)
from wsdata.media.deinterlace import deinterlace
from wsdata.media.phash import HASH_VERSION, hash_frame
from wsdata.media.probe import rotation_deg
from wsdata.media.reader import Gap, MediaReader
from wsdata.orders import FactInput, Input, Step
from wsdata.preprocess.clip_output import ClipOutput, OpenClip, Ready, Track
from wsdata.preprocess.framepack import (
    COLOR_SIDE_PX,
    LUMA_SIDE_PX,
    PackBuilder,
    full_range_luma,
    wants_color,
)
from wsdata.preprocess.ladder import Geometry, Scaler, frame_span, make_geometry, still_rungs
from wsdata.preprocess.shots import ShotDetector, feature_picture
from wsdata.preprocess.sound_output import sound_timeline
from wsdata.preprocess.windows import Dropped, Event, Kept, Opened, Windower, WindowRule
from wsdata.recipe import Recipe
from wsdata.tables import RUNGS

if TYPE_CHECKING:
    from av import VideoFrame

CODE_VERSION = "onepass-2"
PRINT_METHOD = f"pass-1fps-{HASH_VERSION}"
PATHS = ("plain", "plain", "careful")  # two retries, the second on another path
WINDOWS = WindowRule()


def _params(_recipe: Recipe) -> dict[str, Any]:
    return {
        "window_min_s": WINDOWS.min_s,
        "window_target_s": WINDOWS.target_s,
        "window_max_s": WINDOWS.max_s,
    }


STEP = Step(
    stage="preprocess",
    name="decode",
    function="wsdata.preprocess.decode_drop:run",
    code_version=CODE_VERSION,
    partition="drop",
    assets={
        "clips": ("clips",),
        **{f"transcodes_{rung}": (f"transcodes_{rung}",) for rung in RUNGS},
        "audio_tracks": ("audio_tracks",),
        "frame_packs": ("frame_packs", "pass_fingerprints"),
        "decode_status": ("decode_status",),
    },
    inputs=(Input(table="raw_assets"), Input(table="probes"), Input(table="provenance")),
    facts=(
        FactInput(kind="release", of_drop=True),
        FactInput(kind="quarantine", in_digest=False, of_drop=True),
    ),
    pool="nvdec",
    units_of="raw_assets",
    params_of=_params,
    settings_of=lambda deployment, _recipe: {
        "num_threads": deployment.num_threads,
        "sandbox_minimum": deployment.sandbox_minimum,
    },
    description="One decode of each raw asset: clips, every rung, sound, frame packs, prints.",
)


def decode_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Decode one raw asset once; runs in the sandboxed child.

    Args:
        args: ``path`` (one of `PATHS`), ``window_min_s``, ``window_target_s``, ``window_max_s``.
        source: The file.
        out_dir: Where blobs are left; the result names them by file name.

    Returns:
        ``status`` (ok | salvaged | empty), ``reason``, counts, ``clips`` and ``prints``.

    Raises:
        DecodeFailed: It cannot be opened, or gives nothing long enough.
    """
    import cv2

    cv2.setNumThreads(1)
    is_empty = not source.read(1)
    source.seek(0)
    if is_empty:
        return {"status": "empty", "reason": "the file has no bytes", "clips": [], "prints": []}
    is_careful = args["path"] == "careful"
    with open_media(source, is_careful=is_careful) as container:
        video, audio = main_video(container), main_audio(container)
        held = describe_streams(container)
        if video is None and audio is None:
            raise DecodeFailed(f"it holds neither video nor sound: {held}")
        if video is None:
            return {"status": "empty", "reason": f"no video: {held}", "clips": [], "prints": []}
        if video.codec_context is None:
            raise DecodeFailed(f"its video is in a codec that is not known here: {held}")
        rule = WindowRule(
            min_s=args["window_min_s"],
            target_s=args["window_target_s"],
            max_s=args["window_max_s"],
        )
        reader = MediaReader(container, video, audio, is_careful=is_careful)
        return _Pass(reader, out_dir, rule).run()


@dataclass(slots=True)
class _Source:
    """A decoded frame on its way to the shot detector's word."""

    pts: int
    end_pts: int
    frame: "VideoFrame"
    small: "VideoFrame"
    geometry: Geometry


class _Scalers:
    """The scalers of the present geometry."""

    def __init__(self, frame: "VideoFrame", geometry: Geometry) -> None:
        self.geometry = geometry
        self._frame = frame
        self._color = canonical_color(frame), is_hdr(frame), frame.format.name
        self._made: dict[str, Scaler] = {}

    def fits(self, frame: "VideoFrame") -> bool:
        """Whether a frame's pixels mean the same as those that the scalers were made for."""
        return self._color == (canonical_color(frame), is_hdr(frame), frame.format.name)

    def _get(self, name: str, side_px: int, pixel_format: str, flags: str) -> Scaler:
        if name not in self._made:
            whole = self.geometry.uncropped
            self._made[name] = Scaler(
                self._frame, whole, whole.fit(side_px), pixel_format, flags=flags
            )
        return self._made[name]

    def small(self, frame: "VideoFrame") -> "VideoFrame":
        return self._get("small", LUMA_SIDE_PX, "yuv420p", "area").scale(frame)

    def color(self, frame: "VideoFrame") -> NDArray[np.uint8]:
        scaler = self._get("color", COLOR_SIDE_PX, "rgb24", "area+accurate_rnd")
        return scaler.scale(frame).to_ndarray().astype(np.uint8)

    def top(self, frame: "VideoFrame") -> "VideoFrame | None":
        rung = self.geometry.top_rung
        if rung is None:
            return None
        if "top" not in self._made:
            size = self.geometry.size_of(rung)
            self._made["top"] = Scaler(self._frame, self.geometry, size, "yuv420p")
        return self._made["top"].scale(frame)


class _Pass:
    """The state of one decode."""

    def __init__(self, reader: MediaReader, out_dir: Path, rule: WindowRule) -> None:
        self._reader = reader
        self._out_dir = out_dir
        self._time_base = reader.time_base
        self._detector = ShotDetector()
        self._windower = Windower(time_base=reader.time_base, rule=rule)
        self._timeline = sound_timeline(out_dir) if reader.has_audio else None
        self._prints = _Prints()
        self._waiting: _Source | None = None  # the newest frame, until its end is known
        self._undecided: deque[_Source] = deque()
        self._ready: dict[int, Ready] = {}
        self._clip: OpenClip | None = None
        self._last_step = 1
        self._end_pts = 0

    def run(self) -> dict[str, Any]:
        from av import VideoFrame

        items = deinterlace(self._reader.frames())
        for item in items:  # sound may come first
            if isinstance(item, VideoFrame):
                self._begin(item)
                break
            if not isinstance(item, Gap) and self._timeline is not None:
                self._timeline.push(item)
        if self._reader.is_still:
            return self._told("ok", None)
        for item in items:
            if isinstance(item, Gap):
                self._end_shot()
            elif isinstance(item, VideoFrame):
                self._push(item)
            elif self._timeline is not None:
                self._timeline.push(item)
                self._output.judge_sound(self._reader.num_audio_errors, self._needed_from_pts())
        self._end_shot()
        is_whole = self._reader.health.reason is None
        num_errors = self._reader.num_audio_errors
        self._output.end_sound(num_errors, self._end_pts, is_whole=is_whole)
        return self._result()

    # frames ----------------------------------------------------------------------------------

    def _begin(self, frame: "VideoFrame") -> None:
        """Take the first frame, from which times count."""
        rate = self._reader.rate
        is_still = self._reader.is_still
        self._time_base = Fraction(1, 1000) if is_still else self._reader.time_base
        self._first_pts = 0 if is_still else _pts(frame)
        track = Track(
            index=self._reader.track,
            time_base=self._time_base,
            origin_pts=self._first_pts,
            source_fps=float(rate) if rate and not is_still else None,
        )
        self._output = ClipOutput(self._out_dir, track, self._timeline)
        self._scalers = _Scalers(frame, self._geometry_of(frame))
        if is_still:
            self._take_still(frame)
        else:
            self._push(frame)

    def _geometry_of(self, frame: "VideoFrame") -> Geometry:
        return make_geometry(frame.width, frame.height, self._reader.sar, rotation_deg(frame))

    def _take_still(self, frame: "VideoFrame") -> None:
        color = self._scalers.color(frame)
        pack = PackBuilder(0, self._time_base)
        pack.add_first(color)
        geometry = self._scalers.geometry
        self._windower.num_shots = 1
        self._output.add_still(geometry, still_rungs(frame, geometry), pack)
        self._prints.add(Fraction(0), Fraction(1, 1000), color)

    def _needed_from_pts(self) -> int:
        """The earliest frame that a later clip may have."""
        waiting = [self._waiting] if self._waiting else []
        frames = [item.pts for item in (*self._undecided, *waiting)]
        return min([*self._windower.possible_starts, *frames], default=self._end_pts)

    def _push(self, frame: "VideoFrame") -> None:
        pts = _pts(frame)
        before, self._waiting = self._waiting, None
        geometry = self._geometry_of(frame)
        if before is not None:
            self._last_step = pts - before.pts
            self._see(before, pts)
            if geometry != before.geometry:
                self._end_shot()
        if self._scalers.geometry != geometry or not self._scalers.fits(frame):
            self._scalers = _Scalers(frame, geometry)
        self._waiting = _Source(pts, pts + 1, frame, self._scalers.small(frame), geometry)

    def _see(self, item: _Source, end_pts: int) -> None:
        """Hand a frame whose end is known to the detector, and decided ones to the windower."""
        item.end_pts = self._end_pts = end_pts
        begin_s = (item.pts - self._first_pts) * self._time_base
        end_s = (end_pts - self._first_pts) * self._time_base
        if self._prints.wants(end_s):
            self._prints.add(begin_s, end_s, self._scalers.color(item.frame))
        self._undecided.append(item)
        self._place(self._detector.push(feature_picture(item.small)))

    def _place(self, decided: list[bool]) -> None:
        for is_cut in decided:
            item = self._undecided.popleft()
            events = self._windower.push(item.pts, item.end_pts, is_cut=is_cut)
            self._ready[item.pts] = self._prepare(item, self._windower.possible_starts)
            self._follow(events)

    def _prepare(self, item: _Source, starts: tuple[int, ...]) -> Ready:
        is_colored = is_shown = False
        for start in starts:
            first, end = frame_span(item.pts, item.end_pts, start, self._time_base)
            is_shown = is_shown or first < end
            is_colored = is_colored or wants_color(item.pts, item.end_pts, start, self._time_base)
        return Ready(
            end_pts=item.end_pts,
            geometry=item.geometry,
            top=self._scalers.top(item.frame) if is_shown else None,
            color=self._scalers.color(item.frame) if is_colored else None,
            luma=full_range_luma(item.small),
        )

    def _end_shot(self) -> None:
        """Decide all that is in flight: at a gap, a new geometry, or the end of the file."""
        if self._waiting is not None:
            item, self._waiting = self._waiting, None
            self._see(item, item.pts + self._length_of(item.frame))
        self._place(self._detector.finish())
        self._follow(self._windower.finish(self._end_pts))

    def _length_of(self, frame: "VideoFrame") -> int:
        """Ticks that a frame with no successor is shown."""
        rate = self._reader.rate
        stated = frame.duration or (round(1 / (rate * self._time_base)) if rate else 0)
        longest = round(1 / self._time_base)
        return max(1, min(stated or self._last_step, longest))

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Opened):
                geometry = self._ready[event.start_pts].geometry
                self._clip = OpenClip(event, geometry, self._time_base)
                continue
            if isinstance(event, Dropped) or self._clip is None:
                self._ready.pop(event.pts if isinstance(event, Dropped | Kept) else -1, None)
            elif isinstance(event, Kept):
                self._clip.add(event.pts, self._ready.pop(event.pts))
            else:
                self._output.add_clip(self._clip, event.end_pts)
                self._clip = None

    # the end ---------------------------------------------------------------------------------

    def _result(self) -> dict[str, Any]:
        health = self._reader.health
        least_s = self._windower.rule.min_s
        counted = f"{health.frames_decoded} of {health.frames_promised} frames"
        if health.reason is not None:
            if not self._output.rows:
                raise DecodeFailed(
                    f"{health.reason}; no stretch of {least_s} s came out clean ({counted})"
                )
            return self._told("salvaged", f"{health.reason}; {counted} decoded")
        if not self._output.rows:
            return self._told("ok", f"no shot of {least_s} s or more ({counted})")
        return self._told("ok", None)

    def _told(self, status: str, reason: str | None) -> dict[str, Any]:
        health = self._reader.health
        is_still = self._reader.is_still
        decoded = 0 if is_still else self._end_pts - self._first_pts
        return {
            "status": status,
            "reason": reason,
            "media_kind": "image" if is_still else "video",
            "frames_promised": health.frames_promised,
            "frames_decoded": health.frames_decoded,
            "num_errors": health.num_errors + self._reader.num_audio_errors,
            "decoded_s": float(decoded * self._time_base),
            "num_shots": self._windower.num_shots,
            "clips": self._output.rows,
            "prints": self._prints.rows,
        }


class _Prints:
    """Perceptual hashes of the frames shown at each whole second from the first frame on."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._next_s = 0

    def wants(self, end_s: Fraction) -> bool:
        """Whether a frame shown until `end_s` is the first to be shown at a whole second."""
        return end_s > self._next_s

    def add(self, begin_s: Fraction, end_s: Fraction, color: NDArray[np.uint8]) -> None:
        value, mirrored, quality = hash_frame(color)
        self._next_s = math.ceil(end_s)
        self.rows.append(
            {
                "frame_index": len(self.rows),
                "time_s": float(begin_s),
                "hash": value.hex(),
                "mirror_hash": mirrored.hex(),
                "quality": quality,
                "method": PRINT_METHOD,
            }
        )


def _pts(frame: "VideoFrame") -> int:
    if frame.pts is None:
        raise ValueError("a frame without pts: MediaReader gives one to every frame")
    return frame.pts
