"""Drops as folders in the landing zone: the contract, making one, checking one.

A drop is a folder named by its key that holds media files and payloads of them, ``drop.toml``, an
optional ``records.jsonl`` or ``records.parquet`` and, written last, ``_READY``. Where such folders
lie, and how files are read there, belongs to `landing`; what is stated in them to `declaration`
and `sidecars`; what payloads hold to `payloads`; landing their bytes to `land`.
"""

import datetime as dt
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from wsdata.digest import digest
from wsdata.errors import DropRefused, WsdataError
from wsdata.ids import DropKey, parse_drop_key
from wsdata.ingest.declaration import (
    DECLARATION,
    FORMAT_VERSION,
    Declaration,
    parse_declaration,
    to_toml,
)
from wsdata.ingest.landing import MARKER, LandedFile, LandingZone
from wsdata.ingest.payloads import Payload, is_payload, parquet_records
from wsdata.ingest.sidecars import (
    MEMBER,
    RECORDS,
    RECORDS_PARQUET,
    Records,
    action_faults,
    action_tracks,
    crawl_faults,
    parse_records,
)
from wsdata.media.suffixes import IMAGE_SUFFIXES, MEDIA_SUFFIXES, VIDEO_SUFFIXES

__all__ = [
    "DECLARATION", "RECORDS", "Declaration", "Inspection", "check_drop", "inspect_drop",
    "make_drop", "media_files", "payload_faults", "read_declaration",
    "read_records", "source_name",
]  # fmt: skip

DEFAULT_LEVEL = "seccomp"  # of the sandbox, as a deployment has it
_COMPRESSED = (".tgz", ".gz", ".bz2", ".xz", ".zst", ".zip")


class Inspection(NamedTuple):
    """What was found in one drop: every fault, in words; its media files and payloads, sorted."""

    faults: list[str]
    media: list[LandedFile]
    payloads: list[LandedFile]

    @property
    def size_bytes(self) -> int:
        """Bytes of all media files and payloads."""
        return sum(file.size_bytes for file in [*self.media, *self.payloads])


def media_files(files: Iterable[LandedFile]) -> list[LandedFile]:
    """Those of a drop's files that are media, in their order."""
    return [file for file in files if _suffix(file.path) in MEDIA_SUFFIXES]


def read_declaration(zone: LandingZone, drop: str) -> Declaration:
    """Read ``drop.toml``.

    Raises:
        DropRefused: With every fault of the declaration.
    """
    declaration, faults = parse_declaration(zone.read(drop, DECLARATION))
    if declaration is None or faults:
        raise DropRefused(drop, faults)
    return declaration


def read_records(zone: LandingZone, drop: str, *, minimum_level: str = DEFAULT_LEVEL) -> Records:
    """Read the sidecar: path within the drop -> record. No sidecar gives none.

    Args:
        zone: The landing zone.
        drop: Name of the folder.
        minimum_level: The sandbox level that the deployment demands, where it is Parquet.

    Raises:
        DropRefused: With every fault of the sidecar.
    """
    present = {file.path for file in zone.files(drop) if not file.is_link}
    records, faults = _read_records(zone, drop, present, minimum_level)
    if faults:
        raise DropRefused(drop, faults)
    return records


def check_drop(
    zone: LandingZone, drop: str, *, is_deep: bool = False, minimum_level: str = DEFAULT_LEVEL
) -> list[str]:
    """Check a drop against the contract; see `inspect_drop`, and where `is_deep` `payload_faults`.

    Returns:
        Every fault found.
    """
    found = inspect_drop(zone, drop, minimum_level=minimum_level)
    if not is_deep:
        return found.faults
    inner = payload_faults(zone, drop, found.payloads, minimum_level=minimum_level)
    return [*found.faults, *inner]


def inspect_drop(
    zone: LandingZone, drop: str, *, is_marked: bool = True, minimum_level: str = DEFAULT_LEVEL
) -> Inspection:
    """Check a drop against the contract, without reading its media; its files are listed once.

    Args:
        zone: The landing zone.
        drop: Name of the folder.
        is_marked: Whether its marker must be there.
        minimum_level: The sandbox level that the deployment demands.

    Returns:
        Every fault found; none for a good drop. A drop without media is good.
    """
    files = zone.files(drop)
    present = {file.path for file in files if not file.is_link}
    faults: list[str] = []
    try:
        key = parse_drop_key(drop)
    except ValueError as error:
        key = None
        faults.append(str(error))
    if is_marked and MARKER not in present:
        faults.append(f"no {MARKER} marker: the delivery is not complete")
    declaration, declared_faults = parse_declaration(
        zone.read(drop, DECLARATION) if DECLARATION in present else None
    )
    records, record_faults = _read_records(zone, drop, present, minimum_level)
    faults += declared_faults + record_faults
    if declaration is not None and key is not None:
        for name in ("source_tier", "source"):
            if getattr(declaration, name) != getattr(key, name):
                faults.append(
                    f"{DECLARATION}: {name} {getattr(declaration, name)!r} is not the "
                    f"{getattr(key, name)!r} of the folder's name"
                )
    faults += _file_faults(files, records) + action_faults(present, records)
    media, payloads = media_files(files), _payloads(files, records)
    if declaration is not None and declaration.source_tier == "crawl":
        faults += crawl_faults((file.path for file in media), records)
    return Inspection(faults, media, payloads)


def payload_faults(
    zone: LandingZone,
    drop: str,
    payloads: Iterable[LandedFile],
    *,
    minimum_level: str = DEFAULT_LEVEL,
    sources: Mapping[str, Path] | None = None,
) -> list[str]:
    """Read the payloads of a drop whole, in the sandbox; return every fault of them.

    Where the sidecar or the declaration cannot be read, they are left alone. `sources` are local
    files that payloads were made of, by path.
    """
    try:
        declaration = read_declaration(zone, drop)
        records = read_records(zone, drop, minimum_level=minimum_level)
    except DropRefused:
        return []
    is_crawl = declaration.source_tier == "crawl"
    faults: list[str] = []
    for file in payloads:
        source = (sources or {}).get(file.path)
        payload = Payload(zone, drop, file.path, minimum_level=minimum_level, source=source)
        try:
            faults += payload.scan(records, is_crawl=is_crawl).faults
        finally:
            payload.close()
    return faults


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _payloads(files: Iterable[LandedFile], records: Records) -> list[LandedFile]:
    taken = {*action_tracks(records), RECORDS_PARQUET}
    return [file for file in files if is_payload(file.path) and file.path not in taken]


def _read_records(
    zone: LandingZone, drop: str, present: set[str], minimum_level: str
) -> tuple[Records, list[str]]:
    if RECORDS_PARQUET not in present:
        return parse_records((zone.read(drop, RECORDS) or b"") if RECORDS in present else b"")
    if RECORDS in present:
        return {}, [f"both {RECORDS} and {RECORDS_PARQUET}: which of them holds cannot be told"]
    with tempfile.TemporaryDirectory(prefix="wsdata-records-") as folder:
        copy = Path(folder) / RECORDS_PARQUET
        zone.fetch(drop, RECORDS_PARQUET, copy)
        return parquet_records(copy, minimum_level=minimum_level)


def _file_faults(files: list[LandedFile], records: Records) -> list[str]:
    faults: list[str] = []
    known = {DECLARATION, RECORDS, RECORDS_PARQUET, MARKER} | action_tracks(records)
    present: set[str] = set()
    for file in files:
        name, suffix = file.path, PurePosixPath(file.path).suffix
        if file.is_link:
            faults.append(f"{name} is a link: deliver the file itself")
            continue
        present.add(name)
        if set(name.split("/")) & {"", ".", ".."}:  # a bucket takes such keys, a disk cannot
            faults.append(f"{name!r} has an empty or relative part: deliver it under a plain path")
        elif name not in known and suffix.lower() not in MEDIA_SUFFIXES and not is_payload(name):
            faults.append(
                f"{name}: compressed: deliver plain media, tars or Parquet"
                if suffix.lower() in _COMPRESSED
                else f"{name}: {suffix or 'no suffix'} is not a media file we take"
            )
    # A record of a vault member goes with its file when that is sealed, so both are absent.
    unmet = (name for name in set(records) - present if name.split(MEMBER)[0] not in present)
    faults += [f"{RECORDS}: {name!r} is not in the drop" for name in sorted(unmet)]
    return faults


def make_drop(
    files: Path | Iterable[Path],
    zone: LandingZone,
    declaration: Declaration,
    *,
    records: Iterable[dict[str, Any]] = (),
    tracks: Iterable[str] = (),
    date: str | None = None,
    minimum_level: str = DEFAULT_LEVEL,
) -> DropKey:
    """Build a drop from media files, and put it into the landing zone, marker last.

    The same files declared alike give the drop that is already there.

    Args:
        files: A folder whose media files are taken with their paths, or single files.
        zone: The landing zone.
        declaration: What is stated about them.
        records: Sidecar records, each with the ``path`` of a file within the drop.
        tracks: Tracks of actions that records name, by their paths in the folder.
        date: Day of delivery, YYYYMMDD; today without it.
        minimum_level: The sandbox level that the deployment demands, for payloads.

    Raises:
        WsdataError: The folder does not exist, or holds no media.
        DropRefused: What was made would break the contract.
    """
    chosen = _chosen_files(files)
    if isinstance(files, Path):
        chosen = sorted({**dict(chosen), **{name: files / name for name in tracks}}.items())
    listing = digest(
        {
            "declaration": asdict(declaration),
            "records": list(records := list(records)),
            "files": [[name, path.stat().st_size, _sha256(path)] for name, path in chosen],
        }
    )
    origin = f"{declaration.source_tier}.{declaration.source}"
    if (there := _drop_of_listing(zone, origin, listing)) is not None:
        return there
    stem = f"{origin}.{date or f'{dt.date.today():%Y%m%d}'}"  # noqa: DTZ011
    parse_drop_key(f"{stem}.001")
    content: dict[str, Path | bytes] = dict(chosen)
    content[DECLARATION] = to_toml(declaration).encode()
    if records:
        lines = (json.dumps(record, ensure_ascii=False, sort_keys=True) for record in records)
        content[RECORDS] = ("\n".join(lines) + "\n").encode()
    key = zone.claim(stem, content)
    found = inspect_drop(zone, key, is_marked=False, minimum_level=minimum_level)
    sources = dict(chosen)
    faults = [
        *found.faults,
        *payload_faults(zone, key, found.payloads, minimum_level=minimum_level, sources=sources),
    ]
    if faults:
        zone.discard(key)
        fix = "Nothing was delivered: state what is missing in a sidecar (--records) and try again."
        raise DropRefused(key, faults, fix=fix)
    marker = json.dumps({"format_version": FORMAT_VERSION, "listing": listing}) + "\n"
    zone.mark(key, marker.encode())
    return key


def _chosen_files(files: Path | Iterable[Path]) -> list[tuple[str, Path]]:
    if isinstance(files, Path):
        if not files.is_dir():
            raise WsdataError(f"{files} is not a folder: name one that holds media files")
        chosen = [
            (path.relative_to(files).as_posix(), path)
            for path in sorted(files.rglob("*"))
            if path.is_file() and _is_taken(path.name)
        ]
        if not chosen:
            raise WsdataError(
                f"{files} holds no media: expected files ending in "
                f"{' '.join(sorted(VIDEO_SUFFIXES | IMAGE_SUFFIXES))}, or payloads: .tar .parquet"
            )
        return chosen
    return sorted((path.name, path) for path in files)


def _is_taken(name: str) -> bool:
    """Whether a file of a folder goes into a drop that is made of it, by its name alone."""
    return name != RECORDS_PARQUET and (_suffix(name) in MEDIA_SUFFIXES or is_payload(name))


def _drop_of_listing(zone: LandingZone, origin: str, listing: str) -> DropKey | None:
    """The drop that was made of the same listing, which states where it comes from."""
    after = f"{origin}."
    while names := zone.folders(after=after):
        for name in names:
            if not name.startswith(f"{origin}."):
                return None
            text = (zone.read(name, MARKER) or b"").decode("utf-8", errors="replace")
            if f'"listing": "{listing}"' in text:
                return DropKey(name)
        after = names[-1]
    return None


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def source_name(folder: Path) -> str:
    """A source name made of a folder's own name."""
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.absolute().name.lower()).strip("-_")
    return name[:40] or f"folder-{os.getpid()}"
