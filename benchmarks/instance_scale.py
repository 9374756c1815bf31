"""How Dagster's instance holds up with many drops: UI queries, sensor, backfill, exporter.

    PYTHONPATH=. .venv/bin/python benchmarks/instance_scale.py --drops 10000 [--postgres URL]
        [--home FOLDER] [--only fill,queries,sensor,backfill,exporter] [--serve]

Makes an instance with this project's own definitions, in which every drop is a partition with a
finished run and materialisations of a few assets, and measures in one go, printing JSON with
seconds. The queries are those that the UI sends (`ui_documents.json`, taken from a browser).
`--home` keeps what was made and fills it once; `--serve` leaves a webserver on it to look at.
Nothing is executed: a backfill's runs are created and stay in the queue.
"""

import argparse
import contextlib
import json
import logging
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.instance_made import (
    CHECKED,
    ROOT,
    Clock,
    drop_keys,
    fill,
    fill_ledger,
    make_drop,
    open_home,
)

DOCUMENTS = Path(__file__).with_name("ui_documents.json")
PARTS = ("fill", "queries", "sensor", "backfill", "exporter")
ROUNDS = 5
NUM_NEW = 1000


# the UI --------------------------------------------------------------------------------------


@contextlib.contextmanager
def webserver() -> Iterator[tuple[str, int]]:
    """Run a webserver on the home; its address and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("dagster-webserver")), "-w", "workspace.yaml"]
    command += ["-h", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)  # noqa: S603
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: ask(address, "{ version }", {}) is not None)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def wait_until(is_so: Callable[[], bool], limit_s: float = 180.0) -> None:
    """Ask until something is so, or cannot be asked, for some time."""
    import requests

    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        with contextlib.suppress(requests.ConnectionError):
            if is_so():
                return
        time.sleep(0.5)
    raise TimeoutError(f"the webserver did not answer within {limit_s:.0f} s")


def ask(address: str, query: str, variables: dict[str, Any]) -> Any:
    """Send one document, and return its data.

    Raises:
        RuntimeError: It has errors.
    """
    import requests

    body = {"query": query, "variables": variables}
    answer = requests.post(f"{address}/graphql", json=body, timeout=600).json()
    if "errors" in answer:
        raise RuntimeError(f"{query[:60]}: {str(answer['errors'])[:500]}")
    return answer["data"]


def measure_queries(keys: Sequence[str], clock: Clock) -> None:
    """Time each document of each page: the first answer, and the median of the next ones."""
    pages = json.loads(DOCUMENTS.read_text(encoding="utf-8"))["pages"]
    with clock.measure("webserver_start"), contextlib.ExitStack() as stack:
        address, pid = stack.enter_context(webserver())
        kept = stack.pop_all()
    with kept:
        for page, documents in pages.items():
            for name, document in documents.items():
                variables = dict(document["variables"])
                if "partitionKey" in variables:
                    variables["partitionKey"] = keys[len(keys) // 2]
                took_s, size, cpu_s = [], 0, cpu_of(pid)
                for _ in range(ROUNDS + 1):
                    begun = time.perf_counter()
                    size = len(json.dumps(ask(address, document["query"], variables)))
                    took_s.append(time.perf_counter() - begun)
                clock.note(
                    f"query/{page}/{name}",
                    {"first_s": round(took_s[0], 3),
                     "median_s": round(statistics.median(took_s[1:]), 3),
                     "server_cpu_s": round((cpu_of(pid) - cpu_s) / (ROUNDS + 1), 3),
                     "bytes": size},
                )  # fmt: skip
        clock.note("webserver_memory_bytes", memory_of(pid))


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of all its children: what they need on a machine of any load."""
    import psutil

    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in family)


def memory_of(pid: int) -> dict[str, int]:
    """Resident bytes of a process and of all its children together."""
    import psutil

    process = psutil.Process(pid)
    children = process.children(recursive=True)
    return {
        "server": process.memory_info().rss,
        "code_locations": sum(child.memory_info().rss for child in children),
    }


# the daemon's work ---------------------------------------------------------------------------


def measure_sensor(instance: Any, keys: Sequence[str], folder: Path, clock: Clock) -> None:
    """Ticks with all landed drops known, and then with new ones among them."""
    import dagster as dg

    from definitions import defs
    from sensors.drops import ready_drops_sensor

    landing = folder / "landing"
    for key in keys:
        make_drop(landing, key)
    resources: Any = defs.resources
    cursor: str | None = None

    def tick() -> Any:
        nonlocal cursor
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={"deployment": resources["deployment"]}
        )
        found = ready_drops_sensor(context)
        if isinstance(found, dg.SensorResult):
            for request in found.dynamic_partitions_requests or []:
                instance.add_dynamic_partitions(
                    request.partitions_def_name, list(request.partition_keys)
                )
        cursor = found.cursor if isinstance(found, dg.SensorResult) else context.cursor
        return found

    def ticks(name: str, is_done: Callable[[list[Any]], bool]) -> None:
        took_s: list[float] = []
        found: list[Any] = []
        cpu_s = time.process_time()
        while not is_done(found):
            begun = time.perf_counter()
            found.append(tick())
            took_s.append(time.perf_counter() - begun)
        clock.note(
            name,
            {"ticks": len(took_s), "total_s": round(sum(took_s), 3),
             "worst_s": round(max(took_s), 3), "median_s": round(statistics.median(took_s), 3),
             "cpu_s_per_tick": round((time.process_time() - cpu_s) / len(took_s), 3)},
        )  # fmt: skip

    rounds = len(keys) // 1000 + 2
    ticks("sensor_idle", lambda found: len(found) == rounds)
    new = [f"licensed.late.20261231.{n:04d}" for n in range(NUM_NEW)]
    for key in new:
        make_drop(landing, key)
    ticks("sensor_new", lambda found: sum(map(num_requests, found)) == NUM_NEW)
    instance.delete_dynamic_partition("drops", new[0])  # one lost, found again
    ticks("sensor_again", lambda found: sum(map(num_requests, found)) == 1)


def num_requests(found: Any) -> int:
    """Runs that a tick asked for."""
    return len(getattr(found, "run_requests", None) or [])


def measure_backfill(instance: Any, keys: Sequence[str], num_runs: int, clock: Clock) -> None:
    """Ask for a backfill of all drops as the UI does, and let the daemon's loop make its runs.

    It is cancelled after `num_runs`: making one costs the same from the first to the last.
    """
    from dagster import DagsterRunStatus, RunsFilter
    from dagster._core.execution.backfill import BulkActionStatus
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster._daemon.backfill import execute_backfill_iteration

    queued = RunsFilter(statuses=[DagsterRunStatus.QUEUED])
    before = instance.get_runs_count(queued)
    with webserver() as (address, _), clock.measure("backfill_request"):
        chosen = {
            "assetSelection": [{"path": CHECKED.split("/")}],
            "partitionNames": list(keys),
            "title": "scale",
            "tags": [],
        }
        answer = ask(address, LAUNCH_BACKFILL, {"params": chosen})["launchPartitionBackfill"]
    backfill_id = answer["backfillId"]
    target = WorkspaceFileTarget([str(ROOT / "workspace.yaml")])
    with WorkspaceProcessContext(instance, target) as workspace:

        def iterate() -> None:
            list(execute_backfill_iteration(workspace, logging.getLogger("backfill")))

        begun, cpu_s = time.perf_counter(), time.process_time()
        iteration = threading.Thread(target=iterate)
        iteration.start()
        first_s, made = None, 0
        while made < min(num_runs, len(keys)) and iteration.is_alive():
            time.sleep(0.2)
            made = instance.get_runs_count(queued) - before
            if made and first_s is None:
                first_s, first_cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
                num_first = made
        assert first_s is not None, "the iteration ended without a run"
        spent_s = time.perf_counter() - begun - first_s
        spent_cpu_s = time.process_time() - cpu_s - first_cpu_s
        is_whole = made >= len(keys)
        while iteration.is_alive() and not is_whole:  # what it writes may undo a first try
            backfill = instance.get_backfill(backfill_id)
            instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
            iteration.join(2)
        iteration.join()
    counted = max(1, made - num_first)
    clock.note(
        "backfill",
        {"first_run_s": round(first_s, 2), "first_run_cpu_s": round(first_cpu_s, 2),
         "runs_made": made, "is_whole": is_whole, "s_per_run": round(spent_s / counted, 4),
         "daemon_cpu_s_per_run": round(spent_cpu_s / counted, 4)},
    )  # fmt: skip
    clock.note("daemon_peak_memory_bytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


LAUNCH_BACKFILL = """
mutation LaunchPartitionBackfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
    ... on PartitionKeysNotFoundError { message }
  }
}
"""


# the exporter --------------------------------------------------------------------------------


def measure_exporter(instance: Any, keys: Sequence[str], folder: Path, clock: Clock) -> None:
    """Collections over this instance and a catalog of as many drops: the first, and an idle one."""
    from definitions import defs
    from resources.exporter import Watched, build_exporter
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import FolderStore

    ledger, store = Ledger(str(folder / "catalog.db")), FolderStore(folder / "store")
    if ledger.seq == 0:
        with clock.measure("fill_ledger"):
            fill_ledger(ledger, store, keys)
    with clock.measure("exporter_definitions"):
        watched = Watched.of(defs)
    exporter = build_exporter(instance, ledger, store, watched)
    for turn in ("first", "second", "idle"):
        begun, cpu_s = time.perf_counter(), time.process_time()
        while True:
            exporter.turn()
            text = exporter.metrics()[2].decode()
            if turn != "second" or "wsdata_kill_rates_unread_objects 0.0" in text:
                break
        lines = [line for line in text.splitlines() if "collection_seconds{" in line]
        spent = {line.split('"')[1]: round(float(line.split()[-1]), 3) for line in lines}
        clock.note(
            f"exporter_{turn}",
            {"s": round(time.perf_counter() - begun, 3),
             "cpu_s": round(time.process_time() - cpu_s, 3), "by_collector": spent,
             "bytes": len(text),
             "errors": [x for x in text.splitlines() if "errors_total{" in x and x[-3:] != "0.0"]},
        )  # fmt: skip
    clock.note(
        "exporter_peak_memory_bytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Dagster's instance with many drops.")
    parser.add_argument("--drops", type=int, default=10_000)
    parser.add_argument("--postgres", metavar="URL", help="storage; SQLite in the home without it")
    parser.add_argument("--home", type=Path, help="keep, or go on with, what was made")
    parser.add_argument("--backfill-runs", type=int, default=200, metavar="N",
                        help="runs of the backfill to wait for")  # fmt: skip
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated parts")
    parser.add_argument("--serve", action="store_true", help="leave a webserver on it, until ended")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure what was asked for, and print it."""
    args = parse_arguments(arguments)
    parts = args.only.split(",")
    assert set(parts) <= set(PARTS), f"parts are {PARTS}"
    folder = args.home or Path(tempfile.mkdtemp(prefix="wsdata-scale-"))
    open_home(folder, args.postgres)
    os.chdir(ROOT)
    import dagster as dg

    clock, keys = Clock(), drop_keys(args.drops)
    clock.note("drops", len(keys))
    clock.note("storage", "postgres" if args.postgres else "sqlite")
    clock.note("versions", {name: version(name) for name in ("dagster", "dagster-webserver")})
    clock.note("load_before", os.getloadavg())
    try:
        with dg.DagsterInstance.get() as instance:
            if "fill" in parts:
                fill(instance, keys, clock)
            if "queries" in parts:
                measure_queries(keys, clock)
            if "sensor" in parts:
                measure_sensor(instance, keys, folder, clock)
            if "exporter" in parts:
                measure_exporter(instance, keys, folder, clock)
            if "backfill" in parts:
                measure_backfill(instance, keys, args.backfill_runs, clock)
        clock.note("load_after", os.getloadavg())
        print(json.dumps(clock.found, indent=1))
        if args.serve:
            with webserver() as (address, _):
                print(address, file=sys.stderr)
                threading.Event().wait()
    finally:
        if args.home is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
