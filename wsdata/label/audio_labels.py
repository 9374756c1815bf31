"""What is heard in a clip, as one label with shares, from the audio filter's scores.

No sound is listened to here; that is `preprocess.filters.audio`. Shares overlap: speech over
music is both.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from wsdata import tables
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess.filters.audio import MIN_SPEECH_SHARE

MODEL_VERSION = "audio-shares-1"
LABELS = ("speech", "music", "ambience", "silence", "none")

_MIN_MUSIC_SHARE = 0.4
_MIN_SILENCE_SHARE = 0.95


def audio_label(status: str, scores: Mapping[str, float]) -> dict[str, Any]:
    """Label the sound of one clip.

    Args:
        status: Of its audio track: kept, silent, none, unsynced, broken.
        scores: Shares in [0, 1] by score name: silence_share, voiced_share, speech_share,
            singing_share, music_share; empty where the filter did not score the clip.

    Returns:
        ``label``, ``reason`` and the three shares. A track that the clip cannot be trained with
        counts as none; a kept one that was not scored has no label, and the reason says so.
    """
    if status == "silent":
        return _row("silence", 0.0, 0.0, 0.0)
    if status != "kept":
        reason = None if status == "none" else f"audio track is {status}"
        return {"label": "none", "reason": reason}
    if "silence_share" not in scores:
        return {"label": None, "reason": "the audio filter did not score this clip"}
    # two models must agree on a voice: one takes song for speech, the other noise
    speech = min(scores["voiced_share"], scores["speech_share"])
    music = max(scores["music_share"], scores["singing_share"])
    silence = scores["silence_share"]
    ambience = max(0.0, 1.0 - silence - max(speech, music))
    if silence >= _MIN_SILENCE_SHARE:
        return _row("silence", speech, music, ambience)
    if speech >= MIN_SPEECH_SHARE:
        return _row("speech", speech, music, ambience)
    label = "music" if music >= _MIN_MUSIC_SHARE else "ambience"
    return _row(label, speech, music, ambience)


def _row(label: str, speech: float, music: float, ambience: float) -> dict[str, Any]:
    return {
        "label": label,
        "speech_share": round(speech, 6),
        "music_share": round(music, 6),
        "ambience_share": round(ambience, 6),
        "reason": None,
    }


def run(run: StepRun) -> StepResult:
    """Label the sound of every clip of a drop that passed the gates."""
    kept = run.read("gates").filter("passed")["clip_id"].sort().to_list()
    statuses = dict(run.read("audio_tracks").select("clip_id", "status").iter_rows())
    scores: dict[str, dict[str, float]] = {}
    known = run.read("audio_scores").drop_nulls("score")
    for clip_id, name, score in known.select("clip_id", "score_name", "score").iter_rows():
        scores.setdefault(clip_id, {})[name] = score
    records = [
        {
            "clip_id": clip_id,
            **audio_label(statuses.get(clip_id, "none"), scores.get(clip_id, {})),
            "model_version": MODEL_VERSION,
        }
        for clip_id in kept
    ]
    return StepResult(
        tables={"audio_labels": tables.rows_of("audio_labels", records)},
        metrics={"clips": len(records)},
        display={
            "audio_labels": {
                "clips": {"type": "int", "raw_value": len(records)},
                "labels": {"type": "md", "raw_value": _labels_table(records)},
            }
        },
    )


def _labels_table(records: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(record["label"] or "unlabelled" for record in records)
    shown = [label for label in (*LABELS, "unlabelled") if counts[label]]
    return "\n".join(
        ["| sound | clips |", "|---|---|", *(f"| {label} | {counts[label]} |" for label in shown)]
    )


STEP = Step(
    stage="label",
    name="audio_labels",
    function="wsdata.label.audio_labels:run",
    code_version=MODEL_VERSION,
    partition="drop",
    assets={"audio_labels": ("audio_labels",)},
    inputs=(Input(table="gates"), Input(table="audio_tracks"), Input(table="audio_scores")),
    description="What is heard in each clip: speech, music, ambience, silence or none.",
)
