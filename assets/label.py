"""Label: embeddings, camera motion, sound and captions of the clips that passed the gates."""

from functools import partial

import dagster as dg

from assets.building import Shown, step_assets
from assets.checking import promise
from wsdata.observability import checks as promises
from wsdata.steps import STEPS

_SHOWN = {
    "clip_embeddings": "One unit vector per clip, from its frame pack, and what the network sees.",
    "camera_motion": "How the camera moves: static, pan, tilt, zoom, handheld, complex.",
    "audio_labels": "What is heard: speech, music, ambience, silence or no track.",
    "captions": "Dense and short captions, best tier first; a new captioner is a new version.",
    "label_qc": "Faults of each caption: encoding, repetition, length, language, agreement.",
}

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    step_assets(STEPS[f"label/{name}"], {name: Shown(description=text)}, steps=STEPS)
    for name, text in _SHOWN.items()
]

checks: list[dg.AssetChecksDefinition] = [
    *(
        promise(
            STEPS[f"label/{name}"],
            name,
            "all_covered",
            partial(promises.coverage_faults, what=what),
            ("gates", name),
            is_blocking=True,
            description="Every clip that passed the gates has a row.",
        )
        for name, what in (
            ("clip_embeddings", "embedding"),
            ("camera_motion", "camera label"),
            ("audio_labels", "sound label"),
            ("captions", "caption"),
        )
    ),
    promise(
        STEPS["label/clip_embeddings"],
        "clip_embeddings",
        "unit_length",
        promises.vector_faults,
        ("clip_embeddings",),
        is_blocking=True,
        description="Vectors have unit length: dot products are read as cosines.",
    ),
    promise(
        STEPS["label/label_qc"],
        "label_qc",
        "captions_sound",
        promises.caption_faults,
        ("captions", "label_qc"),
        is_blocking=False,
        description="Captions are neither broken, repetitive nor all alike.",
    ),
]
