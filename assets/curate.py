"""Curate: decontamination, semantic duplicates, and the manifest of a dataset version."""

import dagster as dg

from assets import partitions
from assets.building import Shown, step_assets
from assets.checking import Reads, promise
from assets.work import Workbench
from wsdata.catalog.objects import read_table
from wsdata.observability import checks as promises
from wsdata.steps import STEPS

MANIFEST = STEPS["curate/manifest"]
ASSIGNMENTS = STEPS["curate/cluster_assignments"]


def open_shard_groups(context: dg.AssetExecutionContext, bench: Workbench) -> None:
    """Add the shard groups that a cut fills, as partitions."""
    rows = read_table(bench.ledger, bench.store, "shard_assignments", context.partition_key)
    groups = rows["shard_group"].unique().sort().to_list()
    context.instance.add_dynamic_partitions(partitions.shard_groups.name or "", groups)


_SHOWN = {
    "eval_matches": "Clips that show eval material, by print and by embedding: an alarm.",
    "centroids": "Cluster centres of like meaning, fitted on clips chosen by hash, with domains.",
    "cluster_assignments": "The cluster that each clip of a drop lies in.",
    "semantic_duplicates": "Clips that mean the same as a better one, by range of clusters.",
}

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    *(
        step_assets(STEPS[f"curate/{name}"], {name: Shown(description=text)}, steps=STEPS)
        for name, text in _SHOWN.items()
    ),
    step_assets(
        MANIFEST,
        {
            "manifest": Shown(
                description=(
                    "What a recipe makes of the catalog as of one commit: the frozen list of "
                    "samples with final tiers and streams, what was left out and why, and the "
                    "shard groups to encode. A version is never cut twice."
                )
            )
        },
        steps=STEPS,
        after_commit=open_shard_groups,
    ),
]

checks: list[dg.AssetChecksDefinition] = [
    promise(
        ASSIGNMENTS,
        "cluster_assignments",
        "all_assigned",
        promises.cluster_faults,
        ("clip_embeddings", "cluster_assignments"),
        is_blocking=True,
        description="Every embedded clip lies in a cluster.",
    ),
    promise(
        STEPS["curate/centroids"],
        "centroids",
        "unit_length",
        promises.centroid_faults,
        ("centroids",),
        is_blocking=True,
        description="There are clusters, and each centroid is of unit length.",
    ),
    promise(
        STEPS["curate/semantic_duplicates"],
        "semantic_duplicates",
        "kept_stays",
        promises.redundant_faults,
        ("semantic_duplicates",),
        is_blocking=True,
        description="Every redundant clip names another that stays.",
    ),
    promise(
        STEPS["curate/eval_matches"],
        "eval_matches",
        "all_compared",
        promises.compared_faults,
        ("gates", "clip_embeddings", "pass_fingerprints"),
        is_blocking=True,
        description="Every clip that passed the gates can be compared by print and embedding.",
    ),
    promise(
        MANIFEST,
        "manifest",
        "all_accounted",
        promises.manifest_faults,
        (Reads(table="clips", scope="as_of_cut"), "manifests", "exclusions"),
        is_blocking=True,
        description="Every clip as of the cut is listed, or excluded with a reason.",
    ),
]
