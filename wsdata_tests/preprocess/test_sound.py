"""Sound on its clock: kept, silent, none, unsynced, broken."""

from fractions import Fraction

import av
import numpy as np
import pytest

from wsdata.errors import DecodeFailed
from wsdata.media.audio import AudioTimeline, read_audio
from wsdata.media.encode_sound import encode_opus
from wsdata.preprocess.sound import clip_sound

RATE = 48000


def _timeline(samples, *, at_s=0.0, gaps=()):
    """A timeline fed with mono samples in blocks; after a second in `gaps` time jumps by it."""
    timeline = AudioTimeline()
    offset = 0.0
    for start in range(0, len(samples), 1024):
        for at, by in gaps:
            if start - 1024 < at * RATE <= start:
                offset += by
        block = np.ascontiguousarray(samples[None, start : start + 1024])
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
        frame.sample_rate, frame.time_base = RATE, Fraction(1, RATE)
        frame.pts = start + round((at_s + offset) * RATE)
        timeline.push(frame)
    timeline.finish()
    return timeline


def _sine(seconds, level=0.25):
    t = np.arange(round(seconds * RATE)) / RATE
    return (level * np.sin(2 * np.pi * 440 * t)).astype(np.float32)


def _judge(timeline, start_s=0.0, end_s=3.0, **more):
    return clip_sound(timeline, start_s=start_s, end_s=end_s, video_start_s=0.0, **more)


def test_a_sine_in_sync_is_kept_with_its_level():
    sound = _judge(_timeline(_sine(5)))
    assert sound.status == "kept"
    assert sound.drift_ms == 0
    assert sound.rms_db == pytest.approx(20 * np.log10(0.25 / np.sqrt(2)), abs=0.1)
    assert sound.peak_db == pytest.approx(20 * np.log10(0.25), abs=0.1)
    assert len(sound.samples) == 3 * 16000


@pytest.mark.parametrize(
    ("timeline", "status"),
    [
        (None, "none"),
        (AudioTimeline(), "none"),
        (_timeline(np.zeros(5 * RATE, np.float32)), "silent"),
        (_timeline(_sine(5), at_s=0.12), "unsynced"),
        (_timeline(_sine(5), at_s=0.04), "kept"),
        (_timeline(_sine(2.9)), "unsynced"),
        (_timeline(_sine(5), gaps=[(1.5, 0.2)]), "unsynced"),
        (_timeline(_sine(5), gaps=[(4.0, 0.2)]), "kept"),
    ],
)
def test_statuses(timeline, status):
    assert _judge(timeline).status == status


def test_sound_with_errors_that_does_not_cover_the_clip_is_broken():
    assert _judge(_timeline(_sine(2)), num_errors=1).status == "broken"
    assert _judge(AudioTimeline(), num_errors=1).status == "broken"


def test_clipping_is_counted():
    loud = np.clip(_sine(3, level=4.0), -1, 1)
    assert 0.4 < _judge(_timeline(loud)).clipped_share < 1


def test_samples_stand_where_their_time_stamps_say():
    timeline = _timeline(_sine(3), at_s=10.0, gaps=[(1.0, 0.5)])
    taken = timeline.take(9.5, 13.5)
    assert len(taken) == 4 * 16000
    assert not taken[: 8000 - 32].any()
    inside = taken[8200 : 8000 + 15800]
    assert np.sqrt(np.mean(inside**2)) == pytest.approx(0.25 / np.sqrt(2), rel=0.02)
    gap = taken[8000 + 16600 : 8000 + 23000]
    assert np.abs(gap).max() < 0.01
    timeline.forget_before(12.0)
    assert not timeline.take(10.0, 11.0).any()
    assert timeline.take(12.0, 12.5).any()


def test_opus_comes_back_at_its_length_and_level_and_is_the_same_twice():
    t = np.arange(32000) / 16000
    samples = (0.3 * np.sin(2 * np.pi * (200 + 100 * t) * t)).astype(np.float32)
    data = encode_opus(samples)
    assert data == encode_opus(samples)
    back, rate = read_audio(data)
    assert rate == 16000
    assert abs(len(back) - len(samples)) <= 160
    length = min(len(back), len(samples))
    ours, theirs = samples[500 : length - 500], back[500 : length - 500]
    best = max(
        np.dot(ours[20:-20], theirs[20 + lag : len(theirs) - 20 + lag])
        / (np.linalg.norm(ours[20:-20]) * np.linalg.norm(theirs[20 + lag : len(theirs) - 20 + lag]))
        for lag in range(-20, 20)
    )
    assert best > 0.98


def test_other_bytes_are_no_audio():
    with pytest.raises(DecodeFailed):
        read_audio(b"not an ogg at all")
