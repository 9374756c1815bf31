"""Tiny media with known contents, made with PyAV: no program, no sample, no randomness.

A video is a list of segments ``(pattern, seconds)`` or ``(pattern, seconds, fps)``, with a hard
cut between neighbours of different pattern. `PATTERNS` names the pictures.
"""

import functools
import io
from fractions import Fraction
from pathlib import Path

import numpy as np

MS = Fraction(1, 1000)
RATE_HZ = 48000


@functools.cache
def _grid(size):
    width, height = size
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    return x / width, y / height


def _bars(size, time_s):
    x, y = _grid(size)
    shift = 0.02 * time_s
    red = np.where((x * 7).astype(int) % 2, 200, 60) * np.ones_like(y)
    return np.stack([red, 255 * ((x + shift) % 1), 40 + 160 * y], -1)


def _gradient(size, time_s):
    x, y = _grid(size)
    wave = 0.5 + 0.5 * np.sin(12 * (x + y) + 2 * time_s)
    return np.stack([30 + 40 * x, 60 + 120 * wave, 200 - 150 * y], -1)


def _checker(size, time_s):
    x, y = _grid(size)
    cells = ((x * 9 + 0.5 * time_s).astype(int) + (y * 5).astype(int)) % 2
    return np.stack([220 - 180 * cells, 30 + 60 * x, 40 + 20 * cells], -1)


def _rings(size, time_s):
    x, y = _grid(size)
    radius = np.hypot(x - 0.5 - 0.05 * np.sin(time_s), y - 0.5)
    wave = 0.5 + 0.5 * np.cos(40 * radius)
    return np.stack([255 * wave, 255 * wave, 20 + 200 * radius], -1)


def _quadrants(size, _time_s):
    """Red, green, blue, white from the top left, clockwise from left: tells which way is up."""
    x, y = _grid(size)
    left, top = x < 0.5, y < 0.5
    red = np.where((left & top) | (~left & ~top), 235, 16)
    green = np.where((~left & top) | (~left & ~top), 235, 16)
    blue = np.where((left & ~top) | (~left & ~top), 235, 16)
    return np.stack([red, green, blue], -1)


def _black(size, _time_s):
    return np.zeros((size[1], size[0], 3))


PATTERNS = {
    "bars": _bars,
    "gradient": _gradient,
    "checker": _checker,
    "rings": _rings,
    "quadrants": _quadrants,
    "black": _black,
}


def picture(pattern, size, time_s=0.0):
    """RGB picture, uint8, shape (height, width, 3)."""
    made = PATTERNS[pattern](size, time_s)
    return np.clip(np.rint(made), 0, 255).astype(np.uint8)


def _segments(segments, fps):
    return [(*segment, fps)[:3] for segment in segments]


def _pictures(segments, fps, size):
    """Yield (pts in ms, duration in ms, picture); every segment restarts its own clock."""
    begin = Fraction(0)
    for pattern, seconds, rate in _segments(segments, fps):
        count = round(Fraction(seconds) * Fraction(rate))
        for i in range(count):
            at = begin + Fraction(i) / Fraction(rate)
            yield at, Fraction(1) / Fraction(rate), picture(pattern, size, float(at))
        begin += Fraction(count) / Fraction(rate)


def _time_base(segments, fps):
    rates = {Fraction(rate) for _, _, rate in _segments(segments, fps)}
    return 1 / (rates.pop() * 512) if len(rates) == 1 else MS / 90


def _add_video(container, segments, fps, size, codec, options, rotation=0, sar=None):
    rates = {Fraction(rate) for _, _, rate in _segments(segments, fps)}
    stream = container.add_stream(codec, rate=max(rates), options=options)
    stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
    stream.codec_context.time_base = _time_base(segments, fps)
    stream.codec_context.gop_size = 48
    stream.codec_context.thread_count = 1
    if sar is not None:
        stream.codec_context.sample_aspect_ratio = sar
    if rotation:
        stream.set_display_rotation(rotation)
    return stream


def _video_frames(segments, fps, size):
    import av

    base = _time_base(segments, fps)
    for at, lasts, pixels in _pictures(segments, fps, size):
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = round(at / base), base
        frame.duration = round(lasts / base)
        yield frame


def tone(seconds, kind="sine"):
    """Stereo samples, float32, shape (2, samples): "sine", "silence" or "clipped"."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    wave = {"sine": 0.25, "silence": 0.0, "clipped": 4.0}[kind] * np.sin(2 * np.pi * 440 * t)
    return np.clip(np.stack([wave, wave]), -1, 1).astype(np.float32)


def _audio_frames(seconds, kind, delay_s):
    import av

    samples = tone(seconds, kind)
    for start in range(0, samples.shape[1], 1024):
        block = np.ascontiguousarray(samples[:, start : start + 1024])
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
        frame.sample_rate = RATE_HZ
        frame.time_base = Fraction(1, RATE_HZ)
        frame.pts = start + round(delay_s * RATE_HZ)
        yield frame


def _interleave(container, series):
    """Encode several (stream, frames) together, in order of time."""
    heads = [[stream, frames, next(frames, None)] for stream, frames in series]
    while any(frame is not None for _, _, frame in heads):
        head = min((h for h in heads if h[2] is not None), key=lambda h: h[2].pts * h[2].time_base)
        container.mux(head[0].encode(head[2]))
        head[2] = next(head[1], None)
    for stream, _, _ in heads:
        container.mux(stream.encode(None))


def make_video(
    path,
    segments=(("bars", 3), ("gradient", 3)),
    *,
    fps=24,
    size=(320, 180),
    audio=None,
    audio_s=None,
    audio_delay_s=0.0,
    rotation=0,
    sar=None,
    codec="libx264",
    container_format=None,
    second_video=None,
    faststart=False,
):
    """Write a video and return its path.

    `rotation` is counter-clockwise, as containers state it. `audio` is a kind of `tone`.
    `second_video` is ``(segments, size)`` of a further, not default, video stream.
    """
    import av
    from av.stream import Disposition

    path = Path(path)
    options = {"preset": "veryfast", "crf": "18"} if codec == "libx264" else {}
    muxing = {"movflags": "+faststart"} if faststart else {}
    total_s = sum(float(seconds) for _, seconds, *_ in segments)
    with av.open(str(path), "w", format=container_format, options=muxing) as container:
        video = _add_video(container, segments, fps, size, codec, options, rotation, sar)
        series = [(video, _video_frames(segments, fps, size))]
        if second_video is not None:
            others, other_size = second_video
            other = _add_video(container, others, fps, other_size, codec, options)
            video.disposition = Disposition.default
            other.disposition = Disposition(0)
            series.append((other, _video_frames(others, fps, other_size)))
        if audio is not None:
            webm = path.suffix == ".webm"
            sound = container.add_stream("libopus" if webm else "aac", rate=RATE_HZ)
            sound.layout = "stereo"
            series.append((sound, _audio_frames(audio_s or total_s, audio, audio_delay_s)))
        _interleave(container, series)
    return path


def make_audio(path, seconds=3.0, kind="sine", *, cover=None):
    """Write sound alone, with a cover picture of size `cover` as an attached one if given."""
    import av
    from av.stream import Disposition

    with av.open(str(path), "w", format="mp4") as container:
        sound = container.add_stream("aac", rate=RATE_HZ)
        sound.layout = "stereo"
        series = [(sound, _audio_frames(seconds, kind, 0.0))]
        if cover is not None:
            art = container.add_stream("mjpeg", rate=1)
            art.width, art.height, art.pix_fmt = *cover, "yuvj420p"
            art.disposition = Disposition.attached_pic
            frame = av.VideoFrame.from_ndarray(picture("bars", cover), format="rgb24")
            frame = frame.reformat(format="yuvj420p")
            frame.pts, frame.time_base = 0, Fraction(1)
            series.append((art, iter([frame])))
        _interleave(container, series)
    return Path(path)


def make_image(path, pattern="quadrants", size=(320, 240)):
    """Write a PNG or JPEG, by its suffix; another name takes a JPEG's bytes."""
    from wsdata.media.encode import encode_jpeg, encode_png

    path = Path(path)
    encode = encode_png if path.suffix == ".png" else encode_jpeg
    path.write_bytes(encode(picture(pattern, size)))
    return path


def truncate(path, share, out):
    """Keep the first `share` of a file's bytes."""
    data = Path(path).read_bytes()
    Path(out).write_bytes(data[: int(len(data) * share)])
    return Path(out)


def corrupt(path, at_share, num_bytes, out, seed=0):
    """Overwrite bytes of a file with seeded noise."""
    data = bytearray(Path(path).read_bytes())
    at = int(len(data) * at_share)
    data[at : at + num_bytes] = np.random.default_rng(seed).bytes(num_bytes)
    Path(out).write_bytes(data)
    return Path(out)


def read_rgb(data):
    """Frames of our own transcode through PyAV's plain conversion: a rough oracle."""
    import av

    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


# hostile inputs, by the id of the fault they stand for ---------------------------------------

GOOD = (("bars", 4), ("rings", 5), ("checker", 6))


def make_good(path, *, size=(640, 360), **options):
    """15 s, 24 fps, hard cuts at 4.0 and 9.0 s, with sound."""
    return make_video(path, GOOD, size=size, audio="sine", **options)


def make_h1(folder):
    """A file with its header in front, cut off at 60 %: decodes up to the break."""
    whole = make_good(Path(folder) / "h1_whole.mp4", size=(320, 180), faststart=True)
    cut = truncate(whole, 0.6, Path(folder) / "h1_trunc_faststart.mp4")
    whole.unlink()
    return cut


def make_h2(folder):
    """An empty file, one without its header, a text and a JPEG that are both called .mp4."""
    folder = Path(folder)
    whole = make_video(folder / "h2_whole.mp4")
    made = {
        "empty": folder / "h2_empty.mp4",
        "no_header": truncate(whole, 0.6, folder / "h2_no_header.mp4"),
        "text": folder / "h2_text.mp4",
        "jpeg": make_image(folder / "h2_jpeg.mp4"),
    }
    whole.unlink()
    made["empty"].write_bytes(b"")
    made["text"].write_bytes(b"this is no video\n" * 40)
    return made


def make_h4(folder):
    """A file with its header in front and 4,000 bytes of noise past its middle."""
    folder = Path(folder)
    whole = make_good(folder / "h4_whole.mp4", size=(320, 180), faststart=True)
    noisy = corrupt(whole, 0.55, 4000, folder / "h4_noise.mp4", seed=4)
    whole.unlink()
    return noisy


def make_h9(path):
    """Variable frame rate: 5 s at 30 fps, then 5 s and 5 s at 10 fps; cuts at 5 and 10 s."""
    return make_video(path, (("bars", 5, 30), ("rings", 5, 10), ("checker", 5, 10)))


def make_h14(path, rotation, size=(640, 360)):
    """A picture that tells which way is up, with a rotation in its metadata."""
    return make_video(path, (("quadrants", 3),), size=size, rotation=rotation)


def make_h16(folder):
    """Two video streams, no sound, sound alone, and sound with a cover picture."""
    folder = Path(folder)
    small_first = (("bars", 3),)
    return {
        "two_videos": make_video(
            folder / "h16_two.mp4", (("rings", 3),), size=(480, 270),
            second_video=(small_first, (640, 360)), audio="sine",
        ),
        "no_audio": make_video(folder / "h16_silent.mp4", (("rings", 3),)),
        "audio_only": make_audio(folder / "h16_sound.m4a"),
        "cover_art": make_audio(folder / "h16_cover.m4a", cover=(320, 320)),
    }  # fmt: skip
