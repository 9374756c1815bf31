"""What can be found out about a plain folder of media before a drop is made of it.

Everything that is not stated is inferred where there is one answer, and else takes the safe one;
each such choice is told. The drop itself is made by `delivery`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from wsdata.errors import WsdataError
from wsdata.ingest.declaration import DECLARATION, Declaration, parse_declaration
from wsdata.ingest.delivery import source_name
from wsdata.ingest.payload_members import Findings, taken_record
from wsdata.ingest.payloads import is_payload, parquet_records
from wsdata.ingest.sidecars import (
    ACTION_SUFFIXES,
    CRAWL_FIELDS,
    RECORDS,
    RECORDS_PARQUET,
    Record,
    Records,
    parse_object,
    parse_records,
)
from wsdata.media.suffixes import MEDIA_SUFFIXES

UNKNOWN_LICENSE = "unknown"
TEXT_SIDECARS = (".json", ".info.json", ".txt", ".caption")
MAX_TEXT_BYTES = 16 << 20
_LICENSE_FILES = re.compile(r"(licen[cs]e|copying|attribution|rights)(\.(txt|md))?", re.IGNORECASE)
_SPDX = re.compile(r"SPDX-License-Identifier:\s*([A-Za-z0-9.+-]+)")
_LICENSES = {  # how a licence's own text calls it -> its SPDX id
    r"CC0 1\.0 Universal": "CC0-1.0",
    r"Attribution 4\.0 International": "CC-BY-4.0",
    r"Attribution-ShareAlike 4\.0 International": "CC-BY-SA-4.0",
    r"Attribution-NonCommercial 4\.0 International": "CC-BY-NC-4.0",
    r"Attribution-NoDerivatives 4\.0 International": "CC-BY-ND-4.0",
    r"Attribution-NonCommercial-ShareAlike 4\.0 International": "CC-BY-NC-SA-4.0",
    r"Attribution-NonCommercial-NoDerivatives 4\.0 International": "CC-BY-NC-ND-4.0",
    r"Attribution 3\.0 Unported": "CC-BY-3.0",
    r"Attribution-ShareAlike 3\.0 Unported": "CC-BY-SA-3.0",
    r"MIT License": "MIT",
}
_LICENSE_NAMES = {re.compile(rf"(?<![-\w]){text}"): name for text, name in _LICENSES.items()}


@dataclass(kw_only=True, slots=True)
class Plan:
    """What a drop of a folder would state.

    Attributes:
        declaration: Of all its files.
        records: Of single files.
        tracks: Tracks of actions, which belong to the drop though they are no media.
        assumed: What was not stated, and what was taken for it, in words.
        left_out: Files that the drop leaves out, sorted.
    """

    declaration: Declaration
    records: list[Record] = field(default_factory=list[Record])
    tracks: list[str] = field(default_factory=list[str])
    assumed: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])


def plan_drop(
    folder: Path, stated: Mapping[str, Any], *, records: Path | None, minimum_level: str
) -> Plan:
    """Find out what a drop of a folder would state.

    Args:
        folder: A folder of media, with sidecars beside them or without.
        stated: Fields of `Declaration` that are known; those that are None are not.
        records: A sidecar elsewhere, JSON lines or Parquet, in place of the folder's own.
        minimum_level: The sandbox level that the deployment demands, for Parquet.

    Raises:
        WsdataError: The folder does not exist, or a sidecar in it cannot be read: a right that is
            stated must not be lost.
    """
    if not folder.is_dir():
        raise WsdataError(f"{folder} is not a folder: name one that holds media files")
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    media = [name for name in files if PurePosixPath(name).suffix.lower() in MEDIA_SUFFIXES]
    found = _folder_records(folder, files, records, minimum_level)
    assumed: list[str] = []
    used: set[str] = set()
    if not found:
        found, used = _beside(folder, files, media)
        if used:
            assumed.append(f"{len(used)} sidecars beside the media tell of {len(found)} files")
    declaration = _declaration(folder, stated, list(found.values()), media, assumed)
    tracks = sorted({r["actions"] for r in found.values() if isinstance(r.get("actions"), str)})
    own = {*media, *used, *tracks, DECLARATION, RECORDS, RECORDS_PARQUET}
    left_out = [name for name in files if name not in own and not is_payload(name)]
    return Plan(
        declaration=declaration,
        records=[{**record, "path": path} for path, record in sorted(found.items())],
        tracks=tracks,
        assumed=assumed,
        left_out=left_out,
    )


def _folder_records(
    folder: Path, files: list[str], records: Path | None, minimum_level: str
) -> Records:
    """Records of a sidecar that the contract knows; none where there is none."""
    inside = [folder / name for name in (RECORDS, RECORDS_PARQUET) if name in files]
    if records is None and len(inside) > 1:
        raise WsdataError(f"{folder} has both {RECORDS} and {RECORDS_PARQUET}: leave one of them")
    path = records or (inside[0] if inside else None)
    if path is None:
        return {}
    if path.suffix.lower() == ".parquet":
        found, faults = parquet_records(path, minimum_level=minimum_level)
    else:
        try:
            found, faults = parse_records(path.read_bytes(), path.name)
        except OSError as error:
            raise WsdataError(f"{path} cannot be read: {error}") from error
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise WsdataError(f"{path}: expected one JSON record a line, or Parquet:\n{listed}")
    return found


def _beside(folder: Path, files: list[str], media: list[str]) -> tuple[Records, set[str]]:
    """Records made of the files beside each media file that have its name."""
    present = set(files)
    bases: dict[str, int] = {}
    for name in media:
        base = name.rsplit(".", 1)[0]
        bases[base] = bases.get(base, 0) + 1
    found: Records = {}
    used: set[str] = set()
    for name in media:
        base = name.rsplit(".", 1)[0]
        said: Record = {}
        texts = [n for root in (name, base) for s in TEXT_SIDECARS if (n := root + s) in present]
        for text in texts:
            said = {**_said(folder / text), **said}
        findings = Findings()
        record = taken_record(name, said, findings) if said else {}
        if findings.faults:
            raise WsdataError(f"{folder}: {findings.faults[0]}: repair the sidecar")
        tracks = [base + s for s in ACTION_SUFFIXES if base + s in present]
        if len(tracks) == 1 and bases[base] == 1:
            record["actions"] = tracks[0]
        if record:
            found[name] = record
            used |= set(texts)
    return found, used


def _said(path: Path) -> Record:
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise WsdataError(f"{path}: over {MAX_TEXT_BYTES >> 20} MiB for a sidecar of one file")
    data = path.read_bytes()
    if path.suffix.lower() == ".json":
        record, fault = parse_object(data)
        if record is None:
            raise WsdataError(f"{path} {fault}: repair it, or move it away")
        return record
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise WsdataError(f"{path} is not UTF-8 text: {error}") from error
    return {"caption" if path.suffix.lower() == ".caption" else "text": text} if text else {}


def _declaration(
    folder: Path,
    stated: Mapping[str, Any],
    records: list[Record],
    media: list[str],
    assumed: list[str],
) -> Declaration:
    known = {**_declared(folder), **{k: v for k, v in stated.items() if v is not None}}
    if "source" not in known:
        known["source"] = source_name(folder)
        assumed.append(f"source {known['source']!r}, from the folder's name")
    if "license_id" not in known:
        known["license_id"], why = _license(folder)
        assumed.append(f"license {known['license_id']!r}, {why}")
    if "source_tier" not in known:
        known["source_tier"], why = _tier(known, records, media)
        assumed.append(f"tier {known['source_tier']!r}, {why}")
    declaration = Declaration(**known)
    assumed += [
        f"{name} {getattr(declaration, name)!r}, the default"
        for name in ("territory", "pii_policy", "opt_out")
        if name not in known
    ]
    return declaration


def _declared(folder: Path) -> dict[str, Any]:
    """What a ``drop.toml`` of the folder itself states."""
    path = folder / DECLARATION
    if not path.is_file():
        return {}
    import tomllib

    text = path.read_bytes()
    declaration, faults = parse_declaration(text)
    if declaration is None or faults:
        raise WsdataError(f"{path}:\n" + "\n".join(f"  - {fault}" for fault in faults))
    return tomllib.loads(text.decode("utf-8"))


def _license(folder: Path) -> tuple[str, str]:
    """The one licence that the folder's licence files name, and where it was found."""
    names = sorted(p.name for p in folder.iterdir() if _LICENSE_FILES.fullmatch(p.name))
    found: dict[str, str] = {}
    for name in names:
        if not (folder / name).is_file() or (folder / name).stat().st_size > MAX_TEXT_BYTES:
            continue
        text = (folder / name).read_text(encoding="utf-8", errors="replace")
        for identifier in _SPDX.findall(text):
            found.setdefault(identifier, name)
        for pattern, identifier in _LICENSE_NAMES.items():
            if pattern.search(text):
                found.setdefault(identifier, name)
    if len(found) == 1:
        ((identifier, name),) = found.items()
        return identifier, f"from {name}"
    if found:
        return UNKNOWN_LICENSE, f"since {' and '.join(sorted(found))} are named: state --license"
    where = f"nothing that is known in {', '.join(names)}" if names else "no licence file"
    return UNKNOWN_LICENSE, f"{where}: state --license, for recipes may refuse what is unknown"


def _tier(known: Mapping[str, Any], records: list[Record], media: list[str]) -> tuple[str, str]:
    if known.get("generator") or known.get("is_generated"):
        return "synthetic", "since a generator is named"
    crawled = [r for r in records if all(r.get(name) is not None for name in CRAWL_FIELDS)]
    if media and len(crawled) == len(media):
        return "crawl", "since each file has the evidence of its crawl"
    return "licensed", "the default"
