"""Rows, orders and runs for the tests of filters and gates."""

from pathlib import Path
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.orders import Step, StepRun
from wsdata.records import ObjectRef, Order, table_key
from wsdata.store import BlobStore, FolderStore

DROP = "licensed.test.20261101.001"


def asset_id(index: int) -> str:
    return f"{index:064x}"


def clip(index: int = 0, **changed: Any) -> dict[str, Any]:
    """A row of ``clips``: a sound 5 s video clip, with `changed` columns."""
    row = {
        "clip_id": f"{index:024x}-0-000000000-000005000",
        "asset_id": asset_id(index),
        "drop": DROP,
        "source": "test",
        "source_tier": "licensed",
        "media_kind": "video",
        "start_s": 0.0,
        "end_s": 5.0,
        "duration_s": 5.0,
        "width_px": 640,
        "height_px": 360,
        "source_fps": 25.0,
        "num_frames": 120,
        "top_rung": "256p",
    }
    return row | changed


def score(
    clip_row: dict[str, Any], filter_name: str, score_name: str, value: float | None, **changed: Any
) -> dict[str, Any]:
    """A row of a score table."""
    row = {
        "clip_id": clip_row["clip_id"],
        "asset_id": clip_row["asset_id"],
        "source": clip_row["source"],
        "filter": filter_name,
        "score_name": score_name,
        "score": value,
        "model_version": "test-1",
        "status": "unscored" if value is None else "ok",
    }
    return row | changed


def put_rows(store: BlobStore, table: str, rows: list[dict[str, Any]] | pl.DataFrame) -> ObjectRef:
    frame = rows if isinstance(rows, pl.DataFrame) else tables.rows_of(table, rows)
    data = tables.to_parquet(tables.conform(table, frame))
    sha256 = sha256_bytes(data)
    store.put(table_key(sha256), data)
    return ObjectRef(
        table=table,
        partition=DROP,
        version="test-1",
        version_digest="test",
        sha256=sha256,
        num_rows=frame.height,
    )


def step_run(
    root: Path,
    step: Step,
    inputs: dict[str, list[dict[str, Any]]],
    *,
    context: dict[str, list[dict[str, Any]]] | None = None,
    params: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> StepRun:
    """A run of a step over rows; inputs that are not given are empty tables."""
    store = FolderStore(root)
    wanted = [each for each in step.inputs if not each.is_context]
    looked_up = [each for each in step.inputs if each.is_context]
    order = Order(
        stage=step.stage,
        step=step.name,
        partition=DROP,
        code_version=step.code_version,
        params=params or {},
        inputs={
            each.table: [put_rows(store, each.table, inputs.get(each.table, []))]
            for each in wanted
        },
        context={
            each.table: [put_rows(store, each.table, (context or {}).get(each.table, []))]
            for each in looked_up
        },
        settings=settings or {},
        tables=step.tables,
    )  # fmt: skip
    return StepRun(order, store, progress=lambda done, total, note: None)
