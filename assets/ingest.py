"""Ingest: from delivery folders to raw assets, their rights, prints and near-duplicates."""

import dagster as dg

from assets import partitions
from assets.building import DAILY, MONTHLY, OWNERS, Shown, stated_key, step_assets
from assets.checking import promise, result, scoped_check
from resources.blob_store import BlobStoreResource
from resources.catalog import CatalogResource
from resources.deployments import DeploymentResource
from wsdata.catalog.presence import Presence
from wsdata.ingest.delivery import check_drop
from wsdata.ingest.exposure import listed_states
from wsdata.ingest.landing import open_landing, ready_drops
from wsdata.ingest.registered import REGISTRATION_VERSION, TABLE
from wsdata.observability import checks as promises
from wsdata.steps import STEPS

DELIVERIES = dg.AssetKey(["ingest", "deliveries"])
LAND = STEPS["ingest/land"]
FINGERPRINTS = STEPS["ingest/fingerprints"]

deliveries = dg.AssetSpec(
    DELIVERIES,
    group_name="ingest",
    owners=OWNERS,
    kinds={"folder"},
    code_version="deliveries-1",
    freshness_policy=DAILY,
    partitions_def=partitions.deliveries,
    description=(
        "Folders seen in the landing zone, each with an observation: accepted, or refused with "
        "every fault listed. A folder is looked at once its `_READY` marker is there, and again "
        "when the marker changes."
    ),
)

generated_prints = dg.AssetSpec(
    stated_key("generated_prints"),
    group_name="ingest",
    owners=OWNERS,
    kinds={"parquet"},
    code_version=REGISTRATION_VERSION,
    freshness_policy=MONTHLY,
    description=(
        "Prints of what models made, registered by their makers without any drop "
        "(`wsdata generated register`). Each cut re-tags the clips that show it."
    ),
)

assets: list[dg.AssetsDefinition | dg.AssetSpec] = [
    deliveries,
    generated_prints,
    step_assets(
        LAND,
        {
            "raw_assets": Shown(
                description=(
                    "Raw files by the sha256 of their bytes, put once into the raw store or, "
                    "where the carve says so, into the sealed vault; and per file what its "
                    "delivery states: source, licence, territory, rights window, opt-out."
                ),
                kinds=frozenset({"parquet", "storage"}),
            )
        },
        steps=STEPS,
        extra_deps=(DELIVERIES,),
    ),
    step_assets(
        STEPS["ingest/vault_prints"],
        {
            "vault_prints": Shown(
                description=(
                    "Prints and embeddings of vault members: the only thing that leaves the vault."
                )
            )
        },
        steps=STEPS,
    ),
    step_assets(
        FINGERPRINTS,
        {
            "fingerprints": Shown(
                description=(
                    "Perceptual hashes of key frames, mirrored too, and what each container holds."
                )
            )
        },
        steps=STEPS,
    ),
    step_assets(
        STEPS["ingest/near_duplicates"],
        {
            "near_duplicates": Shown(
                description=(
                    "Pairs of raw assets, over all drops, that show the same: whole, or a span. "
                    "Groups and their canonical copy are derived from these when asked."
                )
            )
        },
        steps=STEPS,
    ),
]


@scoped_check(
    asset=DELIVERIES,
    partitions_def=partitions.deliveries,
    description="The folder keeps the drop contract; every fault is listed.",
)
def contract_kept(
    context: dg.AssetCheckExecutionContext, deployment: DeploymentResource
) -> dg.AssetCheckResult:
    """Check one folder against the drop contract."""
    zone = open_landing(deployment.open().landing)
    return result(check_drop(zone, context.partition_key), is_blocking=True)


@dg.asset_check(
    asset=DELIVERIES,
    description="No folder with a marker is refused. A partitioned check shows the last folder "
    "looked at; this shows the worst.",
)
def none_refused(deployment: DeploymentResource, catalog: CatalogResource) -> dg.AssetCheckResult:
    """Check every folder that waits in the landing zone."""
    waiting = _waiting(deployment, catalog)
    refused = [name for name, faults in waiting.items() if faults]
    return result([f"{name} is refused" for name in refused], is_blocking=True)


@dg.asset_check(
    asset=DELIVERIES,
    description="Every accepted folder has been landed. Freshness is told per asset, so one old "
    "drop that waits would not show.",
)
def none_waiting(deployment: DeploymentResource, catalog: CatalogResource) -> dg.AssetCheckResult:
    """Check that no good drop waits to be landed."""
    waiting = [name for name, faults in _waiting(deployment, catalog).items() if not faults]
    return result([f"{name} has not been landed" for name in waiting], is_blocking=False)


@dg.asset_check(
    asset=DELIVERIES,
    description="No asset of the eval list lies outside the vault. One listed after it was landed "
    "may have been trained on: `wsdata vault exposure` tells where.",
)
def none_exposed(
    deployment: DeploymentResource, catalog: CatalogResource, blob_store: BlobStoreResource
) -> dg.AssetCheckResult:
    """Look up where every listed asset is."""
    listed = deployment.open().read_eval_sets()
    states = listed_states(catalog.open(), blob_store.open(), listed)
    faults = [
        f"{each['asset_id'][:12]} of {', '.join(each['sets']) or 'the eval list'} is outside the "
        "vault: see `wsdata vault exposure`"
        for each in states
        if each["state"] == "exposed"
    ]
    return result(faults, is_blocking=True)


@dg.asset_check(
    asset=generated_prints.key,
    description="The store has every registration, so that no cut misses one.",
)
def registrations_kept(
    catalog: CatalogResource, blob_store: BlobStoreResource
) -> dg.AssetCheckResult:
    """Ask the store for the object of every registration."""
    presence = Presence(blob_store.open())
    lost = [ref.partition for ref in catalog.open().live(TABLE) if presence.is_lost(ref)]
    faults = [f"registration {name} is not in the store: register it again" for name in lost]
    return result(faults, is_blocking=True)


def _waiting(deployment: DeploymentResource, catalog: CatalogResource) -> dict[str, list[str]]:
    """Faults of each ready folder that has not been landed; what was landed had none."""
    zone = open_landing(deployment.open().landing)
    landed = {ref.partition for ref in catalog.open().live("raw_assets")}
    return {name: check_drop(zone, name) for name, _ in ready_drops(zone, known=landed)}


checks: list[dg.AssetChecksDefinition] = [
    contract_kept,
    none_refused,
    none_waiting,
    none_exposed,
    registrations_kept,
    promise(
        LAND,
        "raw_assets",
        "not_empty",
        promises.empty_faults,
        ("raw_assets",),
        is_blocking=False,
        description="The drop holds media.",
    ),
    promise(
        FINGERPRINTS,
        "fingerprints",
        "all_probed",
        promises.print_faults,
        ("raw_assets", "probes"),
        is_blocking=True,
        description="Every raw asset outside the vault was probed.",
    ),
    promise(
        STEPS["ingest/near_duplicates"],
        "near_duplicates",
        "pairs_ordered",
        promises.pair_faults,
        ("match_pairs",),
        is_blocking=True,
        description="Every pair names two assets in their order, and shares that are shares.",
    ),
    promise(
        STEPS["ingest/vault_prints"],
        "vault_prints",
        "all_printed",
        promises.vault_faults,
        ("raw_assets", "vault_prints"),
        is_blocking=False,
        description="Every vault member has prints that copies of it can be found by.",
    ),
]
