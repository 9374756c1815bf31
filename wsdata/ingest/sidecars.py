"""The sidecar of a drop: what is stated of single files, as JSON lines or as Parquet.

Both forms mean the same: a line or a row is one record, a field that is null is not stated.
Parquet is read in the sandbox. What is stated of whole drops belongs to `declaration`.
"""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from wsdata.digest import canonical_json
from wsdata.ingest.declaration import date_fault

RECORDS, RECORDS_PARQUET = "records.jsonl", "records.parquet"
ACTION_SUFFIXES = (".csv", ".parquet")  # tracks that a record names as its ``actions``
CRAWL_FIELDS = ("crawl_url", "fetched_at", "robots_allowed")
TEXT_FIELDS = ("crawl_url", "fetched_at", "title", "page_text")
RIGHTS_FIELDS = (
    "license_id", "territory", "rights_from", "rights_until", "pii_policy", "generator",
)  # fmt: skip
FLAG_FIELDS = ("robots_allowed", "opt_out")
MEMBER = "!"  # between a payload's path and the name of a member of it

Record = dict[str, Any]
Records = dict[str, Record]


def parse_records(text: bytes, name: str = RECORDS) -> tuple[Records, list[str]]:
    """Read records, one JSON object a line: path within the drop -> record; and every fault.

    Args:
        text: The lines.
        name: The file's name, for the faults.
    """
    records: Records = {}
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        record, fault = parse_object(line)
        if record is None:
            faults.append(f"{where} {fault}")
            continue
        path = record.get("path")
        if not isinstance(path, str):
            faults.append(f"{where}: no path")
        elif path in records:
            faults.append(f"{where}: a second record of {path!r}")
        else:
            records[path] = record
            faults += [f"{where}: {fault}" for fault in record_faults(record)]
    return records, faults


def parse_object(text: bytes) -> tuple[Record | None, str]:
    """Read one JSON object without its null fields; where it is none, say why."""
    try:
        found = json.loads(text.decode("utf-8"), parse_constant=_refuse)
        if not isinstance(found, dict):
            return None, f"is a JSON {type(found).__name__}, expected an object"
        record = {key: value for key, value in found.items() if value is not None}
        canonical_json(record).encode()
    except (ValueError, RecursionError) as error:  # a lone surrogate has no bytes
        return None, f"is not JSON: {error}"
    return record, ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def record_faults(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with the fields of one record; unknown fields are kept as they are."""
    faults = [
        f"{name} is {record[name]!r:.80}, expected {kind}"
        for names, wanted, kind in (
            ((*TEXT_FIELDS, *RIGHTS_FIELDS), str, "text"),
            (FLAG_FIELDS, bool, "true or false"),
            (("chapters", "image_text_pairs"), list, "a list of objects"),
        )
        for name in names
        if name in record and not isinstance(record[name], wanted)
    ]
    if faults:
        return faults
    for name, check in _CHECKS.items():
        if name in record and (fault := check(record[name])):
            faults.append(f"{name} {fault}")
    return faults


def _time_fault(text: str) -> str | None:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return f"{text!r} is not an ISO time such as 2026-11-01T12:00:00+00:00"
    return None


def _chapters_fault(chapters: list[Any]) -> str | None:
    last_s = 0.0
    for number, chapter in enumerate(chapters):
        start_s = chapter.get("start_s") if isinstance(chapter, dict) else None
        title = chapter.get("title") if isinstance(chapter, dict) else None
        if start_s is None or not _is_number(start_s) or not isinstance(title, str):
            return f"{number} is {chapter!r:.80}, expected start_s in seconds and a title"
        if start_s < last_s:
            return f"{number} starts at {start_s} s, before the one before it"
        last_s = start_s
    return None


def _pairs_fault(pairs: list[Any]) -> str | None:
    for number, pair in enumerate(pairs):
        named = [pair.get(key) for key in ("image", "text")] if isinstance(pair, dict) else []
        if not named or not all(isinstance(value, str) for value in named):
            return f"{number} is {pair!r:.80}, expected image (a path or URL) and text"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "rights_from": date_fault,
    "rights_until": date_fault,
    "fetched_at": _time_fault,
    "chapters": _chapters_fault,
    "image_text_pairs": _pairs_fault,
}


def without_records(text: bytes, paths: Iterable[str]) -> bytes | None:
    """JSON lines without the records of some paths, or None where there is no record of them."""
    gone = set(paths)
    lines = [line for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if json.loads(line).get("path") not in gone]
    return None if len(kept) == len(lines) else b"".join(line + b"\n" for line in kept)


def action_tracks(records: Records) -> set[str]:
    """Paths of the tracks of actions that records name, well spelt ones alone."""
    named = (record.get("actions") for record in records.values())
    return {path for path in named if isinstance(path, str) and _is_track(path)}


def _is_track(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in ACTION_SUFFIXES


def action_faults(present: set[str], records: Records) -> list[str]:
    """What is wrong with the tracks of actions that records name.

    Args:
        present: Paths of all files of the drop.
        records: The sidecar.
    """
    faults: list[str] = []
    owners: dict[str, str] = {}
    for path, record in sorted(records.items()):
        track = record.get("actions")
        if track is None:
            continue
        if not isinstance(track, str) or not _is_track(track):
            faults.append(
                f"{RECORDS}: actions of {path!r} is {track!r:.80}, expected the path within the "
                f"drop of a file ending in {' or '.join(ACTION_SUFFIXES)}"
            )
        elif track not in present:
            faults.append(f"{RECORDS}: actions of {path!r}: {track!r} is not in the drop")
        elif (other := owners.setdefault(track, path)) != path:
            faults.append(
                f"{RECORDS}: {track!r} is named as actions of {other!r} and of {path!r}: deliver "
                "each file's own track, since a sealed file's track is sealed with it"
            )
    return faults


def crawl_faults(paths: Iterable[str], records: Records) -> list[str]:
    """What evidence is missing of crawled files."""
    faults: list[str] = []
    for path in paths:
        record = records.get(path)
        if record is None:
            faults.append(f"{path}: crawled, but {RECORDS} says nothing of it")
        elif missing := lacking(record):
            faults.append(f"{path}: crawl record lacks {', '.join(missing)}")
    return faults


def lacking(record: Mapping[str, Any]) -> list[str]:
    """Which fields of a crawl's evidence a record does not state."""
    return [name for name in CRAWL_FIELDS if record.get(name) is None]
