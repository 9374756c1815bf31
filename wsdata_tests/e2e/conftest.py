"""One home that several tests ask: the sample drops, taken through the whole graph once."""

import subprocess
import sys

import pytest

from wsdata_tests.e2e.homes import ROOT, Home


@pytest.fixture(scope="session")
def sample_home(tmp_path_factory) -> Home:
    """The three sample drops, taken through the whole graph once."""
    home = Home(tmp_path_factory.mktemp("sample"))
    subprocess.run(  # noqa: S603
        [sys.executable, str(ROOT / "samples" / "make_drops.py")],
        check=True, cwd=ROOT, env=home.environment(),
    )  # fmt: skip
    home.run("run", WSDATA_AUDIT=str(home.path / "audit.log"))
    return home
