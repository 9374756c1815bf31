"""Composition root of `wsdata run`, `wsdata dataset cut`, the UI, and what a cluster's pods start.

    python launch.py run [--drop KEY ...] [--recipe FILE] [--json]
    python launch.py cut --recipe FILE [--version V] [--as-of-date DAY] [--json]
    python launch.py ui [--port N]
    python launch.py prepare
    python launch.py metrics [--port N]

On a laptop runs are worked in this process; on a cluster they are submitted to its Dagster.

Exit codes: 0 done or nothing to do, 1 something failed, 2 wrong call, 130 interrupted.
"""

import argparse
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parent


MIN_FREE_BYTES = 1 << 20
_DISK_FULL = (
    "no space left where the deployment keeps its state ($WSDATA_HOME): free some and run again. "
    "What was finished is kept; nothing half written is taken for done"
)


def build_parser() -> argparse.ArgumentParser:
    """Build the command line. The commands for people are `wsdata`'s."""
    parser = argparse.ArgumentParser(prog="launch.py", description="Dagster runs of wsdata.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="everything unfinished, from drops to batches")
    run.add_argument("--drop", action="append", default=[], metavar="KEY",
                     help="this drop alone; may be repeated")  # fmt: skip
    run.add_argument("--recipe", metavar="FILE", help="recipe of the next dataset version")
    run.add_argument("--no-cut", action="store_true", help="process drops alone, cut no version")
    run.set_defaults(function=_run)
    run.add_argument("--verify", action="store_true",
                     help="ask the store for every blob of what is done")  # fmt: skip
    cut = commands.add_parser("cut", help="one dataset version")
    cut.add_argument("--recipe", metavar="FILE", required=True)
    cut.add_argument("--version", help="its name; default: the next")
    cut.set_defaults(function=_cut)
    for command in (run, cut):
        command.add_argument("--as-of-date", metavar="DAY", help="day that rights are judged by")
        command.add_argument("--json", action="store_true", help="a summary as JSON")
    ui = commands.add_parser("ui", help="the Dagster UI, with its sensors, on this state")
    ui.add_argument("--port", type=int, default=3000)
    ui.set_defaults(function=_ui)
    prepare = commands.add_parser("prepare", help="make or migrate what the deployment stands on")
    prepare.set_defaults(function=_prepare)
    metrics = commands.add_parser("metrics", help="serve Prometheus metrics of the deployment")
    metrics.add_argument("--port", type=int, default=9109)
    metrics.add_argument("--interval", type=float, default=30.0, metavar="SECONDS")
    metrics.set_defaults(function=_metrics)
    return parser


def _run(args: argparse.Namespace) -> int:
    """Do all that is unfinished, and cut the next version where the live inputs ask for one."""
    from wsdata.ingest.landing import open_landing

    wanted, stated = _keys(args.drop), _stated_recipe(args)
    with _main_job(verifies=args.verify) as job:
        recipe = stated or job.bench.recipes.operating()
        landing = open_landing(job.bench.deployment.landing)
        job.process_drops(job.look_at_landing(landing, wanted))
        if args.no_cut or job.summary.lost:
            if job.summary.lost:
                job.progress.say("drops were lost on the way: run again, then a version is cut")
            return _tell(job, args)
        if everything := job.look_at_all():
            _cut_version(job, recipe, everything, args, version=None)
            job.report()
        else:
            job.progress.say(
                f"nothing has been landed: no drop that keeps the contract in {landing.address}"
            )
        return _tell(job, args)


def _cut(args: argparse.Namespace) -> int:
    """Cut one dataset version of what is live, and make all of it."""
    stated = _stated_recipe(args)
    with _main_job() as job:
        everything = job.look_at_all()
        if not everything:
            job.progress.say("nothing has been landed: run `wsdata run` first")
            return 1
        recipe = stated or job.bench.recipes.operating()
        _cut_version(job, recipe, everything, args, version=args.version)
        return _tell(job, args)


def _cut_version(
    job: Any, recipe: Any, drops: Sequence[str], args: argparse.Namespace, version: str | None
) -> None:
    from sensors.cutting import choose_version, state_next_recipe
    from sensors.main_job import today
    from wsdata.errors import NotReady

    state_next_recipe(job.bench, recipe)
    job.find_duplicates(recipe, drops)
    job.mend_versions()
    try:
        job.summary.version = choose_version(
            job.bench,
            job.steps["curate/manifest"],
            recipe,
            as_of_date=args.as_of_date or today(),
            version=version,
        )
    except NotReady as error:
        job.progress.say(f"no dataset version can be cut yet: {error}")
        job.summary.failed.append("curate/manifest")
        return
    job.make_version(job.summary.version)


def _ui(args: argparse.Namespace) -> int:
    """Become `dagster dev` on this state."""
    from resources.instances import prepare_home
    from wsdata.deployment import load_deployment

    deployment = load_deployment()
    if deployment.bundle != "local":
        raise ValueError("the UI of a cluster is the chart's webserver; this is for a laptop")
    home = Path(deployment.home)
    dagster = Path(sys.executable).parent / "dagster"
    command = [str(dagster), "dev", "-w", str(ROOT / "workspace.yaml"), "-h", "127.0.0.1"]
    os.chdir(ROOT)
    os.execve(  # noqa: S606
        dagster,
        [*command, "-p", str(args.port)],
        {
            **os.environ,
            "WSDATA_HOME": str(home),
            "DAGSTER_HOME": str(prepare_home(home)),
            "PYTHONPATH": str(ROOT),
        },
    )


def _prepare(_args: argparse.Namespace) -> int:
    """Migrate Dagster's storage, make the ledger's tables, and give pools their slots."""
    from resources.instances import set_pool_limits

    with _instance() as (instance, deployment):
        instance.upgrade()
        deployment.open_ledger().prepare()
        for name, slots in set_pool_limits(instance, deployment).items():
            print(f"pool {name}: {slots} workers at once")
    return 0


def _metrics(args: argparse.Namespace) -> int:
    """Serve metrics until ended."""
    with _instance() as (instance, deployment):
        from definitions import defs
        from resources.exporter import serve

        ledger, store = deployment.open_ledger(), deployment.open_store()
        serve(instance, ledger, store, args.port, args.interval, defs=defs)
    return 0


@contextmanager
def _instance():  # noqa: ANN202
    """Open the Dagster instance of the deployment, and give both."""
    from resources.instances import prepare_home
    from wsdata.deployment import load_deployment

    deployment = load_deployment()
    if deployment.bundle == "local":
        os.environ["DAGSTER_HOME"] = str(prepare_home(Path(deployment.home)))
    elif "DAGSTER_HOME" not in os.environ:
        raise ValueError("DAGSTER_HOME is not set: on a cluster, start this in a pod of the chart")
    import dagster as dg

    with dg.DagsterInstance.get() as instance:
        yield instance, deployment


@contextmanager
def _main_job(*, verifies: bool = False):  # noqa: ANN202
    """Open the instance, end what was abandoned in it, and give the job over it."""
    with _instance() as (instance, deployment):
        from assets.building import VERIFY_TAG
        from assets.work import Workbench
        from definitions import defs
        from resources.instances import end_abandoned_runs, set_pool_limits
        from sensors.main_job import MainJob
        from sensors.progress import Progress
        from sensors.runs import InProcessRuns, SubmittedRuns
        from wsdata.steps import STEPS

        progress, resources = Progress(), cast("dict[str, Any]", defs.resources)
        if deployment.bundle == "local":
            set_pool_limits(instance, deployment)
            for run_id in end_abandoned_runs(instance):
                progress.say(f"ended run {run_id[:8]}, whose process is gone")
            runs = InProcessRuns(defs, instance, progress)
        else:
            cluster = deployment.kubernetes
            runs = SubmittedRuns(
                cluster.webserver_url, instance, progress,
                at_once=cluster.runs_at_once, poll_s=cluster.poll_s,
                tags={VERIFY_TAG: "true"} if verifies else {},
            )  # fmt: skip
        bench = Workbench(
            deployment=deployment,
            ledger=resources["catalog"].open(),
            store=resources["blob_store"].open(),
            recipes=resources["recipes"],
            asks_blobs=verifies or deployment.asks_blobs,
        )
        yield MainJob(steps=STEPS, instance=instance, bench=bench, progress=progress, runs=runs)


def _stated_recipe(args: argparse.Namespace) -> Any:
    from wsdata.recipe import load_recipe

    return load_recipe(Path(args.recipe)) if args.recipe else None


def _keys(drops: Sequence[str]) -> list[str]:
    from wsdata.ids import parse_drop_key

    keys = [Path(drop).name for drop in drops]
    for key in keys:
        parse_drop_key(key)
    return keys


def _tell(job: Any, args: argparse.Namespace) -> int:
    """Print what was done, and return the exit code."""
    from sensors.main_job import describe

    data, lines = describe(job)
    if args.json:
        print(json.dumps(data, indent=1, ensure_ascii=False))
    else:
        for line in lines:
            print(line)
    is_refused = bool(set(getattr(args, "drop", [])) and job.summary.refused)
    return 1 if job.summary.failed or is_refused else 0


def _has_no_space(home: Path) -> bool:
    return home.is_dir() and shutil.disk_usage(home).free < MIN_FREE_BYTES


def main(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code."""
    from wsdata.deployment import default_home
    from wsdata.errors import WsdataError, is_disk_full

    args = build_parser().parse_args(arguments)
    warnings.filterwarnings("ignore", message=".*currently in (preview|beta)")
    started_s = time.monotonic()
    try:
        return args.function(args)
    except (WsdataError, ValueError) as error:
        print("\n".join([f"wsdata: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except Exception as error:
        # SQLite meets a full disk in more than one way: then the disk itself is asked.
        if not is_disk_full(error) and not _has_no_space(default_home()):
            raise
        print(f"wsdata: {_DISK_FULL}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted after {time.monotonic() - started_s:.0f} s", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
