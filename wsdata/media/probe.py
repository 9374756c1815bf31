"""What a media file is: container, streams, timing, and geometry as a person sees it.

One pass over the packets and one decoded frame, in the sandbox. The display rule that clips,
hashes and aspect buckets share is here: `rotation_deg` and `display_size`.
"""

import itertools
import json
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, BinaryIO

from wsdata.errors import DecodeFailed
from wsdata.media.decode import is_still, main_audio, main_video, open_media
from wsdata.media.stills import Still, read_still
from wsdata.timebase import round_half_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from av import Packet, VideoFrame
    from av.container import InputContainer

_VFR_SHARE = 0.01  # of frames that are off the rate, before it counts as variable
_VFR_TOLERANCE = 0.05  # of a frame, and two ticks: time stamps are rounded to the container's
_MAX_PACKETS_BEFORE_PICTURE = 500


def rotation_deg(frame: "VideoFrame") -> int:
    """Degrees, clockwise, by which a decoded frame must be turned to be seen upright.

    Returns:
        0, 90, 180 or 270.
    """
    return round(-frame.rotation / 90) * 90 % 360


def display_size(width_px: int, height_px: int, sar: Fraction, rotation: int) -> tuple[int, int]:
    """Size in square pixels, upright, of a picture of coded size (width, height).

    The sample aspect ratio stretches the width, then the rotation (clockwise degrees) turns it.
    """
    wide = max(1, round_half_up(width_px * sar))
    return (height_px, wide) if rotation in (90, 270) else (wide, height_px)


@dataclass(slots=True)
class _Timing:
    """Time stamps of one stream, in its own time base; the least alone where few are wanted."""

    pts: list[int] = field(default_factory=list[int])
    key_pts: list[int] = field(default_factory=list[int])
    end: int = 0
    size_bytes: int = 0

    def add(self, packet: "Packet", *, keeps_all: bool) -> None:
        self.size_bytes += packet.size
        stamp = packet.pts if packet.pts is not None else packet.dts
        if stamp is None:
            return
        end = stamp + (packet.duration or 0)
        self.end = max(self.end, end) if self.pts else end
        if keeps_all or not self.pts:
            self.pts.append(stamp)
        else:
            self.pts[0] = min(self.pts[0], stamp)
        if packet.is_keyframe and keeps_all:
            self.key_pts.append(stamp)


def _read_packets(container: "InputContainer", failures: list[str]) -> "Iterator[Packet]":
    import av.error

    wanted = [
        stream for stream in container.streams if stream.type in ("video", "audio") and stream.codec
    ]
    packets = container.demux(*wanted)
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except (av.error.FFmpegError, ValueError) as error:
            failures.append(f"demuxing ends early: {type(error).__name__}")
            return
        if packet.size:
            yield packet


def _first_picture(packet: "Packet") -> "VideoFrame | None":
    import av.error

    try:
        for frame in packet.decode():
            return frame  # pyright: ignore[reportReturnType]
    except (av.error.FFmpegError, ValueError):
        pass
    return None


def _rate(pts: list[int], time_base: Fraction, stated: Fraction | None) -> tuple[float, bool]:
    """Frames per second, and whether it varies.

    The stated rate holds where the time stamps agree with it to a twentieth.
    """
    steps = [later - earlier for earlier, later in itertools.pairwise(pts)]
    if not steps or pts[-1] == pts[0]:
        return (float(stated), False) if stated else (0.0, False)
    usual = median(steps)
    tolerance = max(2.0, _VFR_TOLERANCE * usual)
    off = sum(abs(step - usual) > tolerance for step in steps)
    is_vfr = off >= 2 and off > _VFR_SHARE * len(steps)
    measured = len(steps) / float((pts[-1] - pts[0]) * time_base)
    if not is_vfr and stated and abs(float(stated) / measured - 1) <= _VFR_TOLERANCE:
        return float(stated), False
    return measured, is_vfr


def _seconds(value: int | None, time_base: Fraction | None) -> float | None:
    return None if value is None or time_base is None else round(float(value * time_base), 6)


def _span_s(stream: Any, timing: _Timing) -> tuple[float | None, float | None]:
    """Start and duration of a stream by its packets, else by its header."""
    if timing.pts and timing.end > min(timing.pts):
        start = min(timing.pts)
        return _seconds(start, stream.time_base), _seconds(timing.end - start, stream.time_base)
    return _seconds(stream.start_time, stream.time_base), _seconds(
        stream.duration, stream.time_base
    )


def _stream_row(stream: Any, timing: _Timing) -> dict[str, Any]:
    from av.stream import Disposition

    start_s, duration_s = _span_s(stream, timing)
    context = stream.codec_context
    row: dict[str, Any] = {
        "index": stream.index,
        "type": stream.type,
        "codec": context.codec.canonical_name if context is not None else None,
        "disposition": [one.name for one in Disposition if stream.disposition & one],
        "start_s": start_s,
        "duration_s": duration_s,
        "size_bytes": timing.size_bytes,
        "language": stream.language,
    }
    if context is not None and stream.type == "video":
        row |= {"width_px": context.width, "height_px": context.height}
    if context is not None and stream.type == "audio":
        row |= {"sample_rate_hz": context.sample_rate, "channels": context.channels}
    return row


def _video_columns(
    stream: Any, timing: _Timing, picture: "VideoFrame", size_bytes: int, *, still: bool
) -> dict[str, Any]:
    context = stream.codec_context
    # 0:1 is how a container says that it does not know
    sar = Fraction(context.sample_aspect_ratio or stream.sample_aspect_ratio or 1) or Fraction(1)
    rotation = rotation_deg(picture)
    width_px, height_px = display_size(picture.width, picture.height, sar, rotation)
    stated = stream.average_rate or stream.guessed_rate
    fps, is_vfr = _rate(sorted(set(timing.pts)), stream.time_base, stated)
    start_s, duration_s = _span_s(stream, timing)
    carried = int(timing.size_bytes * 8 / duration_s) if duration_s else None
    return {
        "codec": context.codec.canonical_name,
        "profile": context.profile,
        "pixel_format": picture.format.name,
        "width_px": width_px,
        "height_px": height_px,
        "coded_width_px": picture.width,
        "coded_height_px": picture.height,
        "sar": f"{sar.numerator}:{sar.denominator}",
        "rotation_deg": rotation,
        "color_json": json.dumps(
            {
                "primaries": int(picture.color_primaries),
                "range": int(picture.color_range),
                "space": int(picture.colorspace),
                "transfer": int(picture.color_trc),
            },
            sort_keys=True,
        ),
        "time_base": f"{stream.time_base.numerator}/{stream.time_base.denominator}",
        "num_frames": 1 if still else None,
        "source_fps": None if still else round(fps, 6),
        "is_vfr": False if still else is_vfr,
        "start_s": 0.0 if still else start_s,
        "duration_s": 0.0 if still else duration_s,
        # a still's bits stand for its rate: they rank copies of one picture alike
        "bit_rate": size_bytes * 8 if still else stream.codec_context.bit_rate or carried,
    }


def _audio_columns(stream: Any) -> dict[str, Any]:
    context = stream.codec_context
    return {
        "audio_codec": context.codec.canonical_name,
        "sample_rate_hz": context.sample_rate,
        "channels": context.channels,
    }


@dataclass(slots=True)
class Probe:
    """A probed file: its row for the table ``probes``, its first and its key frames' pts."""

    row: dict[str, Any]
    start_pts: int = 0
    key_pts: list[int] = field(default_factory=list[int])


def probe_source(source: BinaryIO) -> Probe:
    """Probe one file. A file that is empty or unreadable is a row with that status.

    Returns:
        The probe; its row lacks the asset's id alone.
    """
    size_bytes = source.seek(0, 2)
    source.seek(0)
    if size_bytes == 0:
        return Probe({"status": "empty", "reason": "the file has 0 bytes"})
    try:
        still = read_still(source)
        with open_media(still.data if still else source) as container:
            probe = _probe(container, size_bytes)
        if still is not None:
            probe.row |= _still_columns(still, probe.row)
    except DecodeFailed as error:
        return Probe({"status": "failed", "reason": str(error)})
    return probe


def _still_columns(still: Still, row: dict[str, Any]) -> dict[str, Any]:
    """What a picture's own file says, in place of the one that was opened for it."""
    streams = json.loads(row["streams_json"])
    streams[0] |= {"codec": still.codec, "size_bytes": row["bit_rate"] // 8}
    return {
        "container": still.container,
        "codec": still.codec,
        "pixel_format": still.pixel_format,
        "coded_width_px": still.coded_size[0],
        "coded_height_px": still.coded_size[1],
        "rotation_deg": still.rotation_deg,
        "num_frames": still.num_frames,
        "reason": still.damage,
        "streams_json": json.dumps(streams, sort_keys=True),
    }


def _probe(container: "InputContainer", size_bytes: int) -> Probe:
    video, audio = main_video(container), main_audio(container)
    timings = {stream.index: _Timing() for stream in container.streams}
    failures: list[str] = []
    picture, num_tried = None, 0
    if video is not None and video.codec_context is not None:
        video.codec_context.thread_count = 1
        video.codec_context.thread_type = "NONE"
    for packet in _read_packets(container, failures):
        is_main = packet.stream is video
        timings[packet.stream.index].add(packet, keeps_all=is_main)
        if is_main and picture is None and num_tried < _MAX_PACKETS_BEFORE_PICTURE:
            num_tried += 1
            picture = _first_picture(packet)
    if picture is None and video is not None and video.codec_context is not None:
        picture = next(iter(_flushed(video)), None)
    row: dict[str, Any] = {
        "container": container.format.name,
        "num_video_tracks": len(container.streams.video),
        "num_audio_tracks": len(container.streams.audio),
        "streams_json": json.dumps(
            [_stream_row(stream, timings[stream.index]) for stream in container.streams],
            sort_keys=True,
        ),
        "status": "ok",
        "reason": "; ".join(failures) or None,
    }
    if audio is not None:
        row |= {"audio_track": audio.index, **_audio_columns(audio)}
    if video is None:
        return Probe(row | _without_video(audio, timings, container.format.name, size_bytes))
    still = is_still(container, video)
    row |= {"media_kind": "image" if still else "video", "video_track": video.index}
    if picture is None:
        codec = video.codec_context.codec.canonical_name if video.codec_context else "unknown"
        empty = not timings[video.index].size_bytes and not failures
        told = "it holds no frame" if empty else "no frame could be decoded"
        row |= {"status": "empty" if empty else "failed", "codec": codec}
        row["reason"] = "; ".join([f"video stream {video.index} ({codec}): {told}", *failures])
        return Probe(row)
    timing = timings[video.index]
    row |= _video_columns(video, timing, picture, size_bytes, still=still)
    return Probe(row, min(timing.pts, default=0), sorted(timing.key_pts))


def _flushed(stream: Any) -> list[Any]:
    import av.error

    try:
        return stream.codec_context.decode(None)
    except (av.error.FFmpegError, ValueError):
        return []


def _without_video(
    audio: Any | None, timings: dict[int, _Timing], container: str, size_bytes: int
) -> dict[str, Any]:
    if audio is None or not timings[audio.index].size_bytes:
        return {"status": "empty", "reason": f"a {container} file without any picture or sound"}
    start_s, duration_s = _span_s(audio, timings[audio.index])
    rate = int(size_bytes * 8 / duration_s) if duration_s else None
    return {
        "media_kind": "audio",
        "start_s": start_s,
        "duration_s": duration_s,
        "bit_rate": audio.codec_context.bit_rate or rate,
        "time_base": f"{audio.time_base.numerator}/{audio.time_base.denominator}",
    }


def probe_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Sandboxed job: the row of `probe_source`."""
    del args, out_dir
    return probe_source(source).row
