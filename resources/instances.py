"""The Dagster instance: a laptop's settings, pool slots, and runs whose process is gone."""

import os
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from dagster import DagsterEventType, DagsterRun, DagsterRunStatus

from resources.compute_pool import pools_from
from wsdata.deployment import Deployment

PID_TAG = "wsdata/pid"
UNFINISHED = [
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
SETTINGS = """\
# Written by wsdata where there was none; edit freely. No folder is named, so that a copied home
# keeps its runs to itself: what is not said lies in this file's folder.
telemetry: {enabled: false}
nux: {enabled: false}
python_logs: {managed_python_loggers: [wsdata], python_log_level: INFO}
concurrency:
  runs: {max_concurrent_runs: 2}
  pools: {default_limit: 1, granularity: op}
run_monitoring: {enabled: false}
freshness: {enabled: true}
retention:
  sensor: {purge_after_days: {skipped: 3, failure: 30, success: 14}}
"""


def prepare_home(home: Path) -> Path:
    """Make a Dagster home under a wsdata home, with settings where it has none; return it."""
    dagster_home = home / "dagster"
    dagster_home.mkdir(parents=True, exist_ok=True)
    path = dagster_home / "dagster.yaml"
    if not path.exists():
        path.write_text(SETTINGS, encoding="utf-8")
    return dagster_home


def set_pool_limits(instance: dg.DagsterInstance, deployment: Deployment) -> dict[str, int]:
    """Give each pool as many slots as its machine, or its cluster, has room for; tell them.

    Raises:
        WsdataError: The deployment describes a pool wrongly.
    """
    storage = instance.event_log_storage
    limits = {
        pool.name: pool.local_limit if deployment.bundle == "local" else pool.concurrency_limit
        for pool in pools_from(deployment.pool_values()).values()
    }
    for name, limit in limits.items():
        if storage.get_concurrency_info(name).slot_count != limit:
            storage.set_concurrency_slots(name, limit)
    return limits


def end_abandoned_runs(instance: dg.DagsterInstance) -> list[str]:
    """Fail runs whose process is gone, and free the pool slots that they hold.

    A process that was killed leaves its run as it was, and its slots taken for good.

    Returns:
        Ids of the runs that were failed.
    """
    ended: list[str] = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=UNFINISHED)):
        run = record.dagster_run
        pid = _process_of(instance, run)
        if pid is None or _is_alive(pid, record.start_time or record.create_timestamp.timestamp()):
            continue
        instance.report_run_failed(run, f"process {pid} of this run is gone")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        ended.append(run.run_id)
    return ended


def _process_of(instance: dg.DagsterInstance, run: DagsterRun) -> int | None:
    """The process that works a run: tagged by the launcher, or told by the run itself."""
    if PID_TAG in run.tags:
        return int(run.tags[PID_TAG])
    events = instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT)
    for event in reversed(events):
        specific = event.dagster_event.engine_event_data if event.dagster_event else None
        value = specific.metadata.get("pid") if specific else None
        if value is not None and str(value.value).isdigit():
            return int(str(value.value))
    return None


def _is_alive(pid: int, started_at: float) -> bool:
    """Whether a process is there that is no younger than the run: ids are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return True
    fields = stat.read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        return False
    age_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    born_at = datetime.now(UTC).timestamp() - uptime_s + age_s
    return born_at <= started_at + 1
