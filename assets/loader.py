"""Loader: the proof that what a training job reads is what the plan says."""

import dagster as dg

from assets.building import Shown, step_assets
from assets.checking import promise
from wsdata.observability import checks as promises
from wsdata.steps import STEPS

PROOF = STEPS["loader/loader_proof"]

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    step_assets(
        PROOF,
        {
            "loader_proof": Shown(
                description=(
                    "The same samples in the same order at several world sizes, after a kill and "
                    "a resume, equal to an independent encoding."
                ),
                kinds=frozenset({"parquet", "pytorch"}),
            )
        },
        steps=STEPS,
    )
]

checks: list[dg.AssetChecksDefinition] = [
    promise(
        PROOF,
        "loader_proof",
        "all_passed",
        promises.proof_faults,
        ("loader_proofs",),
        is_blocking=True,
        description="Every part of the proof passed.",
    )
]
