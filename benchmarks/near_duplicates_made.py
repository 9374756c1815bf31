"""Copies of real clips as the web makes them, and strangers that share what strangers share.

Deriving alone; what is found among them is measured by `near_duplicates.py` and asserted by
tests. Everything is decoded and coded with PyAV, one thread, so that the same clip gives the
same copy.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]  # RGB, (height, width, 3)
AUDIO_HZ = 44_100


@dataclass(slots=True)
class Clip:
    """Pictures with their times in seconds, and mono sound in [-1, 1] from time 0."""

    pictures: list[Picture]
    times_s: list[float]
    sound: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def duration_s(self) -> float:
        """Seconds up to the end of the last picture."""
        step = (self.times_s[-1] - self.times_s[0]) / max(1, len(self.times_s) - 1)
        return self.times_s[-1] + step

    def cut(self, start_s: float, end_s: float) -> "Clip":
        """Return the stretch [start_s, end_s), its times from 0."""
        inside = [i for i, t in enumerate(self.times_s) if start_s <= t < end_s]
        low, high = round(start_s * AUDIO_HZ), round(end_s * AUDIO_HZ)
        return Clip(
            [self.pictures[i] for i in inside],
            [self.times_s[i] - self.times_s[inside[0]] for i in inside],
            self.sound[low:high],
        )

    def changed(self, change: Callable[[Picture], Picture]) -> "Clip":
        """Return the clip with every picture changed."""
        return Clip([change(one) for one in self.pictures], self.times_s, self.sound)


def read_clip(path: Path, *, most_s: float = 30.0) -> Clip:
    """Decode the first seconds of a file's first video stream and its first sound."""
    clip = Clip([], [])
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        video.thread_count = 1
        for frame in container.decode(video):
            if frame.time is not None and frame.time >= most_s:
                break
            clip.pictures.append(frame.to_ndarray(format="rgb24"))
            clip.times_s.append(float(frame.time or 0.0))
    clip.times_s = [t - clip.times_s[0] for t in clip.times_s]
    clip.sound = _read_sound(path, most_s)
    return clip


def _read_sound(path: Path, most_s: float) -> NDArray[np.float32]:
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return np.zeros(0, np.float32)
        resampler = av.AudioResampler(format="flt", layout="mono", rate=AUDIO_HZ)
        parts = [
            out.to_ndarray().reshape(-1)
            for frame in container.decode(container.streams.audio[0])
            for out in resampler.resample(frame)
        ]
    return np.concatenate(parts)[: round(most_s * AUDIO_HZ)].astype(np.float32)


def write_clip(clip: Clip, path: Path, *, crf: int = 23, fps: Fraction | None = None) -> Path:
    """Code a clip as H.264 and AAC; at a constant rate where one is given, else as timed."""
    with av.open(str(path), "w", format="mp4") as container:
        height, width = (side // 2 * 2 for side in clip.pictures[0].shape[:2])
        video = container.add_stream("libx264", rate=fps or Fraction(24))
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        video.options = {"crf": str(crf), "preset": "veryfast", "threads": "1"}
        video.time_base = video.codec_context.time_base = Fraction(1, 90_000)
        audio = (
            container.add_stream("aac", rate=AUDIO_HZ, layout="mono") if len(clip.sound) else None
        )
        for time_s, picture in _at_rate(clip, fps):
            frame = av.VideoFrame.from_ndarray(
                np.ascontiguousarray(picture[:height, :width]), format="rgb24"
            )
            frame.pts, frame.time_base = round(time_s * 90_000), Fraction(1, 90_000)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio is not None:
            for start in range(0, len(clip.sound), 1024):
                wave = np.ascontiguousarray(clip.sound[None, start : start + 1024])
                sound = av.AudioFrame.from_ndarray(wave, format="flt", layout="mono")
                sound.sample_rate, sound.pts = AUDIO_HZ, start
                sound.time_base = Fraction(1, AUDIO_HZ)
                container.mux(audio.encode(sound))
            container.mux(audio.encode(None))
    return path


def _at_rate(clip: Clip, fps: Fraction | None) -> Iterator[tuple[float, Picture]]:
    if fps is None:
        yield from zip(clip.times_s, clip.pictures, strict=True)
        return
    shown = 0
    for index in range(int(clip.duration_s * fps)):
        time_s = float(index / fps)
        while shown + 1 < len(clip.times_s) and clip.times_s[shown + 1] <= time_s + 1e-6:
            shown += 1
        yield time_s, clip.pictures[shown]


def scaled(picture: Picture, width: int, height: int) -> Picture:
    """Resize one picture."""
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _to_height(height: int) -> Callable[[Picture], Picture]:
    return lambda one: scaled(one, round(one.shape[1] * height / one.shape[0] / 2) * 2, height)


def _logo(picture: Picture) -> Picture:
    """Draw a bright mark of an eighth of the width into a corner."""
    marked = picture.copy()
    width = picture.shape[1]
    side, edge = width // 8, width // 40
    cv2.rectangle(marked, (width - side - edge, edge), (width - edge, edge + side // 2),
                  (250, 210, 20), -1)  # fmt: skip
    cv2.putText(marked, "LOGO", (width - side - edge // 2, edge + side // 3),
                cv2.FONT_HERSHEY_SIMPLEX, width / 700, (20, 20, 160), 2)  # fmt: skip
    return marked


def _letterbox(picture: Picture) -> Picture:
    bar = picture.shape[0] // 6
    return np.pad(picture, ((bar, bar), (0, 0), (0, 0)))


def _crop(share: float) -> Callable[[Picture], Picture]:
    def change(picture: Picture) -> Picture:
        height, width = picture.shape[:2]
        top, left = round(height * share / 2), round(width * share / 2)
        return np.ascontiguousarray(picture[top : height - top, left : width - left])

    return change


def _graded(picture: Picture) -> Picture:
    return np.clip((picture.astype(np.int16) - 128) * 1.2 + 128 + 18, 0, 255).astype(np.uint8)


def joined(*clips: Clip) -> Clip:
    """Put clips one after another, in the size of the last."""
    height, width = clips[-1].pictures[0].shape[:2]
    whole = Clip([], [])
    start_s, sounds = 0.0, []
    for clip in clips:
        whole.pictures += [scaled(one, width, height) for one in clip.pictures]
        whole.times_s += [start_s + t for t in clip.times_s]
        silence = np.zeros(round(clip.duration_s * AUDIO_HZ), np.float32)
        silence[: len(clip.sound)] = clip.sound[: len(silence)]
        sounds.append(silence)
        start_s += clip.duration_s
    whole.sound = np.concatenate(sounds)
    return whole


def black(seconds: float, like: Clip) -> Clip:
    """Return black pictures in the size and at about the rate of another clip."""
    count = round(seconds * 24)
    return Clip([np.zeros_like(like.pictures[0])] * count, [i / 24 for i in range(count)])


def _faster(clip: Clip, factor: float) -> Clip:
    samples = np.arange(0, max(len(clip.sound) - 1, 0), factor)
    sound = np.interp(samples, np.arange(len(clip.sound)), clip.sound) if len(clip.sound) else []
    return Clip(clip.pictures, [t / factor for t in clip.times_s], np.asarray(sound, np.float32))


_CHANGES: dict[str, Callable[[Picture], Picture]] = {
    "half": lambda one: scaled(one, one.shape[1] // 4 * 2, one.shape[0] // 4 * 2),
    "240p": _to_height(240),
    "logo": _logo,
    "letterbox": _letterbox,
    "mirror": lambda one: np.ascontiguousarray(one[:, ::-1]),
    "crop5": _crop(0.05),
    "crop10": _crop(0.10),
    "graded": _graded,
}
KINDS = (
    "crf35", "25fps", *_CHANGES, "intro", "black_intro", "faster4",
)  # fmt: skip


def copies(
    clip: Clip, intro: Clip, folder: Path, name: str, kinds: Iterable[str] = KINDS
) -> Iterator[tuple[str, Path]]:
    """Write whole copies of a clip, of the kinds asked for: (kind, file)."""
    for kind in kinds:
        path = folder / f"{name}-{kind}.mp4"
        if kind in _CHANGES:
            yield kind, write_clip(clip.changed(_CHANGES[kind]), path)
        elif kind == "crf35":
            yield kind, write_clip(clip, path, crf=35)
        elif kind == "25fps":
            yield kind, write_clip(clip, path, fps=Fraction(25))
        elif kind == "faster4":
            yield kind, write_clip(_faster(clip, 1.04), path)
        else:
            before = black(2.0, clip) if kind == "black_intro" else intro
            yield kind, write_clip(joined(before, clip), path)
