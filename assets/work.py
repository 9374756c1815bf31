"""One step of one partition: is it done, what is its order, and what Dagster is told of it.

Asset bodies and the launcher ask here, so that both mean the same by "done". What a step reads
and when its order is finished is told by `wsdata.orders`; nothing here computes rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from resources.compute_pool import ComputePools
from resources.recipes import RecipesResource
from wsdata import orders
from wsdata.catalog.ledger import Ledger
from wsdata.catalog.presence import Presence, made_by
from wsdata.catalog.view import LedgerView
from wsdata.deployment import Deployment
from wsdata.digest import short_digest
from wsdata.errors import NotReady
from wsdata.orders import Step
from wsdata.records import ObjectRef, Order, Report
from wsdata.store import BlobStore

NO_PARTITION = "all"
METADATA_OF = {  # the kinds that `wsdata.records.Report.display` knows
    "md": dg.MetadataValue.md,
    "text": dg.MetadataValue.text,
    "int": dg.MetadataValue.int,
    "float": dg.MetadataValue.float,
    "json": dg.MetadataValue.json,
    "table": lambda rows: dg.MetadataValue.table([dg.TableRecord(row) for row in rows]),
}
CUT = "curate/manifest"  # reads all drops as of its version's commit, and is done once it exists


@dataclass(frozen=True, kw_only=True, slots=True)
class Workbench:
    """Everything that building, judging and committing orders needs.

    Where `asks_blobs`, a step is done only if the store has every blob that its rows name.
    `presence` is what a pass has seen of the store; without it each question asks anew.
    """

    deployment: Deployment
    ledger: Ledger
    store: BlobStore
    recipes: RecipesResource
    asks_blobs: bool = True
    presence: Presence | None = None

    def for_one_pass(self) -> "Workbench":
        """The same for one who asks about every partition: it remembers what it was told.

        What is live is as of the last `renew`; what the store had once is taken to be there.
        """
        return replace(
            self,
            ledger=LedgerView(self.ledger),
            presence=Presence(self.store, asks_blobs=self.asks_blobs),
        )

    def renew(self) -> int:
        """See what was committed since, for one who remembers; return the newest commit."""
        return self.ledger.renew() if isinstance(self.ledger, LedgerView) else self.ledger.seq

    def order(self, step: Step, partition: str, *, is_for_work: bool = True) -> Order:
        """Build the order of a step from what is live now; see `wsdata.orders.build_order`.

        Raises:
            NotReady: An input of the step has nothing live.
        """
        stated = self.recipes.stated(self.ledger, step.partition, partition)
        is_cut = _name(step) == CUT
        return orders.build_order(
            step,
            partition,
            ledger=self.ledger,
            deployment=self.deployment,
            recipe=self.recipes.for_partition(self.ledger, step.partition, partition),
            extra_params=cut_params(stated) if is_cut else None,
            as_of=stated.get("seq") if is_cut else None,
            is_for_work=is_for_work,
        )

    def finished(self, step: Step, order: Order) -> Report | None:
        """Return the report of an earlier run of this order, or None where work is left.

        A dataset version is done once it exists, whatever arrived since.
        """
        made = self._made(step, order)
        if made is None:
            return None
        return Report(order_digest=order.digest, version_digest=order.version_digest, objects=made)

    def is_finished(self, step: Step, partition: str) -> bool:
        """Whether nothing is left to do for a step: its inputs are there, and its order is done."""
        try:
            return self._made(step, self.order(step, partition, is_for_work=False)) is not None
        except NotReady:
            return False

    def _made(self, step: Step, order: Order) -> dict[str, ObjectRef] | None:
        if _name(step) == CUT and (kept := self.kept(step, order.partition)) is not None:
            return kept
        return made_by(order, self.ledger, self._seen())

    def _seen(self) -> Presence:
        return self.presence or Presence(self.store, asks_blobs=self.asks_blobs)

    def kept(self, step: Step, partition: str) -> dict[str, ObjectRef] | None:
        """Live objects of a step, of whatever order, if the store has all of them, else None."""
        presence, found = self._seen(), dict[str, ObjectRef]()
        for table in step.tables:
            refs = self.ledger.live(table, partition)
            if not refs or presence.is_lost(refs[0]):
                return None
            found[table] = refs[0]
        return found


def cut_params(stated: Mapping[str, Any]) -> dict[str, Any]:
    """What of a version's statement its manifest depends on, beside the recipe."""
    return {"as_of_date": stated["as_of_date"]} if "as_of_date" in stated else {}


def _name(step: Step) -> str:
    return f"{step.stage}/{step.name}"


def materialize(
    context: dg.AssetExecutionContext, step: Step, bench: Workbench, pools: ComputePools
) -> Iterator[dg.MaterializeResult]:
    """Do one step for the run's partition, commit it, and tell Dagster what it made.

    Where the very same order is done already nothing is started, and what was shown of it
    before is shown again.

    Raises:
        NotReady: An input of the step has nothing live.
        dagster.Failure: The step failed.
    """
    partition = context.partition_key if context.has_partition_key else NO_PARTITION
    order = bench.order(step, partition)
    report = bench.finished(step, order)
    is_unchanged = report is not None
    if report is None:
        is_lost = bench.kept(step, partition) is None
        report = _do(context, step, order, bench, pools)
        bench.ledger.commit(order, report, run_id=context.run.run_id, replaces_lost=is_lost)
    # Where another worker's result came first, that one is live.
    live = {
        table: (bench.ledger.live(table, partition, version=ref.version) or [ref])[0]
        for table, ref in report.objects.items()
    }
    for name in step.assets:
        yield _result(context, step, name, order, report, live, is_unchanged=is_unchanged)


def _do(
    context: dg.AssetExecutionContext,
    step: Step,
    order: Order,
    bench: Workbench,
    pools: ComputePools,
) -> Report:
    if step.pool is not None:
        return pools.run(context, step, order, store=bench.store.address)

    def progress(done: int, total: int, note: str) -> None:
        context.log.info(f"{done}/{total} {note}")

    return orders.execute(order, step.function, bench.store, progress, bench.ledger)


def _result(
    context: dg.AssetExecutionContext,
    step: Step,
    name: str,
    order: Order,
    report: Report,
    live: Mapping[str, ObjectRef],
    *,
    is_unchanged: bool,
) -> dg.MaterializeResult:
    key = dg.AssetKey([step.stage, name])
    made = step.assets[name]
    metadata = _shown_before(context, key) if is_unchanged else _shown(step, name, report)
    metadata |= {
        "dagster/row_count": live[made[0]].num_rows,
        "dagster/table_name": made[0],
        "order_digest": order.digest[:16],
        "version_digest": report.version_digest,
        "code_version": step.code_version,
        "unchanged": is_unchanged,
        "object": live[made[0]].key,
        **{f"rows/{table}": live[table].num_rows for table in made[1:]},
    }
    return dg.MaterializeResult(
        asset_key=key, metadata=metadata, data_version=_data_version(step, name, order, live)
    )


def _data_version(
    step: Step, name: str, order: Order, live: Mapping[str, ObjectRef]
) -> dg.DataVersion:
    digests = [live[table].sha256 for table in step.assets[name]]
    if _name(step) == CUT:
        # Of what changed in many drops Dagster sees nothing: the order lists them all.
        return dg.DataVersion(short_digest([order.digest, *digests]))
    return dg.DataVersion(digests[0][:16] if len(digests) == 1 else short_digest(digests))


def _shown(step: Step, name: str, report: Report) -> dict[str, Any]:
    shown: dict[str, Any] = {
        label: METADATA_OF[value["type"]](value["raw_value"])
        for label, value in report.display.get(name, {}).items()
    }
    if name == next(iter(step.assets)):
        shown |= {f"metric/{label}": float(value) for label, value in report.metrics.items()}
    return shown


def _shown_before(context: dg.AssetExecutionContext, key: dg.AssetKey) -> dict[str, Any]:
    partitions = [context.partition_key] if context.has_partition_key else None
    records = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions), limit=1
    ).records
    made = records[0].asset_materialization if records else None
    return dict(made.metadata) if made is not None else {}
