"""What a pass of the main job asks at many drops: of the ledger, of the store, in time and memory.

    PYTHONPATH=. .venv/bin/python benchmarks/main_job_scale.py --drops 10000 [--postgres [URL]]
        [--at-once N] [--sample K] [--home FOLDER]

Fills a ledger with the real steps of every drop, all finished, cuts a version, and then works
real passes of `MainJob` over it in processes of their own: one in which nothing is left to do,
and one after one new drop. Runs are not Dagster's: a run commits a fabricated report of its real
order, and its time and queries count apart. The store is a double that has every object that the
ledger names. Beside it `--sample K` asks about K drops as a run pod does, each question anew.

`--home` keeps the ledger (SQLite) and fills it once; `--postgres URL` likewise, without a URL a
server of the benchmark's own. `--phase` works one phase alone.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import sqlalchemy as sa

from assets.building import step_keys
from assets.work import Workbench
from launch import ROOT, _cut_version
from resources.deployments import bundle
from sensors import jobs
from sensors.cutting import state_next_recipe
from sensors.main_job import MainJob
from sensors.progress import Progress
from sensors.runs import RunDone
from wsdata import tables
from wsdata.catalog.ledger import Ledger, chain_of
from wsdata.catalog.schema import COMMITS, OBJECTS
from wsdata.curate.centroids import centroids_version_for
from wsdata.deployment import load_deployment
from wsdata.digest import canonical_json, sha256_bytes
from wsdata.ids import make_shard_group
from wsdata.orders import Step
from wsdata.records import ObjectRef, Order, Report, table_key
from wsdata.steps import STEPS
from wsdata_tests.cluster.postgres_server import running_postgres

DAY = "2026-11-30"
NUM_GROUPS = 50  # shard groups of a version
PAGE = 1000  # names that one request of a listing answers
BATCH = 500
PHASES = ("fill", "idle", "sample", "near")
QUIET = SimpleNamespace(write=lambda _: None, flush=lambda: None, isatty=lambda: False)
ARGS = SimpleNamespace(as_of_date=DAY)


def drop_keys(num_drops: int) -> list[str]:
    """Keys of deliveries of forty sources, in the order in which they are asked about."""
    days = [(20260101 + n // 400 % 28, n // 11200 * 400 + n % 400 + 1) for n in range(num_drops)]
    return sorted(
        f"licensed.source{n % 40:02d}.{day}.{number:03d}" for n, (day, number) in enumerate(days)
    )


class Counted:
    """Queries and requests by name, and seconds of runs; nothing counts while a run is worked."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.runs_s = self.runs_cpu_s = 0.0
        self._here = threading.local()
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        """Count, unless this thread works a run."""
        if not getattr(self._here, "is_run", False):
            with self._lock:
                self.counts[name] += count

    def watch(self, engine: sa.Engine) -> None:
        """Count the statements of a database."""
        sa.event.listen(engine, "before_cursor_execute", lambda *_: self.add("sql_queries"))

    @contextmanager
    def run(self) -> Iterator[None]:
        """Work a run."""
        begun, begun_cpu, self._here.is_run = time.perf_counter(), time.thread_time(), True
        yield
        self._here.is_run = False
        with self._lock:
            self.runs_s += time.perf_counter() - begun
            self.runs_cpu_s += time.thread_time() - begun_cpu


class Store:
    """A bucket that has every object that the ledger names; only what was put has bytes."""

    address = "s3://fabricated"

    def __init__(self, url: str, counted: Counted) -> None:
        self._engine, self._counted = sa.create_engine(url), counted
        self._bytes: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> bool:
        """Keep the bytes of a key."""
        return self._bytes.setdefault(key, data) is data

    def get(self, key: str) -> bytes:
        """Return the bytes that were put, or those that every listing of shard groups has."""
        self._counted.add("store_gets")
        return self._bytes.get(key) or assignments()[1]

    def size(self, key: str) -> int | None:
        """One request: it is there."""
        self._counted.add("store_heads")
        return 1 if key else None

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Objects of rows under a prefix, as the ledger names them; a request for each page."""
        digits = prefix.removeprefix("tables/").rstrip("/")
        query = sa.select(OBJECTS.c.sha256).where(
            OBJECTS.c.sha256 >= digits, OBJECTS.c.sha256 < digits + "g"
        )
        with self._engine.connect() as connection:
            found = sorted({row.sha256 for row in connection.execute(query)})
        self._counted.add("store_lists", 1 + len(found) // PAGE)
        for sha256 in found:
            yield table_key(sha256), 1


def assignments() -> tuple[str, bytes]:
    """The object in which every version finds its shard groups, but for their version."""
    rows = pl.DataFrame({"sample_id": [f"s{n}" for n in range(NUM_GROUPS)]}).with_columns(
        shard_group=pl.Series([make_shard_group("v1", n) for n in range(NUM_GROUPS)])
    )
    data = tables.to_parquet(tables.conform("shard_assignments", rows))
    return sha256_bytes(data), data


def made_up(step: Step, order: Order) -> Report:
    """A report of an order: other rows for another order."""
    version_digest, digest = order.version_digest, order.digest
    objects = {
        table: ObjectRef(
            table=table, partition=order.partition, version=order.code_version,
            version_digest=version_digest, num_rows=100,
            sha256=assignments()[0] if table == "shard_assignments"
            else hashlib.sha256(f"{table}|{order.partition}|{step.name}".encode()).hexdigest(),
        )
        for table in step.tables
    }  # fmt: skip
    return Report(order_digest=digest, version_digest=version_digest, objects=objects)


class FabricatedRuns:
    """Runs that commit what steps would have made."""

    def __init__(self, ledger: Ledger, counted: Counted, at_once: int) -> None:
        self.at_once, self._ledger, self._counted = at_once, ledger, counted
        self.bench: Any = None
        self.by_job: Counter[str] = Counter()

    def work(self, spec: jobs.JobSpec, partition: str, keys: Sequence[Any]) -> RunDone:
        """Commit some steps of one partition."""
        with self._counted.run():
            for step in spec.steps(STEPS):
                if set(step_keys(step)) & set(keys):
                    order = self.bench.order(step, partition)
                    self._ledger.commit(order, made_up(step, order))
                    self.bench.renew()
        self.by_job[spec.name] += 1
        return RunDone(run_id="-", is_ok=True)


class Site:
    """A home whose ledger is the benchmark's."""

    def __init__(self, url: str, home: Path, at_once: int = 1) -> None:
        self.counted = Counted()
        self.ledger = Ledger(url)
        self.counted.watch(self.ledger.database.engine)
        self.bench = Workbench(
            deployment=load_deployment(home), ledger=self.ledger,
            store=Store(url, self.counted),  # pyright: ignore[reportArgumentType]
            recipes=bundle(ROOT, home)["recipes"],  # pyright: ignore[reportArgumentType]
            asks_blobs=False,
        )  # fmt: skip
        self.runs = FabricatedRuns(Ledger(url), self.counted, at_once)

    def job(self) -> MainJob:
        """A main job that has not begun."""
        instance: Any = SimpleNamespace(add_dynamic_partitions=lambda *_: None)
        job = MainJob(steps=STEPS, instance=instance, bench=self.bench, runs=self.runs,
                      progress=Progress(QUIET))  # fmt: skip  # pyright: ignore[reportArgumentType]
        self.runs.bench = job.bench
        return job


def work_pass(job: MainJob, drops: Sequence[str]) -> None:
    """All that `launch.py run` does between looking at the landing zone and telling the end."""
    job.process_drops(drops)
    _cut_version(job, job.bench.recipes.operating(), job.look_at_all(), ARGS, version=None)  # pyright: ignore[reportArgumentType]
    job.report()


# filling -----------------------------------------------------------------------------------------


def fill(url: str, home: Path, drops: Sequence[str]) -> dict[str, Any]:
    """Commit every step of every drop, and a version; a step at a time, so that all is final."""
    site = Site(url, home)
    if site.ledger.seq:
        return {"fill": "was there"}
    begun, job = time.perf_counter(), site.job()
    for step in jobs.PROCESS_DROP.steps(STEPS):
        commit_all(site.ledger, job, step, drops)
    recipe = job.bench.recipes.operating()
    state_next_recipe(job.bench, recipe)
    job.do(jobs.FIT_CENTROIDS, centroids_version_for(job.bench.ledger, recipe))
    (assign,) = jobs.ASSIGN_CLUSTERS.steps(STEPS)
    commit_all(site.ledger, job, assign, drops)
    work_pass(job, [])
    return {"fill": {"s": round(time.perf_counter() - begun, 1), "commits": site.ledger.seq}}


def commit_all(ledger: Ledger, job: MainJob, step: Step, drops: Sequence[str]) -> None:
    """Commit one step of all drops in one transaction, with the rows that `Ledger.commit` makes."""
    commits, objects, name = [], [], f"{step.stage}/{step.name}"
    last = ledger.commits(since=ledger.seq - 1)
    seq, chain = (last[0]["seq"], last[0]["chain"]) if last else (0, "")
    for drop in drops:
        order = job.bench.order(step, drop)
        report = made_up(step, order)
        shas = {table: ref.sha256 for table, ref in report.objects.items()}
        body = {"order": report.order_digest, "objects": shas, "facts": []}
        seq += 1
        chain = chain_of(chain, seq, name, drop, body)
        commits.append(
            {"seq": seq, "chain": chain, "step": name, "partition": drop, "run_id": None,
             "committed_at": DAY, "body": canonical_json(body)}
        )  # fmt: skip
        objects += [
            {"name": ref.table, "partition": drop, "version": ref.version, "num_rows": ref.num_rows,
             "version_digest": ref.version_digest, "sha256": ref.sha256, "begin_seq": seq,
             "order_digest": report.order_digest}
            for ref in report.objects.values()
        ]  # fmt: skip
    with ledger.database.engine.begin() as connection:
        for table, rows in ((COMMITS, commits), (OBJECTS, objects)):
            for start in range(0, len(rows), BATCH):
                connection.execute(sa.insert(table).values(rows[start : start + BATCH]))
    job.bench.renew()


# measuring ---------------------------------------------------------------------------------------


def measure(site: Site, drops: Sequence[str]) -> dict[str, Any]:
    """Work one pass, and tell what it took."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    job = site.job()
    marks = {"load_s": time.perf_counter()}
    job.bench.renew()
    marks = {"load_s": round(time.perf_counter() - marks["load_s"], 2)}
    asked = time.perf_counter()
    job.process_drops(drops)
    marks["drops_s"] = round(time.perf_counter() - asked - site.counted.runs_s, 2)
    work_pass(job, [])
    return {
        "s": round(time.perf_counter() - begun - site.counted.runs_s, 2),
        "cpu_s": round(time.process_time() - begun_cpu - site.counted.runs_cpu_s, 2),
        **marks,
        "runs": dict(site.runs.by_job),
        "runs_s": round(site.counted.runs_s, 2),
        "skipped": len(job.summary.skipped),
        **dict(site.counted.counts),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def sample(site: Site, drops: Sequence[str], count: int) -> dict[str, Any]:
    """Ask about a few drops as a run pod does, and scale it to all of them."""
    steps = [step for step in STEPS.values() if step.partition == "drop"]
    chosen = drops[:: max(1, len(drops) // count)][:count]
    begun, per_step = time.perf_counter(), Counter[str]()
    for drop in chosen:
        for step in steps:
            asked = time.perf_counter()
            assert site.bench.is_finished(step, drop), f"{step.name} of {drop} is not done"
            per_step[step.name] += time.perf_counter() - asked  # pyright: ignore[reportArgumentType]
    scale = len(drops) / len(chosen)
    return {
        "drops_asked": len(chosen),
        "drops_s_of_all": round((time.perf_counter() - begun) * scale),
        **{name: round(count * scale) for name, count in site.counted.counts.items()},
        "ms_of_step": {
            name: round(s / len(chosen) * 1e3, 1) for name, s in per_step.most_common(6)
        },
    }


def work_phase(args: argparse.Namespace) -> dict[str, Any]:
    """One phase, in this process."""
    known = drop_keys(args.drops)
    (new,) = set(drop_keys(args.drops + 1)) - set(known)
    home = Path(args.home)
    if args.phase == "fill":
        return fill(args.postgres, home, known)
    site = Site(args.postgres, home, args.at_once)
    if args.phase == "sample":
        return {"each question anew": sample(site, known, args.sample)}
    if args.phase == "idle":
        return {"idle": measure(site, known)}
    return {f"after {new}": measure(site, sorted([*known, new]))}


def main() -> None:
    """Fill, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drops", type=int, default=1000)
    parser.add_argument("--postgres", nargs="?", const="own")
    parser.add_argument("--home")
    parser.add_argument("--at-once", type=int, default=1, help="partitions asked about at a time")
    parser.add_argument("--sample", type=int, default=3)
    parser.add_argument("--phase", choices=PHASES)
    args = parser.parse_args()
    if args.phase:
        print(json.dumps(work_phase(args)))
        return
    with ExitStack() as stack:
        home = args.home or stack.enter_context(tempfile.TemporaryDirectory())
        url = args.postgres or f"sqlite:///{home}/catalog.db"
        if url == "own":
            url = stack.enter_context(running_postgres()).url
        found: dict[str, Any] = {"drops": args.drops, "at_once": args.at_once,
                                 "database": url.partition(":")[0]}  # fmt: skip
        for phase in PHASES:
            command = [sys.executable, __file__, "--phase", phase, "--postgres", url, "--home",
                       home, "--drops", str(args.drops), "--at-once", str(args.at_once),
                       "--sample", str(args.sample)]  # fmt: skip
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ)  # noqa: S603
            found |= json.loads(done.stdout)
            print(json.dumps(found), file=sys.stderr)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
