"""Real models of both classes, small and of random weights, through the whole encoding step."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "vae" / "bin" / "python"  # made by `make test-slow`


def _encode(name, folder):
    command = [str(PYTHON), "-W", "ignore", "-m", "wsdata_tests.shard.vae_program", name, folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_exact"), [("AutoencoderKLWan", True), ("AutoencoderKLHunyuanVideo", False)]
)
def test_a_saved_model_encodes_through_the_step_as_the_library_documents(name, is_exact, tmp_path):
    told = _encode(name, str(tmp_path))
    (version,) = told["versions"]
    assert version.startswith(f"{name}-")
    assert told["losses"] == 0
    # what was read back errs by the cast alone: half a step of fp8 at the top of its range
    assert max(told["largest_errors"]) < 16 / 448 * 1.01
    assert told["is_prefix_exact"] == [is_exact]
    assert told["is_wide_prefix_equal"] == is_exact
    assert told["wide_shape"] == [2, 16, 8, 130]
    assert told["decoded_shape"] == [5, 64, 1040, 3]
    assert told["metrics"]["num_samples"] == 3
    assert 0 < told["metrics"]["cast_rms_share"] < 0.035
