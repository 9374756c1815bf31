"""The ledger as one long pass asks it: read once, kept current by what changed since.

A pass over 10^4 drops asks 10^6 small questions. `LedgerView` answers from memory what `Ledger`
answers by a query each, and says the same; reading as of the past, counting and writing stay
the ledger's.
"""

import json
import sys
import threading
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from wsdata.catalog.ledger import Ledger
from wsdata.catalog.schema import COMMITS, FACTS, OBJECTS
from wsdata.records import Fact, ObjectRef, Order, Report, SharedRefs

_ROWS_AT_ONCE = 10_000


class _Live(NamedTuple):
    """A live row of OBJECTS. Ids count up, and so follow the order of commits."""

    id: int
    ref: ObjectRef
    order_digest: str


class _Table:
    """Live rows of one table, by partition, the one committed last at the end."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[_Live, ...]] = {}
        self.all: dict[str | None, SharedRefs] = {}  # by version
        self.newest: dict[str | None, ObjectRef | None] = {}

    def add(self, row: _Live) -> None:
        self.rows[row.ref.partition] = (*self.rows.get(row.ref.partition, ()), row)

    def drop(self, partition: str, row_id: int) -> None:
        left = tuple(row for row in self.rows.get(partition, ()) if row.id != row_id)
        if left:
            self.rows[partition] = left
        else:
            self.rows.pop(partition, None)

    def forget_answers(self) -> None:
        self.all, self.newest = {}, {}

    def last(self, partition: str, version: str | None) -> _Live | None:
        for row in reversed(self.rows.get(partition, ())):
            if version is None or row.ref.version == version:
                return row
        return None

    def lasts(self, partitions: Iterable[str], version: str | None) -> list[_Live]:
        found = (self.last(partition, version) for partition in sorted(partitions))
        return [row for row in found if row is not None]


class _Present:
    """Newest bodies of one kind of facts, without those withdrawn, sorted by subject."""

    def __init__(self, bodies: dict[str, dict[str, Any]]) -> None:
        self.bodies = bodies
        self.by_drop: dict[str, dict[str, dict[str, Any]]] | None = None

    def of_drop(self, drop: str) -> dict[str, dict[str, Any]]:
        if self.by_drop is None:
            self.by_drop = {}
            for subject, body in self.bodies.items():
                if isinstance(told := body.get("drop"), str):
                    self.by_drop.setdefault(told, {})[subject] = body
        return self.by_drop.get(drop, {})

    def changed_by(self, facts: Iterable[tuple[str, dict[str, Any]]]) -> "_Present":
        bodies = dict(self.bodies)
        for subject, body in facts:
            if body.get("withdrawn"):
                bodies.pop(subject, None)
            else:
                bodies[subject] = body
        return _Present({subject: bodies[subject] for subject in sorted(bodies)})


class _Changes(NamedTuple):
    """What commits after one commit, up to another, began, ended and stated."""

    seq: int
    begun: list[Any]
    ended: list[Any]
    facts: list[Any]


class LedgerView(Ledger):
    """A ledger whose present is held in memory, as of the newest commit when it was last renewed.

    Whoever holds it says when it is to be made current: `renew` costs one small query where
    nothing happened, and what it commits itself it sees. Several threads may use one view.
    Memory: about 0.5 kB for each live object.

    Args:
        ledger: The ledger; nothing is asked before the first question.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.database, self.patience_s = ledger.database, ledger.patience_s
        self._renewing, self._lock = threading.Lock(), threading.RLock()
        self._is_loaded = False
        self._seq = self._last_object = self._last_fact = 0
        self._tables: dict[str, _Table] = {}
        self._present: dict[str, _Present] = {}

    # keeping it current ------------------------------------------------------------------------

    def renew(self) -> int:
        """Learn what was committed since, and return the commit that answers are now as of."""
        with self._renewing:
            if not self._is_loaded:
                self._load()
            elif (changes := self.database.read(self._changes, self.patience_s)) is not None:
                with self._lock:
                    self._apply(changes)
            return self._seq

    def _load(self) -> None:
        def read(connection: sa.Connection) -> tuple[int, int, int, dict[str, _Table]]:
            # Ids are read first: a commit that comes between is found twice, never missed.
            last_object = connection.execute(sa.select(sa.func.max(OBJECTS.c.id))).scalar() or 0
            last_fact = connection.execute(sa.select(sa.func.max(FACTS.c.id))).scalar() or 0
            seq = _newest_commit(connection)
            held: dict[str, _Table] = {}
            query = sa.select(OBJECTS).where(_is_live_at(seq)).order_by(OBJECTS.c.id)
            for row in connection.execute(query.execution_options(yield_per=_ROWS_AT_ONCE)):
                held.setdefault(row.name, _Table()).add(_live(row))
            return seq, last_object, last_fact, held

        loaded = self.database.read(read, self.patience_s)
        with self._lock:
            self._seq, self._last_object, self._last_fact, self._tables = loaded
            self._is_loaded = True

    def _changes(self, connection: sa.Connection) -> _Changes | None:
        seq = _newest_commit(connection)
        if seq == self._seq:
            return None
        objects, facts = sa.select(OBJECTS), sa.select(FACTS)
        begun = objects.where(
            OBJECTS.c.id > self._last_object,
            OBJECTS.c.begin_seq > self._seq,
            OBJECTS.c.begin_seq <= seq,
        ).order_by(OBJECTS.c.id)
        ended = objects.where(OBJECTS.c.end_seq > self._seq, OBJECTS.c.end_seq <= seq)
        stated = facts.where(
            FACTS.c.id > self._last_fact, FACTS.c.seq > self._seq, FACTS.c.seq <= seq
        ).order_by(FACTS.c.id)
        begun, ended, stated = (list(connection.execute(q).all()) for q in (begun, ended, stated))
        return _Changes(seq, begun, ended, stated)

    def _apply(self, changes: _Changes) -> None:
        for row in changes.ended:
            if row.name in self._tables:
                self._tables[row.name].drop(row.partition, row.id)
        for row in changes.begun:
            if row.end_seq is None or row.end_seq > changes.seq:
                self._tables.setdefault(row.name, _Table()).add(_live(row))
        for name in {row.name for row in (*changes.begun, *changes.ended)} & self._tables.keys():
            self._tables[name].forget_answers()
        for kind in {row.kind for row in changes.facts} & self._present.keys():
            said = ((row.subject, json.loads(row.body)) for row in changes.facts
                    if row.kind == kind)  # fmt: skip
            self._present[kind] = self._present[kind].changed_by(said)
        self._last_object = max((row.id for row in changes.begun), default=self._last_object)
        self._last_fact = max((row.id for row in changes.facts), default=self._last_fact)
        self._seq = changes.seq

    def _table(self, name: str) -> _Table:
        """A table; the caller holds the lock."""
        return self._tables.get(name) or _Table()

    def _held(self) -> threading.RLock:
        """The lock over what is held, which is read before the first question is answered."""
        if not self._is_loaded:
            self.renew()
        return self._lock

    def _is_now(self, as_of: int | None) -> bool:
        """Whether what is asked for is what is held; the caller holds the lock."""
        return as_of is None or as_of == self._seq

    # reading -----------------------------------------------------------------------------------

    @property
    def seq(self) -> int:
        """The commit that answers are as of."""
        with self._held():
            return self._seq

    def live(
        self,
        table: str,
        partition: str | Collection[str] | None = None,
        *,
        version: str | None = None,
        as_of: int | None = None,
    ) -> list[ObjectRef]:
        """Live objects of a table, sorted by partition; see `Ledger.live`."""
        with self._held():
            if self._is_now(as_of):
                if isinstance(partition, str):
                    row = self._table(table).last(partition, version)
                    return [row.ref] if row is not None else []
                if partition is None:
                    return list(self.all_live(table, version=version))
                return [row.ref for row in self._table(table).lasts(set(partition), version)]
        return super().live(table, partition, version=version, as_of=as_of)

    def all_live(
        self, table: str, *, version: str | None = None, as_of: int | None = None
    ) -> SharedRefs:
        """As `live` of all partitions, in a list that all who ask share: not to be changed."""
        with self._held():
            if self._is_now(as_of):
                held = self._table(table)
                if version not in held.all:
                    rows = held.lasts(held.rows, version)
                    held.all[version] = SharedRefs(row.ref for row in rows)
                return held.all[version]
        return SharedRefs(super().live(table, version=version, as_of=as_of))

    def newest(
        self, table: str, *, version: str | None = None, as_of: int | None = None
    ) -> ObjectRef | None:
        """The object of a table that was committed last; see `Ledger.newest`."""
        with self._held():
            if self._is_now(as_of):
                held = self._table(table)
                if version not in held.newest:
                    rows = held.lasts(held.rows, version)
                    last = max(rows, key=lambda row: row.id, default=None)
                    held.newest[version] = last.ref if last is not None else None
                return held.newest[version]
        return super().newest(table, version=version, as_of=as_of)

    def versions(self, table: str, partition: str, *, as_of: int | None = None) -> list[ObjectRef]:
        """All live versions of one partition of a table, oldest first."""
        with self._held():
            if self._is_now(as_of):
                return [row.ref for row in self._table(table).rows.get(partition, ())]
        return super().versions(table, partition, as_of=as_of)

    def order_digest_of(self, table: str, partition: str, version: str) -> str | None:
        """Digest of the order that made the live object under a key, if there is one."""
        with self._held():
            row = self._table(table).last(partition, version)
        return row.order_digest if row is not None else None

    def present(self, kind: str, *, as_of: int | None = None) -> dict[str, dict[str, Any]]:
        """Newest body of every subject of a kind; see `Ledger.present`."""
        with self._held():
            if self._is_now(as_of):
                return dict(self._kind(kind).bodies)
        return super().present(kind, as_of=as_of)

    def present_of_drop(
        self, kind: str, drop: str, *, as_of: int | None = None
    ) -> dict[str, dict[str, Any]]:
        """Of `present`, the bodies that are about a drop."""
        with self._held():
            if self._is_now(as_of):
                return self._kind(kind).of_drop(drop)
        return _about(drop, super().present(kind, as_of=as_of))

    def _kind(self, kind: str) -> _Present:
        """Facts of one kind, read when it is asked for first; the caller holds the lock."""
        if kind not in self._present:
            self._present[kind] = _Present(super().present(kind, as_of=self._seq))
        return self._present[kind]

    # writing -----------------------------------------------------------------------------------

    def commit(
        self,
        order: Order,
        report: Report,
        *,
        run_id: str | None = None,
        replaces_lost: bool = False,
    ) -> dict[str, bool]:
        """Make a step's objects live; see `Ledger.commit`."""
        changed = super().commit(order, report, run_id=run_id, replaces_lost=replaces_lost)
        self.renew()
        return changed

    def state(self, facts: Iterable[Fact], *, step: str, run_id: str | None = None) -> int:
        """Append facts in one commit, and return its sequence number."""
        seq = super().state(facts, step=step, run_id=run_id)
        self.renew()
        return seq


def all_live(
    ledger: Ledger, table: str, *, version: str | None = None, as_of: int | None = None
) -> list[ObjectRef]:
    """Live objects of all partitions of a table, of a view in a list that is not to be changed."""
    if isinstance(ledger, LedgerView):
        return ledger.all_live(table, version=version, as_of=as_of)
    return ledger.live(table, version=version, as_of=as_of)


def present_of_drop(
    ledger: Ledger, kind: str, drop: str | None, *, as_of: int | None = None
) -> dict[str, dict[str, Any]]:
    """The present of a kind of facts, or what of it is about a drop."""
    if drop is None:
        return ledger.present(kind, as_of=as_of)
    if isinstance(ledger, LedgerView):
        return ledger.present_of_drop(kind, drop, as_of=as_of)
    return _about(drop, ledger.present(kind, as_of=as_of))


def _about(drop: str, bodies: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {subject: body for subject, body in bodies.items() if body.get("drop") == drop}


def _newest_commit(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.max(COMMITS.c.seq))).scalar() or 0


def _is_live_at(seq: int) -> sa.ColumnElement[bool]:
    ended = OBJECTS.c.end_seq.is_(None) | (OBJECTS.c.end_seq > seq)
    return (OBJECTS.c.begin_seq <= seq) & ended


def _live(row: Any) -> _Live:
    # Few names, many rows: each name is held once.
    ref = ObjectRef(
        table=sys.intern(row.name),
        partition=sys.intern(row.partition),
        version=sys.intern(row.version),
        version_digest=sys.intern(row.version_digest),
        sha256=row.sha256,
        num_rows=row.num_rows,
    )
    return _Live(row.id, ref, row.order_digest)
