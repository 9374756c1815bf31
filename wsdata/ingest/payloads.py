"""Payloads of a drop: web-dataset tars and image-text Parquet, unpacked member by member.

They are parsed in sandboxed children alone. This side gets a list of members, each with a record
and with the place of its bytes, and copies byte ranges; what is landed of them belongs to `land`.
The kind of a payload is told by its name and must be borne out by its content; the kind of a
member by its content alone, when it is probed.
"""

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from wsdata.errors import WsdataError
from wsdata.ingest.landing import FolderLanding, LandingZone
from wsdata.ingest.payload_members import MEMBERS, Findings
from wsdata.ingest.sidecars import (
    MEMBER,
    RECORDS,
    RECORDS_PARQUET,
    Record,
    Records,
    lacking,
    parse_records,
)
from wsdata.media.sandbox import JobReport, Limits, run_job

JOBS = {
    ".tar": "wsdata.ingest.payload_tar:tar_job",
    ".parquet": "wsdata.ingest.payload_parquet:parquet_job",
}
MEMBERS_PER_SLICE = 256
_LIMITS = Limits(file_bytes=16 << 30)
_MIN_WALL_S = 120.0
_WORST_BYTES_PER_S = 2_000_000


class Member(NamedTuple):
    """One member: its name within the payload, its record, and the place of its bytes."""

    name: str
    record: Record
    source: Path
    offset: int
    size: int


@dataclass(kw_only=True, slots=True)
class Scan:
    """What one payload holds.

    Attributes:
        faults: What is wrong with it.
        notes: What is left out of it, and why.
        slices: Parts that can be landed by themselves: ``first`` member, ``count``, and ``at``,
            where their lines begin in the list of members.
    """

    faults: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    slices: list[dict[str, int]] = field(default_factory=list[dict[str, int]])


def is_payload(path: str) -> bool:
    """Whether a file of a drop is to be unpacked, by its name."""
    return PurePosixPath(path).suffix.lower() in JOBS


class Payload:
    """One payload of a drop, fetched when it is first needed. Safe to use from several threads.

    Args:
        zone: The landing zone.
        drop: The drop.
        path: The payload's path within it.
        minimum_level: The sandbox level that the deployment demands.
        scratch: Where copies and lists may lie meanwhile; None for the system's folder.
        source: Where its bytes lie as a local file, if somebody knows.
    """

    def __init__(
        self,
        zone: LandingZone,
        drop: str,
        path: str,
        *,
        minimum_level: str,
        scratch: str | None = None,
        source: Path | None = None,
    ) -> None:
        self.path = path
        self._zone, self._drop = zone, drop
        self._minimum_level, self._scratch = minimum_level, scratch
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._source = source
        self._list: Path | None = None

    def scan(self, records: Records, *, is_crawl: bool) -> Scan:
        """Read the whole payload, copying nothing; see `Scan`.

        Args:
            records: The drop's sidecar: a record of the payload holds for all its members, one of
                ``payload!member`` for that one.
            is_crawl: Whether each member must carry the evidence of its crawl.
        """
        scan = Scan()
        with self._temporary() as folder:
            report = self._run({}, Path(folder))
            told = report.result or {"faults": [_told(report)], "notes": []}
            scan.faults, scan.notes = told["faults"], told["notes"]
            if not scan.faults:
                findings = Findings()
                bounds = told.get("slices")
                scan.slices = self._check_members(
                    Path(folder) / MEMBERS, bounds, records, findings, is_crawl=is_crawl
                )
                scan.faults = findings.to_json()["faults"]
        scan.faults = [f"{self.path}: {fault}" for fault in scan.faults]
        scan.notes = [f"{self.path}: {note}" for note in scan.notes]
        return scan

    def _check_members(
        self,
        members: Path,
        bounds: list[list[int]] | None,
        records: Records,
        findings: Findings,
        *,
        is_crawl: bool,
    ) -> list[dict[str, int]]:
        """Check members against the sidecar, and cut their list into slices."""
        prefix = f"{self.path}{MEMBER}"
        unmet = {path for path in records if path.startswith(prefix)}
        slices = [{"first": first, "count": count, "at": 0} for first, count in bounds or ()]
        with members.open("rb") as lines:
            at = 0
            for number, line in enumerate(lines):
                if bounds is None and number % MEMBERS_PER_SLICE == 0:
                    slices.append({"first": number, "count": 0, "at": at})
                at += len(line)
                if bounds is None:
                    slices[-1]["count"] += 1
                told = json.loads(line)
                path = prefix + told["name"]
                unmet.discard(path)
                if is_crawl and (missing := lacking(self.record_of(told, records))):
                    findings.fault(f"{told['name']}: crawl record lacks {', '.join(missing)}")
        for path in sorted(unmet):
            findings.fault(f"{RECORDS}: {path!r} is no member of it")
        return slices

    def record_of(self, told: dict[str, Any], records: Records) -> Record:
        """A member's record: what holds for the payload, what it brings, what is said of it."""
        path = f"{self.path}{MEMBER}{told['name']}"
        common = {k: v for k, v in records.get(self.path, {}).items() if k != "actions"}
        return {**common, **told["record"], **records.get(path, {}), "path": path}

    def members(self, part: dict[str, int], records: Records) -> Iterator[Member]:
        """Yield the members of a slice of `scan`.

        Raises:
            ObjectMissing: The payload is no longer in the landing zone.
            WsdataError: It is no longer what was scanned.
        """
        if PurePosixPath(self.path).suffix.lower() == ".tar":
            source, listed = self._listed()
            yield from self._read(source, listed, part, records)
            return
        with self._temporary() as folder:
            where = {"first": part["first"], "count": part["count"]}
            self._checked(self._run(where, Path(folder)))
            from wsdata.ingest.payload_parquet import IMAGES

            listed = Path(folder) / MEMBERS
            yield from self._read(Path(folder) / IMAGES, listed, {**part, "at": 0}, records)

    def _read(
        self, source: Path, listed: Path, part: dict[str, int], records: Records
    ) -> Iterator[Member]:
        size_bytes = source.stat().st_size
        with listed.open("rb") as lines:
            lines.seek(part["at"])
            for _ in range(part["count"]):
                if not (line := lines.readline()):
                    return  # rows without an image are no members
                told = json.loads(line)
                name, offset, size = told["name"], told["offset"], told["size"]
                if not 0 <= offset <= offset + size <= size_bytes:
                    raise WsdataError(f"{self.path} of {self._drop} changed while it was landed")
                yield Member(name, self.record_of(told, records), source, offset, size)

    def _listed(self) -> tuple[Path, Path]:
        """The tar and the list of its members, made once."""
        with self._lock:
            source = self._borrow()
            if self._list is None:
                folder = self._own_folder() / "list"
                folder.mkdir()
                self._checked(self._run_on(source, {}, folder))
                self._list = folder / MEMBERS
            return source, self._list

    def _checked(self, report: JobReport) -> None:
        faults = (report.result or {"faults": [_told(report)]})["faults"]
        if faults:
            raise WsdataError(
                f"{self.path} of {self._drop} was good when it was scanned, and is not now: "
                f"{faults[0]}. Deliver it again"
            )

    def _run(self, args: dict[str, Any], out_dir: Path) -> JobReport:
        with self._lock:
            source = self._borrow()
        return self._run_on(source, args, out_dir)

    def _run_on(self, source: Path, args: dict[str, Any], out_dir: Path) -> JobReport:
        return run_job(
            JOBS[PurePosixPath(self.path).suffix.lower()],
            args,
            source=source,
            out_dir=out_dir,
            wall_s=_MIN_WALL_S + source.stat().st_size / _WORST_BYTES_PER_S,
            limits=_LIMITS,
            minimum_level=self._minimum_level,
        )

    def _borrow(self) -> Path:
        """The payload as a local file: where it lies on a disk, else a copy."""
        if self._source is None:
            if isinstance(self._zone, FolderLanding):
                self._source = self._zone.root / self._drop / self.path
                if self._source.is_file():
                    return self._source
                self._source = None
            copy = self._own_folder() / "payload"
            self._zone.fetch(self._drop, self.path, copy)
            self._source = copy
        return self._source

    def _own_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="payload-", dir=self._scratch))
        return self._folder

    def _temporary(self) -> "tempfile.TemporaryDirectory[str]":
        return tempfile.TemporaryDirectory(prefix="members-", dir=self._scratch)

    def close(self) -> None:
        """Remove what was copied of it."""
        with self._lock:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = self._source = self._list = None


def _told(report: JobReport) -> str:
    return f"it could not be read ({report.status}): {report.detail}"


def parquet_records(
    data_path: Path, *, minimum_level: str, scratch: str | None = None
) -> tuple[Records, list[str]]:
    """Read ``records.parquet`` in the sandbox: path -> record, and every fault."""
    with tempfile.TemporaryDirectory(prefix="records-", dir=scratch) as folder:
        report = _records_run(data_path, {}, Path(folder), minimum_level)
        faults = (report.result or {"faults": [_told(report)]})["faults"]
        if faults:
            return {}, [f"{RECORDS_PARQUET}: {fault}" for fault in faults]
        return parse_records((Path(folder) / RECORDS).read_bytes(), RECORDS_PARQUET)


def parquet_without(
    data_path: Path, paths: list[str], *, minimum_level: str, scratch: str | None = None
) -> bytes:
    """``records.parquet`` without the rows of some paths.

    Raises:
        WsdataError: It cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="records-", dir=scratch) as folder:
        report = _records_run(data_path, {"without": paths}, Path(folder), minimum_level)
        if report.result is None:
            raise WsdataError(f"{RECORDS_PARQUET}: {_told(report)}")
        return (Path(folder) / RECORDS_PARQUET).read_bytes()


def _records_run(
    data_path: Path, args: dict[str, Any], out_dir: Path, minimum_level: str
) -> JobReport:
    return run_job(
        "wsdata.ingest.payload_parquet:records_job",
        args,
        source=data_path,
        out_dir=out_dir,
        wall_s=_MIN_WALL_S + data_path.stat().st_size / _WORST_BYTES_PER_S,
        limits=_LIMITS,
        minimum_level=minimum_level,
    )
