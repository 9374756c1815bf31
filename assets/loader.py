"""Loader: the proof that a training job reads what the plan says, and what jobs were served."""

import dagster as dg

from assets.building import Shown, asset_key, step_assets
from assets.checking import promise, result, scoped_check
from assets.work import Workbench
from resources.blob_store import BlobStoreResource
from resources.catalog import CatalogResource
from wsdata.loader import runs_served
from wsdata.loader.inbox import refused_reports, take_in
from wsdata.observability import checks as promises
from wsdata.steps import STEPS

PROOF = STEPS["loader/loader_proof"]
RUNS_SERVED = STEPS["loader/runs_served"]


def _empty_inbox(context: dg.AssetExecutionContext, bench: Workbench) -> None:
    taken = take_in(bench.ledger, bench.store)
    if taken:
        context.log.info(
            f"taken in: {taken.num_served} served ranges, {taken.num_telemetry} reports of ranks"
        )
    for key, reason in taken.refused.items():
        context.log.warning(f"refused: {key}: {reason}")


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
    ),
    step_assets(
        RUNS_SERVED,
        {
            "runs_served": Shown(
                description=(
                    "Steps that training runs were really served, as rank 0 told the inbox: by "
                    "which version and plan, what was replayed after a resume, what nobody told."
                )
            ),
            "rank_telemetry": Shown(
                description=(
                    "How each rank's loader keeps up: percentiles of its fetches, cache hits, "
                    "stalls, and whether the slowest fetches outlast its ring."
                )
            ),
        },
        steps=STEPS,
        before_order=_empty_inbox,
    ),
]


@scoped_check(
    asset=asset_key(RUNS_SERVED, "runs_served"),
    name="none_refused",
    blocking=False,
    description=(
        "Every report of a trainer could be read. One that could not lies under inbox/refused/; "
        "deleting it there settles it."
    ),
    partitions_def=None,
)
def _none_refused(catalog: CatalogResource, blob_store: BlobStoreResource) -> dg.AssetCheckResult:
    refused = refused_reports(catalog.open(), blob_store.open())
    return result([f"{key}: {reason}" for key, reason in refused.items()], is_blocking=False)


checks: list[dg.AssetChecksDefinition] = [
    promise(
        PROOF,
        "loader_proof",
        "all_passed",
        promises.proof_faults,
        ("loader_proofs",),
        is_blocking=True,
        description="Every part of the proof passed.",
    ),
    promise(
        RUNS_SERVED,
        "runs_served",
        "all_known",
        runs_served.unknown_faults,
        ("runs_served",),
        is_blocking=False,
        description="Of every step up to a run's last one it is known what it served.",
    ),
    _none_refused,
    promise(
        RUNS_SERVED,
        "rank_telemetry",
        "loader_keeps_up",
        runs_served.slow_faults,
        ("rank_telemetry",),
        is_blocking=False,
        description="No rank's p99.9 of fetches exceeds ring depth x step time.",
    ),
]
