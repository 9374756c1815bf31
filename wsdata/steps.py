"""The registry of all steps, in the order a clip passes them.

A step is declared beside its algorithm; this only collects. Importing it imports no model,
no codec and no framework.
"""

from wsdata.curate import decontam, manifest, semdedup
from wsdata.ingest import fingerprint, land, neardup, vault_prints
from wsdata.label import audio_labels, camera, caption, embed, qc
from wsdata.lifecycle import retention, snapshot, takedown
from wsdata.loader import proof, runs_served
from wsdata.observability import contamination, cost, drift, killrates, mirror, realised_order
from wsdata.orders import Step
from wsdata.preprocess import actions as action_tracks
from wsdata.preprocess import decode_step, funnel
from wsdata.preprocess.filters import (
    actions,
    audio,
    faces,
    motion,
    overlay,
    quality,
    safety,
    safety_list,
    technical,
    text_tags,
)
from wsdata.shard import captions as caption_packs
from wsdata.shard import index, latent_shards, plan_step

STAGES = (
    "ingest", "preprocess", "label", "curate", "shard", "loader", "lifecycle", "observability",
)  # fmt: skip

_ALL: tuple[Step, ...] = (
    land.STEP,
    vault_prints.STEP,
    fingerprint.STEP,
    neardup.STEP,
    decode_step.STEP,
    action_tracks.STEP,
    safety_list.STEP,
    technical.STEP,
    safety.STEP,
    motion.STEP,
    quality.STEP,
    faces.STEP,
    audio.STEP,
    overlay.STEP,
    text_tags.STEP,
    actions.STEP,
    funnel.STEP,
    embed.STEP,
    camera.STEP,
    audio_labels.STEP,
    caption.STEP,
    qc.STEP,
    decontam.STEP,
    semdedup.CENTROIDS,
    semdedup.ASSIGNMENTS,
    semdedup.DUPLICATES,
    manifest.STEP,
    latent_shards.STEP,
    caption_packs.STEP,
    index.STEP,
    plan_step.STEP,
    proof.STEP,
    runs_served.STEP,
    takedown.STEP,
    snapshot.STEP,
    retention.STEP,
    killrates.STEP,
    drift.STEP,
    realised_order.STEP,
    contamination.STEP,
    cost.STEP,
    mirror.STEP,
)

STEPS: dict[str, Step] = {f"{step.stage}/{step.name}": step for step in _ALL}


def find_step(stage: str, name: str) -> Step:
    """Look a step up.

    Raises:
        ValueError: There is none of that name.
    """
    try:
        return STEPS[f"{stage}/{name}"]
    except KeyError:
        raise ValueError(f"no step {stage}/{name}; known are {', '.join(STEPS)}") from None
