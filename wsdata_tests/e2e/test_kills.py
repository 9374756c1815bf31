"""SIGKILL inside every heavy step; the end is as if nothing had happened.

Two kinds of death: of one worker's process group, which its pool answers by trying again, and
of the launcher's whole group, which is answered by running again.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from wsdata.ingest.landing import FolderLanding
from wsdata.steps import STEPS
from wsdata_tests.cluster.micro_drop import make_micro_drop
from wsdata_tests.e2e.homes import MICRO_RECIPE, ROOT, Home

HEAVY = [name for name, step in STEPS.items() if step.pool is not None]
# These work for some seconds on the micro-drop; the others are done soon after they began.
LONG = {
    "ingest/fingerprints", "preprocess/decode", "preprocess/overlay_scores",
    "preprocess/safety_scores", "label/clip_embeddings", "label/captions",
    "shard/latent_shards", "loader/loader_proof",
}  # fmt: skip
LIMIT_S = 900


def make_home(path) -> Home:
    home = Home(path)
    make_micro_drop(FolderLanding(path / "landing"))
    (path / "operating.toml").write_text(MICRO_RECIPE.read_text())
    return home


def _launch(home: Home) -> psutil.Popen:
    return psutil.Popen(
        [sys.executable, "launch.py", "run"], cwd=ROOT, env=home.environment(),
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _workers(launcher: psutil.Popen) -> Iterator[tuple[str, psutil.Process]]:
    """Heavy steps at work under a launcher, until it ends."""
    deadline = time.monotonic() + LIMIT_S
    while launcher.poll() is None:
        assert time.monotonic() < deadline, "the run does not end"
        for child in launcher.children():
            try:
                command = child.cmdline()
            except psutil.Error:
                continue
            if "stage" in command[:5]:
                at = command.index("stage")
                yield "/".join(command[at + 1 : at + 3]), child
        time.sleep(0.05)  # looking costs: the launcher is to have the time


def _delay_s(step: str, dice: random.Random) -> float:
    return dice.uniform(0.05, 0.5) + (dice.uniform(0.0, 2.0) if step in LONG else 0.0)


def _kill_group(process: psutil.Process, family: list[psutil.Process]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs([each for each in family if each.is_running()], timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def shake(
    home: Home, dice: random.Random, tried: set[str], hit: set[str], *, stop_at: str | None = None
) -> int:
    """Run, killing one worker of every heavy step that was not tried yet.

    Args:
        home: Where to run.
        dice: Says how far inside a step the blow falls.
        tried: Steps that were aimed at, in this and earlier runs.
        hit: Those of them that were at work when the blow fell.
        stop_at: Kill the launcher's whole group inside this step instead.

    Returns:
        The launcher's exit code.
    """
    launcher = _launch(home)
    for name, worker in _workers(launcher):
        if name in tried:
            continue
        tried.add(name)
        time.sleep(_delay_s(name, dice))
        if not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE:
            continue
        hit.add(name)
        family = [worker, *worker.children(recursive=True)]
        _kill_group(launcher if name == stop_at else worker, family)
    return launcher.wait()


def _converges(tmp_path, seed: int, num_launchers: int) -> None:
    calm = make_home(tmp_path / "calm")
    calm.run("run")
    shaken = make_home(tmp_path / "shaken")
    dice = random.Random(seed)  # noqa: S311
    tried: set[str] = set()
    hit: set[str] = set()
    for step in sorted(dice.sample(HEAVY, num_launchers), key=HEAVY.index):
        shake(shaken, dice, tried, hit, stop_at=step)
    assert shake(shaken, dice, tried, hit) == 0, "a pool tries a killed worker again"
    assert tried == set(HEAVY)
    assert len(hit) >= 0.7 * len(HEAVY), f"only {sorted(hit)} were hit"
    assert shaken.run("run")["runs"] == []
    assert shaken.objects() == calm.objects()
    assert shaken.blobs() == calm.blobs()
    assert shaken.ledger.verify_chain() is None
    assert shaken.ask("fsck", "--deep")["ok"]


def test_killed_inside_each_heavy_step_it_converges(tmp_path):
    _converges(tmp_path, seed=1, num_launchers=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_at_more_points_it_converges(tmp_path, seed):
    _converges(tmp_path, seed, num_launchers=len(HEAVY) // 2)
