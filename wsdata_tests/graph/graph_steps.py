"""Fabricated steps over real tables: the graph's machinery without media or models.

The functions lie here so that a worker process can import them by name.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from wsdata import tables
from wsdata.errors import StepFailed
from wsdata.orders import Input, Step, StepResult, StepRun

HERE = "wsdata_tests.graph.graph_steps"


def land(run: StepRun) -> StepResult:
    """One raw asset per line of the drop's list."""
    folder = Path(run.settings["landing"]) / run.order.partition
    names = sorted(path.name for path in folder.glob("*.mp4"))
    rows = [
        {"asset_id": f"{i:064x}", "key": None, "size_bytes": 1, "suffix": ".mp4",
         "in_vault": False, "carve_reason": None, "num_files": 1}
        for i, _ in enumerate(names)
    ]  # fmt: skip
    return StepResult(
        tables={
            "raw_assets": tables.rows_of("raw_assets", rows),
            "provenance": tables.empty("provenance"),
        },
        metrics={"files": len(names)},
        display={"raw_assets": {"files": {"type": "md", "raw_value": "| a |\n|---|\n| 1 |"}}},
    )


def decode(run: StepRun) -> StepResult:
    """Decode, or misbehave as a file beside the store says."""
    log = Path(run.settings["scratch"])
    with (log / "starts").open("a") as handle:
        handle.write(f"{os.getpid()}\n")
    mood = (log / "mood").read_text() if (log / "mood").exists() else ""
    if mood == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mood == "kill-once":
        (log / "mood").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    if mood == "fail":
        raise StepFailed("asset 0123: the third box is cut off at byte 48")
    if mood == "hang":
        _hang(log)
    raw = run.read("raw_assets")
    run.progress(raw.height, raw.height, "decoded")
    rows = [{"asset_id": asset, "status": "ok", "attempts": 1} for asset in raw["asset_id"]]
    return StepResult(tables={"decode_status": tables.rows_of("decode_status", rows)})


def _hang(log: Path) -> None:
    """Wait for ever, with a child that ignores interrupts."""
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-c", deaf])  # noqa: S603
    (log / "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(300)


def lose_one(run: StepRun) -> StepResult:
    """Forget an asset: a broken promise."""
    rows = [{"asset_id": a, "status": "ok"} for a in run.read("raw_assets")["asset_id"][1:]]
    return StepResult(tables={"decode_status": tables.rows_of("decode_status", rows)})


def cut(run: StepRun) -> StepResult:
    """One sample per decoded asset, all in one shard group."""
    assets = run.read("decode_status")["asset_id"].unique().sort()
    rows = [
        {"sample_id": f"{asset[-4:]}.{run.params['as_of_date']}", "clip_id": asset, "tier": "T0"}
        for asset in assets
    ]
    group = f"{run.order.partition}.0000"
    assigned = [{"sample_id": row["sample_id"], "shard_group": group} for row in rows]
    return StepResult(
        tables={
            "manifests": tables.rows_of("manifests", rows),
            "shard_assignments": tables.rows_of("shard_assignments", assigned),
            "exclusions": tables.empty("exclusions"),
        }
    )


def encode(run: StepRun) -> StepResult:
    """Place the group's samples in one blob."""
    assigned = run.read("shard_assignments")
    blob = run.put_blob(run.blob_key("placements", run.order.partition, ".mds"), b"shard")
    rows = [
        {"sample_id": sample, "shard_key": blob["key"], "shard": blob["sha256"]}
        for sample in assigned["sample_id"]
    ]
    return StepResult(tables={"placements": tables.rows_of("placements", rows)})


def pin(run: StepRun) -> StepResult:
    """Pin a version."""
    row = {"version": run.order.partition, "num_shards": 1}
    return StepResult(tables={"snapshots": tables.rows_of("snapshots", [row])})


def count(run: StepRun) -> StepResult:
    """A report over all drops."""
    total = run.read("decode_status").height
    row = {"item": "assets", "unit": "assets", "amount": float(total), "cost_usd": 0.0}
    return StepResult(tables={"costs": tables.rows_of("costs", [row])})


def _settings(deployment, _recipe):
    return {"landing": deployment.landing, "scratch": deployment.home}


LAND = Step(
    stage="ingest", name="land", function=f"{HERE}:land", code_version="land-1", partition="drop",
    assets={"raw_assets": ("raw_assets", "provenance")}, settings_of=_settings,
)  # fmt: skip
DECODE = Step(
    stage="preprocess", name="decode", function=f"{HERE}:decode", code_version="decode-1",
    partition="drop", assets={"decode_status": ("decode_status",)},
    inputs=(Input(table="raw_assets"),), pool="nvdec", settings_of=_settings,
)  # fmt: skip
COSTS = Step(
    stage="observability", name="costs", function=f"{HERE}:count", code_version="costs-1",
    partition="none", assets={"costs": ("costs",)},
    inputs=(Input(table="decode_status", scope="all"),),
)  # fmt: skip
MANIFEST = Step(
    stage="curate", name="manifest", function=f"{HERE}:cut", code_version="manifest-1",
    partition="dataset_version",
    assets={"manifest": ("manifests", "shard_assignments", "exclusions")},
    inputs=(Input(table="decode_status", scope="all"),),
    params_of=lambda recipe: {"seed": recipe.seed},
)  # fmt: skip
LATENTS = Step(
    stage="shard", name="latent_shards", function=f"{HERE}:encode", code_version="latents-1",
    partition="shard_group", assets={"latent_shards": ("placements",)},
    inputs=(Input(table="shard_assignments", scope="version_of_group"),),
)  # fmt: skip
SNAPSHOTS = Step(
    stage="lifecycle", name="snapshots", function=f"{HERE}:pin", code_version="snapshots-1",
    partition="dataset_version", assets={"snapshots": ("snapshots",)},
    inputs=(Input(table="manifests"), Input(table="placements", scope="groups_of_version")),
)  # fmt: skip
THROUGH_TO_A_VERSION = (LAND, DECODE, MANIFEST, LATENTS, SNAPSHOTS, COSTS)
FABRICATED = {f"{step.stage}/{step.name}": step for step in (LAND, DECODE, COSTS)}
