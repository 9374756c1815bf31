"""The ledger's SQL database: connections, the one writer's lock, and patience.

A server that restarts, a lost connection, a lock held too long: each is asked again for about a
minute and a half, so that a step which has worked for hours does not fail at its commit. A write
whose acknowledgement was lost is recognised by its nonce and is not done twice.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from wsdata.catalog import schema
from wsdata.errors import CatalogError, CatalogUnavailable, StoreFull

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_S = 90.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_CONNECT_S = 10
_STATEMENT_MS = 120_000
_LOCK_MS = 20_000
_IDLE_MS = 60_000  # a frozen writer gives the lock back
_KEPT_WRITES = 100_000  # far more than are made while the most patient writer asks again

# SQLSTATE: deadlock and serialization, lock timeout, server going down or coming up, too many
# clients, a cut idle transaction, and a primary that has become a standby.
_RETRIED_STATES = frozenset(
    ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "25P03", "25006")
)
_REFUSED = (  # what a server says to a client that should not ask again; connecting has no SQLSTATE
    "authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry",
    "permission denied", "certificate", "not permitted to log in",
)  # fmt: skip


def parse_url(url: str) -> sa.URL:
    """Read a SQLAlchemy URL, or a path of a SQLite file.

    Raises:
        ValueError: Neither, or a database that the ledger does not run on. Never shows the URL,
            which may hold a password.
    """
    if "://" not in url:
        return sa.URL.create("sqlite", database=str(Path(url)))
    expected = "expected a path, sqlite:///PATH or postgresql+psycopg2://USER@HOST:PORT/DATABASE"
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        raise ValueError(f"the ledger's address cannot be read: {expected}") from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ValueError(f"the ledger's address is for {parsed.drivername}: {expected}")
    return parsed


class Database:
    """One SQL database, opened with `open_database`."""

    def __init__(self, url: sa.URL) -> None:
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.where = url.render_as_string(hide_password=True)
        self.is_checked = False
        self.engine = _sqlite(url) if self.is_sqlite else _postgres(url)

    def __repr__(self) -> str:
        return f"Database({self.where!r})"

    def check(self, patience_s: float) -> None:
        """Make the tables where there are none, and see that the format is ours.

        Where all is well this is one query, and none the second time.

        Raises:
            CatalogError: The ledger has another format.
            CatalogUnavailable: The database does not answer.
        """
        if self.is_checked:
            return
        found = self.read(schema.read_format, patience_s)
        if found is None:
            found = self.prepare(patience_s)
        schema.require_format(found, self.where)
        self.is_checked = True

    def prepare(self, patience_s: float) -> int:
        """Make what is missing of tables and indexes, and return the ledger's format."""

        def make(connection: sa.Connection) -> int:
            if not self.is_sqlite:  # an index over many rows takes its time
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            return schema.make_tables(connection)

        return self._retry(lambda _: self._in_transaction(make), patience_s)

    def read(self, action: Callable[[sa.Connection], T], patience_s: float) -> T:
        """Run an action that only reads, again where the database fails it for a while."""

        def attempt(_number: int) -> T:
            with self.engine.connect() as connection:
                return action(connection)

        return self._retry(attempt, patience_s)

    def write(self, action: Callable[[sa.Connection], tuple[T, bool]], patience_s: float) -> T:
        """Run an action as the only writer, in one transaction, once whatever fails.

        Args:
            action: Returns a JSON-able answer, and whether it wrote anything.
            patience_s: How long to ask again.

        Returns:
            The answer; of the first run, where that was committed but never acknowledged.
        """
        nonce = secrets.token_hex(16)

        def attempt(number: int) -> T:
            def once(connection: sa.Connection) -> T:
                if number and (kept := _answer_of(connection, nonce)) is not None:
                    return json.loads(kept)
                answer, has_written = action(connection)
                if has_written:
                    _keep_answer(connection, nonce, answer)
                return answer

            return self._in_transaction(once)

        return self._retry(attempt, patience_s)

    def _in_transaction(self, action: Callable[[sa.Connection], T]) -> T:
        with self.engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(
                    sa.select(sa.func.pg_advisory_xact_lock(sa.literal(schema.WRITE_LOCK)))
                )
            answer = action(connection)
            connection.commit()
            return answer

    def _retry(self, attempt: Callable[[int], T], patience_s: float) -> T:
        until = time.monotonic() + patience_s
        pause_s, number = _FIRST_PAUSE_S, 0
        while True:
            try:
                return attempt(number)
            except (exc.DBAPIError, exc.TimeoutError) as error:
                told = _told(error)
                if not is_transient(error):
                    if (refusal := self._refusal(error, told)) is not None:
                        raise refusal from error
                    raise
                if time.monotonic() + pause_s > until:
                    raise CatalogUnavailable(
                        f"the ledger {self.where} failed {number + 1} times in {patience_s:.0f} s "
                        f"({told}): see to the database, then run again; what was committed stays"
                    ) from error
                log.warning("ledger %s: %s; asked again in %.2f s", self.where, told, pause_s)
            time.sleep(pause_s * (0.5 + secrets.randbelow(1000) / 2000))
            pause_s, number = min(2 * pause_s, _LONGEST_PAUSE_S), number + 1

    def _refusal(self, error: Exception, told: str) -> Exception | None:
        state = getattr(getattr(error, "orig", None), "pgcode", None)
        if state == "53100":
            return StoreFull(f"no space left for the ledger {self.where}: free some, run again")
        if state == "57014":
            return CatalogError(
                f"the ledger {self.where} worked on one question for over "
                f"{_STATEMENT_MS // 1000} s: see what keeps the database busy, then run again"
            )
        if state is None and any(words in told for words in _REFUSED):
            return CatalogError(
                f"the ledger {self.where} refuses us ({told}): check user, password and database "
                "in deployment.toml and its secret"
            )
        if "unable to open database file" in told or "readonly database" in told:
            return CatalogError(f"the ledger {self.where}: {told}: see that its folder is writable")
        return None


def is_transient(error: Exception) -> bool:
    """Whether asking again may help."""
    if isinstance(error, exc.TimeoutError):  # all connections of the pool in use
        return True
    if not isinstance(error, exc.DBAPIError):
        return False
    state = getattr(error.orig, "pgcode", None)
    if state is not None:
        return state in _RETRIED_STATES or state.startswith("08")
    told = _told(error)
    if type(error.orig).__module__.startswith("sqlite3"):
        return "is locked" in told or "is busy" in told
    is_lost = isinstance(error, exc.OperationalError | exc.InterfaceError)
    return (is_lost or error.connection_invalidated) and not any(w in told for w in _REFUSED)


def _told(error: Exception) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:300]


def _answer_of(connection: sa.Connection, nonce: str) -> str | None:
    query = sa.select(schema.WRITES.c.answer).where(schema.WRITES.c.nonce == nonce)
    return connection.execute(query).scalar()


def _keep_answer(connection: sa.Connection, nonce: str, answer: Any) -> None:
    made = connection.execute(
        sa.insert(schema.WRITES).values(nonce=nonce, answer=json.dumps(answer))
    ).inserted_primary_key
    number = made[0] if made is not None else 0
    if number % 1000 == 0:
        old = schema.WRITES.c.id <= number - _KEPT_WRITES
        connection.execute(sa.delete(schema.WRITES).where(old))


def open_database(url: sa.URL) -> Database:
    """Open a database. In one process all who open a Postgres share its few connections."""
    if url.get_backend_name() == "sqlite":
        return Database(url)  # a file may be replaced by another of its name
    return _shared(url, os.getpid())


@lru_cache(maxsize=16)
def _shared(url: sa.URL, _process: int) -> Database:  # a forked child must not use our sockets
    return Database(url)


def _postgres(url: sa.URL) -> sa.Engine:
    limits = (
        f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={_LOCK_MS} "
        f"-c idle_in_transaction_session_timeout={_IDLE_MS}"
    )
    defaults = {
        "application_name": "wsdata",
        "connect_timeout": str(_CONNECT_S),
        "options": limits,
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "40000",
    }
    return sa.create_engine(
        url,
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
        pool_size=1,  # hundreds of pods hold one connection each while they live
        max_overflow=9,
        pool_pre_ping=True,
        pool_recycle=1800,
        hide_parameters=True,
    )


def _sqlite(url: sa.URL) -> sa.Engine:
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(url)
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # BEGIN IMMEDIATE is ours to say
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
