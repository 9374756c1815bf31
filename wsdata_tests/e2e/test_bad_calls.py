"""Wrong calls and hostile drops, as a user meets them: a clear error each."""

import subprocess
import sys

import pytest

from wsdata_tests.e2e.homes import ROOT, Home


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def _stderr(home: Home, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "wsdata", *arguments],
        capture_output=True, text=True, cwd=ROOT, env=home.environment(), check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_path_that_does_not_exist(home, tmp_path):
    code, said = _stderr(home, "run", "--drop", str(tmp_path / "nowhere"))
    assert code == 1
    assert "is not a folder" in said


def test_a_folder_without_media(home, tmp_path):
    (tmp_path / "empty").mkdir()
    code, said = _stderr(home, "run", "--drop", str(tmp_path / "empty"))
    assert code == 1
    assert "holds no media" in said


def test_a_recipe_with_an_unknown_key(home, tmp_path):
    recipe = tmp_path / "bad.toml"
    recipe.write_text('name = "x"\n[samples]\nglobal_bach = 4\n')
    code, said = _stderr(home, "run", "--recipe", str(recipe))
    assert code == 1
    assert "unknown keys ['global_bach']" in said
    assert str(recipe) in said


def test_a_version_that_does_not_exist(home):
    code, said = _stderr(home, "plan", "show", "v9", "--step", "1")
    assert code == 1
    assert "no dataset version 'v9'" in said


def test_an_unknown_command_is_a_wrong_call(home):
    assert _stderr(home, "dance")[0] == 2
