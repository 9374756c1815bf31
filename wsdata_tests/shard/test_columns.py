"""Sound and actions of samples: cut where the sample lies in its clip, and never made up."""

import io
import json
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.digest import sha256_bytes
from wsdata.errors import DecodeFailed, IntegrityError, ObjectMissing
from wsdata.media.audio import read_audio
from wsdata.media.encode_sound import encode_aac, encode_opus
from wsdata.preprocess.action_parse import cut_track, parse_track
from wsdata.shard.columns import TrackSource, cut_actions, cut_audio
from wsdata.store import FolderStore


@given(
    start=st.integers(0, 90),
    num_frames=st.sampled_from([1, 33, 65, 121]),
    fps=st.sampled_from([24.0, 48.0]),
    num_samples=st.integers(0, 100_000),
)
@settings(max_examples=100, deadline=None)
def test_sound_is_of_exactly_the_samples_time_and_its_end_is_told(
    start, num_frames, fps, num_samples
):
    pcm = (np.arange(num_samples) % 60_000 - 30_000).astype(np.int16)
    found, remark = cut_audio(
        (pcm / 32768).astype(np.float32), start_frame=start, num_frames=num_frames, fps=fps
    )
    first = round(Fraction(16_000 * start, int(fps)))
    length = round(Fraction(16_000 * num_frames, int(fps)))
    there = pcm[first : first + length]
    missing = length - len(there)
    if missing > 16_000 / fps:
        assert found is None
        assert remark.startswith("the clip's sound ends ")
        return
    assert len(found) == length
    np.testing.assert_array_equal(found[: len(there)], there)
    assert not found[len(there) :].any()
    assert (remark is None) == (missing == 0)


def _track(rows, *, num_frames=48, start_s=2.0):
    """A clip's stored track, made as the preprocess stage makes it from a delivered CSV."""
    text = "time,x,gear\n" + "".join(f"{at},{x},{gear}\n" for at, x, gear in rows)
    clip = {"start_s": start_s, "end_s": start_s + num_frames / 24, "num_frames": num_frames}
    told, data = cut_track(parse_track(io.BytesIO(text.encode()), ".csv"), clip)
    assert told["status"] == "kept"
    return data, told["channels_json"]


def _cut(made, **span):
    data, channels_json = made
    return cut_actions(pl.read_parquet(io.BytesIO(data)), json.loads(channels_json), **span)


def test_actions_at_24_a_second_are_the_tracks_own_rows():
    data, channels = _track([(i / 100, i * 0.37, i // 130) for i in range(600)])
    found, remark = _cut((data, channels), start_frame=7, num_frames=33, fps=24.0)
    rows = pl.read_parquet(io.BytesIO(data)).filter(pl.col("kind") == "frame")
    expected = rows.sort("frame_index")[7:40].select("x", "gear").to_numpy().astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert (found.dtype, remark) == (np.float32, None)


def test_actions_at_48_a_second_lie_on_the_track_and_discrete_ones_wait_for_their_row():
    made = _track([(i / 100, i * 0.37, i // 130) for i in range(600)])
    found, _ = _cut(made, start_frame=3, num_frames=65, fps=48.0)
    times = 2 + np.arange(3, 68) / 48
    np.testing.assert_allclose(found[:, 0], 37 * times, rtol=1e-5)
    np.testing.assert_array_equal(found[:, 1], np.floor(times * 100 + 1e-6) // 130)


def test_a_channel_that_was_not_told_is_nan_and_frames_without_any_leave_the_column_empty():
    rows = [(i / 100, i, i // 130 if i > 300 else "") for i in range(600)]
    found, remark = _cut(_track(rows), start_frame=0, num_frames=33, fps=24.0)
    assert remark is None
    assert np.isnan(found[:24, 1]).all()
    assert np.isfinite(found[:, 0]).all()
    holed = _track([row for row in rows if not 250 < row[0] * 100 < 320])
    for fps in (24.0, 48.0):
        found, remark = _cut(holed, start_frame=0, num_frames=33, fps=fps)
        assert found is None
        assert remark.endswith("of 33 frames have no value")


def test_actions_beyond_the_tracks_end_are_none():
    made = _track([(i / 100, i, 0) for i in range(600)])
    found, remark = _cut(made, start_frame=20, num_frames=33, fps=24.0)
    assert (found, remark) == (None, "the clip's track ends at frame 48 of 24 a second")


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path)


def _sample(store, *, start=0, num_frames=33, **tracks):
    row = {"sample_id": "s", "clip_id": "clip-1", "start_frame": start, "num_frames": num_frames}
    row |= {"fps": 24.0, "channels_json": None, "variant": "plain"}
    for name in ("audio", "actions"):
        row |= {f"{name}_key": None, f"{name}_sha256": None}
        if name in tracks:
            store.put(f"derived/{name}", tracks[name])
            row |= {f"{name}_key": f"derived/{name}", f"{name}_sha256": sha256_bytes(tracks[name])}
    return row


def test_stored_tracks_are_read_checked_and_cut(store):
    tone = (0.3 * np.sin(np.arange(32_000) * 0.05)).astype(np.float32)
    sound = encode_opus(tone)
    actions, channels = _track([(i / 100, i * 0.37, i // 130) for i in range(600)])
    sample = _sample(store, start=8, audio=sound, actions=actions) | {"channels_json": channels}
    found = TrackSource(store).columns(sample)
    decoded = np.rint(read_audio(sound)[0] * 32768).astype(np.int16)
    np.testing.assert_array_equal(found.audio_n, decoded[5333 : 5333 + 22_000])
    assert found.actions_fd.shape == (33, 2)
    assert json.loads(found.channels_json)[1]["kind"] == "discrete"
    assert found.remarks == {}
    bare = TrackSource(store).columns(_sample(store))
    assert (bare.audio_n, bare.actions_fd, bare.channels_json, bare.remarks) == (None,) * 3 + ({},)


def test_music_is_carried_as_what_the_models_hear(store):
    at = np.arange(88_200) / 44_100
    both = np.stack([0.4 * np.sin(2 * np.pi * 440 * at), np.zeros_like(at)], 1).astype(np.float32)
    found = TrackSource(store).columns(_sample(store, start=8, audio=encode_aac(both))).audio_n
    assert len(found) == 22_000
    expected = 0.2 * 32768 * np.sin(2 * np.pi * 440 * (np.arange(22_000) / 16_000 + 8 / 24))
    assert np.abs(found - expected).max() < 0.02 * 32768  # the mean of both sides, in its place


def test_a_mirror_image_keeps_its_sound_and_carries_no_actions(store):
    sound = encode_opus(np.full(32_000, 0.1, np.float32))
    actions, channels = _track([(i / 100, i * 0.37, i // 130) for i in range(600)])
    sample = _sample(store, audio=sound, actions=actions) | {"channels_json": channels}
    found = TrackSource(store).columns(sample | {"variant": "flip"})
    assert len(found.audio_n) == 22_000
    assert (found.actions_fd, found.channels_json) == (None, None)
    assert found.remarks == {"actions": "what was done is not what its mirror image shows"}


def test_a_track_that_ends_early_is_told_and_not_carried(store):
    sample = _sample(store, start=24, audio=encode_opus(np.full(32_000, 0.1, np.float32)))
    found = TrackSource(store).columns(sample)
    assert found.audio_n is None
    assert found.remarks == {"audio": "the clip's sound ends 375 ms before the sample does"}


def test_missing_changed_and_broken_tracks_are_errors_that_name_them(store):
    sample = _sample(store, audio=b"no sound at all")
    with pytest.raises(DecodeFailed) as caught:
        TrackSource(store).columns(sample)
    assert "derived/audio of clip clip-1" in caught.value.__notes__[0]
    with pytest.raises(IntegrityError, match="audio derived/audio of clip clip-1 has digest"):
        TrackSource(store).columns({**sample, "audio_sha256": "0" * 64})
    with pytest.raises(ObjectMissing, match="audio derived/gone of clip clip-1"):
        TrackSource(store).columns({**sample, "audio_key": "derived/gone"})
