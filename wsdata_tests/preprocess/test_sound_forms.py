"""Sound of whole files: slips and drifts that their ends tell, waiting on disk, stored forms."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from wsdata.media import audio as media_audio
from wsdata.media.audio import AudioTimeline, read_audio, resample
from wsdata.media.encode_sound import MUSIC_RATE_HZ
from wsdata.media.loudness import integrated_loudness_lufs
from wsdata.preprocess.onepass import decode_job
from wsdata.preprocess.sound import Span, file_drift_ms, stored_sound
from wsdata.preprocess.sound_output import SoundOutput, sound_timeline
from wsdata.preprocess.windows import WindowRule
from wsdata_tests.preprocess.picture_support import MEDIA

RATE = 48000


def _push(timeline, seconds, *, at_s=0.0, level=0.25):
    t = np.arange(round(seconds * RATE)) / RATE
    wave = level * np.sin(2 * np.pi * 440 * t)
    for start in range(0, len(wave), 4800):
        block = np.ascontiguousarray(wave[None, start : start + 4800].astype(np.float32))
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
        frame.sample_rate, frame.time_base = RATE, Fraction(1, RATE)
        frame.pts = start + round(at_s * RATE)
        timeline.push(frame)


def _judged(tmp_path, sound, video_s=8.0, clip_s=2.0, *, is_whole=True):
    """Statuses of clips of `clip_s` of a video; sound is (start, end)."""
    timeline = sound_timeline(tmp_path)
    output = SoundOutput(tmp_path, timeline, 0.0)
    starts = np.arange(0, video_s - 1e-9, clip_s)
    rows = [
        {"start_s": s, "end_s": s + clip_s, "start_ms": round(1000 * s)} for s in map(float, starts)
    ]
    for row in rows:
        output.add(row)
    _push(timeline, sound[1] - sound[0], at_s=sound[0])
    output.judge()
    output.judge(is_over=True)
    output.settle(video_s, is_whole=is_whole)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {row["audio"]["file"] for row in rows if "file" in row["audio"]}
    return [row["audio"]["status"] for row in rows]


@pytest.mark.parametrize(
    ("sound", "statuses"),
    [
        ((0.04, 8.1), ["kept"] * 4),
        ((0.12, 8.12), ["unsynced"] * 4),  # H18: shifted by the container
        ((-0.12, 7.88), ["unsynced"] * 4),
        ((1.5, 9.5), ["unsynced"] * 4),  # as well where it is much
        ((2.0, 8.0), ["none", "kept", "kept", "kept"]),  # begins late by design
        ((3.0, 8.0), ["none", "unsynced", "kept", "kept"]),
        ((0.0, 5.0), ["kept", "kept", "unsynced", "none"]),  # ends early
        ((0.0, 8.0 * 24 / 25), ["unsynced"] * 4),  # pictures of 25 a second shown as 24
    ],
)
def test_what_the_ends_of_a_file_tell_of_its_clips(tmp_path, sound, statuses):
    assert _judged(tmp_path, sound) == statuses


def test_a_late_start_in_a_file_that_breaks_off_is_taken_for_a_shift(tmp_path):
    assert _judged(tmp_path, (2.0, 8.0), is_whole=False) == ["none"] + ["unsynced"] * 3


@pytest.mark.parametrize(
    ("video_s", "sound_s", "at_s", "drift_ms"),
    [
        (600, 600 * 1001 / 1000, 60, 60),
        (600, 600 * 1001 / 1000, 30, 30),
        (600, 600 * 1001 / 1000, 600, 600),
        (600, 600 * 25025 / 24000, 6, 256.25),
        (600, 600 / (48000 / 44100), 1, 81.25),
        (600, 599.9, 600, 0),
        (600, 590, 600, 0),  # ends early, as many do
        (60, 60.06, 60, 0),  # too little to be told from an end that is padded
    ],
)
def test_a_drift_grows_where_the_lengths_are_those_of_a_wrong_rate(
    video_s, sound_s, at_s, drift_ms
):
    video, sound = Span(start_s=5, end_s=5 + video_s), Span(start_s=5, end_s=5 + sound_s)
    assert file_drift_ms(video, sound, at_s=5 + at_s) == pytest.approx(drift_ms, abs=0.01)


def test_sound_far_ahead_of_the_pictures_waits_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(media_audio, "MAX_HELD_BYTES", 1 << 20)
    monkeypatch.setattr(media_audio, "SPILL_BYTES", 1 << 20)
    waiting, plain = sound_timeline(tmp_path), AudioTimeline(rate_hz=44100, num_channels=2)
    for timeline in (waiting, plain):
        _push(timeline, 30)
        timeline.finish()
    assert waiting.held_bytes <= 1 << 20 < plain.held_bytes
    for start in (0.0, 5.3, 17.77, 28.5):
        np.testing.assert_array_equal(waiting.take(start, start + 3), plain.take(start, start + 3))
    waiting.forget_before(20.0)
    assert waiting.held_bytes < 4096  # the end of the last file fits again
    assert not waiting.take(10, 15).any()
    np.testing.assert_array_equal(waiting.take(20.1, 25), plain.take(20.1, 25))
    assert not list(tmp_path.iterdir()), "the files have no name"


def test_sound_that_no_clip_will_ask_for_is_not_held(tmp_path):
    timeline = sound_timeline(tmp_path)
    output = SoundOutput(tmp_path, timeline, 0.0)
    for second in range(20):
        _push(timeline, 1, at_s=second)
        output.judge(needed_from_s=second - 0.5)
        assert timeline.held_bytes < 3 * 44100 * 4


def _sample(name, seconds):
    timeline = sound_timeline(None)
    with av.open(str(MEDIA / name)) as container:
        for frame in container.decode(audio=0):
            timeline.push(frame)
    timeline.finish()
    return timeline.take(0, seconds), timeline.source_rate_hz


def test_music_keeps_its_band_and_its_sides_and_speech_does_not():
    music, rate_hz = _sample("bbb_0_30.webm", 6)
    stored = stored_sound(music, MUSIC_RATE_HZ, rate_hz)
    told = (stored.codec, stored.suffix, stored.sample_rate_hz, stored.channels)
    assert told == ("aac", ".m4a", 44100, 2)
    assert stored.music_share > 0.8
    assert stored_sound(music, MUSIC_RATE_HZ, rate_hz).data == stored.data
    with av.open(io.BytesIO(stored.data)) as container:
        stream = container.streams.audio[0]
        assert (stream.rate, stream.layout.name) == (44100, "stereo")
        back = np.concatenate([f.to_ndarray().T for f in container.decode(stream)])
    inside = slice(2000, len(music) - 2000)
    for side in (music[inside, 0], music[inside, 1], music[inside, 0] - music[inside, 1]):
        assert side.std() > 0
    assert np.corrcoef(music[inside].ravel(), back[inside].ravel())[0, 1] > 0.99
    samples, rate = read_audio(stored.data)
    assert (len(samples), rate) == (pytest.approx(6 * 16000, abs=2), 16000)

    speech, rate_hz = _sample("derived_friday_burnedtext_hevc.mp4", 5)
    stored = stored_sound(speech, MUSIC_RATE_HZ, rate_hz)
    assert (stored.codec, stored.sample_rate_hz, stored.channels) == ("opus", 16000, 1)
    # music from 8 kHz has nothing that 16 kHz mono could not hold
    assert stored_sound(music, MUSIC_RATE_HZ, 8000).codec == "opus"


@pytest.mark.parametrize(("sides", "lufs"), [(2, -23.0), (1, -26.01)])
def test_loudness_is_that_of_the_standards_reference_tone(sides, lufs):
    t = np.arange(5 * RATE) / RATE
    tone = (10 ** (-23 / 20) * np.sin(2 * np.pi * 997 * t)).astype(np.float32)
    samples = np.stack([tone] * sides, axis=1)
    assert integrated_loudness_lufs(samples, RATE) == pytest.approx(lufs, abs=0.1)
    assert integrated_loudness_lufs(np.zeros((RATE, sides), np.float32), RATE) == -70.0


def test_a_rate_is_changed_without_a_shift():
    t = np.arange(MUSIC_RATE_HZ) / MUSIC_RATE_HZ
    sides = np.stack([0.5 * np.sin(2 * np.pi * 300 * t), 0.1 * np.sin(2 * np.pi * 300 * t)], 1)
    mono = resample(sides.astype(np.float32), MUSIC_RATE_HZ, to_rate_hz=16000, num_channels=1)
    expected = 0.3 * np.sin(2 * np.pi * 300 * np.arange(16000) / 16000)
    assert np.abs(mono - expected)[300:-300].max() < 0.002


FLASH_S = 1.5


def _flash_and_beep(path, codec):
    """Three seconds with a white frame and a beep at `FLASH_S`, as any camera's clapper."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=24, options={"preset": "veryfast"})
        video.width, video.height, video.pix_fmt = 320, 180, "yuv420p"
        sound = container.add_stream(codec, rate=RATE, layout="stereo")
        frames = []
        y, x = np.mgrid[0:180, 0:320]
        for index in range(72):
            picture = np.stack([(x + index) % 256, y, x * 0], -1).astype(np.uint8)
            if index == FLASH_S * 24:
                picture[:] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, 24)
            frames.append((index / 24, video, frame))
        t = np.arange(3 * RATE) / RATE
        wave = np.where((t >= FLASH_S) & (t < FLASH_S + 0.2), 0.5 * np.sin(2 * np.pi * 1000 * t), 0)
        for start in range(0, len(wave), 1024):
            block = np.stack([wave[start : start + 1024]] * 2).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
            frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), start
            frames.append((start / RATE, sound, frame))
        for _, stream, frame in sorted(frames, key=lambda each: each[0]):
            container.mux(stream.encode(frame))
        for stream in (video, sound):
            container.mux(stream.encode(None))


@pytest.mark.parametrize(
    ("name", "codec"),
    [("edit_list.mp4", "aac"), ("delay.mkv", "libopus"), ("stamps.ts", "aac")],
)
def test_what_an_encoder_puts_before_the_sound_is_no_drift(tmp_path, name, codec):
    _flash_and_beep(tmp_path / name, codec)
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    rule = WindowRule()
    args = {"path": "plain"} | {
        f"window_{key}": getattr(rule, key) for key in ("min_s", "target_s", "max_s")
    }
    with (tmp_path / name).open("rb") as source:
        (clip,) = decode_job(args, source, out_dir)["clips"]
    assert clip["audio"]["status"] == "kept"
    samples, rate_hz = read_audio(out_dir / clip["audio"]["file"])
    onset = int(np.argmax(np.abs(samples) > 0.1)) / rate_hz
    assert onset == pytest.approx(FLASH_S - clip["start_s"], abs=0.03)
