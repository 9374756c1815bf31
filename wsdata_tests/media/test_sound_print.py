import builtins
import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from wsdata.errors import SandboxError
from wsdata.ingest.fingerprint import print_file
from wsdata.media.sandbox import reachable_level
from wsdata.media.sound_print import (
    CODE_S,
    require_chromaprint,
    shared_sound,
    sound_codes,
    unpack_codes,
    voting_codes,
)

RATE_HZ = 44_100
MEDIA = Path(__file__).parents[2] / "samples" / "media"
SAME_ERROR, STRANGER_ERROR = 0.05, 0.42


def _tune(seed: int, seconds: float) -> np.ndarray:
    """Chords that change four times a second."""
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    wave = np.zeros_like(at)
    for start in np.arange(0, seconds, 0.25):
        here = (at >= start) & (at < start + 0.25)
        for note in rng.integers(0, 36, 3):
            wave[here] += np.sin(2 * np.pi * 110 * 2 ** (note / 12) * at[here])
    return (wave / 4).astype(np.float32)


def _coded(wave: np.ndarray, codec: str, container_format: str, *, starts_at: int = 0) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=48_000, layout="mono")
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=48_000)
        for start in range(0, len(wave), 1024):
            frame = av.AudioFrame.from_ndarray(wave[None, start : start + 1024], "flt", "mono")
            frame.sample_rate, frame.time_base = RATE_HZ, Fraction(1, RATE_HZ)
            frame.pts = start + starts_at
            for out in resampler.resample(frame):
                container.mux(stream.encode(out))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def _codes(data: bytes) -> np.ndarray:
    found = sound_codes(io.BytesIO(data), video_start_s=0.0)
    assert found is not None
    return unpack_codes(bytes.fromhex(found["codes"]))


def _by_trying(a, b, least):
    """Oracle: every offset, bit by bit."""
    best = None
    for offset in range(1 - len(a), len(b)):
        pairs = [(a[i], b[i + offset]) for i in range(len(a)) if 0 <= i + offset < len(b)]
        if len(pairs) < least:
            continue
        error = sum(int(x ^ y).bit_count() for x, y in pairs) / (32 * len(pairs))
        if best is None or (error, abs(offset), offset) < best[0]:
            best = ((error, abs(offset), offset), len(pairs))
    return best


def test_a_copy_in_another_codec_has_nearly_the_same_codes_and_a_stranger_has_not():
    tune = _tune(1, 12)
    original = _codes(_coded(tune, "flac", "matroska"))
    quiet = _codes(_coded(0.3 * tune, "libopus", "matroska"))
    stranger = _codes(_coded(_tune(2, 12), "aac", "mp4"))
    same = shared_sound(original, quiet)
    assert same.error <= SAME_ERROR
    assert abs(same.offset) <= 1
    assert shared_sound(original, stranger).error >= 0.35  # the least of all offsets
    at_zero = np.bitwise_count(original[:60] ^ stranger[:60]).mean() / 32
    assert at_zero >= STRANGER_ERROR


def test_the_offset_is_that_of_an_added_intro():
    tune = _tune(3, 10)
    intro = _tune(4, 4)
    longer = _codes(_coded(np.concatenate([intro, tune]), "aac", "mp4"))
    same = shared_sound(_codes(_coded(tune, "flac", "matroska")), longer)
    assert same.offset * CODE_S == pytest.approx(4, abs=CODE_S)
    assert same.error < 0.1


def test_the_best_offset_is_the_one_that_trying_all_finds():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2**32, 60, dtype=np.uint32)
    b = np.concatenate([rng.integers(0, 2**32, 17, dtype=np.uint32), a[:40] ^ np.uint32(5)])
    found = shared_sound(a, b)
    (error, _, offset), count = _by_trying(a.tolist(), b.tolist(), 30)
    assert (found.offset, found.num_codes) == (offset, count) == (17, 40)
    assert found.error == pytest.approx(error)


def test_silence_has_no_vote():
    still = np.zeros(10 * RATE_HZ, np.float32)
    silent = sound_codes(io.BytesIO(_coded(still, "flac", "matroska")), video_start_s=0.0)
    assert silent is None or not voting_codes(unpack_codes(bytes.fromhex(silent["codes"]))).any()
    held = np.full(200, 77, np.uint32)
    assert shared_sound(held, held) is None
    assert not voting_codes(np.zeros(0, np.uint32)).any()


def test_the_start_is_told_from_the_first_picture():
    data = _coded(_tune(5, 5), "flac", "matroska", starts_at=2 * RATE_HZ)
    assert sound_codes(io.BytesIO(data), video_start_s=0.5)["start_s"] == pytest.approx(
        1.5, abs=0.1
    )


def test_a_file_without_sound_has_no_print(tmp_path):
    level = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
    found, report = print_file(
        MEDIA / "testsrc_av1.mkv", tmp_path, minimum_level=level, has_sound=True
    )
    assert report.status == "ok"
    assert found["sound"] is None
    assert found["prints"]


def test_a_missing_library_is_an_error_and_no_silence(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "chromaprint":
            raise ImportError("couldn't find libchromaprint")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SandboxError, match="libchromaprint1"):
        require_chromaprint()
    with pytest.raises(SandboxError, match="libchromaprint1"):
        print_file(MEDIA / "flower.webm", tmp_path, minimum_level="limits", has_sound=True)
