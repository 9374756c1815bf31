import io
import json
from fractions import Fraction

import av
import numpy as np
import pytest

from wsdata.media import keyframes
from wsdata.media.probe import display_size, probe_source
from wsdata_tests.ingest import media_support as made


def _probe(data: bytes) -> dict:
    return probe_source(io.BytesIO(data)).row


def test_a_plain_video():
    row = _probe(made.video(made.scene(1, num_frames=50), fps=25))
    assert (row["status"], row["media_kind"], row["codec"]) == ("ok", "video", "h264")
    assert (row["width_px"], row["height_px"], row["sar"], row["rotation_deg"]) == (
        made.WIDTH, made.HEIGHT, "1:1", 0,
    )  # fmt: skip
    assert (row["source_fps"], row["is_vfr"], row["duration_s"]) == (25.0, False, 2.0)
    assert (row["num_video_tracks"], row["num_audio_tracks"]) == (1, 0)
    assert row["bit_rate"] > 0


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_rotated_video_is_probed_and_printed_upright(turn):
    frames = made.scene(2, num_frames=12)
    stored = [np.ascontiguousarray(np.rot90(frame, turn // 90)) for frame in frames]
    data = made.video(stored, rotation_deg=turn)
    row = _probe(data)
    assert (row["width_px"], row["height_px"]) == (made.WIDTH, made.HEIGHT)
    assert row["rotation_deg"] == turn
    assert (row["coded_width_px"] == made.HEIGHT) == (turn in (90, 270))
    with av.open(io.BytesIO(data)) as container:
        seen = keyframes.upright_rgb(next(container.decode(video=0)), Fraction(1))
    apart = np.abs(seen.astype(int) - frames[0].astype(int)).mean()
    assert apart < 12  # coding loss; another side up is several times further


def test_wide_pixels_are_stretched():
    assert display_size(720, 576, Fraction(16, 15), 0) == (768, 576)
    assert display_size(720, 576, Fraction(16, 15), 90) == (576, 768)
    assert display_size(641, 359, Fraction(1), 180) == (641, 359)
    row = _probe(made.video(made.scene(3, num_frames=4), sar=Fraction(4, 3)))
    assert (row["width_px"], row["height_px"], row["sar"]) == (
        round(made.WIDTH * 4 / 3), made.HEIGHT, "4:3",
    )  # fmt: skip


def test_the_main_stream_is_by_disposition_then_size():
    small, big = made.scene(4, num_frames=10, width=160, height=96), made.scene(5, num_frames=10)
    row = _probe(made.streams([small, big], defaults=[True, True]))
    assert (row["video_track"], row["width_px"], row["num_video_tracks"]) == (1, made.WIDTH, 2)
    row = _probe(made.streams([small, big], defaults=[True, False]))
    assert (row["video_track"], row["width_px"]) == (0, 160)
    kept = json.loads(row["streams_json"])
    assert [stream["width_px"] for stream in kept] == [160, made.WIDTH]
    assert [stream["disposition"] for stream in kept] == [["default"], []]


def test_cover_art_is_no_video():
    row = _probe(made.sound(with_cover=True))
    assert (row["status"], row["media_kind"]) == ("ok", "audio")
    assert "video_track" not in row
    assert row["num_video_tracks"] == 1


def test_sound_alone():
    row = _probe(made.sound())
    assert (row["status"], row["media_kind"], row["sample_rate_hz"]) == ("ok", "audio", 48000)
    assert row["duration_s"] == pytest.approx(1.0, abs=0.1)


def test_a_picture_is_an_image_whatever_it_is_called():
    for encoded in (made.png(made.scene(6, num_frames=1)[0]), made.jpeg(made.scene(6, 1)[0])):
        row = _probe(encoded)
        assert (row["status"], row["media_kind"], row["duration_s"]) == ("ok", "image", 0.0)
        assert (row["width_px"], row["height_px"]) == (made.WIDTH, made.HEIGHT)
        assert row["bit_rate"] == len(encoded) * 8


def test_nothing_in_it_is_not_the_same_as_unreadable():
    assert _probe(b"") == {"status": "empty", "reason": "the file has 0 bytes"}
    text = _probe(b"this is no video at all\n" * 40)
    assert text["status"] == "failed"
    assert "InvalidDataError" in text["reason"]
    whole = made.video(made.scene(7, num_frames=30))
    cut = _probe(whole[: len(whole) * 6 // 10])  # its index lies at the end
    assert cut["status"] == "failed"
    assert cut["reason"]


def test_a_broken_tail_is_probed_up_to_the_break():
    whole = made.video(made.scene(8, num_frames=96), is_faststart=True)
    row = _probe(whole[: len(whole) * 6 // 10])
    assert (row["status"], row["media_kind"]) == ("ok", "video")
    assert 0.5 < row["duration_s"] < 3.9


def test_variable_frame_rate_is_told():
    frames = made.scene(9, num_frames=60)
    at_ms = [*range(0, 1000, 33), *range(1000, 4000, 100)]
    row = _probe(made.video(frames[: len(at_ms)], at_ms=at_ms))
    assert row["is_vfr"]
    jitter = [round(i * 1000 / 24) for i in range(60)]  # rounding to a millisecond is no variation
    assert not _probe(made.video(frames, at_ms=jitter))["is_vfr"]
