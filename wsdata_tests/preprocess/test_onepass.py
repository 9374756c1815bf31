"""One decode pass, from a file to clips with everything they need."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest

from wsdata.errors import DecodeFailed
from wsdata.media.audio import read_audio
from wsdata.media.decode import read_transcode
from wsdata.media.phash import hamming
from wsdata.preprocess.framepack import read_framepack, write_loose_pack
from wsdata.preprocess.ladder import rungs_by_probe
from wsdata.preprocess.onepass import decode_job
from wsdata_tests import synthetic

ARGS = {"path": "plain", "window_min_s": 2.0, "window_target_s": 8.0, "window_max_s": 20.0}


def _decode(file, out_dir, **changed):
    out_dir.mkdir(exist_ok=True)
    with file.open("rb") as source:
        told = decode_job({**ARGS, **changed}, source, out_dir)
    return json.loads(json.dumps(told, allow_nan=False))


def _pack(out_dir, clip):
    made = clip["pack"]
    return read_framepack(write_loose_pack(made["pictures"], (out_dir / made["file"]).read_bytes()))


def _spans(told):
    return [(clip["start_s"], clip["end_s"]) for clip in told["clips"]]


def _near(*spans):
    return [pytest.approx(span, abs=1e-3) for span in spans]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    segments = (("bars", 2.5), ("rings", 2.5))
    path = synthetic.make_video(folder / "short.mp4", segments, audio="sine", fps=30)
    return path, _decode(path, folder / "out"), folder / "out"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    path = synthetic.make_good(folder / "good.mp4")
    return path, _decode(path, folder / "out"), folder / "out"


def test_shots_become_clips_cut_at_the_very_frame(good):
    _, told, _ = good
    assert told["status"] == "ok"
    assert told["reason"] is None
    assert told["num_shots"] == 3
    assert _spans(told) == _near((0, 4), (4, 9), (9, 15))
    assert [clip["num_frames"] for clip in told["clips"]] == [96, 120, 144]
    assert {clip["aspect"] for clip in told["clips"]} == {"16:9"}
    assert {clip["top_rung"] for clip in told["clips"]} == {"512p"}
    assert (told["frames_promised"], told["frames_decoded"]) == (360, 360)


def test_every_frame_of_every_rung_shows_its_moment(good):
    _, told, out_dir = good
    clip = told["clips"][1]
    assert set(clip["transcodes"]) == {"256p", "512p"}
    for made in clip["transcodes"].values():
        frames_thwc = read_transcode(out_dir / made["file"])
        size = made["width_px"], made["height_px"]
        assert frames_thwc.shape == (120, size[1], size[0], 3)
        for k in range(0, 120, 17):
            pattern = synthetic.picture("rings", size, 4 + k / 24)
            assert np.abs(frames_thwc[k].astype(int) - pattern).mean() < 8
        # no frame of either neighbour has slipped in
        for k in (0, -1):
            for pattern in ("bars", "checker"):
                other = synthetic.picture(pattern, size, 4.0)
                assert np.abs(frames_thwc[k].astype(int) - other).mean() > 30


def test_sound_is_cut_with_its_clip(good):
    _, told, out_dir = good
    for clip in told["clips"]:
        assert clip["audio"]["status"] == "kept"
        samples, rate = read_audio(out_dir / clip["audio"]["file"])
        assert abs(len(samples) / rate - clip["duration_s"]) < 0.011
        assert clip["audio"]["rms_db"] == pytest.approx(-12.0, abs=3.1)


def test_packs_hold_the_clips_own_frames(good):
    _, told, out_dir = good
    clip = told["clips"][2]
    pack = _pack(out_dir, clip)
    assert len(pack.colors) == clip["pack"]["num_color"] == 6
    assert len(pack.luma_pairs) * 2 == clip["pack"]["num_luma"] == 24
    for frame in pack.colors:
        assert frame.pixels.shape == (360, 640, 3)
        expected = synthetic.picture("checker", (640, 360), 9 + frame.time_s)
        assert np.abs(frame.pixels.astype(int) - expected).mean() < 10
    assert pack.luma_pairs[0][0].pixels.shape == (180, 320)


def test_prints_are_one_a_second_and_tell_shots_apart(good):
    _, told, _ = good
    prints = told["prints"]
    assert [round(stamp["time_s"]) for stamp in prints] == list(range(15))
    hashes = [bytes.fromhex(stamp["hash"]) for stamp in prints]
    assert all(len(value) == 32 for value in hashes)
    assert hamming(hashes[1], hashes[6]) > 60
    assert hamming(hashes[5], hashes[6]) < 60


def test_twice_is_the_same_to_the_last_byte(short, tmp_path):
    path, told, out_dir = short
    assert _decode(path, tmp_path / "out") == told
    for file in sorted(out_dir.iterdir()):
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_h1_the_clean_prefix_of_a_damaged_file_is_kept(tmp_path):
    told = _decode(synthetic.make_h1(tmp_path), tmp_path / "out")
    assert told["status"] == "salvaged"
    assert "of 360 frames" in told["reason"]
    assert told["frames_promised"] == 360
    assert told["frames_decoded"] < 360
    first, second = _spans(told)
    assert first == pytest.approx((0, 4))
    assert second[0] == pytest.approx(4)
    assert told["decoded_s"] == pytest.approx(told["frames_decoded"] / 24, abs=1e-3)
    assert second[1] == pytest.approx(min(9, told["decoded_s"]), abs=1e-3)


def test_a_prefix_too_short_for_a_clip_is_a_failure(tmp_path):
    whole = synthetic.make_video(tmp_path / "whole.mp4", (("bars", 3),), faststart=True)
    short = synthetic.truncate(whole, 0.4, tmp_path / "short.mp4")
    with pytest.raises(DecodeFailed, match=r"no stretch of 2\.0 s"):
        _decode(short, tmp_path / "out")


def test_h2_empty_is_not_unreadable_and_a_picture_is_a_picture(tmp_path):
    made = synthetic.make_h2(tmp_path)
    empty = _decode(made["empty"], tmp_path / "out")
    assert (empty["status"], empty["clips"]) == ("empty", [])
    for name in ("no_header", "text"):
        with pytest.raises(DecodeFailed, match="cannot be opened"):
            _decode(made[name], tmp_path / "out")
    still = _decode(made["jpeg"], tmp_path / "out")
    assert (still["status"], still["media_kind"]) == ("ok", "image")
    (clip,) = still["clips"]
    assert (clip["start_ms"], clip["end_ms"], clip["num_frames"]) == (0, 1, 1)
    pixels = read_transcode(tmp_path / "out" / clip["transcodes"]["256p"]["file"])
    assert pixels.shape == (1, 144, 192, 3)
    pack = _pack(tmp_path / "out", clip)
    assert (len(pack.colors), pack.luma_pairs) == (1, [])


def test_h9_cuts_of_a_variable_frame_rate_stand_where_they_are_seen(tmp_path):
    told = _decode(synthetic.make_h9(tmp_path / "vfr.mp4"), tmp_path / "out")
    spans = _spans(told)
    assert [start for start, _ in spans] == pytest.approx([0, 5, 10], abs=1e-3)
    assert [clip["num_frames"] for clip in told["clips"][:2]] == [120, 120]
    slow = read_transcode(tmp_path / "out" / told["clips"][1]["transcodes"]["256p"]["file"])
    for k in range(0, 120, 11):
        seen = synthetic.picture("rings", (256, 144), 5 + int(k / 24 * 10 + 1e-6) / 10)
        assert np.abs(slow[k].astype(int) - seen).mean() < 8


def test_h12_cuts_close_together_give_no_short_clip(tmp_path):
    segments = (("bars", 3), ("rings", 0.25), ("checker", 0.25), ("gradient", 0.25), ("bars", 3))
    told = _decode(synthetic.make_video(tmp_path / "strobe.mp4", segments), tmp_path / "out")
    assert _spans(told) == _near((0, 3), (3.75, 6.75))
    for clip in told["clips"]:
        made = read_transcode(tmp_path / "out" / clip["transcodes"]["256p"]["file"])
        assert len(made) == clip["num_frames"] == 72


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_h14_a_rotated_video_is_upright_everywhere(tmp_path, rotation):
    told = _decode(synthetic.make_h14(tmp_path / "turned.mp4", rotation), tmp_path / "out")
    (clip,) = told["clips"]
    is_portrait = rotation != 180
    shown = (360, 640) if is_portrait else (640, 360)
    assert (clip["width_px"], clip["height_px"]) == shown
    assert clip["aspect"] == ("9:16" if is_portrait else "16:9")
    coded = synthetic.picture("quadrants", (640, 360))
    upright = np.rot90(coded, rotation // 90)  # counter-clockwise, as the container says
    pack = _pack(tmp_path / "out", clip)
    packed = pack.colors[0].pixels
    assert packed.shape == upright.shape
    assert np.abs(packed.astype(int) - upright).mean() < 8
    made = read_transcode(tmp_path / "out" / clip["transcodes"]["512p"]["file"])[0]
    step_y, step_x = made.shape[0] // 4, made.shape[1] // 4
    for row in (1, 3):
        for column in (1, 3):
            seen = made[row * step_y, column * step_x].astype(int)
            wanted = upright[row * upright.shape[0] // 4, column * upright.shape[1] // 4]
            assert np.abs(seen - wanted).max() < 24


def test_h16_streams(tmp_path):
    made = synthetic.make_h16(tmp_path)
    two = _decode(made["two_videos"], tmp_path / "out")
    (clip,) = two["clips"]
    assert (clip["track"], clip["width_px"], clip["height_px"]) == (0, 480, 270)
    assert clip["audio"]["status"] == "kept"
    (silent,) = _decode(made["no_audio"], tmp_path / "out")["clips"]
    assert silent["audio"] == {
        "status": "none", "reason": "the file has no sound",
        "drift_ms": None, "rms_db": None, "peak_db": None, "clipped_share": None,
    }  # fmt: skip
    for name, held in (("audio_only", "1 audio"), ("cover_art", "1 audio, 1 cover picture")):
        told = _decode(made[name], tmp_path / "out")
        assert (told["status"], told["clips"]) == ("empty", [])
        assert "no video" in told["reason"]
        assert held in told["reason"]


def test_h18_late_sound_is_unsynced(tmp_path):
    path = synthetic.make_video(
        tmp_path / "late.mp4", (("bars", 3),), audio="sine", audio_delay_s=0.12
    )
    (clip,) = _decode(path, tmp_path / "out")["clips"]
    assert clip["audio"]["status"] == "unsynced"
    assert clip["audio"]["drift_ms"] > 50
    assert "file" not in clip["audio"]


def test_anamorphic_pixels_are_shown_wide(tmp_path):
    from fractions import Fraction

    path = synthetic.make_video(
        tmp_path / "wide.mp4", (("rings", 3),), size=(480, 360), sar=Fraction(4, 3)
    )
    (clip,) = _decode(path, tmp_path / "out")["clips"]
    assert (clip["width_px"], clip["height_px"], clip["aspect"]) == (640, 360, "16:9")
    made = read_transcode(tmp_path / "out" / clip["transcodes"]["256p"]["file"])[0]
    expected = synthetic.picture("rings", (256, 144), 0.0)
    assert np.abs(made.astype(int) - expected).mean() < 10


def test_sources_of_60_a_second_have_a_rung_at_48_whose_frames_show_their_moments(tmp_path):
    path = synthetic.make_video(tmp_path / "fast.mp4", (("rings", 2.1),), size=(256, 144), fps=60)
    (clip,) = _decode(path, tmp_path / "out")["clips"]
    made = clip["transcodes"]["48fps"]
    assert (made["rung"], made["fps"], made["num_frames"]) == ("256p48", 48.0, 101)
    assert clip["transcodes"]["256p"]["num_frames"] == clip["num_frames"] == 51
    frames_thwc = read_transcode(tmp_path / "out" / made["file"])
    assert len(frames_thwc) == 101
    for k in range(0, 101, 13):
        shown = int(k / 48 * 60 + 1e-6) / 60
        expected = synthetic.picture("rings", (256, 144), shown)
        assert np.abs(frames_thwc[k].astype(int) - expected).mean() < 6


def test_rungs_that_are_not_wanted_are_not_made_and_1080p_is_for_candidates(tmp_path):
    import cv2

    path = tmp_path / "large.png"
    cv2.imwrite(str(path), synthetic.picture("gradient", (1920, 1080))[..., ::-1])
    (plain,) = _decode(path, tmp_path / "out", rungs=["256p"])["clips"]
    assert set(plain["transcodes"]) == {"256p"}
    assert plain["top_rung"] == "256p"
    probe = {"status": "ok", "media_kind": "image", "width_px": 1920, "height_px": 1080,
             "codec": "png", "source_fps": None}  # fmt: skip
    poor, rich = (rungs_by_probe(probe | {"bit_rate": bits}) for bits in (900_000, 2_000_000))
    assert "1080p" not in poor
    assert "1080p" in rich
    (large,) = _decode(path, tmp_path / "out", rungs=["1080p"])["clips"]
    made = large["transcodes"]["1080p"]
    assert (made["width_px"], made["height_px"], made["encoder"]) == (1920, 1080, None)
    assert json.loads(made["color_decision_json"])["matrix"] == 0


@pytest.mark.parametrize(
    ("codec", "bit_rate", "is_candidate"),
    [("h264", 5_000_000, True), ("h264", 3_000_000, False), ("av1", 3_000_000, True),
     ("h264", None, False)],
)  # fmt: skip
def test_1080p_is_asked_of_files_with_enough_bits_a_pixel(codec, bit_rate, is_candidate):
    probe = {"status": "ok", "media_kind": "video", "codec": codec, "bit_rate": bit_rate,
             "width_px": 1920, "height_px": 1080, "source_fps": 24.0}  # fmt: skip
    assert ("1080p" in rungs_by_probe(probe)) is is_candidate


def test_a_source_below_the_ladder_has_clips_and_packs_but_no_rung(tmp_path):
    path = synthetic.make_video(tmp_path / "tiny.mp4", (("bars", 3),), size=(160, 90))
    (clip,) = _decode(path, tmp_path / "out")["clips"]
    assert clip["top_rung"] is None
    assert clip["transcodes"] == {}
    assert clip["pack"]["num_color"] == 3


def test_the_careful_path_agrees_on_a_sound_file(short, tmp_path):
    path, told, _ = short
    assert _decode(path, tmp_path / "out", path="careful")["clips"] == told["clips"]


def test_a_file_without_any_stream_is_refused():
    with pytest.raises(DecodeFailed):
        decode_job(ARGS, io.BytesIO(b"1\n00:00:01,000 --> 00:00:02,000\nhello\n\n" * 20), None)


def test_the_child_needs_no_tables_and_no_data_frames():
    code = "import sys, wsdata.preprocess.onepass; print('polars' in sys.modules)"
    done = subprocess.run(  # noqa: S603  what it imports counts in the memory of every file
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
