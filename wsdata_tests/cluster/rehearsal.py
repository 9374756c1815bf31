"""The sample drops through a cluster on loopback, and through an embedded home: the same bytes.

    python -m wsdata_tests.cluster.rehearsal [--drops sample|micro] [--s3 moto|faulty|radosgw]
        [--kills SEED] [--folder DIR]

S3, Postgres and a Kubernetes double come up; the chart is rendered and applied; deliveries go
into the landing bucket, the daemon's sensor finds them, run pods start worker pods, and the
chart's conductor cuts a version. A faulty S3 fails one request in twenty. With kills, worker
pods, run pods, the daemon and the database are ended in the middle. Exit code 0 only where
manifest and rows equal the embedded run's.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from wsdata.steps import STEPS
from wsdata_tests.cluster.site import IN_FLIGHT, ROOT, Site, running_site, wait_for
from wsdata_tests.e2e.homes import MICRO_RECIPE, Home

# What these hold is about the store or the machine, not about the material.
OF_THE_PLACE = {"costs", "retention", "engine_mirror"}
WAIT_S = 3600.0
MAX_BLOWS = 12  # a cluster that is struck for ever makes nothing


@dataclass(kw_only=True)
class Outcome:
    """What one place made: rows and training objects by key, the match pairs, and a version."""

    version: str
    manifest_digest: str
    manifest_sha256: str
    rows: dict[tuple[str, str, str], str]
    pairs_digest: str
    training: dict[str, str]
    seconds: float


@dataclass
class Blows:
    """Kills in the middle of the work, drawn from a seed; `told` says what was struck."""

    site: Site
    dice: random.Random
    told: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        """Strike until told to end: a pod of each kind in turn, now and then the database."""
        kinds = ["worker", "database", "run", "worker", "daemon"]
        while len(self.told) < MAX_BLOWS and not self.ended.wait(self.dice.uniform(10, 40)):
            self._strike(kinds[len(self.told) % len(kinds)])

    def _strike(self, kind: str) -> None:
        if kind == "database":
            self.site.postgres.kill()
            time.sleep(self.dice.uniform(0.5, 3))
            self.site.postgres.start()
            self.told.append("database")
            return
        selector = {
            "worker": "app.kubernetes.io/name=wsdata-worker",
            "run": "dagster/run-id",
            "daemon": "app.kubernetes.io/component=daemon",
        }[kind]
        pods = [
            pod["metadata"]["name"]
            for pod in self.site.kube.pods(selector)
            if pod.get("status", {}).get("phase") == "Running"
        ]
        if pods:
            victim = self.dice.choice(sorted(pods))
            strike = self.dice.choice([self.site.kube.kill_pod, self.site.kube.preempt])
            strike(victim)
            self.told.append(f"{kind} {victim} by {strike.__name__}")


def deliver(drops: str, environment: dict[str, str]) -> None:
    """Put the deliveries into a landing zone, by the commands of a user."""
    commands = (
        [[str(ROOT / "samples" / "make_drops.py")]]
        if drops == "sample"
        else [["-m", "wsdata_tests.cluster.micro_drop"]]
    )
    for command in commands:
        subprocess.run(  # noqa: S603
            [sys.executable, *command], check=True, cwd=ROOT, env=environment
        )


def look(home_deployment: Any, version: str, seconds: float) -> Outcome:
    """What a deployment's ledger and store hold of a version."""
    from wsdata.catalog.objects import read_table
    from wsdata.lifecycle.versions import summarize

    ledger, store = home_deployment.open_ledger(), home_deployment.open_store()
    (manifest,) = ledger.live("manifests", version)
    return Outcome(
        version=version,
        manifest_digest=summarize(ledger, store, version).manifest_digest,
        manifest_sha256=manifest.sha256,
        rows={(ref.table, ref.partition, ref.version): ref.sha256 for ref in ledger.all_objects()},
        pairs_digest=_digest_of_pairs(read_table(ledger, store, "match_pairs")),
        training={
            key: hashlib.sha256(store.get(key)).hexdigest() for key, _ in store.list("training/")
        },
        seconds=seconds,
    )


def _digest_of_pairs(pairs: pl.DataFrame) -> str:
    """Digest of match pairs as a set: the drop that came later holds a pair."""
    return hashlib.sha256(pairs.unique().sort(pairs.columns).write_csv().encode()).hexdigest()


def embedded(folder: Path, drops: str, recipe: str) -> Outcome:
    """The reference: one process, a folder, SQLite."""
    home = Home(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if recipe:
        (folder / "operating.toml").write_text(recipe)
    deliver(drops, home.environment())
    started = time.monotonic()
    done = home.run("run")
    return look(home.deployment, done["version"], time.monotonic() - started)


def clustered(
    site: Site, drops: str, kills: int | None, say: Callable[[str], None]
) -> tuple[Outcome, list[str]]:
    """The same through the sensor, run pods, worker pods, and the conductor."""
    started = time.monotonic()
    deliver(drops, site.operator())
    wanted = 3 if drops == "sample" else 1
    blows = Blows(site, random.Random(kills))  # noqa: S311 - a seeded choice of victims
    thread = threading.Thread(target=blows, daemon=True)
    if kills is not None:
        thread.start()
    try:
        wait_for(lambda: _is_processed(site, wanted), "drops processed", WAIT_S)
        say("the sensor's runs are done; the conductor cuts a version")
        said = conduct(site, say)
    finally:
        blows.ended.set()
        if kills is not None:
            thread.join()
    return look(_deployment(site), said["version"], time.monotonic() - started), blows.told


def _is_processed(site: Site, wanted: int) -> bool:
    """Whether every drop was taken by the sensor, and none of its runs is in flight."""
    try:
        ended = site.runs("SUCCESS", "FAILURE")
        return not site.runs(*IN_FLIGHT) and len(ended) >= wanted
    except OSError:  # the webserver or the database is down
        return False


def conduct(site: Site, say: Callable[[str], None], attempts: int = 20) -> dict[str, Any]:
    """Run the chart's conductor until it finds nothing left; give what it says.

    A conductor that was killed, or met a run that was, is started again, as its schedule would.
    """
    for attempt in range(attempts):
        name = site.start_conductor(f"conductor-{attempt}")
        end = site.wait_for_job(name, timeout_s=WAIT_S)
        log = site.kube.log_of_job(name)
        if end == "Complete":
            return json.loads(log[log.index("{") :])
        say(f"conductor {attempt} failed; the next one goes on:\n{log[-2000:]}")
    raise RuntimeError(f"{attempts} conductors failed")


def _deployment(site: Site) -> Any:

    os.environ.update(
        {
            key: value
            for key, value in site.operator().items()
            if key.startswith(("AWS_", "WSDATA_"))
        }
    )
    return site.deployment


def arrival_shows() -> set[str]:
    """Tables whose rows may tell which of several drops came first.

    Some steps of a drop look at whatever of other drops is there by then (match pairs, gates),
    and so does what follows from them, until the cut settles it (ADR 10). The pairs of all drops
    together must be the same all the same, and everything of a dataset version.
    """
    before_the_cut = ("drop", "centroids_version", "cluster_range")
    shown: set[str] = set()
    for step in STEPS.values():  # in flow order
        looks_around = any(each.scope == "all" and each.is_context for each in step.inputs)
        follows = shown & {each.table for each in step.inputs}
        if step.partition in before_the_cut and (looks_around or follows):
            shown |= set(step.tables)
    return shown


def compare(here: Outcome, there: Outcome) -> dict[str, Any]:
    """What is alike and what is not; `same` only where all that is about the material is.

    Of several drops, rows that tell which came first are reported and not judged.
    """
    keys = {key for key in here.rows | there.rows if key[0] not in OF_THE_PLACE}
    differing = sorted("/".join(key) for key in keys if here.rows.get(key) != there.rows.get(key))
    training = sorted(
        key
        for key in here.training | there.training
        if here.training.get(key) != there.training.get(key)
    )
    num_drops = sum(key[0] == "raw_assets" for key in keys)
    excused = arrival_shows() if num_drops > 1 else set[str]()
    return {
        "same": not [key for key in differing if key.partition("/")[0] not in excused]
        and here.pairs_digest == there.pairs_digest
        and not training
        and here.manifest_sha256 == there.manifest_sha256
        and here.manifest_digest == there.manifest_digest,
        "manifest_sha256": {"embedded": here.manifest_sha256, "cluster": there.manifest_sha256},
        "row_objects": len(keys),
        "row_objects_differing": differing,
        "training_objects": len(here.training),
        "training_objects_differing": training,
        "seconds": {"embedded": round(here.seconds, 1), "cluster": round(there.seconds, 1)},
    }


def read_as_trainer(site: Site, version: str) -> int:
    """Read batches under the trainer's own identity; how many samples came."""
    program = (
        "import sys; from wsdata.loader.dataset import PlanDataset\n"
        "batches = PlanDataset(version=sys.argv[1], store=sys.argv[2], num_steps=8)\n"
        "print(sum(len(batch['clip_ids']) for batch in batches))\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program, version, site.address("store")],
        check=True, capture_output=True, text=True, cwd=ROOT, env=site.operator("trainer"),
    )  # fmt: skip
    return int(done.stdout)


def main() -> int:
    """Run the rehearsal, and print its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drops", choices=("sample", "micro"), default="sample")
    parser.add_argument("--s3", choices=("moto", "faulty", "radosgw"), default="moto")
    parser.add_argument("--kills", type=int, metavar="SEED")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every server is stopped
    with tempfile.TemporaryDirectory(prefix="wsdata-rehearsal-") as made:
        report = rehearse(args.folder or Path(made), args.drops, args.s3, args.kills)
    print(json.dumps(report, indent=1))
    return 0 if report["same"] else 1


def rehearse(folder: Path, drops: str, s3: str, kills: int | None) -> dict[str, Any]:
    """Do both, and compare."""

    def say(text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    recipe = MICRO_RECIPE.read_text() if drops == "micro" else ""
    listed = (ROOT / "samples" / "eval_list.txt").read_text() if drops == "sample" else ""
    assets = [each for line in listed.splitlines() if (each := line.split("#")[0].strip())]
    say("the embedded run")
    here = embedded(folder / "embedded", drops, recipe)
    say(f"it made {here.version} in {here.seconds:.0f} s; the cluster comes up")
    with running_site(folder / "cluster", recipe=recipe, eval_list=assets, s3=s3) as site:
        say(f"it is up: http://127.0.0.1:{site.web_port}; deliveries go into its landing bucket")
        there, blows = clustered(site, drops, kills, say)
        report = compare(here, there)
        report["blows"] = blows
        report["samples_read_by_trainer"] = read_as_trainer(site, there.version)
        report["jobs"] = site.kube.calls().count("POST jobs")
    return report


if __name__ == "__main__":
    sys.exit(main())
