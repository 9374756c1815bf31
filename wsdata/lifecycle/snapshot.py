"""Snapshots: a dataset version pinned, with every object that it takes to give it again."""

from wsdata import tables
from wsdata.lifecycle.pins import TABLES, pin_of_version
from wsdata.orders import Input, Step, StepResult, StepRun

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
    rows = {table: run.read(table) for table in TABLES}
    pin = pin_of_version(version, run.order.inputs, rows)
    index, keys = rows["dataset_index"], pin.body["keys"]
    shards = index["shard_key"].unique().sort().to_list()
    num_bytes = sum(run.store.size(key) or 0 for key in shards)
    digest = pin.body["manifest_digest"]
    row = {
        "version": version,
        "manifest_digest": digest,
        "num_shards": len(shards),
        "num_bytes": num_bytes,
        "num_pinned": len(keys),
    }
    return StepResult(
        tables={"snapshots": tables.rows_of("snapshots", [row])},
        facts=[pin],
        metrics={"shards": len(shards), "bytes": num_bytes, "pinned": len(keys)},
        display={
            "snapshots": {
                "manifest_digest": {"type": "text", "raw_value": digest},
                "samples": {"type": "int", "raw_value": rows["manifests"].height},
            }
        },
    )
