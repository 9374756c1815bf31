"""Sound on the clock of its time stamps, and stored sound back as samples.

Whether a clip's sound is kept belongs to `preprocess.sound`.
"""

from collections import deque
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed
from wsdata.media.decode import open_media

if TYPE_CHECKING:
    from av import AudioFrame

RATE_HZ = 16000
MAX_JITTER_S = 0.02  # less is rounding of time stamps; more is a jump, and is placed anew


class AudioTimeline:
    """Mono samples at 16 kHz, each where its time stamp says; gaps are silent.

    Memory: 64 kB per second between the oldest clip still open and the newest sound read.
    """

    def __init__(self) -> None:
        self._resampler = None
        self._chunks: deque[tuple[int, NDArray[np.float32]]] = deque()
        self._next = 0  # sample that the next resampled one is, at 16 kHz from time stamp 0
        self._read: Fraction | None = None  # seconds up to which input was read
        self.start_s: float | None = None
        self.jumps: list[tuple[float, float]] = []  # (at, by) in seconds

    @property
    def end_s(self) -> float:
        """Time stamp up to which sound has been read; minus infinity before the first."""
        return float("-inf") if self._read is None else float(self._read)

    def push(self, frame: "AudioFrame") -> None:
        """Add one decoded frame."""
        length = Fraction(frame.samples, frame.sample_rate)
        if frame.pts is not None and frame.time_base is not None:
            at = frame.pts * Fraction(frame.time_base)
        else:
            at = self._read or Fraction(0)
        if self._read is None or abs(at - self._read) > MAX_JITTER_S:
            if self._read is not None:
                self.jumps.append((float(at), float(at - self._read)))
                self._drain(None)
            self._resampler = None
            self._next = round(at * RATE_HZ)
            self._read = at
            self.start_s = float(at) if self.start_s is None else self.start_s
        self._read += length
        self._drain(frame)

    def finish(self) -> None:
        """Take what the resampler still holds."""
        self._drain(None)

    def _drain(self, frame: "AudioFrame | None") -> None:
        import av

        if self._resampler is None:
            if frame is None:
                return
            self._resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE_HZ)
        if frame is not None:
            frame.pts = None
        for out in self._resampler.resample(frame):
            samples = out.to_ndarray().reshape(-1).astype(np.float32)
            self._chunks.append((self._next, samples))
            self._next += len(samples)
        if frame is None:
            self._resampler = None

    def take(self, start_s: float, end_s: float) -> NDArray[np.float32]:
        """Return the samples of [start_s, end_s); where nothing was read they are 0."""
        first = round(start_s * RATE_HZ)
        taken = np.zeros(max(0, round(end_s * RATE_HZ) - first), np.float32)
        for at, samples in self._chunks:
            low, high = max(at, first), min(at + len(samples), first + len(taken))
            if low < high:
                taken[low - first : high - first] = samples[low - at : high - at]
        return taken

    def forget_before(self, start_s: float) -> None:
        """Drop what lies before a time that no later clip asks for."""
        first = round(start_s * RATE_HZ)
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= first:
            self._chunks.popleft()


def read_audio(data: bytes | Path) -> tuple[NDArray[np.float32], int]:
    """Read a stored audio track.

    Returns:
        Mono samples in about [-1, 1], and their rate, 16000 a second.

    Raises:
        DecodeFailed: It is not one.
    """
    import av.error

    content = data.read_bytes() if isinstance(data, Path) else data
    timeline = AudioTimeline()
    with open_media(content) as container:
        if not container.streams.audio:
            raise DecodeFailed(f"audio track of {len(content)} bytes holds no sound")
        try:
            for frame in container.decode(container.streams.audio[0]):
                timeline.push(frame)
        except av.error.FFmpegError as error:
            raise DecodeFailed(f"audio track does not decode: {error.strerror}") from error
    timeline.finish()
    return timeline.take(max(0.0, timeline.start_s or 0.0), timeline.end_s), RATE_HZ
