"""A fabricated home for each test of this folder, copied from one that is made once."""

import pytest

from wsdata_tests.lifecycle import fabricated

SECONDS = {"film": 20.0, "copy": 20.0, "lake": 10.0, "tape": 30.0}
IN = {fabricated.A: ("film", "lake"), fabricated.B: ("film", "copy", "tape")}


@pytest.fixture(scope="package")
def template(tmp_path_factory) -> fabricated.Home:
    return fabricated.fabricate(tmp_path_factory.mktemp("template") / "home")


@pytest.fixture
def home(template, tmp_path) -> fabricated.Home:
    return template.copy_to(tmp_path / "home")


@pytest.fixture
def timed(home) -> fabricated.Home:
    """The fabricated home, its probes with durations: 100 seconds in all."""
    for drop, names in IN.items():
        probes = [
            {"asset_id": fabricated.asset_id(name), "media_kind": "video", "status": "ok",
             "duration_s": SECONDS[name]}
            for name in names
        ]  # fmt: skip
        home.commit(drop, {"probes": probes}, version="2")
    return home
