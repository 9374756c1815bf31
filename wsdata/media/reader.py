"""One pass over a file's main streams: frames as they are decoded, with honest health.

Opening a file is `media.decode`; what a frame is for belongs to `preprocess`. Health comes from
frames decoded against frames promised and from time stamps, never from an exit code. Only
sandboxed children read raw assets.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from wsdata.errors import DecodeFailed
from wsdata.media import progress
from wsdata.media.decode import is_still, told_error

if TYPE_CHECKING:
    from av import AudioFrame, Packet, VideoFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

MAX_HOLD_S = 2.0  # a frame shown longer is followed by a gap, whatever the time stamps say
JUMP_BACK_S = 1.0  # time stamps that go back further are damage, not disorder
TORN_STEPS = 1.5
MIN_MISSING_S = 0.5  # an end this much before the promised one is no rounding
MAX_MISSING_SHARE = 0.02


@dataclass(slots=True)
class Health:
    """How decoding went, from frames and time stamps. Seconds count from the first frame.

    Attributes:
        frames_promised: What the header says, or its duration times its rate; None if neither.
        frames_decoded: Frames that came out whole.
        num_errors: Packets and frames that the demuxer or the decoder refused or marked corrupt.
        num_gaps: Places where neighbouring frames do not belong together.
        reason: What first went wrong, and where; None while nothing has.
    """

    frames_promised: int | None = None
    frames_decoded: int = 0
    num_errors: int = 0
    num_gaps: int = 0
    reason: str | None = None


class Gap:
    """Stands between two frames that do not follow one another."""


class MediaReader:
    """One pass over the main video and audio streams of one file.

    The plain way stops at the first damage after the first whole frame: what came before is the
    clean prefix. The careful way drops what is damaged, says `Gap`, and goes on at the next
    key frame.
    """

    def __init__(
        self,
        container: "InputContainer",
        video: "VideoStream",
        audio: "AudioStream | None",
        *,
        is_careful: bool = False,
    ) -> None:
        self._container = container
        self._video = video
        self._audio = audio
        self._is_careful = is_careful
        self.track = video.index
        self.is_still = is_still(container, video)
        self.time_base = Fraction(video.time_base or Fraction(1, 1000))
        self.rate = video.average_rate or video.guessed_rate
        self.health = Health(frames_promised=self._promised_frames())
        self.num_audio_errors = 0
        self._ends: dict[int, int] = {}  # of the packets of each stream, in its ticks
        self._most_hold = int(Fraction(MAX_HOLD_S) / self.time_base)
        self._most_back = int(Fraction(JUMP_BACK_S) / self.time_base)
        self._last_pts: int | None = None
        self._start_s = 0.0
        self._step: int | None = None  # ticks between the frames before the last
        self._last_step: int | None = None
        self._needs_key = False
        self._is_over = False
        self._first_gap: str | None = None
        for stream in (video, audio):
            if stream is not None:
                stream.codec_context.thread_count = 1
                stream.codec_context.thread_type = "NONE"
        video.codec_context.options = {"err_detect": "crccheck+bitstream+buffer"}

    @property
    def has_audio(self) -> bool:
        """Whether there is a sound track."""
        return self._audio is not None

    @property
    def sar(self) -> Fraction:
        """Sample aspect ratio; 1 where none is stated."""
        context = self._video.codec_context
        return context.sample_aspect_ratio or self._video.sample_aspect_ratio or Fraction(1)

    def frames(self) -> "Iterator[VideoFrame | AudioFrame | Gap]":
        """Yield frames as they are decoded, video with increasing pts; may be asked once.

        Raises:
            DecodeFailed: No video frame came out whole.
        """
        from av import VideoFrame

        held: VideoFrame | None = None
        for item in self._all_frames():
            if isinstance(item, VideoFrame):
                held, item = item, held
            elif isinstance(item, Gap) and held is not None:
                yield held
                held = None
            if item is not None:
                yield item
        if not self.health.frames_decoded:
            raise DecodeFailed(
                f"no frame could be decoded, {self.health.num_errors} error(s)"
                + (f"; {self.health.reason}" if self.health.reason else "")
            )
        self._check_end()
        if held is not None:
            if self._is_torn_off():
                self.health.frames_decoded -= 1
            else:
                yield held

    def _is_torn_off(self) -> bool:
        """Whether the last frame stands alone after a hole that a break has left before it."""
        if self.health.reason is None or self._step is None or self._last_step is None:
            return False
        return self._last_step > TORN_STEPS * self._step

    def _all_frames(self) -> "Iterator[VideoFrame | AudioFrame | Gap]":
        import av.error

        wanted = [self._video] if self._audio is None else [self._video, self._audio]
        packets = self._container.demux(*wanted)
        while not self._is_over:
            try:
                packet = next(packets)
            except StopIteration:
                break
            except (av.error.FFmpegError, ValueError) as error:
                self._note(f"demuxing failed: {told_error(error)}")
                break
            yield from self._decode(packet)
        if self._is_over:
            yield from self._flush()

    def _decode(self, packet: "Packet") -> "Iterator[VideoFrame | AudioFrame | Gap]":
        import av.error

        stamp = packet.pts if packet.pts is not None else packet.dts
        if stamp is not None:
            index, end = packet.stream_index, stamp + (packet.duration or 0)
            if end > self._ends.get(index, end - 1):
                self._ends[index] = end
        is_video = packet.stream is self._video
        if is_video and self._needs_key and packet.size:
            if not packet.is_keyframe:
                return
            self._needs_key = False
        try:
            if is_video and packet.is_corrupt:
                yield from self._damage("the container marks a packet as incomplete")
                return
            frames = packet.decode()
        except (av.error.FFmpegError, ValueError) as error:
            if is_video:
                yield from self._damage(f"decoding failed: {told_error(error)}")
            else:
                self.num_audio_errors += 1
            return
        for frame in frames:
            if is_video:
                yield from self._take(frame)  # pyright: ignore[reportArgumentType]
            else:
                yield frame  # pyright: ignore[reportReturnType]

    def _take(self, frame: "VideoFrame") -> "Iterator[VideoFrame | Gap]":
        if self._is_over:
            return
        if frame.is_corrupt:
            yield from self._damage("the decoder marks a frame as corrupt")
            return
        pts = frame.pts if frame.pts is not None else frame.dts
        if pts is None:
            step = Fraction(1, 1) / (self.rate or 25) / self.time_base
            pts = 0 if self._last_pts is None else self._last_pts + max(1, round(step))
        if self._last_pts is None:
            self._start_s = float(pts * self.time_base)
        elif pts <= self._last_pts:
            if self._last_pts - pts > self._most_back:
                yield from self._damage("time stamps jump back")
            return
        elif pts - self._last_pts > self._most_hold:
            self.health.num_gaps += 1
            self._first_gap = self._first_gap or f"no frame{self._where()} for over {MAX_HOLD_S} s"
            yield Gap()
        frame.pts = pts
        if self._last_pts is not None:
            self._step, self._last_step = self._last_step, pts - self._last_pts
        self._last_pts = pts
        self.health.frames_decoded += 1
        progress.advance()
        yield frame

    def _damage(self, what: str) -> Iterator[Gap]:
        self._note(what)
        if self._last_pts is None:  # a stream cut in on: nothing whole has been seen yet
            return
        if not self._is_careful:
            self._is_over = True
            return
        self.health.num_gaps += 1
        self._needs_key = True
        yield Gap()

    def _flush(self) -> "Iterator[VideoFrame | Gap]":
        import av.error

        try:
            held = self._video.codec_context.decode(None)
        except (av.error.FFmpegError, ValueError):
            return
        self._is_over = False
        for frame in held:
            if not frame.is_corrupt:
                yield from self._take(frame)
            if self._is_over:
                break

    def _note(self, what: str) -> None:
        self.health.num_errors += 1
        if self.health.reason is None:
            self.health.reason = what + self._where()

    def _where(self) -> str:
        if self._last_pts is None:
            return " before the first frame"
        return f" after {float(self._last_pts * self.time_base) - self._start_s:.3f} s"

    def _promised_frames(self) -> int | None:
        if self.is_still:
            return 1
        if self._video.frames:
            return int(self._video.frames)
        promised_s = (self._container.duration or 0) / 1_000_000
        return round(promised_s * float(self.rate)) if promised_s and self.rate else None

    def _promised_s(self) -> float | None:
        """Seconds at which the header says the video ends, from time stamp 0."""
        if self._video.duration:
            start = self._video.start_time or 0
            return float((start + self._video.duration) * self.time_base)
        if self._container.duration:
            start = self._container.start_time or 0
            return (start + self._container.duration) / 1_000_000
        return None

    def _check_end(self) -> None:
        """Note frames that are missing, at the end or in a gap, where no decoder complained."""
        promised_s = self._promised_s()
        if self.is_still or promised_s is None or self.health.reason is not None:
            return
        knows_video = bool(self._video.duration)
        bases = {stream.index: stream.time_base or 0 for stream in self._container.streams}
        ends = {index: float(end * bases[index]) for index, end in self._ends.items()}
        index = self._video.index
        end_s = ends.get(index, 0.0) if knows_video else max(ends.values(), default=0.0)
        if end_s < promised_s - max(MIN_MISSING_S, MAX_MISSING_SHARE * promised_s):
            self._note(f"the file ends at {end_s:.3f} s of the {promised_s:.3f} s it promises")
        promised = self.health.frames_promised or 0
        if self._first_gap and self.health.frames_decoded < (1 - MAX_MISSING_SHARE) * promised:
            self.health.reason = self.health.reason or self._first_gap
