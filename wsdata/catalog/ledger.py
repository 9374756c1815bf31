"""The ledger: which objects are live since which commit, and what has been stated.

One code for SQLite (a laptop) and Postgres (a cluster). Rows of a step become visible all
together: its objects lie in the store first, then one transaction makes them live. Reading
rows belongs to `objects`.
"""

import datetime as dt
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from wsdata.catalog.database import PATIENCE_S, open_database, parse_url
from wsdata.catalog.schema import COMMITS, FACTS, OBJECTS
from wsdata.digest import canonical_json, digest
from wsdata.errors import CatalogError
from wsdata.records import Fact, ObjectRef, Order, Report


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


class Ledger:
    """The one SQL database of a deployment.

    Args:
        url: A SQLAlchemy URL, or a path of a SQLite file.
        patience_s: How long a database that is away is asked again, in seconds.

    Raises:
        ValueError: The URL is of no database that the ledger runs on.
        CatalogError: The ledger is of another format.
        CatalogUnavailable: The database does not answer.
    """

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        self.database = open_database(parse_url(url))
        self.patience_s = patience_s
        self.database.check(patience_s)

    def __repr__(self) -> str:
        return f"Ledger({self.url!r})"

    @property
    def url(self) -> str:
        """Where the ledger is, with a password hidden."""
        return self.database.where

    def prepare(self) -> int:
        """Make what tables and indexes this version of the code adds, and return the format."""
        return self.database.prepare(self.patience_s)

    # reading ---------------------------------------------------------------------------------

    def ask(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """Rows of a query over the ledger's tables, for those who only count."""
        return self.database.read(
            lambda connection: connection.execute(query).all(), self.patience_s
        )

    def _scalar(self, query: sa.Select[Any]) -> Any:
        rows = self.ask(query)
        return rows[0][0] if rows else None

    @property
    def seq(self) -> int:
        """The newest commit; 0 in an empty ledger."""
        return self._scalar(sa.select(sa.func.max(COMMITS.c.seq))) or 0

    def live(
        self,
        table: str,
        partition: str | Collection[str] | None = None,
        *,
        version: str | None = None,
        as_of: int | None = None,
    ) -> list[ObjectRef]:
        """Live objects of a table, sorted by partition.

        Args:
            table: Name of the table.
            partition: One partition, or a few; all without it.
            version: One version. Without it, of each partition the one committed last.
            as_of: A commit, for the state after it. Without it, the present.
        """
        query = _live(as_of).where(OBJECTS.c.name == table)
        if isinstance(partition, str):
            query = query.where(OBJECTS.c.partition == partition)
        elif partition is not None:
            query = query.where(OBJECTS.c.partition.in_(partition))
        if version is not None:
            query = query.where(OBJECTS.c.version == version)
        # Sorted here: told to sort, SQLite takes an index in that order and reads all partitions.
        rows = sorted(self.ask(query.order_by(None)), key=lambda row: (row.begin_seq, row.id))
        newest = {row.partition: row for row in rows}
        return [ref_of(newest[key]) for key in sorted(newest)]

    def newest(
        self, table: str, *, version: str | None = None, as_of: int | None = None
    ) -> ObjectRef | None:
        """The object of a table that was committed last, of any partition; None if none is live."""
        query = _live(as_of).where(OBJECTS.c.name == table)
        if version is not None:
            query = query.where(OBJECTS.c.version == version)
        last = (OBJECTS.c.begin_seq.desc(), OBJECTS.c.id.desc())
        rows = self.ask(query.order_by(None).order_by(*last).limit(1))
        return ref_of(rows[0]) if rows else None

    def versions(self, table: str, partition: str, *, as_of: int | None = None) -> list[ObjectRef]:
        """All live versions of one partition of a table, oldest first."""
        query = _live(as_of).where(OBJECTS.c.name == table, OBJECTS.c.partition == partition)
        return [ref_of(row) for row in self.ask(query)]

    def objects_of(self, partitions: Sequence[str], *, as_of: int | None = None) -> list[ObjectRef]:
        """Every live object of every table and version of some partitions, oldest first."""
        query = _live(as_of).where(OBJECTS.c.partition.in_(partitions))
        return [ref_of(row) for row in self.ask(query)]

    def all_objects(self, *, as_of: int | None = None) -> list[ObjectRef]:
        """Every live object of every table and version."""
        return [ref_of(row) for row in self.ask(_live(as_of))]

    def ever(self) -> set[str]:
        """Digests of all objects that were ever live: history that as-of reads may still ask."""
        return {row[0] for row in self.ask(sa.select(OBJECTS.c.sha256).distinct())}

    def order_digest_of(self, table: str, partition: str, version: str) -> str | None:
        """Digest of the order that made the live object under a key, if there is one."""
        return self._scalar(
            sa.select(OBJECTS.c.order_digest).where(
                OBJECTS.c.name == table,
                OBJECTS.c.partition == partition,
                OBJECTS.c.version == version,
                OBJECTS.c.end_seq.is_(None),
            )
        )

    def facts(self, kind: str, *, as_of: int | None = None) -> list[tuple[int, Fact]]:
        """All facts of a kind, oldest first, each with the commit that stated it."""
        query = sa.select(FACTS).where(FACTS.c.kind == kind).order_by(FACTS.c.seq, FACTS.c.id)
        if as_of is not None:
            query = query.where(FACTS.c.seq <= as_of)
        return [(row.seq, _fact(row)) for row in self.ask(query)]

    def present(self, kind: str, *, as_of: int | None = None) -> dict[str, dict[str, Any]]:
        """Newest body of every subject of a kind; a body with ``"withdrawn": true`` is absent."""
        # Facts are written by one writer at a time, so a later fact has a larger id.
        newest = sa.select(sa.func.max(FACTS.c.id)).where(FACTS.c.kind == kind)
        if as_of is not None:
            newest = newest.where(FACTS.c.seq <= as_of)
        query = sa.select(FACTS).where(FACTS.c.id.in_(newest.group_by(FACTS.c.subject)))
        bodies = {row.subject: json.loads(row.body) for row in self.ask(query)}
        return {key: bodies[key] for key in sorted(bodies) if not bodies[key].get("withdrawn")}

    def commits(self, *, since: int = 0) -> list[dict[str, Any]]:
        """Commits after `since`, oldest first."""
        query = sa.select(COMMITS).where(COMMITS.c.seq > since).order_by(COMMITS.c.seq)
        return [dict(row._mapping) for row in self.ask(query)]

    def verify_chain(self) -> int | None:
        """Return the first commit whose digest does not follow from its predecessor, or None."""
        query = sa.select(COMMITS).order_by(COMMITS.c.seq).execution_options(yield_per=5000)
        return self.database.read(
            lambda connection: first_broken(connection.execute(query)), self.patience_s
        )

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
            CatalogUnavailable: The database does not answer.
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

        def write(connection: sa.Connection) -> tuple[dict[str, bool], bool]:
            live = _live_rows(connection, order.partition, report.objects)
            if _is_done(order, report, live, replaces_lost=replaces_lost):
                return dict.fromkeys(report.objects, False), False
            seq = append_commit(
                connection,
                step=f"{order.stage}/{order.step}",
                partition=order.partition,
                run_id=run_id,
                body={
                    "order": order.digest,
                    "objects": {table: ref.sha256 for table, ref in report.objects.items()},
                    "facts": fact_digests(report.facts),
                },
            )
            _replace(connection, list(live.values()), report.objects.values(), order.digest, seq)
            insert_facts(connection, report.facts, seq)
            return {
                table: table not in live or live[table].sha256 != ref.sha256
                for table, ref in report.objects.items()
            }, True

        return self.database.write(write, self.patience_s)

    def state(self, facts: Iterable[Fact], *, step: str, run_id: str | None = None) -> int:
        """Append facts in one commit, and return its sequence number."""
        facts = list(facts)

        def write(connection: sa.Connection) -> tuple[int, bool]:
            body = {"facts": fact_digests(facts)}
            seq = append_commit(connection, step=step, partition="", run_id=run_id, body=body)
            insert_facts(connection, facts, seq)
            return seq, True

        return self.database.write(write, self.patience_s)


def _live(as_of: int | None) -> sa.Select[Any]:
    query = sa.select(OBJECTS).order_by(OBJECTS.c.begin_seq, OBJECTS.c.id)
    if as_of is None:
        return query.where(OBJECTS.c.end_seq.is_(None))
    return query.where(OBJECTS.c.begin_seq <= as_of).where(
        OBJECTS.c.end_seq.is_(None) | (OBJECTS.c.end_seq > as_of)
    )


def _live_rows(
    connection: sa.Connection, partition: str, objects: dict[str, ObjectRef]
) -> dict[str, sa.Row[Any]]:
    """Live rows under the keys of some objects, by table."""
    query = sa.select(OBJECTS).where(
        OBJECTS.c.partition.in_({partition, *(ref.partition for ref in objects.values())}),
        OBJECTS.c.name.in_({ref.table for ref in objects.values()}),
        OBJECTS.c.end_seq.is_(None),
    )
    rows = {(row.name, row.partition, row.version): row for row in connection.execute(query)}
    keys = {table: (ref.table, ref.partition, ref.version) for table, ref in objects.items()}
    return {table: rows[key] for table, key in keys.items() if key in rows}


def _is_done(
    order: Order, report: Report, live: dict[str, sa.Row[Any]], *, replaces_lost: bool
) -> bool:
    return all(
        table in live
        and live[table].order_digest == order.digest
        and (not replaces_lost or live[table].sha256 == ref.sha256)
        for table, ref in report.objects.items()
    )


def _replace(
    connection: sa.Connection,
    old: list[sa.Row[Any]],
    refs: Iterable[ObjectRef],
    order_digest: str,
    seq: int,
) -> None:
    if old:
        ended = OBJECTS.c.id.in_([row.id for row in old])
        connection.execute(sa.update(OBJECTS).where(ended).values(end_seq=seq))
    made = [
        {
            "name": ref.table,
            "partition": ref.partition,
            "version": ref.version,
            "version_digest": ref.version_digest,
            "sha256": ref.sha256,
            "num_rows": ref.num_rows,
            "order_digest": order_digest,
            "begin_seq": seq,
        }
        for ref in refs
    ]
    if made:
        connection.execute(sa.insert(OBJECTS), made)


def insert_facts(connection: sa.Connection, facts: list[Fact], seq: int) -> None:
    """Insert facts of one commit, within a writer's transaction."""
    rows = [
        {"seq": seq, "kind": each.kind, "subject": each.subject, "body": canonical_json(each.body)}
        for each in facts
    ]
    if rows:
        connection.execute(sa.insert(FACTS), rows)


def append_commit(
    connection: sa.Connection, *, step: str, partition: str, run_id: str | None, body: dict
) -> int:
    """Append a commit within a writer's transaction, and return its sequence number."""
    last = connection.execute(
        sa.select(COMMITS.c.seq, COMMITS.c.chain).order_by(COMMITS.c.seq.desc()).limit(1)
    ).one_or_none()
    seq, chain = (last.seq + 1, last.chain) if last is not None else (1, "")
    connection.execute(
        sa.insert(COMMITS).values(
            seq=seq,
            chain=chain_of(chain, seq, step, partition, body),
            step=step,
            partition=partition,
            run_id=run_id,
            committed_at=_now(),
            body=canonical_json(body),
        )
    )
    return seq


def first_broken(rows: Iterable[Any]) -> int | None:
    """The first of some commits, from the first on, that does not follow from those before."""
    chain = ""
    for row in rows:
        chain = chain_of(chain, row.seq, row.step, row.partition, json.loads(row.body))
        if chain != row.chain:
            return row.seq
    return None


def chain_of(previous: str, seq: int, step: str, partition: str, body: dict[str, Any]) -> str:
    """Digest of a commit and, through that of its predecessor, of all before it."""
    return digest([previous, seq, step, partition, body])


def _fact(row: Any) -> Fact:
    return Fact(kind=row.kind, subject=row.subject, body=json.loads(row.body))


def fact_digests(facts: Iterable[Fact]) -> list[list[str]]:
    """What a commit's body says of its facts."""
    return [[fact.kind, fact.subject, digest(fact.body)] for fact in facts]


def ref_of(row: Any) -> ObjectRef:
    """The object that a row of OBJECTS names."""
    return ObjectRef(
        table=row.name,
        partition=row.partition,
        version=row.version,
        version_digest=row.version_digest,
        sha256=row.sha256,
        num_rows=row.num_rows,
    )
