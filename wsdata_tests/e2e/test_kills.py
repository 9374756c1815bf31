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

from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.steps import STEPS
from wsdata_tests.e2e.homes import MICRO_RECIPE, ROOT, Home

MICRO = ("stream_of_water.webm", "testsrc_av1.mkv", "coffee.png")
HEAVY = [name for name, step in STEPS.items() if step.pool is not None]
# These work for some seconds on the micro-drop; the others are done soon after they began.
LONG = {
    "ingest/fingerprints", "preprocess/decode", "preprocess/overlay_scores",
    "preprocess/safety_scores", "label/clip_embeddings", "label/captions",
    "shard/latent_shards", "loader/loader_proof",
}  # fmt: skip
DECLARED = Declaration(source_tier="licensed", source="micro", license_id="CC0-1.0")
LIMIT_S = 900


def make_home(path) -> Home:
    home = Home(path)
    files = [ROOT / "samples" / "media" / name for name in MICRO]
    make_drop(files, path / "landing", DECLARED, date="20261101")
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
        time.sleep(0.02)


def _delay_s(step: str, dice: random.Random) -> float:
    return dice.uniform(0.05, 0.5) + (dice.uniform(0.0, 2.0) if step in LONG else 0.0)


def _kill_group(process: psutil.Process, family: list[psutil.Process]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs([each for each in family if each.is_running()], timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def kill_launcher_inside(home: Home, step: str, delay_s: float) -> bool:
    """Run, and kill the launcher's group while a step is at work; return whether it was hit."""
    launcher = _launch(home)
    for name, worker in _workers(launcher):
        if name == step:
            time.sleep(delay_s)
            is_hit = worker.is_running()
            family = [worker, *worker.children(recursive=True)] if is_hit else []
            _kill_group(launcher, family)
            launcher.wait()
            return is_hit
    return False


def kill_each_worker_once(home: Home, dice: random.Random) -> set[str]:
    """Run to the end, killing one worker of every heavy step; return the steps that were hit."""
    launcher, tried, hit = _launch(home), set(), set()
    for name, worker in _workers(launcher):
        if name in tried:
            continue
        tried.add(name)
        time.sleep(_delay_s(name, dice))
        if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            hit.add(name)
            _kill_group(worker, worker.children(recursive=True))
    assert launcher.wait() == 0, "a pool tries a killed worker again"
    return hit


def _converges(tmp_path, seed: int, num_launchers: int) -> None:
    calm = make_home(tmp_path / "calm")
    calm.run("run")
    shaken = make_home(tmp_path / "shaken")
    dice = random.Random(seed)  # noqa: S311
    chosen = sorted(dice.sample(HEAVY, num_launchers), key=HEAVY.index)
    hit = {step for step in chosen if kill_launcher_inside(shaken, step, _delay_s(step, dice))}
    hit |= kill_each_worker_once(shaken, dice)
    assert len(hit) >= 0.7 * len(HEAVY), f"only {sorted(hit)} were hit"
    assert shaken.run("run")["runs"] == []
    assert shaken.objects() == calm.objects()
    assert shaken.blobs() == calm.blobs()
    assert shaken.ledger.verify_chain() is None
    assert shaken.run("fsck", "--deep")["ok"]


def test_killed_inside_each_heavy_step_it_converges(tmp_path):
    _converges(tmp_path, seed=1, num_launchers=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_at_more_points_it_converges(tmp_path, seed):
    _converges(tmp_path, seed, num_launchers=len(HEAVY) // 2)
