"""Composition root: assembles the asset graph of the eight stages, once."""

from pathlib import Path

import dagster as dg

from assets import (
    curate,
    ingest,
    label,
    lifecycle,
    loader,
    observability,
    preprocess,
    shard,
)
from resources import deployments
from sensors import drops, inbox, jobs

STAGES = (ingest, preprocess, label, curate, shard, loader, lifecycle, observability)

defs = dg.Definitions(
    assets=[asset for stage in STAGES for asset in stage.assets],
    asset_checks=[check for stage in STAGES for check in stage.checks],
    executor=deployments.executor(),
    jobs=list(jobs.jobs.values()),
    sensors=[drops.ready_drops_sensor, inbox.inbox_sensor],
    resources=deployments.bundle(Path(__file__).resolve().parent),
)
