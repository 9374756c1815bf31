"""A fabricated home for each test of this folder, copied from one that is made once."""

import pytest

from wsdata_tests.lifecycle import fabricated


@pytest.fixture(scope="package")
def template(tmp_path_factory) -> fabricated.Home:
    return fabricated.fabricate(tmp_path_factory.mktemp("template") / "home")


@pytest.fixture
def home(template, tmp_path) -> fabricated.Home:
    return template.copy_to(tmp_path / "home")
