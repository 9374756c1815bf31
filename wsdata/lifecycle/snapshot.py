"""Snapshots: a dataset version pinned, with every object that it takes to give it again."""

from typing import Any

import polars as pl

from wsdata import tables
from wsdata.curate.manifest import manifest_digest
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.records import Fact

STEP = Step(
    stage="lifecycle",
    name="snapshots",
    function="wsdata.lifecycle.snapshot:run",
    code_version="snapshots-2",
    partition="dataset_version",
    assets={"snapshots": ("snapshots",)},
    inputs=(
        Input(table="manifests"),
        Input(table="dataset_index"),
        Input(table="step_plans"),
        Input(table="training_index_parts"),
    ),
    description="Pins a dataset version: manifest, index, plan, shards and caption packs.",
)


def run(run: StepRun) -> StepResult:
    """Pin one version."""
    version = run.order.partition
    manifest, index, plans, index_parts = (
        run.read("manifests"),
        run.read("dataset_index"),
        run.read("step_plans"),
        run.read("training_index_parts"),
    )
    keys = pinned_objects(run, index, plans, index_parts)
    shards = index["shard_key"].unique().sort().to_list()
    num_bytes = sum(run.store.size(key) or 0 for key in shards)
    digest = manifest_digest(manifest)
    row = {
        "version": version,
        "manifest_digest": digest,
        "num_shards": len(shards),
        "num_bytes": num_bytes,
        "num_pinned": len(keys),
    }
    pin = Fact(kind="pin", subject=version, body={"manifest_digest": digest, "keys": keys})
    return StepResult(
        tables={"snapshots": tables.rows_of("snapshots", [row])},
        facts=[pin],
        metrics={"shards": len(shards), "bytes": num_bytes, "pinned": len(keys)},
        display={
            "snapshots": {
                "manifest_digest": {"type": "text", "raw_value": digest},
                "samples": {"type": "int", "raw_value": manifest.height},
            }
        },
    )


def pinned_objects(
    run: StepRun, index: pl.DataFrame, plans: pl.DataFrame, index_parts: pl.DataFrame
) -> list[str]:
    """Keys of every object that reading a version takes, sorted."""
    refs: list[Any] = [ref for refs in run.order.inputs.values() for ref in refs]
    keys = {ref.key for ref in refs}
    keys |= {f"training/index/{ref.sha256}.parquet" for ref in run.order.inputs["dataset_index"]}
    keys |= set(index["shard_key"]) | set(index["caption_pack_key"].drop_nulls())
    keys |= set(plans["key"]) | set(plans["training_index_key"]) | set(index_parts["key"])
    keys |= {f"training/datasets/{run.order.partition}.json"}
    return sorted(keys)
