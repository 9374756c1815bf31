"""Preprocess: one decode pass, versioned scores, and the gates that read them."""

from functools import partial

import dagster as dg

from assets.building import Shown, step_assets
from assets.checking import promise
from wsdata.observability import checks as promises
from wsdata.steps import STEPS
from wsdata.tables import FILTERS, RUNGS

DECODE = STEPS["preprocess/decode"]
ACTIONS = STEPS["preprocess/action_tracks"]
GATES = STEPS["preprocess/gates"]

SCORED = {
    "safety_list": (
        "Whether anything of a raw asset matches a picture on the deployment's safety lists. The "
        "gate stops every hit; counts alone are shown."
    ),
    "technical": "Technical health: resolution reached, length, decode errors, bits a pixel.",
    "safety": "How likely a clip is unsafe. The gate stops the highest.",
    "motion": "How much and how unsteadily a clip moves, from dense optical flow.",
    "quality": "How well a clip is pictured: sharpness, contrast, exposure, colour, black frames.",
    "faces": "How many faces a clip shows, and how large. A tag, never a gate.",
    "audio": "Whether there is sound, how loud, and whether it is speech or music.",
    "overlay": "How much of the picture lies under burned-in text.",
    "text_tags": "Number plates and documents, by rule from the text read. A tag, never a gate.",
    "actions": "Whether a track of actions follows the pictures, and by how much it is late.",
}

_PASS = {
    "clips": Shown(
        description="Training windows of 2-20 s inside one shot, with the exact span in pts."
    ),
    **{
        f"transcodes_{rung}": Shown(
            description=f"The {rung} rung of every clip whose source reaches it, at 24 fps.",
            kinds=frozenset({"parquet", "mp4"}),
        )
        for rung in RUNGS
    },
    "transcodes_48fps": Shown(
        description=(
            "The largest rung up to 720p of every clip whose source has 48 frames a second or "
            "more, at 48 fps."
        ),
        kinds=frozenset({"parquet", "mp4"}),
    ),
    "audio_tracks": Shown(
        description=(
            "Sound of each clip, where it is present and in sync, else why not: music as AAC in "
            "stereo at 44.1 kHz, all other as Opus at 16 kHz."
        ),
        kinds=frozenset({"parquet", "opus"}),
    ),
    "frame_packs": Shown(
        description=(
            "Sampled frames of each clip that every later model reads, so that no video is "
            "decoded twice; and prints at 1 per second."
        ),
        kinds=frozenset({"parquet", "jpeg"}),
    ),
    "decode_status": Shown(
        description="What became of every raw asset: ok, salvaged, quarantined, empty, failed."
    ),
}

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    step_assets(DECODE, _PASS, steps=STEPS),
    step_assets(
        ACTIONS,
        {
            "action_tracks": Shown(
                description=(
                    "Tracks of actions and sensors, cut along each clip: rows as delivered, and "
                    "values at its frames."
                )
            )
        },
        steps=STEPS,
    ),
    *(
        step_assets(
            STEPS[f"preprocess/{name}_scores"],
            {f"{name}_scores": Shown(description=f"{text} Versioned by its model.")},
            steps=STEPS,
        )
        for name, text in SCORED.items()
    ),
    step_assets(
        GATES,
        {
            "gates": Shown(
                description=(
                    "Under the operating recipe: which clips go on, why the others do not, and a "
                    "provisional tier. A cut decides again from the stored scores."
                )
            )
        },
        steps=STEPS,
    ),
]

checks: list[dg.AssetChecksDefinition] = [
    promise(
        DECODE,
        "decode_status",
        "no_asset_lost",
        promises.lost_asset_faults,
        ("raw_assets", "decode_status"),
        is_blocking=True,
        description="Every raw asset ended in a status, and nothing of the vault was decoded.",
    ),
    promise(
        DECODE,
        "decode_status",
        "few_quarantined",
        promises.quarantine_faults,
        ("decode_status", "provenance"),
        is_blocking=False,
        description="No source gives more undecodable files than it should.",
    ),
    promise(
        DECODE,
        "clips",
        "spans_possible",
        promises.span_faults,
        ("clips", "probes"),
        is_blocking=True,
        description="Every clip starts before it ends, and ends within its source.",
    ),
    *(
        promise(
            step,
            name,
            "one_for_each_clip",
            partial(promises.one_each_faults, what=what),
            ("clips", name),
            is_blocking=True,
            description=f"Every clip has its {what}.",
        )
        for step, name, what in (
            (DECODE, "audio_tracks", "word on its sound"),
            (DECODE, "frame_packs", "frame pack"),
            (ACTIONS, "action_tracks", "word on its track of actions"),
        )
    ),
    *(
        promise(
            DECODE,
            f"transcodes_{rung}",
            "rung_complete",
            partial(promises.rung_faults, rung=rung, rungs=RUNGS),
            ("clips", f"transcodes_{rung}"),
            is_blocking=True,
            description=f"Every clip that reaches {rung} has it, and none was scaled up.",
        )
        for rung in RUNGS
    ),
    promise(
        DECODE,
        "transcodes_48fps",
        "rung_complete",
        promises.fast_rung_faults,
        ("clips", "transcodes_48fps"),
        is_blocking=True,
        description="Every clip whose source has 48 fps has them, and no frame was invented.",
    ),
    *(
        promise(
            STEPS[f"preprocess/{name}_scores"],
            f"{name}_scores",
            "all_scored",
            promises.score_faults,
            ("clips", f"{name}_scores"),
            is_blocking=True,
            description="Every clip has a score, or the reason why there is none.",
        )
        for name in FILTERS
    ),
    promise(
        STEPS["preprocess/safety_list_scores"],
        "safety_list_scores",
        "none_listed",
        promises.listed_faults,
        ("safety_list_scores",),
        is_blocking=False,
        is_grave=True,
        description="Nothing of the drop matches a safety list; what does is stopped and held.",
    ),
    promise(
        GATES,
        "gates",
        "all_decided",
        promises.gate_faults,
        ("clips", "gates"),
        is_blocking=True,
        description="Every clip was decided, with a tier or a reason.",
    ),
]
