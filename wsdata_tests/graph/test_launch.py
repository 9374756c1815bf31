"""The launcher's command line: wrong calls are told before Dagster starts; nothing is nothing."""

import json
import os
import subprocess
import sys

import dagster as dg
import pytest

import launch
from resources.instances import prepare_home
from wsdata_tests.graph.graph_support import ROOT


def test_a_drop_that_is_no_key_is_a_wrong_call(capsys):
    assert launch.main(["run", "--drop", "somewhere"]) == 2
    assert "somewhere" in capsys.readouterr().err


def test_a_bad_recipe_is_told_with_its_key(tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text('name = "x"\ngate = 3\n')
    assert launch.main(["cut", "--recipe", str(path)]) == 1
    said = capsys.readouterr().err
    assert "gate" in said
    assert str(path) in said


def test_an_unknown_command_is_a_wrong_call():
    with pytest.raises(SystemExit) as stopped:
        launch.main(["conjure"])
    assert stopped.value.code == 2


def test_an_empty_home_gives_no_run_and_no_fault(tmp_path):
    home = tmp_path / "home"
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(ROOT / "launch.py"), "run", "--json"],
        env={**os.environ, "WSDATA_HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == []
    assert "nothing has been landed" in done.stderr
    assert (home / "dagster" / "dagster.yaml").is_file()


def test_a_copied_home_keeps_its_runs_to_itself(tmp_path):
    settings = (prepare_home(tmp_path / "one") / "dagster.yaml").read_text()
    assert str(tmp_path) not in settings
    with dg.DagsterInstance.from_config(str(tmp_path / "one" / "dagster")) as instance:
        assert str(tmp_path / "one") in instance.storage_directory()
