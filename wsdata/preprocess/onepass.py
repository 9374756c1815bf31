"""The one decode of a raw asset, which feeds all that follows: the job of the sandboxed child.

Frames stream through shots and windows to the ladder, the frame pack and the sound of each clip;
prints are taken on the way. What is done for a whole drop, and what is stored, belongs to
`decode_drop`; the step itself is `decode_step`. Nothing here knows tables or orders: what they
import would take a tenth of the child's memory.

Memory of the child: a few frames as they were decoded; those that wait for longer at the size of
the top rung, of which `holding` keeps no more than its budget in memory; the pictures of one or
two frame packs (2 MB per second of clip), the sound since the start of the oldest open clip and
the encoders of one clip.
"""

from collections import deque
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from wsdata.errors import DecodeFailed
from wsdata.media.decode import (
    describe_streams,
    main_audio,
    main_video,
    open_media,
)
from wsdata.media.deinterlace import deinterlace
from wsdata.media.encode import FPS
from wsdata.media.engines import PROCESSOR, Engines, with_fallback
from wsdata.media.probe import rotation_deg
from wsdata.media.reader import Gap, MediaReader
from wsdata.preprocess.clip_output import ClipOutput, OpenClip, Ready, Source, Track
from wsdata.preprocess.framepack import (
    PackBuilder,
    PairTimes,
    wants_color,
)
from wsdata.preprocess.holding import FrameHold, return_freed_pictures
from wsdata.preprocess.ladder import (
    FAST_FPS,
    FAST_TABLE,
    MIN_FAST_FPS,
    RUNG_SIZES,
    Geometry,
    frame_span,
    make_geometry,
)
from wsdata.preprocess.prints import Prints
from wsdata.preprocess.scaling import Pictures, still_rungs
from wsdata.preprocess.shot_engines import ShotFinder, make_finder
from wsdata.preprocess.shots import Word
from wsdata.preprocess.sound_output import sound_timeline
from wsdata.preprocess.windows import (
    FILE,
    GAP,
    Closed,
    Dropped,
    Event,
    Kept,
    Opened,
    Windower,
    WindowRule,
    rule_of,
)

if TYPE_CHECKING:
    from av import VideoFrame

PATHS = ("plain", "plain", "careful")  # two retries, the second on another path
MAX_WHOLE_FRAMES = 1  # as decoded, while the shot detector looks at what follows


def decode_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Decode one raw asset once; runs in the sandboxed child.

    Args:
        args: ``path`` (one of `PATHS`), ``window_min_s``, ``window_target_s``, ``window_max_s``;
            ``rungs``, endings of the tables of transcodes that are wanted of this file, where
            it is large and fast enough for them; all by default; ``is_continuous``, where it
            is one take, with ``episode_target_s`` and ``episode_max_s``; ``trim_s``, 0 by default;
            ``shot_engine``, of `shot_engines`; ``decoder`` and ``encoder``, of `media.engines`.
        source: The file.
        out_dir: Where blobs are left; the result names them by file name.

    Returns:
        ``status`` (ok | salvaged | empty), ``reason``, counts, ``clips`` and ``prints``; and
        what `media.engines.with_fallback` adds.

    Raises:
        DecodeFailed: It cannot be opened, or gives nothing long enough.
    """
    import cv2

    cv2.setNumThreads(1)
    return_freed_pictures()
    is_empty = not source.read(1)
    source.seek(0)
    if is_empty:
        return {"status": "empty", "reason": "the file has no bytes", "clips": [], "prints": []}
    engines = Engines(decoder=args.get("decoder", "cpu"), encoder=args.get("encoder", "x264"))

    def work(engines: Engines) -> dict[str, Any]:
        source.seek(0)
        return _decode(args, source, out_dir, engines)

    return with_fallback(PROCESSOR if args["path"] == "careful" else engines, work, out_dir)


def _decode(
    args: dict[str, Any], source: BinaryIO, out_dir: Path, engines: Engines
) -> dict[str, Any]:
    is_careful = args["path"] == "careful"
    accelerated = engines.acceleration()
    with open_media(source, is_careful=is_careful, acceleration=accelerated) as container:
        video, audio = main_video(container), main_audio(container)
        held = describe_streams(container)
        if video is None and audio is None:
            raise DecodeFailed(f"it holds neither video nor sound: {held}")
        if video is None:
            return {"status": "empty", "reason": f"no video: {held}", "clips": [], "prints": []}
        if video.codec_context is None:
            raise DecodeFailed(f"its video is in a codec that is not known here: {held}")
        rule = rule_of(args, container.duration)
        reader = MediaReader(container, video, audio, is_careful=is_careful)
        wanted = tuple(args.get("rungs", (*RUNG_SIZES, FAST_TABLE)))
        return _Pass(reader, out_dir, rule, wanted, engines.encoder, make_finder(args)).run()


class _Pass:
    """The state of one decode."""

    def __init__(
        self,
        reader: MediaReader,
        out_dir: Path,
        rule: WindowRule,
        wanted: tuple[str, ...],
        encoder: str,
        detector: ShotFinder,
    ) -> None:
        self._reader = reader
        self._out_dir = out_dir
        self._wanted, self._encoder = wanted, encoder
        self._hold = FrameHold(out_dir)
        self._time_base = reader.time_base
        self._detector = detector
        self._windower = Windower(time_base=reader.time_base, rule=rule)
        self._timeline = sound_timeline(out_dir) if reader.has_audio else None
        self._geometries: dict[tuple[int, ...], Geometry] = {}
        self._waiting: Source | None = None  # the newest frame, until its end is known
        self._undecided: deque[Source] = deque()
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
                self._end_shot(GAP)
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
        self._track = Track(
            index=self._reader.track,
            time_base=self._time_base,
            origin_pts=self._first_pts,
            source_fps=float(rate) if rate and not is_still else None,
            encoder=self._encoder,
            makes_fast=FAST_TABLE in self._wanted,
        )
        self._fps = FPS
        if self._track.makes_fast and (self._track.source_fps or 0) >= MIN_FAST_FPS:
            self._fps = FAST_FPS
        self._output = ClipOutput(self._out_dir, self._track, self._timeline)
        self._pair_times = PairTimes(self._first_pts, self._time_base)
        self._prints = Prints(self._first_pts, self._time_base)
        self._pictures = Pictures(frame, self._geometry_of(frame))
        if is_still:
            self._take_still(frame)
        else:
            self._push(frame)

    def _geometry_of(self, frame: "VideoFrame") -> Geometry:
        sar = self._reader.sar
        seen = frame.width, frame.height, sar.numerator, sar.denominator, frame.rotation
        if seen not in self._geometries:
            size = frame.width, frame.height
            self._geometries[seen] = make_geometry(*size, sar, rotation_deg(frame), self._wanted)
        return self._geometries[seen]

    def _take_still(self, frame: "VideoFrame") -> None:
        pictures = self._pictures
        pack = PackBuilder(0, self._time_base)
        pack.add_first(pictures.color(frame))
        self._windower.num_shots = 1
        rungs = still_rungs(frame, pictures.geometry)
        self._output.add_still(pictures.geometry, pictures.color_json, rungs, pack)
        self._prints.see(frame, 0, 1, self._reader.sar)

    def _needed_from_pts(self) -> int:
        """The earliest frame that a later clip may have."""
        waiting = [self._waiting] if self._waiting else []
        frames = [item.pts for item in (*self._undecided, *waiting)]
        return min([*self._windower.possible_starts, *frames], default=self._end_pts)

    def _push(self, frame: "VideoFrame") -> None:
        pts = _pts(frame)
        before, self._waiting = self._waiting, None
        geometry = self._geometry_of(frame)
        if before is not None and before.frame is not None:
            self._last_step = pts - before.pts
            self._see(before, before.frame, pts)
            if geometry != before.geometry:
                self._end_shot(GAP)
        if self._pictures.geometry is not geometry or not self._pictures.fits(frame):
            self._pictures = Pictures(frame, geometry)
        self._waiting = Source(pts, pts + 1, frame, self._pictures)

    def _see(self, item: Source, frame: "VideoFrame", end_pts: int) -> None:
        """Hand a frame whose end is known to the detector, and decided ones to the windower."""
        item.end_pts = self._end_pts = end_pts
        self._prints.see(frame, item.pts, end_pts, self._reader.sar)
        if wants_color(item.pts, end_pts, self._first_pts, self._time_base):
            item.color = item.pictures.color(frame)
        item.due = self._pair_times.see(item.pts, end_pts)
        if item.due.ends or item.due.begins:
            item.small = item.pictures.small(frame)
        self._undecided.append(item)
        if len(self._undecided) > MAX_WHOLE_FRAMES:
            self._make_top(self._undecided[-MAX_WHOLE_FRAMES - 1])
        time_s = float((item.pts - self._first_pts) * self._time_base)
        self._place(self._detector.push(frame, item.pictures, time_s))

    def _place(self, decided: list[Word]) -> None:
        for word in decided:
            item = self._undecided.popleft()
            events = self._windower.push(item.pts, item.end_pts, word)
            self._ready[item.pts] = Ready(
                end_pts=item.end_pts,
                geometry=item.geometry,
                color_json=item.pictures.color_json,
                color=item.color,
                due=item.due,
                small=item.small,
            )
            if self._may_show(item, self._windower.possible_starts):
                self._make_top(item)
            else:
                self._hold.drop(item.pts)
            self._follow(events)

    def _may_show(self, item: Source, starts: tuple[int, ...]) -> bool:
        """Whether a clip that begins at one of `starts` shows a frame; at 60 a second not all."""
        for start in starts:
            first, end = frame_span(item.pts, item.end_pts, start, self._time_base, self._fps)
            if first < end:
                return True
        return False

    def _make_top(self, item: Source) -> None:
        """Keep a frame at the size of its top rung, and let go of it as it was decoded."""
        frame, item.frame = item.frame, None
        top = item.pictures.top(frame) if frame is not None else None
        if top is not None:
            self._hold.put(item.pts, top)

    def _end_shot(self, kind: str = FILE) -> None:
        """Decide all that is in flight: at a gap, a new geometry, or the end of the file."""
        if self._waiting is not None:
            item, self._waiting = self._waiting, None
            if item.frame is not None:
                self._see(item, item.frame, item.pts + self._length_of(item.frame))
        self._place(self._detector.finish())
        self._follow(self._windower.finish(self._end_pts, kind))

    def _length_of(self, frame: "VideoFrame") -> int:
        """Ticks that a frame with no successor is shown."""
        rate = self._reader.rate
        stated = frame.duration or (round(1 / (rate * self._time_base)) if rate else 0)
        longest = round(1 / self._time_base)
        return max(1, min(stated or self._last_step, longest))

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Opened):
                self._clip = OpenClip(event, self._ready[event.start_pts], self._track)
            elif isinstance(event, Dropped) or (isinstance(event, Kept) and self._clip is None):
                self._ready.pop(event.pts, None)
                self._hold.drop(event.pts)
            elif isinstance(event, Kept) and self._clip is not None:
                ready, top = self._ready.pop(event.pts), self._hold.take(event.pts)
                self._clip.add(event.pts, ready, top)
            elif isinstance(event, Closed) and self._clip is not None:
                self._output.add_clip(self._clip, event)
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
            "num_transitions": self._windower.num_transitions,
            "clips": self._output.rows,
            "prints": self._prints.rows,
        }


def _pts(frame: "VideoFrame") -> int:
    if frame.pts is None:
        raise ValueError("a frame without pts: MediaReader gives one to every frame")
    return frame.pts
