"""What one decode leaves of each clip: the ladder, the frame pack, the sound, and its row.

Which frames belong to a clip is told by `windows`; where the files go in the end is the business
of `decode_drop`. Everything here runs in the sandboxed child.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.media.audio import AudioTimeline
from wsdata.media.encode import FPS
from wsdata.preprocess.framepack import NOT_DUE, Due, PackBuilder, full_range_luma
from wsdata.preprocess.ladder import (
    FAST_FPS,
    FAST_TABLE,
    Geometry,
    LadderWriter,
    fast_rung,
    frame_span,
)
from wsdata.preprocess.scaling import Pictures
from wsdata.preprocess.sound_output import SoundOutput
from wsdata.preprocess.windows import Closed, Opened
from wsdata.timebase import num_output_frames, pts_to_ms

if TYPE_CHECKING:
    from av import VideoFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """The video stream that clips are cut from; `origin_pts` is its first frame's."""

    index: int
    time_base: Fraction
    origin_pts: int
    source_fps: float | None
    encoder: str = "x264"
    makes_fast: bool = True


@dataclass(slots=True)
class Source:
    """A decoded frame on its way to the shot detector's word.

    `frame` is null once it has waited for long: then all that may be asked of it has been made.
    """

    pts: int
    end_pts: int
    frame: "VideoFrame | None"
    pictures: Pictures
    due: Due = NOT_DUE
    small: "VideoFrame | None" = None
    color: NDArray[np.uint8] | None = None

    @property
    def geometry(self) -> Geometry:
        """How it is shown."""
        return self.pictures.geometry


@dataclass(slots=True)
class Ready:
    """What is kept of a frame until its window is known.

    Its pixels at the size of the top rung are in a `FrameHold`. `color` is for the frame pack,
    where the frame is one of those that are kept so; `small` is what luma is taken from, of
    those that are `due` for a pair.
    """

    end_pts: int
    geometry: Geometry
    color_json: str
    color: NDArray[np.uint8] | None
    due: Due
    small: "VideoFrame | None"


class OpenClip:
    """The clip whose frames are passing now."""

    def __init__(self, opened: Opened, first: Ready, track: Track) -> None:
        self.opened = opened
        self.geometry = first.geometry
        self.color_json = first.color_json
        self._time_base = track.time_base
        fast = fast_rung(self.geometry.rungs, track.source_fps) if track.makes_fast else None
        self.ladder = LadderWriter(self.geometry, fast=fast, encoder=track.encoder)
        self.pack = PackBuilder(opened.start_pts, track.time_base)

    def add(self, pts: int, ready: Ready, top: "VideoFrame | None") -> None:
        """Take the next frame; `top` is null where none of the clip's frames shows it."""
        start = self.opened.start_pts
        small = ready.small
        get_luma = None if small is None else lambda: full_range_luma(small)
        self.pack.add(pts, ready.end_pts, ready.color, get_luma, ready.due)
        if top is not None:
            ends = (
                frame_span(pts, ready.end_pts, start, self._time_base, fps)[1]
                for fps in (FPS, FAST_FPS)
            )
            self.ladder.write(top, *ends)


class _Rung(NamedTuple):
    data: bytes
    num_frames: int


class _Shown(NamedTuple):
    """The pictures of a finished clip."""

    geometry: Geometry
    color_json: str
    rungs: dict[str, _Rung]
    pack: PackBuilder


class ClipOutput:
    """Writes the files of finished clips into the child's folder, and tells their rows."""

    def __init__(self, out_dir: Path, track: Track, timeline: AudioTimeline | None) -> None:
        self._out_dir = out_dir
        self._track = track
        self._sound = SoundOutput(out_dir, timeline, float(track.origin_pts * track.time_base))
        self.rows: list[dict[str, Any]] = []

    def add_clip(self, clip: OpenClip, closed: Closed) -> None:
        """Finish a clip where its window closes."""
        start_pts, end_pts = clip.opened.start_pts, closed.end_pts
        length_s = (end_pts - start_pts) * self._track.time_base
        num_frames, num_fast = (
            num_output_frames(length_s, Fraction(fps)) for fps in (FPS, FAST_FPS)
        )
        made = {
            name: _Rung(data, num_fast if name.endswith(str(FAST_FPS)) else num_frames)
            for name, data in clip.ladder.finish(num_frames, num_fast).items()
        }
        shown = _Shown(clip.geometry, clip.color_json, made, clip.pack)
        self._add(clip.opened, closed, num_frames, shown)

    def add_still(
        self, geometry: Geometry, color_json: str, rungs: dict[str, bytes], pack: PackBuilder
    ) -> None:
        """Add the one clip of a picture, [0, 1) of the track's time base."""
        made = {rung: _Rung(data, 1) for rung, data in rungs.items()}
        self._add(Opened(0, 0, 0), Closed(1), 1, _Shown(geometry, color_json, made, pack))
        self._sound.judge(is_over=True)

    def judge_sound(self, num_errors: int, needed_from_pts: int) -> None:
        """Judge the sound of finished clips, as far as it has been read.

        Args:
            num_errors: Packets of sound that did not decode so far.
            needed_from_pts: The earliest frame that a later clip may have; no sound before it is
                kept any longer.
        """
        needed_from_s = float(needed_from_pts * self._track.time_base)
        self._sound.judge(num_errors=num_errors, needed_from_s=needed_from_s)

    def end_sound(self, num_errors: int, end_pts: int, *, is_whole: bool) -> None:
        """Judge the sound of all clips; the pictures end at `end_pts`, as the file says or not."""
        self._sound.judge(num_errors=num_errors, is_over=True)
        self._sound.settle(float(end_pts * self._track.time_base), is_whole=is_whole)

    def _add(self, opened: Opened, closed: Closed, num_frames: int, shown: "_Shown") -> None:
        row = self._row(shown.geometry, opened.start_pts, closed.end_pts) | {
            "num_frames": num_frames,
            "shot_index": opened.shot_index,
            "window_index": opened.window_index,
            "start_kind": opened.start_kind,
            "end_kind": closed.end_kind,
        }
        row["transcodes"] = self._save_rungs(shown)
        row["pack"] = self._save_pack(shown.pack)
        self.rows.append(row)
        self._sound.add(row)

    def _row(self, geometry: Geometry, start_pts: int, end_pts: int) -> dict[str, Any]:
        track = self._track
        start, end = start_pts - track.origin_pts, end_pts - track.origin_pts
        start_ms = pts_to_ms(start, track.time_base)
        return {
            "track": track.index,
            "start_pts": start_pts,
            "end_pts": end_pts,
            "time_base": f"{track.time_base.numerator}/{track.time_base.denominator}",
            "start_ms": start_ms,
            "end_ms": max(start_ms + 1, pts_to_ms(end, track.time_base)),
            "start_s": float(start * track.time_base),
            "end_s": float(end * track.time_base),
            "duration_s": float((end - start) * track.time_base),
            "width_px": geometry.display[0],
            "height_px": geometry.display[1],
            "source_fps": track.source_fps,
            "aspect": geometry.aspect,
            "top_rung": geometry.top_rung,
        }

    def _save(self, name: str, data: bytes) -> str:
        file = f"{len(self.rows):06d}_{name}"
        (self._out_dir / file).write_bytes(data)
        return file

    def _save_rungs(self, shown: _Shown) -> dict[str, dict[str, Any]]:
        """Leave the rungs as files, and tell their rows by the ending of their table's name."""
        x, y, width, height = shown.geometry.crop
        made: dict[str, dict[str, Any]] = {}
        for name, (data, num_frames) in shown.rungs.items():
            rung = name.removesuffix(str(FAST_FPS))
            codec, suffix = ("png", ".png") if data[:4] == b"\x89PNG" else ("h264", ".mp4")
            made[rung if rung == name else FAST_TABLE] = {
                "file": self._save(f"{name}{suffix}", data),
                "rung": name,
                "width_px": shown.geometry.size_of(rung)[0],
                "height_px": shown.geometry.size_of(rung)[1],
                "fps": float(FPS if rung == name else FAST_FPS),
                "num_frames": num_frames,
                "codec": codec,
                "encoder": None if codec == "png" else self._track.encoder,
                "color_decision_json": shown.color_json,
                "crop_x": x,
                "crop_y": y,
                "crop_width_px": width,
                "crop_height_px": height,
            }
        return made

    def _save_pack(self, builder: PackBuilder) -> dict[str, Any]:
        pack = builder.finish()
        kinds = [picture.kind for picture in pack.pictures]
        return {
            "file": self._save("pack.jpegs", pack.data),
            "pictures": [list(picture) for picture in pack.pictures],
            "num_color": kinds.count("color"),
            "num_luma": kinds.count("luma"),
        }
