"""Backup and restore: a ledger's whole history as JSON lines, checked against its chain.

A dump says the same whichever database it came from, so it also moves a ledger from SQLite to
Postgres and back. Objects of rows stay in the store; the locator is derived and is not dumped.

Lines: a header; of each commit itself, the objects that it began and the facts that it stated;
a count of all at the end, without which a dump is cut short.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import deque
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import IO, TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa

from wsdata.catalog.ledger import chain_of
from wsdata.catalog.schema import COMMITS, FACTS, OBJECTS
from wsdata.digest import canonical_json, digest
from wsdata.errors import CatalogError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from wsdata.catalog.ledger import Ledger

KIND = "wsdata catalog"
FORMAT_VERSION = 1
_COMMITS_PER_PAGE = 1000
_ROWS_PER_INSERT = 5000
_SUFFIXES = (".jsonl", ".jsonl.gz")


class Progress(Protocol):
    """Told how far a dump is."""

    def __call__(self, num_done: int, num_all: int) -> None:
        """Take commits done and commits in all."""
        ...


def _tell_nobody(num_done: int, num_all: int) -> None:
    del num_done, num_all


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """How much history there is, and the digest that its chain ends with."""

    num_commits: int = 0
    num_objects: int = 0
    num_facts: int = 0
    chain: str = ""


def export_catalog(ledger: Ledger, path: Path, tell: Progress = _tell_nobody) -> Extent:
    """Write the history of a ledger, as of now, to a file; others may write to it meanwhile.

    Args:
        ledger: The ledger.
        path: ``*.jsonl`` or ``*.jsonl.gz``; appears when it is whole.
        tell: Told of commits done and commits in all.

    Raises:
        ValueError: Another suffix, or the file is there.
        IntegrityError: The history contradicts its chain: a commit is named.
    """
    _require_suffix(path)
    if path.exists():
        raise ValueError(f"{path} exists: a dump is not written over; name another file")
    last = ledger.seq
    temporary = path.with_name(f".{path.name}.part")
    extent = Extent()
    try:
        with _opened(path, temporary, "wt") as out:
            written = hashlib.sha256()

            def put(value: dict[str, Any]) -> None:
                line = json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
                written.update(line.encode())
                out.write(line)

            put({"kind": KIND, "format_version": FORMAT_VERSION, "seq": last})
            for entry, extent in _checked(_history(ledger, last)):
                put(entry)
                if extent.num_commits % _COMMITS_PER_PAGE == 0:
                    tell(extent.num_commits, last)
            put({"end": asdict(extent), "sha256": written.hexdigest()})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return extent


def import_catalog(ledger: Ledger, path: Path, tell: Progress = _tell_nobody) -> Extent:
    """Put a dumped history into an empty ledger: all of it, or, where anything is wrong, nothing.

    Args:
        ledger: An empty ledger.
        path: What `export_catalog` wrote.
        tell: Told of commits done and commits in all.

    Raises:
        ValueError: The file is no dump, or of another format.
        CatalogError: The ledger is not empty.
        IntegrityError: The dump is cut short, or contradicts its chain: a commit is named.
    """
    _require_suffix(path)

    def write(connection: sa.Connection) -> tuple[dict[str, Any], bool]:
        if connection.execute(sa.select(COMMITS.c.seq).limit(1)).first() is not None:
            raise CatalogError(
                f"the ledger {ledger.url} is not empty: a dump goes into a new database or file"
            )
        with _opened(path, path, "rt") as lines:
            return asdict(_insert_all(connection, path, lines, tell)), True

    return Extent(**ledger.database.write(write, ledger.patience_s))


def verify_catalog(ledger: Ledger) -> Extent:
    """Check that every commit, object and fact of a ledger is what its chain says.

    Raises:
        IntegrityError: It is not: the first commit that is wrong is named.
    """
    last = deque(_checked(_history(ledger, ledger.seq)), maxlen=1)
    return last[0][1] if last else Extent()


# history -----------------------------------------------------------------------------------------


def _history(ledger: Ledger, last: int) -> Iterator[dict[str, Any]]:
    """Every commit up to one, with what it began and stated; in pages, so that none takes long."""
    for begin in range(1, last + 1, _COMMITS_PER_PAGE):
        end = min(begin + _COMMITS_PER_PAGE, last + 1)
        objects = _by_seq(ledger, OBJECTS, OBJECTS.c.begin_seq, begin, end)
        facts = _by_seq(ledger, FACTS, FACTS.c.seq, begin, end)
        query = sa.select(COMMITS).where(COMMITS.c.seq >= begin, COMMITS.c.seq < end)
        for row in ledger.ask(query.order_by(COMMITS.c.seq)):
            commit = {**row._mapping, "body": json.loads(row.body)}
            begun = objects.get(row.seq, [])
            for each in begun:
                if each["end_seq"] is not None and each["end_seq"] > last:
                    each["end_seq"] = None  # ended by a commit that is not dumped
            yield {"commit": commit, "objects": begun, "facts": facts.get(row.seq, [])}


def _by_seq(
    ledger: Ledger, table: sa.Table, column: sa.Column[int], begin: int, end: int
) -> dict[int, list[dict[str, Any]]]:
    query = sa.select(table).where(column >= begin, column < end).order_by(column, table.c.id)
    rows = [dict(row._mapping) for row in ledger.ask(query)]
    for row in rows:
        del row["id"]
        if "body" in row:
            row["body"] = json.loads(row["body"])
    return {seq: list(group) for seq, group in groupby(rows, key=lambda row: row[column.name])}


def _checked(
    entries: Iterable[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], Extent]]:
    """Yield entries with the extent of history up to each, as long as they follow the chain."""
    extent = Extent()
    for entry in entries:
        commit = entry["commit"]
        seq, body = commit["seq"], commit["body"]
        chain = chain_of(extent.chain, seq, commit["step"], commit["partition"], body)
        if seq != extent.num_commits + 1 or chain != commit["chain"]:
            raise IntegrityError(
                f"commit {seq} ({commit['step']} of {commit['partition'] or 'no partition'}) does "
                f"not follow from commit {extent.num_commits}: the history was changed or cut; "
                "restore the last dump that verifies"
            )
        _check_contents(entry)
        extent = Extent(
            num_commits=seq,
            num_objects=extent.num_objects + len(entry["objects"]),
            num_facts=extent.num_facts + len(entry["facts"]),
            chain=chain,
        )
        yield entry, extent


def _check_contents(entry: dict[str, Any]) -> None:
    body, seq = entry["commit"]["body"], entry["commit"]["seq"]
    begun = {row["name"]: row["sha256"] for row in entry["objects"]}
    orders = {row["order_digest"] for row in entry["objects"]}
    stated = [[row["kind"], row["subject"], digest(row["body"])] for row in entry["facts"]]
    for what, found, said in (
        ("objects", begun, body.get("objects", {})),
        ("order", orders, {body["order"]} if begun else set()),
        ("facts", stated, body["facts"]),
    ):
        if found != said:
            raise IntegrityError(
                f"commit {seq}: its {what} are {str(found)[:200]}, its chained body says "
                f"{str(said)[:200]}: they were changed; restore the last dump that verifies"
            )


# files -------------------------------------------------------------------------------------------


def _require_suffix(path: Path) -> None:
    if not path.name.endswith(_SUFFIXES):
        raise ValueError(f"dump {path}: expected a name that ends with {' or '.join(_SUFFIXES)}")


def _opened(named: Path, path: Path, mode: str) -> IO[str]:
    if named.name.endswith(".gz"):
        return gzip.open(path, mode, encoding="utf-8")  # type: ignore[return-value]
    return path.open(mode, encoding="utf-8")


def _read_lines(path: Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield what the lines of a dump say, up to its last line, whose digest is checked."""
    read = hashlib.sha256()
    try:
        for line in lines:
            value = json.loads(line)
            if "sha256" in value and value["sha256"] != read.hexdigest():
                raise IntegrityError(f"dump {path} was changed since it was written: take another")
            read.update(line.encode())
            yield value
    except EOFError as error:
        raise _cut(path) from error
    except (OSError, TypeError, ValueError) as error:  # what gzip, UTF-8 and JSON call damaged
        raise IntegrityError(f"dump {path} is damaged ({error}): take another") from error


def _cut(path: Path) -> IntegrityError:
    return IntegrityError(f"dump {path} is cut short: nothing was imported; take another")


def _read_header(path: Path, read: Iterator[dict[str, Any]]) -> int:
    """Check that a dump is one, and return its number of commits."""
    header = next(read, {})
    if header.get("kind") != KIND:
        raise ValueError(f"{path} is no dump of a catalog: `wsdata catalog export` writes one")
    if header["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"dump {path} has format {header['format_version']}, this wsdata reads "
            f"{FORMAT_VERSION}: import it with the wsdata that wrote it"
        )
    return header["seq"]


def _entries(read: Iterator[dict[str, Any]], ended: list[Extent]) -> Iterator[dict[str, Any]]:
    """Yield the entries of a dump; leave in `ended` what its last line says."""
    for entry in read:
        if "end" in entry:
            ended.append(Extent(**entry["end"]))
        elif entry.keys() != {"commit", "objects", "facts"}:
            raise IntegrityError(f"a dump's line has {sorted(entry)}: it is no entry; take another")
        else:
            yield entry


def _insert_all(
    connection: sa.Connection,
    path: Path,
    lines: Iterable[str],
    tell: Progress,
) -> Extent:
    ended: list[Extent] = []
    waiting: dict[sa.Table, list[dict[str, Any]]] = {COMMITS: [], OBJECTS: [], FACTS: []}
    extent = Extent()
    read = _read_lines(path, lines)
    num_all = _read_header(path, read)
    for entry, extent in _checked(_entries(read, ended)):
        waiting[COMMITS].append(_as_row(entry["commit"]))
        waiting[OBJECTS] += entry["objects"]
        waiting[FACTS] += [_as_row(fact) for fact in entry["facts"]]
        for table, rows in waiting.items():
            if len(rows) >= _ROWS_PER_INSERT:
                connection.execute(sa.insert(table), rows)
                rows.clear()
        if extent.num_commits % _COMMITS_PER_PAGE == 0:
            tell(extent.num_commits, num_all)
    for table, rows in waiting.items():
        if rows:
            connection.execute(sa.insert(table), rows)
    if ended != [extent]:
        raise _cut(path)
    return extent


def _as_row(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "body": canonical_json(row["body"])}
