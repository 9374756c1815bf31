"""From a step of the library to a Dagster multi-asset.

The steps say what is read and made; the stage modules say how it is shown to people; this
joins the two. It decides nothing about data.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import dagster as dg

from assets import partitions
from assets.work import Workbench, materialize
from resources.blob_store import BlobStoreResource
from resources.catalog import CatalogResource
from resources.compute_pool import ComputePools
from resources.deployments import DeploymentResource
from resources.recipes import RecipesResource
from wsdata.orders import Step
from wsdata.tables import STATED

OWNERS = ["team:data"]
ORCHESTRATOR_POOL = "cpu"  # where steps without a pool count, so that they cannot crowd a machine

DAILY = dg.FreshnessPolicy.time_window(
    fail_window=dt.timedelta(hours=24), warn_window=dt.timedelta(hours=12)
)
MONTHLY = dg.FreshnessPolicy.time_window(
    fail_window=dt.timedelta(days=30), warn_window=dt.timedelta(days=14)
)
VERIFY_TAG = "wsdata/verify"  # "true" on a run: ask the store for every blob
NOTHING = dg.SpecificPartitionsPartitionMapping([])

InRun = Callable[[dg.AssetExecutionContext, Workbench], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """How one asset is shown.

    Attributes:
        description: What it holds, for a person who opens it.
        kinds: Tags that the graph draws, at most three.
    """

    description: str
    kinds: frozenset[str] = frozenset({"parquet"})


def asset_key(step: Step, name: str) -> dg.AssetKey:
    """Key of one of a step's assets: its stage, then its name."""
    return dg.AssetKey([step.stage, name])


def stated_key(table: str) -> dg.AssetKey:
    """Key of the external asset that stands for a table of what people state."""
    return dg.AssetKey([STATED[table], table])


def step_keys(step: Step) -> list[dg.AssetKey]:
    """Keys of all assets of a step."""
    return [asset_key(step, name) for name in step.assets]


def makers(steps: Mapping[str, Step]) -> dict[str, tuple[Step, dg.AssetKey]]:
    """Which step and which asset make each table."""
    return {
        table: (step, asset_key(step, name))
        for step in steps.values()
        for name, tables in step.assets.items()
        for table in tables
    }


def dependencies(
    step: Step, steps: Mapping[str, Step], reads_drawn: tuple[str, ...] = ()
) -> list[dg.AssetDep]:
    """What a step reads, as edges of the graph; of some tables alone where they are named.

    A step may look up what comes after it in the graph (a manifest asks which samples lie in
    shards already). Such an input is no edge: the ledger orders it in time. What people state
    is an external asset.
    """
    made_by, order = makers(steps), list(steps.values())
    edges: dict[dg.AssetKey, dg.AssetDep] = {}
    for wanted in step.inputs:
        if wanted.table in STATED:
            key = stated_key(wanted.table)
            edges[key] = dg.AssetDep(key)
            continue
        if reads_drawn and wanted.table not in reads_drawn:
            continue
        upstream, key = made_by[wanted.table]
        if order.index(upstream) >= order.index(step):
            continue
        mapping = partition_mapping(upstream.partition, step.partition)
        edges.setdefault(key, dg.AssetDep(key, partition_mapping=mapping))
    return [edges[key] for key in sorted(edges)]


def partition_mapping(upstream: str, downstream: str) -> dg.PartitionMapping | None:
    """How partitions of one kind depend on those of another.

    Between different kinds the edge stays, and no partition goes stale by it: cutting v2 must
    not make v1's shards stale. What was read is in the ledger. Dashboards without partitions
    do follow all of what they sum up.
    """
    if upstream == downstream or upstream == "none":
        return None
    return dg.AllPartitionMapping() if downstream == "none" else NOTHING


def step_assets(
    step: Step,
    shown: Mapping[str, Shown],
    *,
    steps: Mapping[str, Step],
    extra_deps: tuple[dg.AssetKey, ...] = (),
    reads_drawn: tuple[str, ...] = (),
    before_order: InRun | None = None,
    after_commit: InRun | None = None,
) -> dg.AssetsDefinition:
    """Build the multi-asset of a step.

    Args:
        step: The step.
        shown: How each of its assets is shown, by name.
        steps: All steps of the graph, in flow order, by ``stage/name``.
        extra_deps: Edges to assets that no step makes.
        reads_drawn: Tables whose edges are drawn, of a step that reads nearly all of them.
        before_order: Called in the run before it is asked what there is to do: takes in what came
            from outside.
        after_commit: Called in the run once the step's rows are live.

    Raises:
        ValueError: `shown` and the step name different assets.
    """
    if set(shown) != set(step.assets):
        raise ValueError(
            f"{step.stage}/{step.name} makes {sorted(step.assets)}, shown are {sorted(shown)}"
        )
    deps = [*dependencies(step, steps, reads_drawn), *_extra_edges(extra_deps)]
    pool = step.pool or ORCHESTRATOR_POOL
    specs = [
        dg.AssetSpec(
            asset_key(step, name),
            deps=deps,
            description=each.description,
            group_name=step.stage,
            owners=OWNERS,
            kinds=set(each.kinds),
            code_version=step.code_version,
            freshness_policy=DAILY if step.partition == "drop" else MONTHLY,
            metadata={"step": f"{step.stage}/{step.name}", "pool": pool},
            tags={"wsdata/step": step.name, "wsdata/pool": pool},
        )
        for name, each in shown.items()
    ]

    @dg.multi_asset(
        name=f"{step.stage}__{step.name}",
        specs=specs,
        partitions_def=partitions.BY_KIND[step.partition],
        pool=pool,
        can_subset=False,
        description=step.description,
        op_tags={"wsdata/pool": pool},
    )
    def _assets(
        context: dg.AssetExecutionContext,
        deployment: DeploymentResource,
        catalog: CatalogResource,
        blob_store: BlobStoreResource,
        recipes: RecipesResource,
        compute_pools: ComputePools,
    ) -> Iterator[dg.MaterializeResult]:
        opened = deployment.open()
        bench = Workbench(
            deployment=opened,
            ledger=catalog.open(),
            store=blob_store.open(),
            recipes=recipes,
            asks_blobs=opened.asks_blobs or context.run.tags.get(VERIFY_TAG) == "true",
        )
        if before_order is not None:
            before_order(context, bench)
        yield from materialize(context, step, bench, compute_pools)
        if after_commit is not None:
            after_commit(context, bench)

    return _assets


def _extra_edges(keys: tuple[dg.AssetKey, ...]) -> list[dg.AssetDep]:
    return [dg.AssetDep(key, partition_mapping=dg.IdentityPartitionMapping()) for key in keys]
