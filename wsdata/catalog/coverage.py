"""Coverage: which segments there are, and which objects of `raw_assets` they cover.

Segments grow as drops come, by being merged with others of their size, so a question asks few of
them however many drops there are. All of this is derived: losing it costs time, never an answer.
Questions belong to `locator`, bytes to `segments`.
"""

from __future__ import annotations

import logging
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from wsdata.catalog.ledger import ref_of
from wsdata.catalog.objects import read_object
from wsdata.catalog.schema import LOCATOR_OBJECTS, LOCATOR_SEGMENTS, OBJECTS
from wsdata.catalog.segments import (
    ROWS_PER_PART,
    Segment,
    entries_of,
    merge_segments,
    plan_segment,
    write_segment,
)
from wsdata.errors import IntegrityError, ObjectMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

log = logging.getLogger(__name__)

TABLE = "raw_assets"
FOLD_OBJECTS = 16  # so many uncovered objects, or rows of them, are worth a segment
FOLD_ROWS = 1 << 16
_BATCH = 4096  # objects in one segment when it is first made
_FAN_IN = 8  # so many segments of one size become one of the next


def segments(ledger: Ledger) -> dict[int, Segment]:
    """All segments by number, oldest first."""
    rows = ledger.ask(sa.select(LOCATOR_SEGMENTS).order_by(LOCATOR_SEGMENTS.c.id))
    return {row.id: _segment(row) for row in rows}


def _segment(row: Any) -> Segment:
    return Segment(
        digest=row.digest,
        num_rows=row.num_rows,
        num_parts=row.num_parts,
        num_buckets=row.num_buckets,
    )


def is_live(as_of: int | None) -> sa.ColumnElement[bool]:
    """Condition that a row of OBJECTS is a live object of `raw_assets`."""
    of_table = OBJECTS.c.name == TABLE
    if as_of is None:
        return of_table & OBJECTS.c.end_seq.is_(None)
    ended = OBJECTS.c.end_seq.is_(None) | (OBJECTS.c.end_seq > as_of)
    return of_table & (OBJECTS.c.begin_seq <= as_of) & ended


def uncovered(as_of: int | None) -> sa.Select[Any]:
    """Question for the live objects that no segment covers."""
    is_covered = sa.exists().where(LOCATOR_OBJECTS.c.sha256 == OBJECTS.c.sha256)
    return (
        sa.select(OBJECTS)
        .where(is_live(as_of), ~is_covered)
        .order_by(OBJECTS.c.begin_seq, OBJECTS.c.id)
    )


def extend_locator(ledger: Ledger, store: BlobStore, *, is_forced: bool = False) -> int:
    """Cover objects that no segment covers, where they are many, and merge segments.

    Args:
        ledger: The ledger.
        store: The store; segments are put under ``locator/``.
        is_forced: Cover also what is little.

    Returns:
        How many objects were covered.
    """
    rows = ledger.ask(uncovered(None))
    num_rows = sum(row.num_rows for row in rows)
    if not rows or not (is_forced or len(rows) >= FOLD_OBJECTS or num_rows >= FOLD_ROWS):
        return 0
    refs = {row.sha256: row for row in rows}
    batch: list[Any] = []
    for number, row in enumerate(refs.values(), 1):
        batch.append(row)
        is_enough = sum(each.num_rows for each in batch) >= ROWS_PER_PART
        if is_enough or len(batch) == _BATCH or number == len(refs):
            _cover(ledger, store, batch)
            batch = []
    while _compact(ledger, store):
        pass
    return len(refs)


def _cover(ledger: Ledger, store: BlobStore, rows: Sequence[Any]) -> None:
    pieces = [
        entries_of(read_object(store, ref_of(row))["asset_id"], ordinal)
        for ordinal, row in enumerate(rows)
    ]
    objects = [row.sha256 for row in rows]
    entries = np.concatenate(pieces)
    segment = plan_segment(objects, len(entries))
    write_segment(store, segment, entries)

    def adopt(connection: sa.Connection) -> tuple[bool, bool]:
        covered = sa.select(LOCATOR_OBJECTS.c.sha256).where(LOCATOR_OBJECTS.c.sha256.in_(objects))
        if connection.execute(covered).first() is not None:
            return _is_known(connection, segment), False
        number = _insert(connection, segment)
        connection.execute(
            sa.insert(LOCATOR_OBJECTS),
            [
                {"sha256": sha256, "segment_id": number, "ordinal": ordinal}
                for ordinal, sha256 in enumerate(objects)
            ],
        )
        return True, True

    _adopt(ledger, store, segment, adopt)


def _full_tier(held: dict[int, Segment]) -> list[int]:
    """Segments of like size that are enough for one of the next size, or none."""
    tiers: dict[int, list[int]] = {}
    for number, segment in held.items():
        tier = int(np.log(max(segment.num_rows / FOLD_ROWS, 1)) / np.log(_FAN_IN) + 1e-9)
        tiers.setdefault(tier, []).append(number)
    return next((numbers for numbers in tiers.values() if len(numbers) >= _FAN_IN), [])


def _compact(ledger: Ledger, store: BlobStore) -> bool:
    """Merge one full set of segments of like size; False if there is none."""
    held = segments(ledger)
    numbers = _full_tier(held)
    if not numbers:
        return False
    objects = [_objects_of(ledger, number) for number in numbers]
    moved = list(accumulate((len(each) for each in objects), initial=0))[:-1]
    merged = plan_segment(
        [sha256 for each in objects for sha256 in each],
        sum(held[number].num_rows for number in numbers),
    )
    old = [held[number] for number in numbers]
    try:
        merge_segments(store, list(zip(old, moved, strict=True)), merged)
    except (ObjectMissing, IntegrityError) as error:
        log.warning("locator: %s", error)
        for number, segment in zip(numbers, old, strict=True):
            forget(ledger, store, number, segment)
        return False

    def adopt(connection: sa.Connection) -> tuple[bool, bool]:
        of_old = LOCATOR_SEGMENTS.c.id.in_(numbers)
        present = connection.execute(sa.select(LOCATOR_SEGMENTS.c.id).where(of_old)).all()
        if len(present) != len(numbers):
            return _is_known(connection, merged), False
        _take_over(connection, _insert(connection, merged), dict(zip(numbers, moved, strict=True)))
        connection.execute(sa.delete(LOCATOR_SEGMENTS).where(of_old))
        return True, True

    if _adopt(ledger, store, merged, adopt):
        for segment in old:
            _delete(store, segment)
    return True


def _take_over(connection: sa.Connection, number: int, moved: dict[int, int]) -> None:
    for old, moved_by in moved.items():
        connection.execute(
            sa.update(LOCATOR_OBJECTS)
            .where(LOCATOR_OBJECTS.c.segment_id == old)
            .values(segment_id=number, ordinal=LOCATOR_OBJECTS.c.ordinal + moved_by)
        )


def _objects_of(ledger: Ledger, segment_id: int) -> list[str]:
    query = sa.select(LOCATOR_OBJECTS.c.sha256).where(LOCATOR_OBJECTS.c.segment_id == segment_id)
    return [row.sha256 for row in ledger.ask(query.order_by(LOCATOR_OBJECTS.c.ordinal))]


def _insert(connection: sa.Connection, segment: Segment) -> int:
    connection.execute(
        sa.insert(LOCATOR_SEGMENTS).values(
            digest=segment.digest,
            num_rows=segment.num_rows,
            num_parts=segment.num_parts,
            num_buckets=segment.num_buckets,
        )
    )
    query = sa.select(LOCATOR_SEGMENTS.c.id).where(LOCATOR_SEGMENTS.c.digest == segment.digest)
    return connection.execute(query).scalar_one()


def _is_known(connection: sa.Connection, segment: Segment) -> bool:
    query = sa.select(LOCATOR_SEGMENTS.c.id).where(LOCATOR_SEGMENTS.c.digest == segment.digest)
    return connection.execute(query).first() is not None


def _adopt(
    ledger: Ledger,
    store: BlobStore,
    segment: Segment,
    adopt: Callable[[sa.Connection], tuple[bool, bool]],
) -> bool:
    """List a segment that was written; where another process was first, take its bytes away."""
    is_listed = ledger.database.write(adopt, ledger.patience_s)
    if not is_listed:
        _delete(store, segment)
    return is_listed


def forget(ledger: Ledger, store: BlobStore, number: int, segment: Segment) -> None:
    """Take a segment off the list, with its bytes: what it covered is uncovered again."""

    def forget(connection: sa.Connection) -> tuple[bool, bool]:
        gone = LOCATOR_SEGMENTS.c.id == number
        if connection.execute(sa.delete(LOCATOR_SEGMENTS).where(gone)).rowcount == 0:
            return False, False  # merged into another meanwhile
        connection.execute(sa.delete(LOCATOR_OBJECTS).where(LOCATOR_OBJECTS.c.segment_id == number))
        return True, True

    if ledger.database.write(forget, ledger.patience_s):
        log.warning("locator: segment %s is lost or damaged, and forgotten", segment.digest[:12])
        _delete(store, segment)


def _delete(store: BlobStore, segment: Segment) -> None:
    for key in segment.keys:
        store.delete(key)
