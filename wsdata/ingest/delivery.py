"""Drops as folders in the landing zone: the contract, making one, checking one.

A drop is a folder named by its key that holds media files, ``drop.toml``, an optional
``records.jsonl`` and, written last, ``_READY``. Where such folders lie, and how files are read
there, belongs to `landing`; landing their bytes to `land`.
"""

import datetime as dt
import json
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from wsdata.digest import digest
from wsdata.errors import DropRefused, WsdataError
from wsdata.ids import SOURCE_TIERS, DropKey, parse_drop_key
from wsdata.ingest.landing import MARKER, LandedFile, LandingZone

DECLARATION, RECORDS = "drop.toml", "records.jsonl"
FORMAT_VERSION = 1
IMAGE_SUFFIXES = frozenset(
    [".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff"]
)
VIDEO_SUFFIXES = frozenset(
    [
        *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg"),
        *(".ts", ".mts", ".m2ts", ".wmv", ".flv", ".ogv", ".3gp"),
    ]
)
AUDIO_SUFFIXES = frozenset([".mp3", ".m4a", ".aac", ".wav", ".flac", ".ogg", ".opus"])
MEDIA_SUFFIXES = IMAGE_SUFFIXES | VIDEO_SUFFIXES | AUDIO_SUFFIXES
ACTION_SUFFIXES = frozenset([".csv", ".parquet"])  # tracks that a record names as its ``actions``
CRAWL_FIELDS = ("crawl_url", "fetched_at", "robots_allowed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """What ``drop.toml`` states about every file of a drop; a record may narrow it per file.

    Dates are ISO days. `generator` names the model or renderer of synthetic material;
    `is_generated` tells model-generated video from rendered or simulated.
    """

    source_tier: str
    source: str
    license_id: str
    territory: str = "world"
    rights_from: str = ""
    rights_until: str = ""
    opt_out: bool = False
    pii_policy: str = "standard"
    generator: str = ""
    is_generated: bool = False
    format_version: int = FORMAT_VERSION


class Inspection(NamedTuple):
    """What was found in one drop: every fault, in words, and its media files, sorted."""

    faults: list[str]
    media: list[LandedFile]

    @property
    def size_bytes(self) -> int:
        """Bytes of all media files."""
        return sum(file.size_bytes for file in self.media)


def media_files(files: Iterable[LandedFile]) -> list[LandedFile]:
    """Those of a drop's files that are media, in their order."""
    return [file for file in files if _suffix(file.path) in MEDIA_SUFFIXES]


def other_files(folder: Path) -> list[str]:
    """Files of a plain folder that are no media, which a drop made of it leaves out; sorted."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path.relative_to(folder).as_posix()
        for path in found
        if path.suffix.lower() not in MEDIA_SUFFIXES
    )


def read_declaration(zone: LandingZone, drop: str) -> Declaration:
    """Read ``drop.toml``.

    Raises:
        DropRefused: With every fault of the declaration.
    """
    declaration, faults = _declaration(zone.read(drop, DECLARATION))
    if declaration is None or faults:
        raise DropRefused(drop, faults)
    return declaration


def read_records(zone: LandingZone, drop: str) -> dict[str, dict[str, Any]]:
    """Read the sidecar: path within the drop -> record. No sidecar gives none.

    Raises:
        DropRefused: With every fault of the sidecar.
    """
    records, faults = _records(zone.read(drop, RECORDS))
    if faults:
        raise DropRefused(drop, faults)
    return records


def check_drop(zone: LandingZone, drop: str) -> list[str]:
    """Check a drop against the contract; see `inspect_drop`."""
    return inspect_drop(zone, drop).faults


def inspect_drop(zone: LandingZone, drop: str, *, is_marked: bool = True) -> Inspection:
    """Check a drop against the contract, without reading its media; its files are listed once.

    Args:
        zone: The landing zone.
        drop: Name of the folder.
        is_marked: Whether its marker must be there.

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
    declaration, declared_faults = _declaration(
        zone.read(drop, DECLARATION) if DECLARATION in present else None
    )
    records, record_faults = _records(zone.read(drop, RECORDS) if RECORDS in present else None)
    faults += declared_faults + record_faults
    if declaration is not None and key is not None:
        for name in ("source_tier", "source"):
            if getattr(declaration, name) != getattr(key, name):
                faults.append(
                    f"{DECLARATION}: {name} {getattr(declaration, name)!r} is not the "
                    f"{getattr(key, name)!r} of the folder's name"
                )
    faults += _payload_faults(files, records) + _action_faults(present, records)
    media = media_files(files)
    if declaration is not None and declaration.source_tier == "crawl":
        faults += _crawl_faults(media, records)
    return Inspection(faults, media)


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _declaration(text: bytes | None) -> tuple[Declaration | None, list[str]]:
    if text is None:
        return None, [f"no {DECLARATION}: source_tier, source and license_id must be stated"]
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return None, [f"{DECLARATION} is not TOML: {error}"]
    kinds = {field.name: field.type for field in fields(Declaration)}
    faults = [f"{DECLARATION}: unknown key {key!r}" for key in sorted(set(data) - set(kinds))]
    faults += [
        f"{DECLARATION}: no {key}"
        for key in ("source_tier", "source", "license_id")
        if not data.get(key)
    ]
    for key, value in data.items():
        wanted = kinds.get(key)
        if wanted is not None and type(value) is not wanted:
            faults.append(f"{DECLARATION}: {key} is {value!r}, expected {wanted.__name__}")  # pyright: ignore[reportAttributeAccessIssue]
    if faults:
        return None, faults
    declaration = Declaration(**data)
    return declaration, _value_faults(declaration)


def _value_faults(declaration: Declaration) -> list[str]:
    faults: list[str] = []
    if declaration.format_version != FORMAT_VERSION:
        faults.append(f"{DECLARATION}: format_version {declaration.format_version}, expected 1")
    if declaration.source_tier not in SOURCE_TIERS:
        faults.append(
            f"{DECLARATION}: source_tier {declaration.source_tier!r}, expected one of "
            f"{', '.join(SOURCE_TIERS)}"
        )
    if declaration.is_generated and not declaration.generator:
        faults.append(f"{DECLARATION}: generated material must name its generator")
    faults += [
        f"{DECLARATION}: {name} {fault}"
        for name in ("rights_from", "rights_until")
        if (fault := _date_fault(getattr(declaration, name)))
    ]
    if (
        declaration.rights_from
        and declaration.rights_until
        and declaration.rights_until <= declaration.rights_from
    ):
        faults.append(f"{DECLARATION}: rights_until is not after rights_from")
    return faults


def _date_fault(text: str) -> str | None:
    if not text:
        return None
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return f"{text!r} is not an ISO day such as 2026-11-01"
    return None


def _records(text: bytes | None) -> tuple[dict[str, dict[str, Any]], list[str]]:
    records: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    for number, line in enumerate((text or b"").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            faults.append(f"{RECORDS} line {number} is not JSON: {error}")
            continue
        named = record.get("path") if isinstance(record, dict) else None
        if not isinstance(named, str):
            faults.append(f"{RECORDS} line {number}: no path")
        elif named in records:
            faults.append(f"{RECORDS} line {number}: a second record of {named!r}")
        else:
            records[named] = record
            faults += [
                f"{RECORDS} line {number}: {name} {fault}"
                for name in ("rights_from", "rights_until")
                if (fault := _date_fault(str(record.get(name) or "")))
            ]
    return records, faults


def _payload_faults(files: list[LandedFile], records: dict[str, dict[str, Any]]) -> list[str]:
    faults: list[str] = []
    known = {DECLARATION, RECORDS, MARKER}
    present: set[str] = set()
    tracks = set(_tracks(records))
    for file in files:
        name, suffix = file.path, PurePosixPath(file.path).suffix
        if file.is_link:
            faults.append(f"{name} is a link: deliver the file itself")
            continue
        present.add(name)
        if set(name.split("/")) & {"", ".", ".."}:  # a bucket takes such keys, a disk cannot
            faults.append(f"{name!r} has an empty or relative part: deliver it under a plain path")
        elif name not in known | tracks and suffix.lower() not in MEDIA_SUFFIXES:
            faults.append(f"{name}: {suffix or 'no suffix'} is not a media file we take")
    # A record of a vault member goes with its file when that is sealed, so both are absent.
    faults += [f"{RECORDS}: {name!r} is not in the drop" for name in sorted(set(records) - present)]
    return faults


def _tracks(records: dict[str, dict[str, Any]]) -> list[str]:
    """Paths of the tracks of actions that records name."""
    named = (record.get("actions") for record in records.values())
    return [path for path in named if isinstance(path, str) and _suffix(path) in ACTION_SUFFIXES]


def _action_faults(present: set[str], records: dict[str, dict[str, Any]]) -> list[str]:
    faults: list[str] = []
    owners: dict[str, str] = {}
    for path, record in sorted(records.items()):
        track = record.get("actions")
        if track is None:
            continue
        if not isinstance(track, str) or _suffix(track) not in ACTION_SUFFIXES:
            faults.append(
                f"{RECORDS}: actions of {path!r} is {track!r}, expected the path within the drop "
                f"of a file ending in {' or '.join(sorted(ACTION_SUFFIXES))}"
            )
        elif track not in present:
            faults.append(f"{RECORDS}: actions of {path!r}: {track!r} is not in the drop")
        elif (other := owners.setdefault(track, path)) != path:
            faults.append(
                f"{RECORDS}: {track!r} is named as actions of {other!r} and of {path!r}: deliver "
                "each file's own track, since a sealed file's track is sealed with it"
            )
    return faults


def _crawl_faults(media: list[LandedFile], records: dict[str, dict[str, Any]]) -> list[str]:
    faults: list[str] = []
    for path in (file.path for file in media):
        record = records.get(path)
        if record is None:
            faults.append(f"{path}: crawled, but {RECORDS} says nothing of it")
            continue
        if missing := [name for name in CRAWL_FIELDS if record.get(name) is None]:
            faults.append(f"{path}: crawl record lacks {', '.join(missing)}")
    return faults


def make_drop(
    files: Path | Iterable[Path],
    zone: LandingZone,
    declaration: Declaration,
    *,
    records: Iterable[dict[str, Any]] = (),
    date: str | None = None,
) -> DropKey:
    """Build a drop from media files, and put it into the landing zone, marker last.

    The same files declared alike give the drop that is already there.

    Args:
        files: A folder whose media files are taken with their paths, or single files.
        zone: The landing zone.
        declaration: What is stated about them.
        records: Sidecar records, each with the ``path`` of a file within the drop.
        date: Day of delivery, YYYYMMDD; today without it.

    Raises:
        WsdataError: The folder does not exist, or holds no media.
        DropRefused: What was made would break the contract.
    """
    chosen = _chosen_files(files)
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
    content[DECLARATION] = _toml(declaration).encode()
    if records:
        lines = (json.dumps(record, ensure_ascii=False, sort_keys=True) for record in records)
        content[RECORDS] = ("\n".join(lines) + "\n").encode()
    key = zone.claim(stem, content)
    if faults := inspect_drop(zone, key, is_marked=False).faults:
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
            if path.is_file() and path.suffix.lower() in MEDIA_SUFFIXES
        ]
        if not chosen:
            raise WsdataError(
                f"{files} holds no media: expected files ending in "
                f"{' '.join(sorted(VIDEO_SUFFIXES | IMAGE_SUFFIXES))}"
            )
        return chosen
    return sorted((path.name, path) for path in files)


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


def _toml(declaration: Declaration) -> str:
    # JSON's strings, numbers and booleans are TOML's too.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in asdict(declaration).items())


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def source_name(folder: Path) -> str:
    """A source name made of a folder's own name."""
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.absolute().name.lower()).strip("-_")
    return name[:40] or f"folder-{os.getpid()}"
