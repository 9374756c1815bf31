"""Orders built by hand: a ledger-free way to run one step over rows that a test makes up."""

from pathlib import Path
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.orders import Step, StepResult, StepRun, execute
from wsdata.records import ObjectRef, Order, Report, table_key
from wsdata.store import BlobStore, FolderStore


def put_rows(
    store: BlobStore, table: str, rows: list[dict[str, Any]] | pl.DataFrame, partition: str = "p"
) -> ObjectRef:
    """Store rows as an object of a table, and name it."""
    frame = tables.rows_of(table, rows) if isinstance(rows, list) else tables.conform(table, rows)
    data = tables.to_parquet(frame)
    sha256 = sha256_bytes(data)
    store.put(table_key(sha256), data)
    return ObjectRef(
        table=table,
        partition=partition,
        version="test",
        version_digest="test",
        sha256=sha256,
        num_rows=frame.height,
    )


def order_of(
    step: Step,
    partition: str,
    inputs: dict[str, list[ObjectRef]],
    *,
    params: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    context: dict[str, list[ObjectRef]] | None = None,
    facts: dict[str, dict[str, dict[str, Any]]] | None = None,
) -> Order:
    """Make an order of a step without asking any ledger."""
    return Order(
        stage=step.stage,
        step=step.name,
        partition=partition,
        code_version=step.code_version,
        params=params or {},
        inputs=inputs,
        context=context or {},
        facts=facts or {},
        settings=settings or {},
        tables=step.tables,
    )


def run_step(step: Step, order: Order, store: BlobStore) -> Report:
    """Execute an order as a pool would."""
    return execute(order, step.function, store)


def rows_made(store: BlobStore, report: Report, table: str) -> pl.DataFrame:
    """Rows of one table of a report."""
    return tables.from_parquet(table, store.get(report.objects[table].key))


def new_store(tmp_path: Path) -> FolderStore:
    """An empty folder store."""
    return FolderStore(tmp_path / "store")


__all__ = ["StepResult", "StepRun", "new_store", "order_of", "put_rows", "rows_made", "run_step"]
