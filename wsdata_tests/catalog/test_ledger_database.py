"""The ledger's database: opened by many at once, away for a while, of another format."""

import os
import sqlite3

import psycopg2
import pytest
import sqlalchemy as sa

from wsdata.catalog import schema
from wsdata.catalog.database import open_database, parse_url
from wsdata.catalog.ledger import Ledger
from wsdata.errors import CatalogError, CatalogUnavailable
from wsdata.records import Fact
from wsdata_tests.catalog.ledger_writers import (
    Writers,
    assert_all_landed,
    order_and_report,
)

FACT = Fact(kind="pin", subject="v1", body={"n": 1})


def test_eight_writers_of_an_empty_ledger_lose_nothing(ledger_url):
    with Writers(ledger_url, 8, 4) as writers:
        writers.finish()
    assert_all_landed(Ledger(ledger_url), 8, 4)


def test_a_server_killed_among_writers_and_started_again_has_every_commit_once(postgres):
    url, count = postgres.make_database(), 60
    with Writers(url, 4, count) as writers:
        writers.wait_until_all_have_written()
        postgres.kill()
        assert writers.is_at_work, "the kill came after their end: give them more to do"
        postgres.start()
        writers.finish()
    assert_all_landed(Ledger(url), 4, count)


class _Acknowledgement:
    """Lets a transaction commit, and loses the answer, as a connection cut right then does."""

    def __init__(self, database, times):
        self.left = times
        sa.event.listen(database.engine, "commit", self.lose)

    def lose(self, connection):
        if self.left:
            self.left -= 1
            connection.connection.dbapi_connection.commit()
            state = connection.connection.dbapi_connection
            raise sa.exc.OperationalError("COMMIT", {}, self.error(state))

    @staticmethod
    def error(raw):
        if isinstance(raw, sqlite3.Connection):
            return sqlite3.OperationalError("database is locked")
        return psycopg2.OperationalError("server closed the connection unexpectedly")


def test_a_lost_acknowledgement_commits_once_and_answers_as_the_first_time(ledger_url):
    ledger = Ledger(ledger_url)
    lost = _Acknowledgement(ledger.database, times=2)
    assert ledger.state([FACT], step="s") == 1
    assert ledger.commit(*order_and_report("w", 1)) == {"clips": True}
    assert lost.left == 0
    assert ledger.seq == 2
    assert len(ledger.facts("pin")) == 2
    assert ledger.verify_chain() is None
    assert ledger.commit(*order_and_report("w", 1)) == {"clips": False}


def test_a_database_that_stays_away_is_told_with_what_to_do_and_without_the_password(postgres):
    url = postgres.make_database()
    ledger = Ledger(url, patience_s=0.3)
    gone = url.replace(str(postgres.port), "1")
    with pytest.raises(CatalogUnavailable, match=r"failed \d+ times in 0 s .* run again") as error:
        Ledger(gone, patience_s=0.2)
    with pytest.raises(CatalogError, match=r"refuses us.*secret") as refused:
        Ledger(url.replace(postgres.password, "other-password"))
    with pytest.raises(CatalogError, match=r"refuses us.*does not exist"):
        Ledger(postgres.url_of("nowhere"))
    told = f"{error.value} {refused.value} {ledger!r} {ledger.url} {ledger.database!r} {postgres!r}"
    assert postgres.password not in told
    assert "other-password" not in told
    with pytest.raises(ValueError, match="cannot be read") as unread:
        Ledger("postgresql+psycopg2://u:secret@host:port/db")
    assert "secret" not in str(unread.value)
    with pytest.raises(ValueError, match="is for mysql"):
        Ledger("mysql://u:secret@host/db")


def test_a_lock_held_too_long_is_waited_for_and_then_told(tmp_path):
    path = tmp_path / "catalog.db"
    ledger = Ledger(str(path), patience_s=0.2)
    ledger.state([FACT], step="s")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    sa.event.listen(
        ledger.database.engine, "checkout",
        lambda raw, *_: raw.execute("PRAGMA busy_timeout=50"),
    )  # fmt: skip
    assert ledger.seq == 1
    with pytest.raises(CatalogUnavailable, match="database is locked"):
        ledger.state([FACT], step="s")
    holder.execute("COMMIT")
    holder.close()
    assert ledger.state([FACT], step="s") == 2


def test_connections_say_who_they_are_and_have_limits(postgres):
    ledger = Ledger(postgres.make_database())
    asked = "application_name", "statement_timeout", "lock_timeout"
    with ledger.database.engine.connect() as connection:
        found = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in asked]
    assert found == ["wsdata", "2min", "20s"]


def test_opening_again_asks_nothing_and_opening_anew_asks_once(postgres):
    url = postgres.make_database()
    Ledger(url)
    statements: list[str] = []
    anew = type(open_database(parse_url(url)))(parse_url(url))
    for database in (open_database(parse_url(url)), anew):
        sa.event.listen(
            database.engine,
            "before_cursor_execute",
            lambda _c, _u, text, *_: statements.append(text),
        )
    Ledger(url)
    assert statements == []
    anew.check(1.0)
    assert len(statements) == 1
    assert not any(word in statements[0] for word in ("CREATE", "LOCK"))


def test_a_forked_child_opens_connections_of_its_own(postgres):
    url = postgres.make_database()
    database = Ledger(url).database
    child = os.fork()
    if child == 0:
        os._exit(0 if Ledger(url).database is not database else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_ledger_of_a_newer_format_is_refused_and_one_without_is_the_first(ledger_url):
    ledger = Ledger(ledger_url)
    ledger.state([FACT], step="s")
    engine = ledger.database.engine
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        for table in ("format", "writes", "locator_objects"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("DROP INDEX objects_by_name")
    again = type(ledger.database)(parse_url(ledger_url))
    again.check(1.0)
    with again.engine.connect() as connection:
        assert schema.read_format(connection) == 1
        inspected = sa.inspect(connection)
        assert "objects_by_name" in {index["name"] for index in inspected.get_indexes("objects")}
        assert inspected.has_table("locator_objects")
    assert ledger.prepare() == 1
    assert ledger.present("pin") == {"v1": {"n": 1}}
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        connection.execute(sa.update(schema.FORMAT).values(format_version=2))
    with pytest.raises(CatalogError, match="has format 2, this wsdata knows format 1: upgrade"):
        type(ledger.database)(parse_url(ledger_url)).check(1.0)
