"""SIGKILL inside every heavy step, one after another; the end is as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.steps import STEPS
from wsdata_tests.e2e.homes import MICRO_RECIPE, ROOT, Home

MICRO = ("stream_of_water.webm", "testsrc_av1.mkv", "coffee.png")
HEAVY = [name for name, step in STEPS.items() if step.pool is not None]
DECLARED = Declaration(source_tier="licensed", source="micro", license_id="CC0-1.0")
WAIT_S = 240


def make_home(path, names=MICRO) -> Home:
    home = Home(path)
    files = [ROOT / "samples" / "media" / name for name in names]
    make_drop(files, path / "landing", DECLARED, date="20261101")
    (path / "operating.toml").write_text(MICRO_RECIPE.read_text())
    return home


def _launch(home: Home) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "launch.py", "run"], cwd=ROOT, env=home.environment(),
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _worker_of(launcher: psutil.Process, step: str) -> psutil.Process | None:
    wanted = ["stage", *step.split("/")]
    for child in launcher.children(recursive=True):
        try:
            command = child.cmdline()
        except psutil.Error:
            continue
        if command[3:6] == wanted or command[2:5] == wanted:
            return child
    return None


def kill_inside(home: Home, step: str, delay_s: float) -> bool:
    """Run, and kill the launcher's whole group inside a step; return whether it was hit."""
    process = _launch(home)
    launcher = psutil.Process(process.pid)
    deadline = time.monotonic() + WAIT_S
    worker = None
    while process.poll() is None and time.monotonic() < deadline:
        if (worker := _worker_of(launcher, step)) is not None:
            break
        time.sleep(0.01)
    if worker is None:
        process.wait(5)
        return False
    time.sleep(delay_s)
    was_inside = worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE
    family = [worker, *worker.children(recursive=True)] if was_inside else []
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive, f"{step}: its worker outlived its launcher: {alive}"
    return was_inside


def _converges(tmp_path, seed: int) -> None:
    calm = make_home(tmp_path / "calm")
    calm.run("run")
    shaken = make_home(tmp_path / "shaken")
    dice = random.Random(seed)  # noqa: S311
    hit = [step for step in HEAVY if kill_inside(shaken, step, dice.uniform(0.3, 2.0))]
    assert len(hit) >= len(HEAVY) // 2, f"only {hit} were hit"
    shaken.run("run")
    assert shaken.objects() == calm.objects()
    assert shaken.blobs() == calm.blobs()
    assert shaken.ledger.verify_chain() is None
    assert shaken.run("fsck", "--deep")["ok"]


def test_killed_inside_each_heavy_step_it_converges(tmp_path):
    _converges(tmp_path, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_killed_at_more_points_it_converges(tmp_path, seed):
    _converges(tmp_path, seed)
