"""A fabricated home for each test of this folder, copied from one that is made once; ledgers.

One Postgres serves the folder; each test has a database of its own.
"""

import pytest

from wsdata_tests.cluster.postgres_server import running_postgres
from wsdata_tests.lifecycle import fabricated


@pytest.fixture(scope="package")
def template(tmp_path_factory) -> fabricated.Home:
    return fabricated.fabricate(tmp_path_factory.mktemp("template") / "home")


@pytest.fixture
def home(template, tmp_path) -> fabricated.Home:
    return template.copy_to(tmp_path / "home")


@pytest.fixture(scope="package")
def postgres():
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "catalog.db")
    return request.getfixturevalue("postgres").make_database()
