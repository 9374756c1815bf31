"""What is known about each clip before it is captioned, gathered from scores and labels."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wsdata.label.engine import ClipFacts
from wsdata.orders import StepRun

SCORE_TABLES = ("motion_scores", "overlay_scores", "quality_scores", "faces_scores")
FACT_INPUTS = ("clip_embeddings", "camera_motion", "audio_labels", *SCORE_TABLES)


def gather_facts(run: StepRun, clips: Sequence[Mapping[str, Any]]) -> dict[str, ClipFacts]:
    """Facts by clip id. What was not scored, or has no label, stays unknown.

    Args:
        run: A step that has FACT_INPUTS among its inputs.
        clips: Rows of ``clips``.
    """
    tags = _by_clip(run, "clip_embeddings")
    cameras = _by_clip(run, "camera_motion")
    sounds = _by_clip(run, "audio_labels")
    scores = _scores(run)
    return {
        clip["clip_id"]: _facts(
            clip,
            tags.get(clip["clip_id"], {}),
            cameras.get(clip["clip_id"], {}),
            sounds.get(clip["clip_id"], {}),
            scores.get(clip["clip_id"], {}),
        )
        for clip in clips
    }


def _by_clip(run: StepRun, table: str) -> dict[str, dict[str, Any]]:
    return {row["clip_id"]: row for row in run.read(table).to_dicts()}


def _scores(run: StepRun) -> dict[str, dict[str, tuple[float, dict[str, Any]]]]:
    """Score and detail by clip and ``<filter>.<score name>``, where they were measured."""
    found: dict[str, dict[str, tuple[float, dict[str, Any]]]] = {}
    for table in SCORE_TABLES:
        rows = run.read(table)
        for row in rows.filter(rows["score"].is_not_null()).to_dicts():
            detail = json.loads(row["detail_json"]) if row["detail_json"] else {}
            name = f"{row['filter']}.{row['score_name']}"
            found.setdefault(row["clip_id"], {})[name] = (row["score"], detail)
    return found


def _facts(
    clip: Mapping[str, Any],
    tags: Mapping[str, Any],
    camera: Mapping[str, Any],
    sound: Mapping[str, Any],
    scores: Mapping[str, tuple[float, dict[str, Any]]],
) -> ClipFacts:
    def score(name: str) -> float | None:
        return scores[name][0] if name in scores else None

    faces = score("faces.face_count")
    words = scores.get("overlay.text_share", (0.0, {}))[1].get("words", [])
    return ClipFacts(
        clip_id=clip["clip_id"],
        media_kind=clip["media_kind"],
        duration_s=clip["duration_s"],
        width_px=clip["width_px"],
        height_px=clip["height_px"],
        aspect=clip["aspect"],
        tags=tuple((name, share) for name, share in json.loads(tags.get("tags_json", "[]"))),
        camera=camera.get("label"),
        camera_confidence=camera.get("confidence", 0.0),
        pan_x=camera.get("pan_x", 0.0),
        pan_y=camera.get("pan_y", 0.0),
        zoom=camera.get("zoom", 0.0),
        motion=score("motion.magnitude"),
        moving_share=score("motion.moving_share"),
        text_words=tuple(word for text in words for word in text.split()),
        text_share=score("overlay.text_share"),
        num_faces=None if faces is None else int(faces),
        sharpness=score("quality.sharpness"),
        sound=sound.get("label"),
    )
