"""Films whose shot boundaries are known, spliced from real clips: see `shot_boundaries`.

A film is a row of segments, each from inside one shot of a real clip or a pan over a still,
joined by cuts, dissolves and fades. What lies inside a segment is no boundary, whatever happens
there: flashes, lightning, an explosion, an object that passes, whip pans and zooms are added.
"""

import functools
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE = (320, 180)
TICKS = Fraction(1, 90000)
MAX_FRAMES = 160  # of a clip's shot, to bound memory
REFERENCE_FPS = 24  # transitions of 6 to 48 frames are meant at this rate

# Frames [first, end) that are one shot, by peaks of difference and contact sheets; by half.
ONE_SHOT: dict[str, dict[str, list[tuple[int, int]]]] = {
    "tune": {
        "bbb_0_30.webm": [(64, 224), (285, 374), (378, 470), (553, 598)],
        "sintel_trailer_30s.mp4": [
            (100, 148), (258, 284), (410, 446), (494, 522), (526, 572), (575, 609), (646, 712),
        ],
        "stream_of_water.webm": [(0, 90)],
        "pattern_hd.mp4": [(0, 160)],
        "flower.webm": [(0, 150)],
        "astronaut.png": [(0, 1)],
        "gravel.png": [(0, 1)],
        "asl_sister.mkv": [(0, 87)],
        "chair22.mp4": [(0, 140), (290, 440)],
    },
    "held_out": {
        "nasa_13013.mp4": [(0, 124), (154, 201), (203, 325)],
        "bottle.mp4": [(480, 640)],
        "derived_friday_burnedtext_hevc.mp4": [(0, 185)],
        "spheres.mp4": [(0, 144)],
        "chelsea.png": [(0, 1)],
        "coffee.png": [(0, 1)],
        "hubble_deep_field.jpg": [(0, 1)],
        "car_detection.mp4": [(40, 200), (300, 377)],
        "cityCC0.mpg": [(0, 116), (117, 190)],
    },
}  # fmt: skip
CONDITIONS = (
    "plain", "ntsc_film", "ntsc_video", "60fps", "vfr", "letterbox", "dark", "low_contrast",
    "grain", "flashes", "pans",
)  # fmt: skip
RATES = {
    "ntsc_film": Fraction(24000, 1001),
    "ntsc_video": Fraction(30000, 1001),
    "60fps": Fraction(60),
}
VFR_RATES = (10, 12, 15, 24, 30)


class Truth(NamedTuple):
    """A boundary: a new shot begins with frame `end`; `begin` is less for a gradual one.

    Frames [begin, end) show two shots at once, or less than one.
    """

    kind: str
    begin: int
    end: int


@dataclass(slots=True)
class Film:
    """An encoded film and what is true of it."""

    name: str
    condition: str
    data: bytes
    truths: list[Truth]
    pts: list[int]
    events: list[tuple[str, int, int]] = field(default_factory=list)

    def frames(self) -> Iterator[Any]:
        """Yield its frames as decoded."""
        import av

        with av.open(io.BytesIO(self.data), "r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            yield from container.decode(stream)


class Shot:
    """Pictures from inside one shot, BGR at `SIZE`, at a time of its own clock."""

    def __init__(self, name: str, pictures: NDArray[np.uint8], fps: float) -> None:
        self.name = name
        self._pictures = pictures
        self._fps = fps

    def at(self, time_s: float) -> NDArray[np.uint8]:
        """Return the picture shown at a time; played there and back where it is too short."""
        count = len(self._pictures)
        turn = int(time_s * self._fps) % max(1, 2 * count - 2)
        return self._pictures[turn if turn < count else 2 * count - 2 - turn]


def load_shots(folders: list[Path], half: str) -> list[Shot]:
    """Decode the shots of a half that the folders hold, in the table's order."""
    shots: list[Shot] = []
    for name, spans in ONE_SHOT[half].items():
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            shots += _shots_of(path, spans)
    return shots


def _shots_of(path: Path, spans: list[tuple[int, int]]) -> list[Shot]:
    import av

    kept: dict[int, list[NDArray[np.uint8]]] = {i: [] for i in range(len(spans))}
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        fps = float(stream.average_rate or 25)
        for index, frame in enumerate(container.decode(stream)):
            for i, (first, end) in enumerate(spans):
                if first <= index < min(end, first + MAX_FRAMES):
                    kept[i].append(_cover(frame.to_ndarray(format="bgr24").astype(np.uint8)))
            if index >= max(end for _, end in spans):
                break
    return [
        Shot(f"{path.name}#{spans[i][0]}", np.stack(pictures), fps) for i, pictures in kept.items()
    ]


def _cover(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import cv2

    height, width = picture.shape[:2]
    scale = max(SIZE[0] / width, SIZE[1] / height)
    kept_width, kept_height = round(SIZE[0] / scale), round(SIZE[1] / scale)
    left, top = (width - kept_width) // 2, (height - kept_height) // 2
    part = picture[top : top + kept_height, left : left + kept_width]
    return np.asarray(cv2.resize(part, SIZE, interpolation=cv2.INTER_AREA), np.uint8)


# one segment ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Segment:
    """A shot shown in [begin_s, end_s) of a film, transitions included, and how."""

    shot: Shot
    begin_s: float
    end_s: float
    offset_s: float
    camera: str
    speed: float
    phase: float
    event: str = ""
    event_s: float = 0.0

    def at(self, time_s: float) -> NDArray[Any]:
        """Return the picture at a time of the film."""
        picture = self.shot.at(time_s - self.begin_s + self.offset_s)
        moved = _move(picture, self.camera, self.speed, self.phase, time_s - self.begin_s)
        return _happen(moved.astype(np.float32), self.event, time_s - self.event_s)


def _move(
    picture: NDArray[np.uint8], camera: str, speed: float, phase: float, time_s: float
) -> NDArray[np.uint8]:
    """Pan, zoom or shake over a picture; `speed` is in picture widths a second."""
    import cv2

    if camera == "still":
        return picture
    zoom, x, y = 1.6, 0.0, 0.0
    if camera == "pan":
        x = math.sin(phase + speed * time_s / 0.3) * 0.3
    elif camera == "whip":  # still, then across within a fifth of a second, then still
        x = 0.3 * math.tanh((time_s - 0.9 - phase / 10) / 0.1)
    elif camera == "zoom":
        zoom = 1.8 - 0.7 * math.cos(phase + speed * 2.5 * time_s)
    else:
        x, y = 0.03 * math.sin(phase + 19 * time_s), 0.03 * math.sin(2 * phase + 23 * time_s)
    width, height = SIZE
    matrix = np.array(
        [
            [zoom, 0, width * (0.5 - zoom * (0.5 + x / zoom))],
            [0, zoom, height * (0.5 - zoom * (0.5 + y / zoom))],
        ],
        np.float32,
    )
    return np.asarray(
        cv2.warpAffine(
            picture, matrix, SIZE, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
        ),
        np.uint8,
    )


def _happen(picture: NDArray[Any], event: str, since_s: float) -> NDArray[Any]:
    """Add what happens in a shot without ending it."""
    x, y = _grid()
    if event == "flash" and 0 <= since_s < 0.1:
        return np.minimum(255, 1.6 * picture + 110 * (1 - since_s / 0.15))
    if event == "strobe" and 0 <= since_s < 1.2 and int(since_s * 12) % 3 == 0:
        return np.minimum(255, 1.3 * picture + 130)
    if event == "lightning" and since_s >= 0:
        flicker = math.exp(-since_s / 0.12) + 0.7 * math.exp(-(((since_s - 0.3) / 0.05) ** 2))
        return np.minimum(255, picture * (1 + flicker) + 160 * flicker * (1 - y))
    if event == "explosion" and since_s >= 0:
        radius = 0.9 * (1 - math.exp(-since_s / 0.12))
        strength = math.exp(-max(0.0, since_s - 0.2) / 0.5)
        blob = strength / (1 + np.exp((np.hypot(x - 0.55, (y - 0.6) * 0.6) - radius) * 25))
        return picture * (1 - blob) + np.array([90, 190, 255], np.float32) * blob
    if event == "passer":
        middle = -0.4 + 1.8 * since_s / 0.6
        covered = (np.abs(x - middle) < 0.3) * np.ones_like(y)
        return picture * (1 - covered) + (30 + 40 * y) * covered
    return picture


@functools.cache
def _grid() -> tuple[NDArray[Any], NDArray[Any]]:
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]].astype(np.float32)
    return (x / SIZE[0])[..., None], (y / SIZE[1])[..., None]


# one film ------------------------------------------------------------------------------------


def make_film(shots: list[Shot], condition: str, seed: int, num_segments: int = 10) -> Film:
    """Splice a film under a condition; the same arguments give the same film."""
    rng = np.random.default_rng([seed, CONDITIONS.index(condition)])
    segments, joints, length_s = _plan(shots, condition, rng, num_segments)
    ticks = _stamps(condition, rng, length_s, joints)
    times = [float(tick * TICKS) for tick in ticks]
    truths = _truths(joints, times)
    noise = np.random.default_rng([seed, 77])
    pictures = (_grade(_compose(segments, joints, time_s), condition, noise) for time_s in times)
    data = _encode(pictures, ticks, RATES.get(condition, Fraction(REFERENCE_FPS)))
    events = [(s.event, _index(times, s.event_s), 0) for s in segments if s.event]
    return Film(f"{condition}-{seed}", condition, data, truths, ticks, events)


@dataclass(slots=True)
class _Joint:
    """Between two segments: it lasts over [begin_s, end_s), with `hold_s` of plain colour."""

    kind: str
    begin_s: float
    end_s: float
    hold_s: float = 0.0


def _plan(
    shots: list[Shot], condition: str, rng: np.random.Generator, num_segments: int
) -> tuple[list[Segment], list[_Joint], float]:
    segments: list[Segment] = []
    joints: list[_Joint] = []
    begin_s, last = 0.0, -1
    for index in range(num_segments):
        which = int(rng.integers(len(shots)))
        while which == last:
            which = int(rng.integers(len(shots)))
        last = which
        clear_s = float(rng.uniform(1.0, 3.0)) if rng.random() < 0.85 else 0.6
        end_s = (joints[-1].end_s if joints else 0.0) + clear_s
        joint = _joint(rng, end_s)
        shown_until_s = joint.end_s if index < num_segments - 1 else end_s
        segments.append(_segment(shots[which], begin_s, shown_until_s, condition, rng))
        segments[-1].event_s += (joints[-1].end_s if joints else 0.0) + clear_s * 0.35
        if clear_s < 2.0 or condition not in ("flashes",):
            segments[-1].event = ""
        if index < num_segments - 1:
            joints.append(joint)
            begin_s = joint.begin_s
    return segments, joints, segments[-1].end_s


def _joint(rng: np.random.Generator, begin_s: float) -> _Joint:
    dice = rng.random()
    if dice < 0.45:
        return _Joint("cut", begin_s, begin_s)
    if dice < 0.75:
        length_s = float(rng.integers(6, 49)) / REFERENCE_FPS
        return _Joint("dissolve", begin_s, begin_s + length_s)
    kind = "fade_black" if dice < 0.9 else "fade_white"
    length_s = float(rng.integers(12, 49)) / REFERENCE_FPS
    hold_s = float(rng.choice([0.0, 0.0, 0.25, 0.5]))
    return _Joint(kind, begin_s, begin_s + length_s + hold_s, hold_s)


def _segment(
    shot: Shot, begin_s: float, end_s: float, condition: str, rng: np.random.Generator
) -> Segment:
    camera, speed = "still", 0.0
    if shot.name.endswith((".png#0", ".jpg#0")):
        camera, speed = "pan", float(rng.uniform(0.02, 0.15))
    if condition == "pans":
        camera = str(rng.choice(["pan", "whip", "zoom", "shake"]))
        speed = float(rng.uniform(0.3, 1.2))
    event = str(rng.choice(["flash", "strobe", "lightning", "explosion", "passer"]))
    offset_s, phase = float(rng.uniform(0, 2)), float(rng.uniform(0, 6))
    return Segment(shot, begin_s, end_s, offset_s, camera, speed, phase, event)


def _stamps(
    condition: str, rng: np.random.Generator, length_s: float, joints: list[_Joint]
) -> list[int]:
    if condition != "vfr":
        step = 1 / RATES.get(condition, Fraction(REFERENCE_FPS)) / TICKS
        return [round(k * step) for k in range(int(length_s / float(step * TICKS)))]
    ticks, now_s, rate, number = [], 0.0, 24, 0
    while now_s < length_s:
        ticks.append(round(now_s / float(TICKS)))
        while number < len(joints) and joints[number].begin_s <= now_s:
            rate, number = int(rng.choice(VFR_RATES)), number + 1
        now_s += float(rng.uniform(0.8, 1.2)) / rate
    return ticks


def _index(times: list[float], time_s: float) -> int:
    return int(np.searchsorted(times, time_s - 1e-6))


def _truths(joints: list[_Joint], times: list[float]) -> list[Truth]:
    made: list[Truth] = []
    for joint in joints:
        begin = int(np.searchsorted(times, joint.begin_s + 1e-6, side="right"))
        end = _index(times, joint.end_s)
        first = _index(times, joint.begin_s) if joint.kind == "cut" else begin
        made.append(Truth(joint.kind, first, first if joint.kind == "cut" else max(first, end)))
    return made


def _compose(segments: list[Segment], joints: list[_Joint], time_s: float) -> NDArray[Any]:
    for number, joint in enumerate(joints):
        if time_s < joint.begin_s:
            return segments[number].at(time_s)
        if time_s < joint.end_s:
            return _mix(segments[number], segments[number + 1], joint, time_s)
    return segments[-1].at(time_s)


def _mix(before: Segment, after: Segment, joint: _Joint, time_s: float) -> NDArray[Any]:
    if joint.kind == "dissolve":
        share = (time_s - joint.begin_s) / (joint.end_s - joint.begin_s)
        return (1 - share) * before.at(time_s) + share * after.at(time_s)
    plain = np.float32(0 if joint.kind == "fade_black" else 255)
    half_s = (joint.end_s - joint.begin_s - joint.hold_s) / 2
    if time_s < joint.begin_s + half_s:
        share = (time_s - joint.begin_s) / half_s
        return (1 - share) * before.at(time_s) + share * plain
    share = max(0.0, (time_s - joint.end_s + half_s) / half_s)
    return (1 - share) * plain + share * after.at(time_s)


def _grade(picture: NDArray[Any], condition: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    if condition == "dark":
        picture = picture * 0.22
    elif condition == "low_contrast":
        picture = 110 + picture * 0.22
    elif condition == "grain":
        picture = picture + rng.normal(0, 14, picture.shape).astype(np.float32)
    elif condition == "letterbox":
        picture = picture.copy()
        picture[:26] = picture[-26:] = 0
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def _encode(pictures: Iterator[NDArray[np.uint8]], ticks: list[int], rate: Fraction) -> bytes:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        options = {"preset": "veryfast", "crf": "23"}
        stream = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.time_base = TICKS
        stream.codec_context.thread_count = 1
        for tick, picture in zip(ticks, pictures, strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="bgr24")
            frame.pts, frame.time_base = tick, TICKS
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()
