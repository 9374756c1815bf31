"""What one decode leaves of each clip: the ladder, the frame pack, the sound, and its row.

Which frames belong to a clip is told by `windows`; where the files go in the end is the business
of `decode_drop`. Everything here runs in the sandboxed child.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wsdata.media.audio import AudioTimeline
from wsdata.media.encode import FPS
from wsdata.preprocess.framepack import PackBuilder, write_framepack
from wsdata.preprocess.ladder import Geometry, LadderWriter, frame_span
from wsdata.preprocess.sound_output import SoundOutput
from wsdata.preprocess.windows import Opened
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


@dataclass(slots=True)
class Ready:
    """What is kept of a frame until its window is known.

    `top` is the frame at the size of the top rung, `color` and `luma` are for the frame pack;
    each is null where no window that the frame may belong to asks for it.
    """

    end_pts: int
    geometry: Geometry
    top: "VideoFrame | None"
    color: NDArray[np.uint8] | None
    luma: NDArray[np.uint8] | None


class OpenClip:
    """The clip whose frames are passing now."""

    def __init__(self, opened: Opened, geometry: Geometry, time_base: Fraction) -> None:
        self.opened = opened
        self.geometry = geometry
        self._time_base = time_base
        self.ladder = LadderWriter(geometry)
        self.pack = PackBuilder(opened.start_pts, time_base)

    def add(self, pts: int, ready: Ready) -> None:
        """Take the next frame."""
        start = self.opened.start_pts
        self.pack.add(pts, ready.end_pts, ready.color, ready.luma)
        if ready.top is not None:
            _, end = frame_span(pts, ready.end_pts, start, self._time_base)
            self.ladder.write(ready.top, end)


class ClipOutput:
    """Writes the files of finished clips into the child's folder, and tells their rows."""

    def __init__(self, out_dir: Path, track: Track, timeline: AudioTimeline | None) -> None:
        self._out_dir = out_dir
        self._track = track
        self._sound = SoundOutput(out_dir, timeline, float(track.origin_pts * track.time_base))
        self.rows: list[dict[str, Any]] = []

    def add_clip(self, clip: OpenClip, end_pts: int) -> None:
        """Finish a clip that ends before `end_pts`."""
        start_pts = clip.opened.start_pts
        length_s = (end_pts - start_pts) * self._track.time_base
        num_frames = num_output_frames(length_s, Fraction(FPS))
        rungs = clip.ladder.finish(num_frames)
        self._add(clip.opened, clip.geometry, end_pts, num_frames, rungs, clip.pack)

    def add_still(self, geometry: Geometry, rungs: dict[str, bytes], pack: PackBuilder) -> None:
        """Add the one clip of a picture, [0, 1) of the track's time base."""
        self._add(Opened(0, 0, 0), geometry, 1, 1, rungs, pack)
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

    def _add(
        self,
        opened: Opened,
        geometry: Geometry,
        end_pts: int,
        num_frames: int,
        rungs: dict[str, bytes],
        pack: PackBuilder,
    ) -> None:
        row = self._row(geometry, opened.start_pts, end_pts) | {
            "num_frames": num_frames,
            "shot_index": opened.shot_index,
            "window_index": opened.window_index,
        }
        row["transcodes"] = self._save_rungs(geometry, rungs)
        row["pack"] = self._save_pack(pack)
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

    def _save_rungs(self, geometry: Geometry, rungs: dict[str, bytes]) -> dict[str, dict[str, Any]]:
        x, y, width, height = geometry.crop
        made: dict[str, dict[str, Any]] = {}
        for rung, data in rungs.items():
            codec, suffix = ("png", ".png") if data[:4] == b"\x89PNG" else ("h264", ".mp4")
            made[rung] = {
                "file": self._save(f"{rung}{suffix}", data),
                "width_px": geometry.size_of(rung)[0],
                "height_px": geometry.size_of(rung)[1],
                "fps": float(FPS),
                "codec": codec,
                "crop_x": x,
                "crop_y": y,
                "crop_width_px": width,
                "crop_height_px": height,
            }
        return made

    def _save_pack(self, builder: PackBuilder) -> dict[str, Any]:
        pack = builder.finish()
        return {
            "file": self._save("pack.parquet", write_framepack(pack)),
            "num_color": len(pack.colors),
            "num_luma": 2 * len(pack.luma_pairs),
        }
