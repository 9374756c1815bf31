"""An instance, a ledger and deliveries of many drops, made to be measured: see `instance_scale`."""

import contextlib
import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MADE = (  # assets that every drop has, of its first and its last steps
    "ingest/raw_assets", "ingest/fingerprints", "preprocess/clips", "preprocess/gates",
)  # fmt: skip
CHECKED = "preprocess/gates"
BATCH = 2000
SQLITE = """\
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
concurrency:
  pools: {default_limit: 1, granularity: op}
"""
POSTGRES = SQLITE + "storage: {postgres: {postgres_url: %s}}\n"


def drop_keys(num_drops: int) -> list[str]:
    """Keys of deliveries over many days, sources and tiers."""
    tiers = ("licensed", "crawl", "synthetic")
    return [
        f"{tiers[n % 3]}.source{n % 40:02d}.{20260101 + n // 400 % 28 + n // 11200 % 12 * 100}"
        f".{n % 400 + 1 + n // 134400 * 400:03d}"
        for n in range(num_drops)
    ]


class Clock:
    """Seconds and memory of what is measured, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Note the wall and CPU seconds of a block."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self.found[name] = {
            "s": round(time.perf_counter() - wall_s, 3),
            "cpu_s": round(time.process_time() - cpu_s, 3),
        }
        print(name, self.found[name], file=sys.stderr)

    def note(self, name: str, value: Any) -> None:
        """Keep a number."""
        self.found[name] = value
        print(name, value, file=sys.stderr)


def fill(instance: Any, keys: Sequence[str], clock: Clock) -> None:
    """Add partitions, finished runs, materialisations and check evaluations."""
    from assets import partitions

    with clock.measure("add_partitions"):
        for name in (partitions.drops.name, partitions.deliveries.name):
            for at in range(0, len(keys), 10_000):
                instance.add_dynamic_partitions(name, list(keys[at : at + 10_000]))
    with clock.measure("add_runs"), one_transaction(instance.run_storage, "connect"):
        run_ids = [_add_run(instance, key) for key in keys]
    storage = instance.event_log_storage
    with (
        clock.measure("store_events"),
        one_transaction(storage, "index_connection"),
        one_transaction(storage, "run_connection", ""),
    ):
        _store_events(instance, keys, run_ids)


@contextlib.contextmanager
def one_transaction(storage: Any, name: str, *arguments: str) -> Iterator[None]:
    """Let a storage write through one connection: one for each write takes most of the time."""
    if hasattr(storage, "_db_lock"):  # of SQLite, which two open connections would block
        storage._db_lock = threading.RLock()
    with getattr(storage, name)(*arguments) as connection:
        setattr(storage, name, lambda *_: contextlib.nullcontext(connection))
        try:
            yield
        finally:
            delattr(storage, name)


def _add_run(instance: Any, key: str) -> str:
    import dagster as dg
    from dagster import DagsterRunStatus
    from dagster._core.remote_origin import (
        ManagedGrpcPythonEnvCodeLocationOrigin,
        RemoteRepositoryOrigin,
    )
    from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

    target = LoadableTargetOrigin(
        executable_path=sys.executable,
        python_file=str(ROOT / "definitions.py"),
        working_directory=str(ROOT),
    )
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target, "wsdata")
    origin = RemoteRepositoryOrigin(location, "__repository__").get_job_origin("process_drop")
    run_id = str(uuid.uuid4())
    instance.run_storage.add_run(
        dg.DagsterRun(
            job_name="process_drop",
            run_id=run_id,
            status=DagsterRunStatus.SUCCESS if len(key) % 50 else DagsterRunStatus.FAILURE,
            tags={
                "dagster/partition": key,
                "wsdata/drop": key,
                ".dagster/repository": "__repository__@wsdata",
            },
            asset_selection=None,
            remote_job_origin=origin,
        )
    )
    return run_id


def _store_events(instance: Any, keys: Sequence[str], run_ids: Sequence[str]) -> None:
    """Store what runs would have; in batches where the storage takes them."""
    import dagster as dg

    storage = instance.event_log_storage
    is_postgres = "postgres" in type(storage).__module__
    for asset in MADE:
        batch: list[Any] = []  # of one asset: the storage notes its newest event alone
        for key, run_id in zip(keys, run_ids, strict=True):
            made = dg.AssetMaterialization(
                asset.split("/"), partition=key,
                metadata={"dagster/row_count": 1000, "unchanged": False, "order_digest": key},
                tags={"dagster/data_version": run_id[:16], "dagster/code_version": "1"},
            )  # fmt: skip
            if is_postgres:
                batch.append(_entry(made, run_id))
            else:  # a run of its own would have a file of its own
                instance.report_runless_asset_event(made)
            if len(batch) == BATCH or (batch and key == keys[-1]):
                storage.store_event_batch(batch)
                batch = []


def _entry(made: Any, run_id: str) -> Any:
    from dagster import DagsterEvent, DagsterEventType, EventLogEntry
    from dagster._core.events import StepMaterializationData

    event = DagsterEvent(
        event_type_value=DagsterEventType.ASSET_MATERIALIZATION.value,
        job_name="process_drop",
        event_specific_data=StepMaterializationData(made),
    )
    return EventLogEntry(
        user_message="", level=logging.INFO, job_name="process_drop", run_id=run_id,
        error_info=None, timestamp=time.time(), dagster_event=event,
    )  # fmt: skip


def open_home(folder: Path, postgres: str | None) -> None:
    """Make a home with settings, and let this process and its children see it."""
    dagster_home = folder / "dagster"
    dagster_home.mkdir(parents=True, exist_ok=True)
    (folder / "landing").mkdir(exist_ok=True)
    settings = POSTGRES % json.dumps(postgres) if postgres else SQLITE
    (dagster_home / "dagster.yaml").write_text(settings)
    os.environ |= {
        "DAGSTER_HOME": str(dagster_home),
        "WSDATA_HOME": str(folder),
        "PYTHONPATH": str(ROOT),
    }


def make_drop(landing: Path, key: str) -> None:
    """Make a delivery without media: what a tick reads of it."""
    folder = landing / key
    folder.mkdir(parents=True)
    tier, source = key.split(".")[:2]
    lines = [f'source_tier = "{tier}"', f'source = "{source}"', 'license_id = "l-1"']
    if tier == "synthetic":
        lines.append('generator = "model-1"')
    (folder / "drop.toml").write_text("\n".join(lines) + "\n")
    (folder / "_READY").touch()


def fill_ledger(ledger: Any, store: Any, keys: Sequence[str]) -> None:
    """Commit what a drop's steps would: every drop table, kill rates with their rows."""
    import sqlalchemy as sa

    from wsdata import tables
    from wsdata.catalog.schema import COMMITS, FACTS, OBJECTS
    from wsdata.digest import canonical_json, sha256_bytes
    from wsdata.records import table_key
    from wsdata.steps import STEPS

    steps = [step for step in STEPS.values() if step.partition == "drop"]
    commits: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    for number, key in enumerate(keys):
        source = key.split(".")[1]
        rows = tables.rows_of("kill_rates", [
            {"drop": key, "source": source, "filter": name, "num_in": 1000 + number,
             "num_stopped": number % 100, "num_errors": 0, "kill_share": 0.1, "duration_s": 5000.0}
            for name in tables.FILTERS
        ])  # fmt: skip
        data = tables.to_parquet(rows)
        kills = sha256_bytes(data)
        path = store.path_of(table_key(kills))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        for step in steps:
            seq = len(commits) + 1
            body = {"order": f"{seq:064x}", "objects": dict.fromkeys(step.tables, f"{seq:064x}")}
            commits.append(
                {"seq": seq, "chain": f"{seq:064x}", "step": f"{step.stage}/{step.name}",
                 "partition": key, "run_id": None, "committed_at": "2026-11-01T00:00:00+00:00",
                 "body": canonical_json(body)}
            )  # fmt: skip
            objects += [
                {"name": table, "partition": key, "version": "1", "version_digest": "1",
                 "sha256": kills if table == "kill_rates" else f"{seq:056x}{len(table):08x}",
                 "num_rows": 1000, "order_digest": f"{seq:064x}", "begin_seq": seq}
                for table in step.tables
            ]  # fmt: skip
        facts += [
            {"seq": len(commits), "kind": "quarantine", "subject": f"{number:060x}{n:04x}",
             "body": canonical_json({"drop": key, "reason": "could not be read", "attempts": 3})}
            for n in range(10)
        ]  # fmt: skip
    engine = sa.create_engine(f"sqlite:///{ledger.url.split('///')[-1]}")
    with engine.begin() as connection:
        for table, new in ((COMMITS, commits), (OBJECTS, objects), (FACTS, facts)):
            connection.execute(sa.insert(table), new)
