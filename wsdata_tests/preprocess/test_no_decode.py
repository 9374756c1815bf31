"""A changed threshold, list or model decodes nothing: packets counted in the whole process tree.

Every packet that enters a decoder of libav, in any process started, is counted where the decoder
is called; the first decode of the same drop is the control.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wsdata_tests.preprocess.packets import sitecustomize as packets

ROOT, PACKETS = Path(__file__).parents[2], Path(packets.__file__).parent
ALWAYS = ["preprocess/gates"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packets")
    counts = folder / "counts"
    packets.new_counts(counts)
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(PACKETS / "driver.py"), str(folder), str(counts)],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{PACKETS}:{ROOT}", packets.COUNTS: str(counts)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_the_first_decode_is_seen_by_the_count(told):
    assert told["first"]["packets"] >= 3 * 24  # every frame's, at least
    assert told["first"]["passed"] == [True]


def test_a_changed_threshold_gates_again_and_decodes_nothing(told):
    assert told["threshold"] == {
        "ran": ALWAYS, "packets": 0, "made": ["gates"], "gone": [], "passed": [False],
    }  # fmt: skip


def test_a_list_that_comes_late_screens_stored_prints_and_decodes_nothing(told):
    assert told["list"]["packets"] == 0
    assert told["list"]["ran"] == ["preprocess/safety_list_scores", *ALWAYS]
    assert told["list"]["made"] == ["safety_list_scores"]  # the gates' word is the same


def test_a_changed_model_scores_exactly_its_filter_and_decodes_nothing(told):
    assert told["overlay"]["packets"] == 0
    # What is told from its text follows it; rows that come out the same are the same object.
    assert told["overlay"]["ran"] == [
        "preprocess/overlay_scores", "preprocess/text_tags_scores", *ALWAYS,
    ]  # fmt: skip
    assert told["overlay"]["made"] == ["overlay_scores"]
    assert told["overlay"]["gone"] == []  # the rows of the version before stay


@pytest.mark.parametrize("change", ["text_tags", "tag"])
def test_a_changed_tag_reads_no_text_again(told, change):
    assert told[change]["packets"] == 0
    assert told[change]["ran"] == ["preprocess/text_tags_scores", *ALWAYS]
    assert told[change]["made"] == ["text_tags_scores"]
