"""Shard: latents, caption packs, the dataset index and the step plan."""

import dagster as dg

from assets.building import Shown, step_assets
from assets.checking import Reads, promise
from wsdata.observability import checks as promises
from wsdata.shard.fidelity import fidelity_faults
from wsdata.steps import STEPS

LATENTS = STEPS["shard/latent_shards"]
PACKS = STEPS["shard/caption_packs"]
INDEX = STEPS["shard/dataset_index"]
PLAN = STEPS["shard/step_plan"]

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    step_assets(
        LATENTS,
        {
            "latent_shards": Shown(
                description=(
                    "Latents of a shard group, in immutable shards of one tensor shape each, with "
                    "the PSNR of every sample and what was lost on the way."
                ),
                kinds=frozenset({"parquet", "mds"}),
            )
        },
        steps=STEPS,
    ),
    step_assets(
        PACKS,
        {
            "caption_packs": Shown(
                description="Captions row by row beside their shards, one pack per captioner.",
                kinds=frozenset({"parquet"}),
            )
        },
        steps=STEPS,
    ),
    step_assets(
        INDEX,
        {
            "dataset_index": Shown(
                description="Where each sample of a dataset version lies; losses are listed."
            )
        },
        steps=STEPS,
    ),
    step_assets(
        PLAN,
        {
            "step_plan": Shown(
                description="Which samples each step gets: a pure function, and its proof.",
                kinds=frozenset({"json"}),
            )
        },
        steps=STEPS,
    ),
]

checks: list[dg.AssetChecksDefinition] = [
    promise(
        LATENTS,
        "latent_shards",
        "all_placed",
        promises.placement_faults,
        (
            Reads(table="shard_assignments", scope="version_of_group"),
            "placements",
            "latent_losses",
        ),
        takes_partition=True,
        is_blocking=True,
        description="Every sample of the group was placed, or is lost with a reason.",
    ),
    promise(
        LATENTS,
        "latent_shards",
        "latent_fidelity",
        fidelity_faults,
        ("placements",),
        is_blocking=False,
        description="What the latents decode to, and what the cast costs, keep to golden floors.",
    ),
    promise(
        PACKS,
        "caption_packs",
        "row_aligned",
        promises.pack_faults,
        ("placements", "caption_packs"),
        is_blocking=True,
        description="Every shard has a caption pack with a row for each sample.",
    ),
    promise(
        INDEX,
        "dataset_index",
        "all_listed",
        promises.index_faults,
        ("manifests", "dataset_index", "index_losses"),
        is_blocking=True,
        description="Every sample of the manifest is placed, or listed as lost.",
    ),
    promise(
        INDEX,
        "dataset_index",
        "latent_fidelity",
        fidelity_faults,
        (Reads(table="placements", scope="groups_of_version"),),
        is_blocking=False,
        description="No shard group falls behind the floors, or behind the version's others.",
    ),
    promise(
        PLAN,
        "step_plan",
        "plan_proved",
        promises.plan_faults,
        ("step_plans",),
        is_blocking=True,
        description="Each sample once per epoch, streams at their weights, inverse agrees.",
    ),
]
