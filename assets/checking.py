"""From a promise of the library to a Dagster asset check.

The verdict is a function of rows in wsdata that says every fault. Blocking checks are promises:
what follows in their own partition is not built on a broken one.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dagster as dg
import polars as pl

from assets import partitions
from assets.building import asset_key
from assets.work import NO_PARTITION
from resources.blob_store import BlobStoreResource
from resources.catalog import CatalogResource
from resources.recipes import RecipesResource
from wsdata.catalog.ledger import Ledger
from wsdata.catalog.objects import read_objects, read_table
from wsdata.catalog.view import all_live
from wsdata.ids import parse_shard_group
from wsdata.orders import Step
from wsdata.store import BlobStore

SHOWN_FAULTS = 20
Rows = Callable[..., list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """Rows that a check is given.

    Scopes: ``same`` partition; ``version_of_group``; ``groups_of_version``; ``as_of_cut``, all
    partitions as of the commit that a dataset version was stated at.
    """

    table: str
    scope: str = "same"


def promise(
    step: Step,
    asset: str,
    name: str,
    faults: Rows,
    reads: tuple[str | Reads, ...],
    *,
    is_blocking: bool,
    description: str,
    takes_partition: bool = False,
    is_grave: bool = False,
) -> dg.AssetChecksDefinition:
    """Build the check of one promise.

    Args:
        step: The step that makes the asset.
        asset: The asset's name.
        name: The check's name; says what holds.
        faults: Gives the faults of the rows read, which are its arguments.
        reads: Tables, in the order of the arguments.
        is_blocking: Whether what follows must not be built on a broken promise; else a warning.
        description: What is promised, for a person.
        takes_partition: Whether the partition is the last argument.
        is_grave: Whether a broken promise is an error although nothing waits for it.
    """
    wanted = [each if isinstance(each, Reads) else Reads(table=each) for each in reads]

    @scoped_check(
        asset=asset_key(step, asset),
        name=name,
        blocking=is_blocking,
        description=description,
        partitions_def=partitions.BY_KIND[step.partition],
    )
    def _check(
        context: dg.AssetCheckExecutionContext,
        catalog: CatalogResource,
        blob_store: BlobStoreResource,
        recipes: RecipesResource,
    ) -> dg.AssetCheckResult:
        partition = NO_PARTITION if step.partition == "none" else context.partition_key
        ledger, store = catalog.open(), blob_store.open()
        stated = recipes.stated(ledger, step.partition, partition)
        rows = [_rows(ledger, store, each, partition, stated.get("seq")) for each in wanted]
        found = faults(*rows, partition) if takes_partition else faults(*rows)
        return result(found, is_blocking=is_blocking or is_grave)

    return _check


def scoped_check(**arguments: Any) -> Callable[[Callable[..., Any]], dg.AssetChecksDefinition]:
    """`dg.asset_check` scoped to a partition, which Dagster 1.13 calls a preview at every use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        decorate = dg.asset_check(**arguments)

    def build(function: Callable[..., Any]) -> dg.AssetChecksDefinition:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.PreviewWarning)
            return decorate(function)

    return build


def result(faults: list[str], *, is_blocking: bool) -> dg.AssetCheckResult:
    """Turn faults into a check's result, every one of them listed."""
    listed = [f"- {fault}" for fault in faults[:SHOWN_FAULTS]]
    if len(faults) > SHOWN_FAULTS:
        listed.append(f"- and {len(faults) - SHOWN_FAULTS} more")
    return dg.AssetCheckResult(
        passed=not faults,
        severity=dg.AssetCheckSeverity.ERROR if is_blocking else dg.AssetCheckSeverity.WARN,
        description="; ".join(faults[:2]) or None,
        metadata={
            "num_faults": len(faults),
            "faults": dg.MetadataValue.md("\n".join(listed) or "none"),
        },
    )


def _rows(
    ledger: Ledger, store: BlobStore, reads: Reads, partition: str, as_of: int | None
) -> pl.DataFrame:
    if reads.scope == "same":
        return read_table(ledger, store, reads.table, partition)
    if reads.scope == "version_of_group":
        return read_table(ledger, store, reads.table, parse_shard_group(partition)[0])
    if reads.scope == "groups_of_version":
        refs = all_live(ledger, reads.table)
        own = [ref for ref in refs if parse_shard_group(ref.partition)[0] == partition]
        return read_objects(store, reads.table, own)
    if reads.scope == "as_of_cut":
        return read_table(ledger, store, reads.table, as_of=as_of)
    raise ValueError(f"check of {reads.table}: unknown scope {reads.scope!r}")
