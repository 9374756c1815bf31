"""The ledger: which objects are live since which commit, and what has been stated.

One code for SQLite (a laptop) and Postgres (a cluster). Rows of a step become visible all
together: its objects lie in the store first, then one transaction makes them live. Reading
rows belongs to `objects`.
"""

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from wsdata.digest import canonical_json, digest
from wsdata.errors import CatalogError
from wsdata.records import Fact, ObjectRef, Order, Report

_METADATA = sa.MetaData()
COMMITS = sa.Table(
    "commits",
    _METADATA,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("chain", sa.String(64), nullable=False),
    sa.Column("step", sa.String(128), nullable=False),
    sa.Column("partition", sa.String(128), nullable=False),
    sa.Column("run_id", sa.String(64)),
    sa.Column("committed_at", sa.String(32), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
OBJECTS = sa.Table(
    "objects",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("partition", sa.String(128), nullable=False),
    sa.Column("version", sa.String(128), nullable=False),
    sa.Column("version_digest", sa.String(64), nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("num_rows", sa.Integer, nullable=False),
    sa.Column("order_digest", sa.String(64), nullable=False),
    sa.Column("begin_seq", sa.Integer, nullable=False),
    sa.Column("end_seq", sa.Integer),
    sa.Index(
        "one_live_per_key",
        "name",
        "partition",
        "version",
        unique=True,
        sqlite_where=sa.text("end_seq IS NULL"),
        postgresql_where=sa.text("end_seq IS NULL"),
    ),
    sa.Index("objects_by_partition", "partition", "name"),
    sa.Index("objects_by_sha", "sha256"),
)
FACTS = sa.Table(
    "facts",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("subject", sa.String(256), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("facts_by_kind", "kind", "subject"),
)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


class Ledger:
    """The one SQL database of a deployment.

    Args:
        url: A SQLAlchemy URL, or a path of a SQLite file.
    """

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else f"sqlite:///{url}"
        if self.url.startswith("sqlite:///"):
            Path(self.url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        self._engine = sa.create_engine(self.url)
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        if self._is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
        _METADATA.create_all(self._engine)

    @contextmanager
    def _writing(self):  # noqa: ANN202
        with self._engine.connect() as connection:
            if self._is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            elif self._engine.dialect.name == "postgresql":
                connection.execute(sa.text("LOCK TABLE commits IN EXCLUSIVE MODE"))
            yield connection
            connection.commit()

    # reading ---------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        """The newest commit; 0 in an empty ledger."""
        with self._engine.connect() as connection:
            return connection.execute(sa.select(sa.func.max(COMMITS.c.seq))).scalar() or 0

    def live(
        self,
        table: str,
        partition: str | None = None,
        *,
        version: str | None = None,
        as_of: int | None = None,
    ) -> list[ObjectRef]:
        """Live objects of a table, sorted by partition.

        Args:
            table: Name of the table.
            partition: One partition, or all.
            version: One version. Without it, of each partition the one committed last.
            as_of: A commit, for the state after it. Without it, the present.
        """
        rows = self._live_rows(table, partition, version=version, as_of=as_of)
        newest = {row.partition: row for row in rows}
        return [_ref(newest[key]) for key in sorted(newest)]

    def newest(
        self, table: str, *, version: str | None = None, as_of: int | None = None
    ) -> ObjectRef | None:
        """The object of a table that was committed last, of any partition; None if none is live."""
        rows = self._live_rows(table, version=version, as_of=as_of)
        return _ref(rows[-1]) if rows else None

    def versions(self, table: str, partition: str) -> list[ObjectRef]:
        """All live versions of one partition of a table, oldest first."""
        return [_ref(row) for row in self._live_rows(table, partition)]

    def _live_rows(
        self,
        table: str | None,
        partition: str | None = None,
        *,
        version: str | None = None,
        as_of: int | None = None,
    ) -> Sequence[Any]:
        query = sa.select(OBJECTS).order_by(OBJECTS.c.begin_seq, OBJECTS.c.id)
        if table is not None:
            query = query.where(OBJECTS.c.name == table)
        if partition is not None:
            query = query.where(OBJECTS.c.partition == partition)
        if version is not None:
            query = query.where(OBJECTS.c.version == version)
        if as_of is None:
            query = query.where(OBJECTS.c.end_seq.is_(None))
        else:
            query = query.where(OBJECTS.c.begin_seq <= as_of).where(
                OBJECTS.c.end_seq.is_(None) | (OBJECTS.c.end_seq > as_of)
            )
        with self._engine.connect() as connection:
            return connection.execute(query).all()

    def all_objects(self, *, as_of: int | None = None) -> list[ObjectRef]:
        """Every live object of every table and version."""
        return [_ref(row) for row in self._live_rows(None, as_of=as_of)]

    def ever(self) -> set[str]:
        """Digests of all objects that were ever live: history that as-of reads may still ask."""
        with self._engine.connect() as connection:
            return set(connection.execute(sa.select(OBJECTS.c.sha256).distinct()).scalars())

    def order_digest_of(self, table: str, partition: str, version: str) -> str | None:
        """Digest of the order that made the live object under a key, if there is one."""
        query = sa.select(OBJECTS.c.order_digest).where(
            OBJECTS.c.name == table,
            OBJECTS.c.partition == partition,
            OBJECTS.c.version == version,
            OBJECTS.c.end_seq.is_(None),
        )
        with self._engine.connect() as connection:
            return connection.execute(query).scalar()

    def facts(self, kind: str, *, as_of: int | None = None) -> list[tuple[int, Fact]]:
        """All facts of a kind, oldest first, each with the commit that stated it."""
        query = sa.select(FACTS).where(FACTS.c.kind == kind).order_by(FACTS.c.seq, FACTS.c.id)
        if as_of is not None:
            query = query.where(FACTS.c.seq <= as_of)
        with self._engine.connect() as connection:
            return [
                (row.seq, Fact(kind=row.kind, subject=row.subject, body=json.loads(row.body)))
                for row in connection.execute(query)
            ]

    def present(self, kind: str, *, as_of: int | None = None) -> dict[str, dict[str, Any]]:
        """Newest body of every subject of a kind; a body with ``"withdrawn": true`` is absent."""
        newest = {fact.subject: fact.body for _, fact in self.facts(kind, as_of=as_of)}
        return {key: newest[key] for key in sorted(newest) if not newest[key].get("withdrawn")}

    def commits(self, *, since: int = 0) -> list[dict[str, Any]]:
        """Commits after `since`, oldest first."""
        query = sa.select(COMMITS).where(COMMITS.c.seq > since).order_by(COMMITS.c.seq)
        with self._engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]

    def ask(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """Rows of a query over COMMITS, OBJECTS and FACTS, for those who only count."""
        with self._engine.connect() as connection:
            return connection.execute(query).all()

    # writing ---------------------------------------------------------------------------------

    def commit(
        self,
        order: Order,
        report: Report,
        *,
        run_id: str | None = None,
        replaces_lost: bool = False,
    ) -> dict[str, bool]:
        """Make a step's objects live, and state its facts, in one transaction.

        The first result of one order wins: a second report of the same order is no change,
        unless it `replaces_lost` objects, which an engine that is not deterministic made anew.

        Returns:
            For each table, whether its content changed.

        Raises:
            CatalogError: The report answers another order, or lacks a table.
        """
        if report.order_digest != order.digest:
            raise CatalogError(
                f"{order.stage}/{order.step} of {order.partition}: the report answers order "
                f"{report.order_digest[:12]}, not {order.digest[:12]}"
            )
        if missing := set(order.tables) - set(report.objects):
            raise CatalogError(
                f"{order.stage}/{order.step} of {order.partition}: no {sorted(missing)} reported"
            )
        with self._writing() as connection:
            live = {table: self._live_row(connection, ref) for table, ref in report.objects.items()}
            is_same = not replaces_lost or all(
                row is not None and row.sha256 == report.objects[table].sha256
                for table, row in live.items()
            )
            if is_same and all(
                row is not None and row.order_digest == order.digest for row in live.values()
            ):
                return dict.fromkeys(live, False)
            seq = self._append_commit(
                connection,
                step=f"{order.stage}/{order.step}",
                partition=order.partition,
                run_id=run_id,
                body={
                    "order": order.digest,
                    "objects": {table: ref.sha256 for table, ref in report.objects.items()},
                    "facts": _fact_digests(report.facts),
                },
            )
            for table, ref in report.objects.items():
                self._replace(connection, live[table], ref, order.digest, seq)
            self._insert_facts(connection, report.facts, seq)
        return {
            table: row is None or row.sha256 != report.objects[table].sha256
            for table, row in live.items()
        }

    def state(self, facts: Iterable[Fact], *, step: str, run_id: str | None = None) -> int:
        """Append facts in one commit, and return its sequence number."""
        facts = list(facts)
        with self._writing() as connection:
            seq = self._append_commit(
                connection,
                step=step,
                partition="",
                run_id=run_id,
                body={"facts": _fact_digests(facts)},
            )
            self._insert_facts(connection, facts, seq)
        return seq

    def verify_chain(self) -> int | None:
        """Return the first commit whose digest does not follow from its predecessor, or None."""
        chain = ""
        for row in self.commits():
            chain = _chain(
                chain, row["seq"], row["step"], row["partition"], json.loads(row["body"])
            )
            if chain != row["chain"]:
                return row["seq"]
        return None

    def _live_row(self, connection: sa.Connection, ref: ObjectRef) -> Any:
        return connection.execute(
            sa.select(OBJECTS).where(
                OBJECTS.c.name == ref.table,
                OBJECTS.c.partition == ref.partition,
                OBJECTS.c.version == ref.version,
                OBJECTS.c.end_seq.is_(None),
            )
        ).one_or_none()

    def _replace(
        self, connection: sa.Connection, old: Any, ref: ObjectRef, order_digest: str, seq: int
    ) -> None:
        if old is not None:
            connection.execute(sa.update(OBJECTS).where(OBJECTS.c.id == old.id).values(end_seq=seq))
        connection.execute(
            sa.insert(OBJECTS).values(
                name=ref.table,
                partition=ref.partition,
                version=ref.version,
                version_digest=ref.version_digest,
                sha256=ref.sha256,
                num_rows=ref.num_rows,
                order_digest=order_digest,
                begin_seq=seq,
            )
        )

    def _insert_facts(self, connection: sa.Connection, facts: Iterable[Fact], seq: int) -> None:
        for fact in facts:
            connection.execute(
                sa.insert(FACTS).values(
                    seq=seq, kind=fact.kind, subject=fact.subject, body=canonical_json(fact.body)
                )
            )

    def _append_commit(
        self,
        connection: sa.Connection,
        *,
        step: str,
        partition: str,
        run_id: str | None,
        body: dict,
    ) -> int:
        last = connection.execute(
            sa.select(COMMITS.c.seq, COMMITS.c.chain).order_by(COMMITS.c.seq.desc()).limit(1)
        ).one_or_none()
        seq, chain = (last.seq + 1, last.chain) if last is not None else (1, "")
        connection.execute(
            sa.insert(COMMITS).values(
                seq=seq,
                chain=_chain(chain, seq, step, partition, body),
                step=step,
                partition=partition,
                run_id=run_id,
                committed_at=_now(),
                body=canonical_json(body),
            )
        )
        return seq


def _fact_digests(facts: Iterable[Fact]) -> list[list[str]]:
    return [[fact.kind, fact.subject, digest(fact.body)] for fact in facts]


def _chain(previous: str, seq: int, step: str, partition: str, body: dict[str, Any]) -> str:
    return digest([previous, seq, step, partition, body])


def _ref(row: Any) -> ObjectRef:
    return ObjectRef(
        table=row.name,
        partition=row.partition,
        version=row.version,
        version_digest=row.version_digest,
        sha256=row.sha256,
        num_rows=row.num_rows,
    )


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # BEGIN IMMEDIATE is ours to say
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA synchronous=FULL")
