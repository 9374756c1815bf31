"""Facts that follow from what was stated last, with no other writer in between.

Two who take in reports at once must not undo each other's sums: what each adds to is read in the
transaction that writes. Stating what follows from nothing is `Ledger.state`.
"""

import json
from collections.abc import Callable, Collection
from typing import Any

import sqlalchemy as sa

from wsdata.catalog.ledger import Ledger, append_commit, fact_digests, insert_facts
from wsdata.catalog.schema import FACTS
from wsdata.records import Fact

_SUBJECTS_AT_ONCE = 500  # names in one query

Bodies = dict[str, dict[str, Any]]


def restate(
    ledger: Ledger,
    kind: str,
    subjects: Collection[str],
    change: Callable[[Bodies], list[Fact]],
    *,
    step: str,
) -> int | None:
    """State facts of one kind that follow from the newest ones.

    Args:
        ledger: The ledger.
        kind: Their kind.
        subjects: Those that are looked at.
        change: Given the newest bodies of these subjects, returns what to state. It must be
            quick, since nobody else writes meanwhile, and may be called more than once.
        step: Who states.

    Returns:
        The commit, or None where there was nothing to state.
    """

    def write(connection: sa.Connection) -> tuple[int | None, bool]:
        facts = change(_newest(connection, kind, subjects))
        if not facts:
            return None, False
        body = {"facts": fact_digests(facts)}
        seq = append_commit(connection, step=step, partition="", run_id=None, body=body)
        insert_facts(connection, facts, seq)
        return seq, True

    return ledger.database.write(write, ledger.patience_s)


def _newest(connection: sa.Connection, kind: str, subjects: Collection[str]) -> Bodies:
    found: Bodies = {}
    ordered = sorted(subjects)
    for at in range(0, len(ordered), _SUBJECTS_AT_ONCE):
        some = ordered[at : at + _SUBJECTS_AT_ONCE]
        newest = (
            sa.select(sa.func.max(FACTS.c.id))
            .where(FACTS.c.kind == kind, FACTS.c.subject.in_(some))
            .group_by(FACTS.c.subject)
        )
        rows = connection.execute(sa.select(FACTS).where(FACTS.c.id.in_(newest)))
        found |= {row.subject: json.loads(row.body) for row in rows}
    return found
