"""Sound on the clock of its time stamps, and stored sound back as samples.

Whether a clip's sound is kept, and in which form, belongs to `preprocess.sound`.
"""

import tempfile
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed
from wsdata.media.decode import open_media

if TYPE_CHECKING:
    from collections.abc import Iterator

    from av import AudioFrame

RATE_HZ = 16000  # of speech, and of what the models hear
MAX_JITTER_S = 0.02  # less is rounding of time stamps; more is a jump, and is placed anew
MAX_HELD_BYTES = 32 << 20  # three minutes of stereo at 44.1 kHz; what comes after waits on disk
SPILL_BYTES = 16 << 20  # of one file of waiting sound
FULL_SCALE = 32768

_LAYOUTS = {1: "mono", 2: "stereo"}


@dataclass(slots=True)
class _Chunk:
    """Samples from `at` on; in memory, or `size` of them at `offset` of a file."""

    at: int
    size: int
    samples: NDArray[np.int16] | None
    file: "_Spill | None" = None
    offset: int = 0


@dataclass(slots=True)
class _Spill:
    """A file of chunks that wait for their clip; closed, and so gone, with its last one."""

    handle: IO[bytes]
    size: int = 0
    num_chunks: int = 0


class AudioTimeline:
    """16-bit samples of one rate, each where its time stamp says; gaps are silent.

    Memory: the sound between the oldest that a clip may ask for and the newest read, at most
    `MAX_HELD_BYTES`: where a file has its sound far ahead of its pictures, the rest waits in
    unnamed files in `folder`, of as many bytes as that sound has.
    """

    def __init__(
        self, *, rate_hz: int = RATE_HZ, num_channels: int = 1, folder: Path | None = None
    ) -> None:
        self.rate_hz = rate_hz
        self.num_channels = num_channels
        self._folder = folder
        self._resampler = None
        self._chunks: deque[_Chunk] = deque()
        self._held_bytes = 0
        self._spill: _Spill | None = None
        self._next = 0  # sample that the next resampled one is, counted from time stamp 0
        self._is_ordered = True  # no time stamp has gone back
        self._read: Fraction | None = None  # seconds up to which input was read
        self.start_s: float | None = None
        self.jumps: list[tuple[float, float]] = []  # (at, by) in seconds
        self.source_rate_hz: int | None = None
        self.source_channels: int | None = None

    @property
    def end_s(self) -> float:
        """Time stamp up to which sound has been read; minus infinity before the first."""
        return float("-inf") if self._read is None else float(self._read)

    @property
    def held_bytes(self) -> int:
        """Bytes of samples in memory now."""
        return self._held_bytes

    def push(self, frame: "AudioFrame") -> None:
        """Add one decoded frame."""
        length = Fraction(frame.samples, frame.sample_rate)
        if frame.pts is not None and frame.time_base is not None:
            at = frame.pts * Fraction(frame.time_base)
        else:
            at = self._read or Fraction(0)
        shape = frame.sample_rate, frame.layout.nb_channels
        if self._read is None or abs(at - self._read) > MAX_JITTER_S:
            if self._read is not None:
                self.jumps.append((float(at), float(at - self._read)))
                self._is_ordered = self._is_ordered and at > self._read
                self._drain(None)
            self._begin(at)
        elif shape != (self.source_rate_hz, self.source_channels):
            self._drain(None)  # a resampler takes one form of input
            self._begin(self._read)
        self.source_rate_hz, self.source_channels = shape
        self._read = (self._read or at) + length
        self._drain(frame)

    def _begin(self, at: Fraction) -> None:
        self._resampler = None
        self._next = round(at * self.rate_hz)
        self._read = at
        self.start_s = float(at) if self.start_s is None else self.start_s

    def finish(self) -> None:
        """Take what the resampler still holds."""
        self._drain(None)

    def _drain(self, frame: "AudioFrame | None") -> None:
        import av

        if self._resampler is None:
            if frame is None:
                return
            layout = _LAYOUTS[self.num_channels]
            self._resampler = av.AudioResampler(format="s16", layout=layout, rate=self.rate_hz)
        if frame is not None:
            frame.pts = None
        for out in self._resampler.resample(frame):
            self._keep(out.to_ndarray().reshape(-1, self.num_channels).astype(np.int16))
        if frame is None:
            self._resampler = None

    def _keep(self, samples_nc: NDArray[np.int16]) -> None:
        chunk = _Chunk(self._next, len(samples_nc), samples_nc)
        self._next += chunk.size
        if self._folder is not None and self._held_bytes + samples_nc.nbytes > MAX_HELD_BYTES:
            self._write(chunk, samples_nc)
        else:
            self._held_bytes += samples_nc.nbytes
        self._chunks.append(chunk)

    def _write(self, chunk: _Chunk, samples_nc: NDArray[np.int16]) -> None:
        if self._spill is None or self._spill.size >= SPILL_BYTES:
            self._spill = _Spill(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
        spill = chunk.file = self._spill
        chunk.samples, chunk.offset = None, spill.size
        spill.handle.seek(spill.size)
        spill.handle.write(samples_nc.tobytes())
        spill.size += samples_nc.nbytes
        spill.num_chunks += 1

    def _samples_of(self, chunk: _Chunk) -> NDArray[np.int16]:
        if chunk.samples is not None:
            return chunk.samples
        if chunk.file is None:
            raise ValueError(f"the sound at sample {chunk.at} is neither in memory nor on disk")
        chunk.file.handle.seek(chunk.offset)
        data = chunk.file.handle.read(chunk.size * self.num_channels * 2)
        return np.frombuffer(data, np.int16).reshape(-1, self.num_channels)

    def take(self, start_s: float, end_s: float) -> NDArray[np.float32]:
        """Return the samples of [start_s, end_s); where nothing was read they are 0.

        Returns:
            In [-1, 1], of shape (samples,) where there is one channel, else (samples, channels).
        """
        first = round(start_s * self.rate_hz)
        count = max(0, round(end_s * self.rate_hz) - first)
        taken_nc = np.zeros((count, self.num_channels), np.float32)
        for chunk in self._chunks:
            if chunk.at >= first + count and self._is_ordered:
                break
            low, high = max(chunk.at, first), min(chunk.at + chunk.size, first + count)
            if low < high:
                part_nc = self._samples_of(chunk)[low - chunk.at : high - chunk.at]
                taken_nc[low - first : high - first] = part_nc
        taken_nc /= FULL_SCALE
        return taken_nc[:, 0] if self.num_channels == 1 else taken_nc

    def forget_before(self, start_s: float) -> None:
        """Drop what lies before a time that no later clip asks for."""
        first = round(start_s * self.rate_hz)
        while self._chunks and self._chunks[0].at + self._chunks[0].size <= first:
            self._drop(self._chunks.popleft())

    def _drop(self, chunk: _Chunk) -> None:
        if chunk.file is None:
            self._held_bytes -= chunk.size * self.num_channels * 2
            return
        chunk.file.num_chunks -= 1
        if not chunk.file.num_chunks:
            chunk.file.handle.close()
            if chunk.file is self._spill:
                self._spill = None


def resample(
    samples: NDArray[np.float32], rate_hz: int, *, to_rate_hz: int, num_channels: int
) -> NDArray[np.float32]:
    """Bring samples to another rate and number of channels.

    Args:
        samples: Of shape (samples,) or (samples, 1 or 2), in [-1, 1].
        rate_hz: Their rate.
        to_rate_hz: The wanted one.
        num_channels: 1 or 2; stereo becomes mono as the mean of its channels.

    Returns:
        Of shape (samples,) for one channel, else (samples, channels).
    """
    import av

    samples_nc = samples[:, None] if samples.ndim == 1 else samples
    if num_channels == 1 and samples_nc.shape[1] == 2:
        samples_nc = samples_nc.mean(axis=1, keepdims=True)
    resampler = av.AudioResampler(format="flt", layout=_LAYOUTS[num_channels], rate=to_rate_hz)
    parts: list[NDArray[np.float32]] = []
    for frame in (*audio_frames(samples_nc, rate_hz, "flt", rate_hz), None):
        for out in resampler.resample(frame):
            parts.append(out.to_ndarray().reshape(-1, num_channels).astype(np.float32))  # noqa: PERF401
    made_nc = np.concatenate(parts) if parts else np.zeros((0, num_channels), np.float32)
    made_nc = made_nc[: round(len(samples_nc) * to_rate_hz / rate_hz)]
    return made_nc[:, 0] if num_channels == 1 else made_nc


def audio_frames(
    samples_nc: NDArray[np.float32], rate_hz: int, sample_format: str, block: int
) -> "Iterator[AudioFrame]":
    """Cut samples into frames of at most `block`, stamped from 0 on.

    Args:
        samples_nc: In [-1, 1], of shape (samples, 1 or 2).
        rate_hz: Their rate.
        sample_format: ``flt``, ``fltp`` or ``s16``, which is rounded and clipped.
        block: Samples of a frame.
    """
    import av

    layout = _LAYOUTS[samples_nc.shape[1]]
    for start in range(0, len(samples_nc), block):
        part_nc = samples_nc[start : start + block]
        if sample_format == "s16":
            part_nc = np.clip(np.rint(part_nc * 32767), -FULL_SCALE, 32767).astype(np.int16)
        plane = part_nc.T if sample_format == "fltp" else part_nc.reshape(1, -1)
        block_pn: Any = np.ascontiguousarray(plane)
        frame = av.AudioFrame.from_ndarray(block_pn, format=sample_format, layout=layout)
        frame.sample_rate, frame.time_base, frame.pts = rate_hz, Fraction(1, rate_hz), start
        yield frame


def read_audio(data: bytes | Path) -> tuple[NDArray[np.float32], int]:
    """Read a stored audio track, of whichever form, as the models hear it.

    Returns:
        Mono samples in [-1, 1], and their rate, 16000 a second.

    Raises:
        DecodeFailed: It is not one.
    """
    import av.error

    content = data.read_bytes() if isinstance(data, Path) else data
    timeline = AudioTimeline()
    with open_media(content) as container:
        if not container.streams.audio:
            raise DecodeFailed(f"audio track of {len(content)} bytes holds no sound")
        stream = container.streams.audio[0]
        stated_s = float((stream.duration or 0) * (stream.time_base or 0))
        is_padded = "mp4" in container.format.name and stated_s > 0
        try:
            for frame in container.decode(stream):
                timeline.push(frame)
        except av.error.FFmpegError as error:
            raise DecodeFailed(f"audio track does not decode: {error.strerror}") from error
    timeline.finish()
    # what fills the last AAC frame is told by mp4's duration alone, and decoded all the same
    end_s = min(timeline.end_s, stated_s) if is_padded else timeline.end_s
    return timeline.take(max(0.0, timeline.start_s or 0.0), end_s), RATE_HZ
