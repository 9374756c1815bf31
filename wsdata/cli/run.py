"""``wsdata run``: drops are made here, Dagster runs in a process of its own."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from wsdata.cli.main import Answer
from wsdata.errors import WsdataError
from wsdata.ingest.delivery import make_drop
from wsdata.ingest.landing import open_landing
from wsdata.ingest.making import plan_drop
from wsdata.recipe import load_recipe

LAUNCHER = "launch.py"


def run(args: argparse.Namespace) -> Answer:
    """``run``: make drops of the folders named, then launch the main job."""
    from wsdata.cli.opened import open_deployment

    deployment = open_deployment(args).deployment
    if args.recipe:
        load_recipe(Path(args.recipe))  # a bad one is told before anything starts
    stated = {"source_tier": args.tier, "source": args.source, "license_id": args.license}
    level = deployment.sandbox_minimum
    for folder in map(Path, args.drop):
        plan = plan_drop(folder, stated, records=None, minimum_level=level)
        key = make_drop(
            folder,
            open_landing(deployment.landing),
            plan.declaration,
            records=plan.records,
            tracks=plan.tracks,
            minimum_level=level,
        )
        print(f"drop {key} made of {folder}", file=sys.stderr)
        for choice in plan.assumed:
            print(f"  assumed: {choice}", file=sys.stderr)
        for name in plan.left_out:
            print(f"  left out, not a media file: {name}", file=sys.stderr)
    if not Path(deployment.eval_list).is_file():
        print(
            f"no eval list is in force: {deployment.eval_list} would name assets to seal, one "
            "sha256 a line, before they land",
            file=sys.stderr,
        )
    options = ["--recipe", str(Path(args.recipe).absolute())] if args.recipe else []
    options += ["--verify"] if args.verify else []
    return launch(deployment.home, ["run", *options, *(["--json"] if args.json else [])])


def launch(home: str, arguments: list[str]) -> Answer:
    """Run the launcher of the checkout, and pass its words and exit code on."""
    root = checkout()
    process = subprocess.Popen(  # noqa: S603 - our own launcher, arguments checked above
        [sys.executable, str(root / LAUNCHER), *arguments],
        env={
            **os.environ,
            "WSDATA_HOME": home,
            "PYTHONPATH": os.pathsep.join(
                [path for path in (os.environ.get("PYTHONPATH"), str(root)) if path]
            ),
        },
    )
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the terminal sent it to the launcher too, which ends its run
        sys.stdout.flush()
        raise SystemExit(130 if code == -signal.SIGINT else code)


def checkout() -> Path:
    """The checkout that holds the launcher: ``WSDATA_PROJECT``, or where this package lies.

    Raises:
        WsdataError: There is none there.
    """
    root = Path(os.environ.get("WSDATA_PROJECT") or Path(__file__).resolve().parents[2])
    if not (root / LAUNCHER).is_file():
        raise WsdataError(
            f"no {LAUNCHER} in {root}: this command needs a checkout of wsdata; run it from one, "
            "or name one by WSDATA_PROJECT"
        )
    return root
