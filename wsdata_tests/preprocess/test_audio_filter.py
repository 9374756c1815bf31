import sys

import numpy as np
import pytest

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import StepFailed
from wsdata.media import language
from wsdata.media.audio import read_audio
from wsdata.media.encode_sound import encode_opus
from wsdata.preprocess.filters import audio
from wsdata_tests.preprocess.picture_support import MEDIA
from wsdata_tests.preprocess.score_support import clip, step_run

RATE_HZ = audio.MODEL_RATE_HZ


def tone(seconds: float, *, amplitude: float = 0.1, frequency_hz: float = 440) -> np.ndarray:
    time_n = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return (amplitude * np.sin(2 * np.pi * frequency_hz * time_n)).astype(np.float32)


def scores(samples: np.ndarray) -> dict[str, float]:
    return {name: entry["score"] for name, entry in audio.audio_scores(samples, RATE_HZ).items()}


def test_levels_of_a_tone_are_what_arithmetic_says():
    found = scores(tone(2.0, amplitude=0.1))
    assert found["peak_db"] == pytest.approx(-20.0, abs=0.01)
    assert found["rms_db"] == pytest.approx(-20 - 10 * np.log10(2), abs=0.01)
    assert found["silence_share"] == 0.0
    assert found["clipped_share"] == 0.0


def test_silence_is_counted_in_windows_and_clipping_in_samples():
    half = np.concatenate([tone(1.0), np.zeros(RATE_HZ, np.float32)])
    assert scores(half)["silence_share"] == 0.5
    square = np.sign(tone(1.0, frequency_hz=100.3)).astype(np.float32)
    assert scores(square)["clipped_share"] > 0.98


@pytest.mark.parametrize("num_samples", [0, 1, 799, 800, 16_000])
def test_digital_silence_of_any_length_is_silence_and_nothing_else(num_samples):
    found = scores(np.zeros(num_samples, np.float32))
    assert found["silence_share"] == 1.0
    assert found["rms_db"] == found["peak_db"] == audio.FLOOR_DB
    heard = ("voiced_share", "speech_share", "singing_share", "music_share", "clipped_share")
    assert [found[name] for name in heard] == [0.0] * 5


def test_speech_is_heard_as_speech_and_again_the_same():
    samples, rate_hz = read_audio((MEDIA / "nasa_13013.mp4").read_bytes())
    assert rate_hz == RATE_HZ
    found = scores(samples[: 8 * RATE_HZ])
    assert found["voiced_share"] > 0.6
    assert found["speech_share"] > 0.6
    # The voice detector carries a state; another clip in between must not show.
    scores(tone(1.0))
    assert scores(samples[: 8 * RATE_HZ]) == found


def test_running_water_is_neither_voice_nor_silence():
    samples, _ = read_audio((MEDIA / "stream_of_water.webm").read_bytes())
    found = scores(samples)
    assert found["voiced_share"] < 0.2
    assert found["silence_share"] < 0.2


def test_another_rate_is_refused():
    with pytest.raises(ValueError, match="48000 Hz"):
        audio.audio_scores(tone(1.0), 48_000)


def test_the_step_listens_to_kept_tracks_and_says_what_it_could_not_hear(tmp_path):
    data = (MEDIA / "stream_of_water.webm").read_bytes()
    states = ["kept", "silent", "none", "unsynced", "broken"]
    clips = [clip(index) for index in range(len(states) + 1)]
    tracks = [
        {"clip_id": row["clip_id"], "asset_id": row["asset_id"], "status": state}
        for row, state in zip(clips, states, strict=False)
    ]
    tracks[0] |= {"key": "audio/0", "sha256": sha256_bytes(data)}
    run = step_run(tmp_path, audio.STEP, {"clips": clips, "audio_tracks": tracks})
    run.store.put("audio/0", data)
    result = audio.run(run)
    table = tables.conform("audio_scores", result.tables["audio_scores"])
    silence = [row for row in table.to_dicts() if row["score_name"] == "silence_share"]
    assert [(row["status"], row["reason"]) for row in silence] == [
        ("ok", None),
        ("ok", None),
        ("unscored", "no sound"),
        ("unscored", "audio track is unsynced"),
        ("unscored", "audio track is broken"),
        ("unscored", "no sound"),
    ]
    assert silence[0]["score"] < 0.2
    assert silence[1]["score"] == 1.0
    assert result.metrics["num_errors"] == 0
    assert audio.run(run).tables["audio_scores"].equals(table)


def _language_run(tmp_path, sample: str, engine: str, seconds: int = 8):
    samples, _ = read_audio((MEDIA / sample).read_bytes())
    data = encode_opus(samples[: seconds * RATE_HZ])
    row = clip(0)
    track = {
        "clip_id": row["clip_id"], "asset_id": row["asset_id"], "status": "kept", "key": "audio/0",
        "sha256": sha256_bytes(data), "loudness_lufs": -23.5, "clipped_share": 0.25,
    }  # fmt: skip
    inputs = {"clips": [row], "audio_tracks": [track]}
    run = step_run(tmp_path, audio.STEP, inputs, params={"language": engine})
    run.store.put("audio/0", data)
    return run


def _entries(run):
    table = audio.run(run).tables["audio_scores"]
    return {row["score_name"]: row for row in table.to_dicts()}


def test_loudness_and_clipping_are_the_sources_and_no_language_is_guessed(tmp_path):
    found = _entries(_language_run(tmp_path, "nasa_13013.mp4", "none"))
    assert found["loudness_lufs"]["score"] == -23.5
    assert found["clipped_share"]["score"] == 0.25
    assert (found["language"]["status"], found["language"]["score"]) == ("unscored", None)
    assert "no language model is chosen" in found["language"]["reason"]


def test_without_speech_no_language_is_asked_for(tmp_path):
    found = _entries(_language_run(tmp_path, "stream_of_water.webm", "whisper-base"))
    assert found["language"]["reason"] == "no speech"


@pytest.mark.slow
def test_the_language_of_speech_is_named(tmp_path):
    pytest.importorskip("faster_whisper", reason="the extra 'language' is not installed")
    for sample in ("derived_friday_burnedtext_hevc.mp4", "nasa_13013.mp4"):
        found = _entries(_language_run(tmp_path / sample, sample, "whisper-base"))
        assert found["language"]["status"] == "ok"
        assert '"language":"en"' in found["language"]["detail_json"]


def test_a_chosen_model_that_is_not_installed_ends_the_step(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    language.load_model.cache_clear()
    with pytest.raises(StepFailed, match="install the extra 'language'"):
        audio.run(_language_run(tmp_path, "nasa_13013.mp4", "whisper-base"))
