"""Small media made for tests: textured moving scenes, coded in ways that a test asks for."""

import io
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from av.stream import Disposition
from numpy.typing import NDArray

WIDTH, HEIGHT = 256, 144
Frames = list[NDArray[np.uint8]]


def scene(seed: int, num_frames: int, width: int = WIDTH, height: int = HEIGHT) -> Frames:
    """A textured picture that drifts; another seed is another picture altogether."""
    rng = np.random.default_rng(seed)
    large = np.zeros((height + 64, width + 64, 3), np.float32)
    for cells, weight in ((4, 1.0), (9, 0.7), (20, 0.4)):
        noise = rng.random((cells, cells, 3), np.float32)
        large += weight * cv2.resize(
            noise, (width + 64, height + 64), interpolation=cv2.INTER_CUBIC
        )
    large = np.clip(large / 2.1 * 255, 0, 255).astype(np.uint8)
    step_x, step_y = rng.integers(-2, 3, 2)
    shifts = [(int(32 + 0.3 * step_x * i) % 64, int(32 + 0.3 * step_y * i) % 64)
              for i in range(num_frames)]  # fmt: skip
    return [np.ascontiguousarray(large[y : y + height, x : x + width]) for x, y in shifts]


def _close(container, streams) -> None:
    for stream in streams:
        container.mux(stream.encode(None))
    container.close()


def video(
    frames: Frames,
    *,
    fps: int = 24,
    codec: str = "libx264",
    quality: int = 20,
    rotation_deg: int = 0,
    sar: Fraction | None = None,
    at_ms: list[int] | None = None,
    gop: int = 48,
    is_faststart: bool = False,
) -> bytes:
    """Code frames as an mp4. `rotation_deg`: clockwise turn that a player applies."""
    folder = tempfile.TemporaryDirectory()  # moving the index to the front needs a real file
    path = Path(folder.name) / "made.mp4"
    options = {"movflags": "+faststart"} if is_faststart else {}
    container = av.open(str(path), "w", format="mp4", options=options)
    stream = container.add_stream(codec, rate=fps)
    stream.height, stream.width = frames[0].shape[:2]
    stream.pix_fmt = "yuv420p"
    stream.gop_size = gop
    stream.options = {"crf": str(quality), "preset": "veryfast", "threads": "1"}
    if sar is not None:
        stream.sample_aspect_ratio = sar
    if rotation_deg:
        stream.set_display_rotation(-rotation_deg)
    time_base = Fraction(1, 1000) if at_ms else Fraction(1, fps)
    stream.time_base = stream.codec_context.time_base = time_base
    for index, picture in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts = at_ms[index] if at_ms else index
        frame.time_base = time_base
        container.mux(stream.encode(frame))
    _close(container, [stream])
    with folder:
        return path.read_bytes()


def streams(many: list[Frames], *, defaults: list[bool], fps: int = 24) -> bytes:
    """Code several video streams into one Matroska file."""
    buffer = io.BytesIO()
    container = av.open(buffer, "w", format="matroska")
    made = []
    for frames, is_default in zip(many, defaults, strict=True):
        stream = container.add_stream("libx264", rate=fps)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.disposition = Disposition.default if is_default else Disposition(0)
        made.append(stream)
    for index in range(len(many[0])):
        for frames, stream in zip(many, made, strict=True):
            frame = av.VideoFrame.from_ndarray(frames[index], format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, fps)
            container.mux(stream.encode(frame))
    _close(container, made)
    return buffer.getvalue()


def sound(*, with_cover: bool = False) -> bytes:
    """One second of a tone, with or without cover art as a video stream."""
    buffer = io.BytesIO()
    container = av.open(buffer, "w", format="mp4")
    stream = container.add_stream("aac", rate=48000, layout="mono")
    made = [stream]
    if with_cover:
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 320, 320, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        made.append(cover)
        frame = av.VideoFrame.from_ndarray(scene(0, 1, 320, 320)[0], format="rgb24")
        container.mux(cover.encode(frame))
    wave = (np.sin(np.arange(48000) * 2 * np.pi * 440 / 48000) * 0.4).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(wave[None], format="fltp", layout="mono")
    frame.sample_rate = 48000
    container.mux(stream.encode(frame))
    _close(container, made)
    return buffer.getvalue()


def png(rgb_hwc: NDArray[np.uint8]) -> bytes:
    """Code one picture as PNG."""
    return cv2.imencode(".png", rgb_hwc[:, :, ::-1])[1].tobytes()


def jpeg(rgb_hwc: NDArray[np.uint8]) -> bytes:
    """Code one picture as JPEG."""
    return cv2.imencode(".jpg", rgb_hwc[:, :, ::-1])[1].tobytes()
