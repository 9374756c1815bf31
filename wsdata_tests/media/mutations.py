"""Seeded damage to real media: what the open web does to files, a few bytes at a time.

`make_bases` writes short re-encodes of the sample clips and pictures, one per container and
codec; `mutate` damages one of them in one of `KINDS`, the same way for the same seed on every
machine. What must hold of a damaged file is the tests'.
"""

import io
from fractions import Fraction
from pathlib import Path

import numpy as np

from wsdata_tests.e2e.homes import ROOT

SAMPLES = ROOT / "samples" / "media"
SIZE = (256, 144)
FPS = 10
NUM_FRAMES = 14

VIDEOS = {  # suffix: format, video codec, options, audio codec, clip
    "mp4": ("mp4", "libx264", {"preset": "ultrafast", "g": "8"}, "aac", "bottle.mp4"),
    "fast.mp4": ("mp4", "libx264", {"preset": "ultrafast"}, "aac", "spheres.mp4"),
    "mkv": ("matroska", "libx265", {"preset": "ultrafast"}, "flac", "flower.webm"),
    "webm": ("webm", "libvpx", {"deadline": "realtime", "cpu-used": "8"}, "libopus",
             "stream_of_water.webm"),
    "avi": ("avi", "mpeg4", {}, "mp3", "nasa_13013.mp4"),
    "ts": ("mpegts", "mpeg2video", {}, "mp2", "flower.webm"),
}  # fmt: skip
PICTURES = ("gif", "png", "jpg", "webp", "avif")
SUFFIXES = (*VIDEOS, *PICTURES)

# names of parts whose size stands in the four bytes before (MP4, AVIF, PNG) or after (RIFF)
_SIZE_BEFORE = (
    b"moov", b"trak", b"mdat", b"stsz", b"stco", b"stts", b"stsc", b"stsd", b"ctts", b"elst",
    b"mdhd", b"avcC", b"meta", b"iloc", b"iprp", b"IHDR", b"IDAT", b"ftyp",
)  # fmt: skip
_SIZE_AFTER = (b"RIFF", b"LIST", b"idx1", b"strh", b"strf", b"avih", b"00dc", b"VP8 ", b"VP8X")
_EBML = (
    b"\x1a\x45\xdf\xa3",
    b"\x18\x53\x80\x67",
    b"\x16\x54\xae\x6b",
    b"\x1f\x43\xb6\x75",
    b"\xa3",
)
_JPEG_SEGMENTS = (b"\xff\xc0", b"\xff\xc4", b"\xff\xda", b"\xff\xdb", b"\xff\xe0")
_CODECS = (
    b"avc1", b"hev1", b"av01", b"vp09", b"mp4v", b"mp4a", b"FMP4", b"MJPG", b"H264", b"XVID",
    b"V_VP8", b"V_VP9", b"V_AV1", b"A_OPUS", b"A_FLAC", b"V_MPEGH/ISO/HEVC", b"V_MPEG4/ISO/AVC",
)  # fmt: skip
_LIES = (0, 1, 7, 0x7FFFFFFF, 0xFFFFFFFF)


def _frames(clip):
    import av

    with av.open(str(SAMPLES / clip)) as container:
        for index, frame in zip(range(NUM_FRAMES), container.decode(video=0), strict=False):
            made = frame.reformat(*SIZE, "yuv420p")
            made.pts, made.time_base = index, Fraction(1, FPS)
            yield made


def _sound(container, codec):
    import av

    stream = container.add_stream(codec, rate=48000, layout="stereo")
    t = np.arange(48000 * NUM_FRAMES // FPS) / 48000
    wave = (8000 * np.sin(2 * np.pi * (300 + 200 * t) * t)).astype(np.int16)
    resampler = av.AudioResampler(stream.codec_context.format, "stereo", 48000)
    frame = av.AudioFrame.from_ndarray(np.repeat(wave, 2)[None], format="s16", layout="stereo")
    frame.sample_rate, frame.pts = 48000, 0
    frame.time_base = Fraction(1, 48000)
    return stream, resampler.resample(frame)


def _make_video(folder, suffix):
    import av

    name, codec, options, audio, clip = VIDEOS[suffix]
    muxing = {"fflags": "+bitexact"}  # else some containers draw random numbers for themselves
    muxing |= {"movflags": "+faststart"} if suffix.startswith("fast") else {}
    path = Path(folder) / f"made.{suffix}"  # the header goes to the front in a second pass
    with av.open(str(path), "w", format=name, options=muxing) as container:
        video = container.add_stream(codec, rate=FPS, options={**options, "threads": "1"})
        video.width, video.height, video.pix_fmt = *SIZE, "yuv420p"
        if codec == "libx265":
            video.options = {**options, "x265-params": "log-level=none:pools=none"}
        sound, blocks = _sound(container, audio)
        for frame in _frames(clip):
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        for block in blocks:
            container.mux(sound.encode(block))
        container.mux(sound.encode(None))
    return path.read_bytes()


def _make_gif():
    import av

    held = io.BytesIO()
    with av.open(held, "w", format="gif") as container:
        stream = container.add_stream("gif", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 128, 72, "rgb8"
        for frame in _frames("bottle.mp4"):
            container.mux(stream.encode(frame.reformat(128, 72, "rgb8")))
        container.mux(stream.encode(None))
    return held.getvalue()


def _make_avif():
    import av

    held = io.BytesIO()
    with av.open(held, "w", format="avif") as container:
        options = {"preset": "11", "crf": "50", "svtav1-params": "lp=1"}
        stream = container.add_stream("libsvtav1", rate=1, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        frame = next(_frames("flower.webm"))
        frame.pts, frame.time_base = 0, Fraction(1)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return held.getvalue()


def _make_picture(suffix):
    import cv2

    picture = cv2.resize(cv2.imread(str(SAMPLES / "rocket.jpg")), SIZE)
    return cv2.imencode(f".{suffix}", picture)[1].tobytes()


def make_bases(folder):
    """Whole files by suffix: their bytes. The folder is used on the way."""
    made = {suffix: _make_video(folder, suffix) for suffix in VIDEOS}
    made |= {suffix: _make_picture(suffix) for suffix in ("png", "jpg", "webp")}
    return made | {"gif": _make_gif(), "avif": _make_avif()}


# damage: each takes (bytes, generator, all bases) and returns bytes ---------------------------


def _flip(data, draw, count, low, high):
    at = draw.integers(low, max(low + 1, high), count)
    for index, bit in zip(at, draw.integers(0, 8, count), strict=True):
        data[index] ^= 1 << int(bit)
    return bytes(data)


def flip_anywhere(data, draw, _bases):
    return _flip(bytearray(data), draw, int(draw.integers(1, 60)), 0, len(data))


def flip_header(data, draw, _bases):
    """In the first or the last part, where containers keep their tables."""
    part = max(64, len(data) // 16)
    low = 4 if draw.random() < 0.5 else len(data) - part
    return _flip(bytearray(data), draw, int(draw.integers(1, 12)), low, low + part - 4)


def cut_off(data, draw, _bases):
    return data[: int(draw.integers(1, len(data)))]


def _places(data, names):
    return sorted(at for name in names for at in [data.find(name), data.rfind(name)] if at >= 0)


def lie_about_size(data, draw, bases):
    """A part says that it is of another size."""
    held = bytearray(data)
    lie = (
        _LIES[int(draw.integers(len(_LIES)))]
        if draw.random() < 0.7
        else int(draw.integers(1 << 32))
    )
    fields = [(at - 4, 4) for at in _places(data, _SIZE_BEFORE) if at >= 4]
    fields += [(at + 4, -4) for at in _places(data, _SIZE_AFTER)]
    fields += [(at + len(name), 1) for name in _EBML for at in _places(data, [name])[:1]]
    fields += [(at + 2, 2) for at in _places(data, _JPEG_SEGMENTS)]
    fields = [(at, size) for at, size in fields if at + abs(size) <= len(data)]
    if not fields:
        return flip_header(data, draw, bases)
    at, size = fields[int(draw.integers(len(fields)))]
    order = "little" if size < 0 else "big"
    size = abs(size)
    held[at : at + size] = (lie % (1 << 8 * size)).to_bytes(size, order)
    return bytes(held)


def splice_codec(data, draw, bases):
    """Another codec is named than that of the stream."""
    found = [name for name in _CODECS if name in data]
    if not found:
        return swap_header(data, draw, bases)
    old = found[int(draw.integers(len(found)))]
    others = [name for name in _CODECS if name != old]
    new = others[int(draw.integers(len(others)))].ljust(len(old))[: len(old)]
    return data.replace(old, new)


def swap_header(data, draw, bases):
    """The start of another container before this one's body."""
    other = bases[SUFFIXES[int(draw.integers(len(SUFFIXES)))]]
    size = int(draw.integers(4, 1024))
    return other[:size] + data[size:]


def splice_files(data, draw, bases):
    """The first part of this file, then the last of another."""
    other = bases[SUFFIXES[int(draw.integers(len(SUFFIXES)))]]
    return data[: int(draw.integers(1, len(data)))] + other[int(draw.integers(len(other))) :]


def zero_run(data, draw, _bases):
    size = int(draw.integers(16, max(17, len(data) // 4)))
    at = int(draw.integers(0, len(data) - size))
    return data[:at] + bytes(size) + data[at + size :]


def noise_run(data, draw, _bases):
    size = int(draw.integers(16, max(17, len(data) // 8)))
    at = int(draw.integers(0, len(data) - size))
    return data[:at] + draw.bytes(size) + data[at + size :]


def repeat_chunk(data, draw, _bases):
    """A chunk stands twice, or is missing: what broken downloads do."""
    size = int(draw.integers(16, max(17, len(data) // 4)))
    at = int(draw.integers(0, len(data) - size))
    return data[: at + size] + data[at:] if draw.random() < 0.5 else data[:at] + data[at + size :]


KINDS = {
    damage.__name__: damage
    for damage in (
        flip_anywhere, flip_header, cut_off, lie_about_size, splice_codec, swap_header,
        splice_files, zero_run, noise_run, repeat_chunk,
    )
}  # fmt: skip


def mutate(bases, suffix, kind, seed):
    """One damaged file: the same bytes for the same arguments."""
    draw = np.random.default_rng([seed, SUFFIXES.index(suffix), list(KINDS).index(kind)])
    return KINDS[kind](bases[suffix], draw, bases)
