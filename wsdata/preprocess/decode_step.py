"""The step of the one decode: what it reads, what it makes, what decides it.

What it does for a drop is `decode_drop`; what the child does with a file, `onepass`.
"""

from typing import Any

from wsdata.media.engines import engine_params
from wsdata.orders import FactInput, Input, Step
from wsdata.preprocess.shot_engines import finder_params
from wsdata.preprocess.windows import window_params
from wsdata.recipe import Recipe
from wsdata.tables import TRANSCODES

CODE_VERSION = "onepass-4"


def _params(recipe: Recipe) -> dict[str, Any]:
    return {**window_params(), **finder_params(recipe.shots)}


STEP = Step(
    stage="preprocess",
    name="decode",
    function="wsdata.preprocess.decode_drop:run",
    code_version=CODE_VERSION,
    partition="drop",
    assets={
        "clips": ("clips",),
        **{f"transcodes_{rung}": (f"transcodes_{rung}",) for rung in TRANSCODES},
        "audio_tracks": ("audio_tracks",),
        "frame_packs": ("frame_packs", "pass_fingerprints"),
        "decode_status": ("decode_status",),
    },
    inputs=(Input(table="raw_assets"), Input(table="probes"), Input(table="provenance")),
    facts=(
        FactInput(kind="release", of_drop=True),
        FactInput(kind="quarantine", in_digest=False, of_drop=True),
    ),
    pool="nvdec",
    units_of="raw_assets",
    params_of=_params,
    constants_of=lambda deployment: engine_params(deployment.decoder, deployment.encoder),
    settings_of=lambda deployment, _recipe: {
        "num_threads": deployment.num_threads,
        "sandbox_minimum": deployment.sandbox_minimum,
        "sandbox_stall_s": deployment.sandbox_stall_s,
    },
    description="One decode of each raw asset: clips, every rung, sound, frame packs, prints.",
)
