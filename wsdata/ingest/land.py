"""Landing: a drop's files become raw assets in the store, or members of the vault.

Each file, and each member of a payload, is streamed once: hashed while it is copied, then the
carve decides, then it is put. Nothing of it is looked at but its bytes' digest: probing belongs
to `fingerprint`, unpacking to `payloads`.

What is sealed leaves the landing zone: a file, its track of actions and its line of the sidecar
one by one, a payload as a whole once all its members are landed. To cut one member out would
mean to parse a table or a tar here, and to upload all the rest again; at a share of one in a
thousand nearly every payload holds a member. A later landing of the same drop takes what is gone
from there from the rows of the earlier one.
"""

import functools
import hashlib
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from wsdata import tables
from wsdata.deployment import Deployment
from wsdata.errors import DropRefused, ObjectMissing
from wsdata.ids import raw_key
from wsdata.ingest.carve import carve_reason
from wsdata.ingest.declaration import Declaration
from wsdata.ingest.delivery import inspect_drop, read_declaration, read_records
from wsdata.ingest.landed import asset_rows, carried, file_table, landed_row
from wsdata.ingest.landing import FolderLanding, LandingZone, open_landing
from wsdata.ingest.payloads import Member, Payload, parquet_without
from wsdata.ingest.sidecars import RECORDS, RECORDS_PARQUET, Record, Records, without_records
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.store import FolderStore
from wsdata.units import in_order
from wsdata.vault import VaultWriter

FILES_AT_ONCE = 8  # where files or objects lie in a bucket
_BLOCK_BYTES = 1 << 20


def _settings(deployment: Deployment, _recipe: Recipe) -> dict[str, Any]:
    return {
        "landing": deployment.landing,
        "vault": deployment.vault,
        "carve_salt": deployment.carve_salt,
        "carve_share": deployment.carve_share,
        "eval_list": deployment.read_eval_list(),
        "sandbox_minimum": deployment.sandbox_minimum,
    }


STEP = Step(
    stage="ingest",
    name="land",
    function="wsdata.ingest.land:run",
    code_version="land-2",
    partition="drop",
    assets={"raw_assets": ("raw_assets", "provenance")},
    # What an earlier landing of the drop made: what it sealed has left the landing zone.
    inputs=(
        Input(table="raw_assets", is_context=True),
        Input(table="provenance", is_context=True),
    ),
    pool="cpu",
    settings_of=_settings,
    description="Hash each file of a drop, carve eval material into the vault, store the rest.",
)


class _Part(NamedTuple):
    """What is landed by itself: a file, or a slice of a payload's members."""

    path: str
    members: dict[str, int] | None = None
    is_last: bool = True  # of its payload


def run(run: StepRun) -> StepResult:
    """Land one drop.

    Raises:
        DropRefused: It breaks the contract; nothing of it is landed.
        ObjectMissing: A raw object was lost, and no landing copy of it is kept.
    """
    zone, drop = open_landing(run.settings["landing"]), run.order.partition
    listing = run.unit("listing:" + drop, lambda: _listing(run, zone, drop), kind="listing")
    lander = _Lander(run, zone)
    parts = _parts(listing)
    landed: list[dict[str, Any]] = []
    sealed: list[str] = []
    try:
        at_once = _num_files_at_once(run, zone)
        for done, (part, found) in enumerate(
            zip(parts, in_order(lander.land, parts, at_once), strict=True), 1
        ):
            landed += found
            hidden = [each["provenance"]["path"] for each in found if each["in_vault"]]
            sealed += hidden
            lander.after(part, found, is_sealed=bool(hidden))
            run.progress(done, len(parts), part.path)
    finally:
        lander.close()
    _forget(run, zone, drop, sealed)
    landed += carried(run, listing, {each["provenance"]["path"] for each in landed})
    rows = asset_rows(landed)
    left_out = "\n".join(f"- {note}" for note in listing["notes"]) or "nothing"
    return StepResult(
        tables={
            "raw_assets": tables.rows_of("raw_assets", rows),
            "provenance": tables.rows_of("provenance", [each["provenance"] for each in landed]),
        },
        metrics={
            "files": len(landed),
            "raw_assets": len(rows),
            "vault": sum(row["in_vault"] for row in rows),
            "bytes": sum(row["size_bytes"] for row in rows),
        },
        display={
            "raw_assets": {
                "files": {"type": "md", "raw_value": file_table(landed)},
                "left out of payloads": {"type": "md", "raw_value": left_out},
            }
        },
    )


def _parts(listing: dict[str, Any]) -> list[_Part]:
    parts = [_Part(path) for path in listing["paths"]]
    for path, slices in listing["payloads"].items():
        parts += [_Part(path, each, is_last=each is slices[-1]) for each in slices]
    return parts


def _num_files_at_once(run: StepRun, zone: LandingZone) -> int:
    """Buckets answer late and many at once; a disk gains nothing by it."""
    is_on_disk = isinstance(zone, FolderLanding) and isinstance(run.store, FolderStore)
    return 1 if is_on_disk else FILES_AT_ONCE


def _listing(run: StepRun, zone: LandingZone, drop: str) -> dict[str, Any]:
    """Check the whole drop, payloads read to their ends, before anything is put anywhere."""
    level = run.settings["sandbox_minimum"]
    found = inspect_drop(zone, drop, minimum_level=level)
    if found.faults:
        if not zone.files(drop):
            raise DropRefused(drop, [f"no folder {drop} in the landing zone {zone.address}"])
        raise DropRefused(drop, found.faults)
    payloads: dict[str, Any] = {}
    faults: list[str] = []
    notes: list[str] = []
    if found.payloads:
        records = read_records(zone, drop, minimum_level=level)
        is_crawl = read_declaration(zone, drop).source_tier == "crawl"
        for file in found.payloads:
            payload = Payload(zone, drop, file.path, minimum_level=level, scratch=_scratch(run))
            try:
                scan = payload.scan(records, is_crawl=is_crawl)
            finally:
                payload.close()
            payloads[file.path] = scan.slices
            faults, notes = faults + scan.faults, notes + scan.notes
    if faults:
        raise DropRefused(drop, faults)
    return {"paths": [file.path for file in found.media], "payloads": payloads, "notes": notes}


class _Lander:
    """Lands the parts of one drop, from several threads at once."""

    def __init__(self, run: StepRun, zone: LandingZone) -> None:
        self._run, self._zone, self._drop = run, zone, run.order.partition
        self._vault = VaultWriter(run.settings["vault"])
        self._eval_list = frozenset(run.settings["eval_list"])
        self._payloads: dict[str, Payload] = {}
        self._sealed_payloads: set[str] = set()
        self._known = {
            row["asset_id"]: row["carve_reason"]
            for row in run.read_context("raw_assets").iter_rows(named=True)
        }

    @functools.cached_property
    def _stated(self) -> tuple[Declaration, Records]:
        """Read once, and only if some file is landed now: a purge shortens the sidecar."""
        level = self._run.settings["sandbox_minimum"]
        records = read_records(self._zone, self._drop, minimum_level=level)
        return read_declaration(self._zone, self._drop), records

    def land(self, part: _Part) -> list[dict[str, Any]]:
        """Land one part, or remember how it was landed."""
        if part.members is None:
            return [
                self._run.unit(
                    f"{self._drop}/{part.path}",
                    lambda: self._land_file(part.path),
                    blobs=("key", "provenance.actions_key"),
                    amounts=lambda landed: {"size_bytes": landed["size_bytes"]},
                )
            ]
        members = part.members
        found = self._run.unit(
            f"{self._drop}/{part.path}!{members['first']}+{members['count']}",
            lambda: {"members": self._land_members(part.path, members)},
            blobs=("members.*.key", "members.*.provenance.actions_key"),
            amounts=lambda found: {"size_bytes": sum(m["size_bytes"] for m in found["members"])},
        )
        return found["members"]

    def after(self, part: _Part, found: list[dict[str, Any]], *, is_sealed: bool) -> None:
        """Purge what was sealed of a part, and close a payload after its last."""
        for track in filter(None, (each["sealed_actions"] for each in found)):
            self._zone.purge(self._drop, track)
        if is_sealed:
            self._sealed_payloads.add(part.path)
        if part.is_last:
            if payload := self._payloads.pop(part.path, None):
                payload.close()
            if part.path in self._sealed_payloads:
                self._zone.purge(self._drop, part.path)

    def close(self) -> None:
        """Remove what was copied of payloads."""
        for payload in self._payloads.values():
            payload.close()

    def _land_file(self, path: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=_scratch(self._run)) as scratch:
            copy = Path(scratch) / "copy"
            try:
                asset_id, size_bytes = self._zone.fetch(self._drop, path, copy)
            except ObjectMissing as error:
                raise self._gone(path) from error
            return self._put(asset_id, size_bytes, copy, path, self._stated[1].get(path, {}))

    def _land_members(self, path: str, part: dict[str, int]) -> list[dict[str, Any]]:
        payload = self._payloads.setdefault(
            path,
            Payload(
                self._zone,
                self._drop,
                path,
                minimum_level=self._run.settings["sandbox_minimum"],
                scratch=_scratch(self._run),
            ),
        )
        landed: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(dir=_scratch(self._run)) as scratch:
            copy = Path(scratch) / "copy"
            try:
                for member in payload.members(part, self._stated[1]):
                    asset_id = _copy_member(member, copy)
                    path_of_member = member.record["path"]
                    landed.append(
                        self._put(asset_id, member.size, copy, path_of_member, member.record)
                    )
            except ObjectMissing as error:
                raise self._gone(path) from error
        return landed

    def _gone(self, path: str) -> ObjectMissing:
        return ObjectMissing(
            f"{path} of {self._drop}: its raw object is not in the store and no landing copy "
            "is kept: deliver the same bytes again in a new drop"
        )

    def _put(
        self, asset_id: str, size_bytes: int, copy: Path, path: str, record: Record
    ) -> dict[str, Any]:
        """Put a file, hashed, and its track of actions, where the carve says."""
        reason = self._carve(asset_id)
        track = self._fetch_actions(record, copy.parent)
        if reason is None:
            self._run.store.put_file(raw_key(asset_id), copy)
            if track:
                self._run.store.put_file(raw_key(track.sha256), track.copy)
        else:
            self._vault.seal(asset_id, copy, record)
            if track:
                self._vault.seal_actions(asset_id, track.copy, track.sha256, track.suffix)
        actions = {"key": raw_key(track.sha256), "suffix": track.suffix} if track else None
        return landed_row(
            asset_id=asset_id,
            size_bytes=size_bytes,
            reason=reason,
            drop=self._drop,
            path=path,
            declaration=self._stated[0],
            record=record,
            actions=actions,
        ) | {"sealed_actions": track.path if track and reason else None}

    def _carve(self, asset_id: str) -> str | None:
        """Decide, once: an asset that this drop has landed before stays where it is.

        A listing that comes after that is told by `exposure`.
        """
        if asset_id in self._known:
            return self._known[asset_id]
        return carve_reason(
            asset_id,
            salt=self._run.settings["carve_salt"],
            share=self._run.settings["carve_share"],
            eval_list=self._eval_list,
        )

    def _fetch_actions(self, record: Record, scratch: Path) -> "_Track | None":
        if (path := record.get("actions")) is None:
            return None
        copy = scratch / "actions"
        sha256, _ = self._zone.fetch(self._drop, path, copy)
        return _Track(path, copy, sha256, Path(path).suffix.lower())


class _Track(NamedTuple):
    """A track of actions that came with a file, fetched."""

    path: str
    copy: Path
    sha256: str
    suffix: str


def _copy_member(member: Member, target: Path) -> str:
    """Copy a member's bytes to a file; return their sha256."""
    hasher, left = hashlib.sha256(), member.size
    with member.source.open("rb") as reader, target.open("wb") as writer:
        reader.seek(member.offset)
        while left and (block := reader.read(min(left, _BLOCK_BYTES))):
            hasher.update(block)
            writer.write(block)
            left -= len(block)
    if left:
        raise ObjectMissing(f"{member.record['path']}: {left} of {member.size} bytes are gone")
    return hasher.hexdigest()


def _scratch(run: StepRun) -> str | None:
    root = getattr(run.store, "root", None)
    if root is None:
        return None
    # Beside the store, so that a copy does not cross file systems.
    scratch = Path(root) / ".scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    return str(scratch)


def _forget(run: StepRun, zone: LandingZone, drop: str, paths: list[str]) -> None:
    """Take the records of vault members out of the sidecar."""
    if not paths:
        return
    if (lines := zone.read(drop, RECORDS)) is not None:
        if (kept := without_records(lines, paths)) is not None:
            zone.rewrite(drop, RECORDS, kept)
        return
    with tempfile.TemporaryDirectory(dir=_scratch(run)) as scratch:
        copy = Path(scratch) / RECORDS_PARQUET
        try:
            zone.fetch(drop, RECORDS_PARQUET, copy)
        except ObjectMissing:
            return
        level = run.settings["sandbox_minimum"]
        kept = parquet_without(copy, sorted(paths), minimum_level=level, scratch=scratch)
        zone.rewrite(drop, RECORDS_PARQUET, kept)
