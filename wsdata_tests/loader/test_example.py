"""The example in `examples/`: a run that is killed for real, and resumed otherwise."""

import json
import subprocess
import sys

import pytest

from wsdata.store import FolderStore
from wsdata_tests.loader.published import publish

STEPS = 9


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "losses.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_run_resumed_with_other_ranks_has_the_same_losses_to_the_bit(
    tmp_path, pytestconfig
):
    store = FolderStore(tmp_path / "store")
    publish(store)
    script = pytestconfig.rootpath / "examples" / "train_toy_dit.py"
    command = [sys.executable, script, "--prove", "--store", store.address, "--out", tmp_path]
    command += ["--steps", str(STEPS), "--checkpoint-every", "4", "--world-size", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "step 6: killed"
    assert lines[1].startswith("resumed at step 4")
    assert lines[-1] == "identical to the bit"
    whole = losses(tmp_path / "undisturbed")
    assert losses(tmp_path / "killed") == whole
    assert len(set(whole)) == STEPS
    assert sum(map(float.fromhex, whole[-3:])) < sum(map(float.fromhex, whole[:3]))
