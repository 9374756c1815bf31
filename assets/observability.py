"""Observability: kill rates, drift, contamination, costs, and the mirror for other engines."""

import dagster as dg

from assets import partitions
from assets.building import Shown, asset_key, step_assets
from assets.checking import promise, result, scoped_check
from resources.blob_store import BlobStoreResource
from resources.catalog import CatalogResource
from wsdata.observability import checks as promises
from wsdata.observability import steadiness
from wsdata.observability.contamination import coverage_faults
from wsdata.observability.realised_order import order_faults
from wsdata.steps import STEPS

KILL_RATES = STEPS["observability/kill_rates"]
REALISED = STEPS["observability/realised_order"]
CONTAMINATION = STEPS["observability/contamination"]
SUMMED_UP = ("raw_assets", "clips", "captions", "manifests", "placements")

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    step_assets(
        KILL_RATES,
        {
            "kill_rates": Shown(
                description=(
                    "Per filter and source: clips seen, stopped, failed, spared; histograms."
                )
            )
        },
        steps=STEPS,
    ),
    step_assets(
        STEPS["observability/drift"],
        {
            "drift": Shown(
                description="Scores of a frozen slice under every model version, and their shift."
            )
        },
        steps=STEPS,
    ),
    step_assets(
        REALISED,
        {
            "realised_order": Shown(
                description=(
                    "The order that runs were really served: how sources and clusters follow each "
                    "other, each stream's share of latent tokens, repeats, shares of buckets."
                )
            )
        },
        steps=STEPS,
        reads_drawn=("runs_served",),
    ),
    step_assets(
        CONTAMINATION,
        {
            "contamination": Shown(
                description="How much of a version was compared with the vault: a release gate."
            )
        },
        steps=STEPS,
    ),
    step_assets(
        STEPS["observability/costs"],
        {"costs": Shown(description="Bytes by kind of object, and what they cost a month.")},
        steps=STEPS,
        reads_drawn=SUMMED_UP,
    ),
    step_assets(
        STEPS["observability/engine_mirror"],
        {
            "engine_mirror": Shown(
                description="Live rows as Delta tables over the same objects, uncopied.",
                kinds=frozenset({"deltalake"}),
            )
        },
        steps=STEPS,
        reads_drawn=SUMMED_UP,
    ),
]


@scoped_check(
    asset=asset_key(KILL_RATES, "kill_rates"),
    name="kill_rates_steady",
    blocking=False,
    description=(
        "No filter stops, or fails on, much more or less of this source than in its earlier drops "
        "or than of other sources; see wsdata.observability.steadiness for the rule."
    ),
    partitions_def=partitions.BY_KIND[KILL_RATES.partition],
)
def _kill_rates_steady(
    context: dg.AssetCheckExecutionContext, catalog: CatalogResource, blob_store: BlobStoreResource
) -> dg.AssetCheckResult:
    alarms = steadiness.check_drop(catalog.open(), blob_store.open(), context.partition_key)
    is_grave = any(alarm.severity == "error" for alarm in alarms)
    return result([alarm.text for alarm in alarms], is_blocking=is_grave)


checks: list[dg.AssetChecksDefinition] = [
    _kill_rates_steady,
    promise(
        KILL_RATES,
        "kill_rates",
        "few_stopped",
        promises.kill_faults,
        ("kill_rates",),
        is_blocking=False,
        description="No filter stops nearly everything of a source.",
    ),
    promise(
        STEPS["observability/drift"],
        "drift",
        "no_shift",
        promises.drift_faults,
        ("drift",),
        is_blocking=False,
        description="No model version shifts a score of the reference slice by much.",
    ),
    promise(
        REALISED,
        "realised_order",
        "order_realised",
        order_faults,
        ("realised_order",),
        is_blocking=False,
        description=(
            "No source or cluster follows itself beyond the global batch by more than chance, and "
            "streams and buckets have their shares within the plan's bounds."
        ),
    ),
    promise(
        STEPS["observability/costs"],
        "costs",
        "storage_in_bounds",
        promises.cost_faults,
        ("costs",),
        is_blocking=False,
        description="What is stored stays within twice the raw bytes, on a large corpus.",
    ),
    promise(
        STEPS["observability/engine_mirror"],
        "engine_mirror",
        "all_mirrored",
        promises.mirror_faults,
        ("engine_mirror",),
        is_blocking=False,
        description="Every mirrored table has its objects.",
    ),
    promise(
        CONTAMINATION,
        "contamination",
        "all_compared",
        coverage_faults,
        ("contamination",),
        is_blocking=True,
        description="Every clip of the manifest was compared with the vault: a release gate.",
    ),
]
