"""Lifecycle: takedowns, pinned dataset versions, and what the store keeps for what."""

import dagster as dg

from assets.building import Shown, step_assets
from assets.checking import promise
from wsdata.observability import checks as promises
from wsdata.steps import STEPS

SNAPSHOTS = STEPS["lifecycle/snapshots"]
RETENTION = STEPS["lifecycle/retention"]

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    step_assets(
        STEPS["lifecycle/takedowns"],
        {
            "takedowns": Shown(
                description="Every takedown so far: assets named, their twins, the clips they gave."
            )
        },
        steps=STEPS,
    ),
    step_assets(
        SNAPSHOTS,
        {
            "snapshots": Shown(
                description="Dataset versions pinned: manifest, index, plan, shards, packs."
            )
        },
        steps=STEPS,
    ),
    step_assets(
        RETENTION,
        {
            "retention": Shown(
                description="Of each stored object what it is kept for, and what could go."
            )
        },
        steps=STEPS,
        reads_drawn=("placements", "manifests", "snapshots", "transcodes_256p", "raw_assets"),
    ),
]

checks: list[dg.AssetChecksDefinition] = [
    promise(
        SNAPSHOTS,
        "snapshots",
        "pinned",
        promises.pin_faults,
        ("snapshots",),
        is_blocking=True,
        description="The version is pinned and holds shards.",
    ),
    promise(
        STEPS["lifecycle/takedowns"],
        "takedowns",
        "all_name_something",
        promises.takedown_faults,
        ("takedowns",),
        is_blocking=False,
        description="Every takedown names at least one raw asset.",
    ),
    promise(
        RETENTION,
        "retention",
        "nothing_loose",
        promises.collectable_faults,
        ("retention",),
        is_blocking=False,
        description="Nothing lies in the store that no row and no pin refers to.",
    ),
]
