"""Which frames of a file are printed, and their prints: a sandboxed job.

Key frames where they lie close enough, for they cost a tenth of a full decode; else, and for
short files, every frame is decoded and one a second is printed beside the key frames. The hash
is `phash`'s; what prints are compared with belongs to the callers.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wsdata.media import phash, progress
from wsdata.media.decode import canonical_color, exact_flags, main_video, open_media
from wsdata.media.probe import Probe, display_size, probe_source, rotation_deg
from wsdata.media.sound_print import sound_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from av import VideoFrame
    from av.container import InputContainer

SAMPLING_VERSION = "keyframe-grid-1"

_SHORT_S = 30.0  # up to here a full decode is cheap
_MIN_KEYFRAMES = 4
_MAX_KEY_GAP_S = 10.5  # x264's default of 250 frames at 24 fps
_COLOR_SIDE_PX = 448
_CLOSE_S = 1e-6
GRID_S = 1.0
DENSE_GRID_S = 0.25  # what moves fast looks another way half a second later


@dataclass(slots=True)
class Print:
    """One printed frame. `time_s` counts from the first frame of the main video stream."""

    time_s: float
    hashes: phash.FrameHashes


@dataclass(slots=True)
class _Plan:
    """Which frames: those at `key_pts`, and one per `grid_s` where all are decoded.

    Of the printed ones, the first at or after each of `color_s` is kept as a picture.
    """

    key_pts: set[int]
    grid_s: float | None
    color_s: list[float]


@dataclass(slots=True)
class _Made:
    prints: list[Print] = field(default_factory=list[Print])
    colors: list[tuple[float, NDArray[np.uint8]]] = field(
        default_factory=list[tuple[float, NDArray[np.uint8]]]
    )


def _spread(values: list[int], count: int) -> set[int]:
    """At most `count` of the values, first and last among them, evenly spread."""
    if len(values) <= count:
        return set(values)
    return {values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)}


def _plan(probe: Probe, *, max_keyframes: int, is_dense: bool, num_color: int) -> _Plan:
    if probe.row["media_kind"] == "image":
        return _Plan(key_pts=set(), grid_s=math.inf, color_s=[0.0][:num_color])
    time_base = Fraction(probe.row["time_base"])
    duration_s = probe.row["duration_s"] or 0.0
    edges = [*probe.key_pts, probe.start_pts + int(Fraction(duration_s) / time_base)]
    gaps_s = np.diff(edges) * float(time_base)
    has_few = len(probe.key_pts) < _MIN_KEYFRAMES or gaps_s.max(initial=0.0) > _MAX_KEY_GAP_S
    grid_s = None
    if is_dense:
        grid_s = DENSE_GRID_S
    elif has_few or duration_s <= _SHORT_S:
        grid_s = max(GRID_S, duration_s / max_keyframes)
    return _Plan(
        key_pts=_spread(probe.key_pts, max_keyframes),
        grid_s=grid_s,
        color_s=[i * duration_s / num_color for i in range(num_color)],
    )


def hashed_rgb(frame: "VideoFrame", sar: Fraction) -> NDArray[np.uint8]:
    """Return the picture that is hashed of a decoded frame, wherever that is met.

    Args:
        frame: The frame, in whatever format its decoder made.
        sar: Sample aspect ratio of its stream.
    """
    return upright_rgb(frame, sar, phash.MAX_SIDE_PX, is_mean=True)


def upright_rgb(
    frame: "VideoFrame",
    sar: Fraction,
    max_side_px: int | None = None,
    *,
    is_mean: bool = False,
) -> NDArray[np.uint8]:
    """Return a decoded frame as a person sees it: pixels square, upright, full-range RGB.

    Args:
        frame: The frame, in whatever format its decoder made.
        sar: Sample aspect ratio of its stream.
        max_side_px: Longest side of the result; None keeps the size.
        is_mean: Whether its pixels are means of those they stand for, which costs half.

    Returns:
        RGB in [0, 255], shape (height, width, 3), the same on every CPU.
    """
    from av.video.reformatter import ColorRange, Colorspace

    wide, high = display_size(frame.width, frame.height, sar, 0)
    scale = min(1.0, max_side_px / max(wide, high)) if max_side_px else 1.0
    matrix, is_full = canonical_color(frame)
    has_matrix = not frame.format.is_rgb and frame.format.name not in ("pal8", "gray")
    colors: dict[str, Any] = {
        "src_colorspace": matrix,
        "dst_colorspace": Colorspace.ITU709,
        "src_color_range": ColorRange.JPEG if is_full else ColorRange.MPEG,
        "dst_color_range": ColorRange.JPEG,
    }
    picture = frame.reformat(
        width=max(16, round(wide * scale)),
        height=max(16, round(high * scale)),
        format="rgb24",
        interpolation=exact_flags(is_mean=is_mean),
        threads=1,
        **(colors if has_matrix else {}),
    )
    turned = np.rot90(picture.to_ndarray(), k=-rotation_deg(frame) // 90)
    return np.ascontiguousarray(turned, np.uint8)


def _decoded(
    container: "InputContainer", video: Any, key_pts: set[int] | None
) -> "Iterator[VideoFrame]":
    """Frames of the main stream, from all packets or from those of some key frames alone."""
    import av.error

    packets = container.demux(video)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.FFmpegError, ValueError):
            break
        stamp = packet.pts if packet.pts is not None else packet.dts
        if packet.size and key_pts is not None and not (packet.is_keyframe and stamp in key_pts):
            continue
        try:
            frames = packet.decode()
        except (av.error.FFmpegError, ValueError):
            continue
        progress.advance(len(frames))
        yield from (frame for frame in frames if not frame.is_corrupt)  # pyright: ignore[reportReturnType]


def _print_frames(source: BinaryIO, probe: Probe, plan: _Plan) -> _Made:
    made = _Made()
    colors_due = list(plan.color_s)
    source.seek(0)
    with open_media(source) as container:
        video = main_video(container)
        if video is None or video.codec_context is None:
            return made
        video.codec_context.thread_count = 1
        video.codec_context.thread_type = "NONE"
        sar = Fraction(probe.row["sar"].replace(":", "/"))
        time_base = Fraction(probe.row["time_base"])
        due_s = 0.0
        for frame in _decoded(container, video, None if plan.grid_s else plan.key_pts):
            pts = frame.pts if frame.pts is not None else frame.dts
            time_s = 0.0 if pts is None else max(0.0, float((pts - probe.start_pts) * time_base))
            is_due = plan.grid_s is not None and time_s >= due_s - _CLOSE_S
            if not is_due and pts not in plan.key_pts:
                continue
            if is_due and plan.grid_s:
                due_s = (time_s + _CLOSE_S) // plan.grid_s * plan.grid_s + plan.grid_s
            hashes = phash.hash_picture(hashed_rgb(frame, sar))
            made.prints.append(Print(round(time_s, 6), hashes))
            if colors_due and time_s >= colors_due[0]:
                color = upright_rgb(frame, sar, _COLOR_SIDE_PX)
                made.colors.append((made.prints[-1].time_s, color))
                colors_due = [due for due in colors_due if due > time_s]
    made.prints.sort(key=lambda one: one.time_s)
    return made


def _told(one: Print) -> dict[str, Any]:
    core, core_mirror = one.hashes.core, one.hashes.core_mirror
    return {
        "time_s": one.time_s,
        "hash": one.hashes.plain.hex(),
        "mirror_hash": one.hashes.mirror.hex(),
        "quality": one.hashes.quality,
        "core_hash": core.hex() if core else None,
        "core_mirror_hash": core_mirror.hex() if core_mirror else None,
    }


def _video_start_s(probe: Probe) -> float:
    if probe.row["media_kind"] != "video":
        return 0.0
    return float(probe.start_pts * Fraction(probe.row["time_base"]))


def keyframes_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Sandboxed job: probe a file and print its frames.

    Args:
        args: ``max_keyframes``, the cap of prints per file; ``is_dense``, whether to decode all
            and print four frames a second whatever the key frames; ``num_color``, how many of the
            printed frames to leave in `out_dir` as raw RGB, at most; ``has_sound``, whether to
            print the main sound track too.
        source: The file.
        out_dir: Where the frames go.

    Returns:
        ``probe``: the row; ``prints``: in order of time, hashes in hex; ``colors``: for each
        frame left, its file's name, time in seconds, height and width; ``sound``: as
        `sound_print.sound_codes` gives it.
    """
    import cv2

    cv2.setNumThreads(1)
    probe = probe_source(source)
    answer: dict[str, Any] = {"probe": probe.row, "prints": [], "colors": [], "sound": None}
    wanted = dict(args)
    if probe.row["status"] != "ok":
        return answer
    if wanted.pop("has_sound") and probe.row["num_audio_tracks"]:
        answer["sound"] = sound_codes(source, video_start_s=_video_start_s(probe))
    if probe.row["media_kind"] == "audio":
        return answer
    made = _print_frames(source, probe, _plan(probe, **wanted))
    answer["prints"] = [_told(one) for one in made.prints]
    for index, (time_s, rgb_hwc) in enumerate(made.colors):
        name = f"color-{index:04d}.rgb"
        (out_dir / name).write_bytes(rgb_hwc.tobytes())
        answer["colors"].append([name, time_s, *rgb_hwc.shape[:2]])
    return answer
