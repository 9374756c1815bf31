"""Landing: a drop's files become raw assets in the store, or members of the vault.

Each file is streamed once: hashed while it is copied, then the carve decides, then it is put.
Nothing of a file is looked at but its bytes' digest. Probing belongs to `fingerprint`.
"""

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from wsdata import tables
from wsdata.deployment import Deployment
from wsdata.errors import DropRefused, ObjectMissing
from wsdata.ids import raw_key
from wsdata.ingest.carve import carve_reason
from wsdata.ingest.delivery import (
    RECORDS,
    Declaration,
    inspect_drop,
    read_declaration,
    read_records,
)
from wsdata.ingest.landing import FolderLanding, LandingZone, open_landing
from wsdata.ingest.provenance import provenance_row
from wsdata.orders import Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.store import FolderStore
from wsdata.vault import VaultWriter

FILES_AT_ONCE = 8  # where files or objects lie in a bucket


def _settings(deployment: Deployment, _recipe: Recipe) -> dict[str, Any]:
    return {
        "landing": deployment.landing,
        "vault": deployment.vault,
        "carve_salt": deployment.carve_salt,
        "carve_share": deployment.carve_share,
        "eval_list": deployment.read_eval_list(),
    }


STEP = Step(
    stage="ingest",
    name="land",
    function="wsdata.ingest.land:run",
    code_version="land-2",
    partition="drop",
    assets={"raw_assets": ("raw_assets", "provenance")},
    pool="cpu",
    settings_of=_settings,
    description="Hash each file of a drop, carve eval material into the vault, store the rest.",
)


def run(run: StepRun) -> StepResult:
    """Land one drop.

    Raises:
        DropRefused: It breaks the contract; nothing of it is landed.
        ObjectMissing: A raw object was lost, and no landing copy of it is kept.
    """
    zone, drop = open_landing(run.settings["landing"]), run.order.partition
    paths = run.unit("listing:" + drop, lambda: _listing(zone, drop), kind="listing")["paths"]
    land = _lander(run, zone, drop)
    landed: list[dict[str, Any]] = []

    def work(path: str) -> dict[str, Any]:
        return run.unit(
            f"{drop}/{path}",
            functools.partial(land, path),
            blobs=("key", "provenance.actions_key"),
            amounts=lambda landed: {"size_bytes": landed["size_bytes"]},
        )

    for path, one in zip(paths, _in_order(work, paths, _num_files_at_once(run, zone)), strict=True):
        landed.append(one)
        if one["in_vault"]:
            _purge(zone, drop, path, one["sealed_actions"])
        run.progress(len(landed), len(paths), path)
    rows = _asset_rows(landed)
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
        display={"raw_assets": {"files": {"type": "md", "raw_value": _file_table(landed)}}},
    )


def _num_files_at_once(run: StepRun, zone: LandingZone) -> int:
    """Buckets answer late and many at once; a disk gains nothing by it."""
    is_on_disk = isinstance(zone, FolderLanding) and isinstance(run.store, FolderStore)
    return 1 if is_on_disk else FILES_AT_ONCE


def _in_order(
    work: Callable[[str], dict[str, Any]], paths: Sequence[str], num_at_once: int
) -> Iterator[dict[str, Any]]:
    """Yield the results of all paths in their order; the first failure begins no other."""
    if num_at_once == 1:
        yield from map(work, paths)
        return
    with ThreadPoolExecutor(num_at_once) as executor:
        waiting = [executor.submit(work, path) for path in paths]
        try:
            for each in waiting:
                yield each.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _listing(zone: LandingZone, drop: str) -> dict[str, Any]:
    found = inspect_drop(zone, drop)
    if found.faults:
        if not zone.files(drop):
            raise DropRefused(drop, [f"no folder {drop} in the landing zone {zone.address}"])
        raise DropRefused(drop, found.faults)
    return {"paths": [file.path for file in found.media]}


def _lander(run: StepRun, zone: LandingZone, drop: str) -> Callable[[str], dict[str, Any]]:
    vault = VaultWriter(run.settings["vault"])
    eval_list = frozenset(run.settings["eval_list"])
    # Read once, and only if some file is landed now: a purge shortens the sidecar meanwhile.
    stated = functools.cache(lambda: (read_declaration(zone, drop), read_records(zone, drop)))

    def land(path: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=_scratch(run)) as scratch:
            copy = Path(scratch) / "copy"
            try:
                asset_id, size_bytes = zone.fetch(drop, path, copy)
            except ObjectMissing as error:
                raise ObjectMissing(
                    f"{path} of {drop}: its raw object is not in the store and no landing copy "
                    "is kept: deliver the same bytes again in a new drop"
                ) from error
            declaration, records = stated()
            record = records.get(path, {})
            reason = carve_reason(
                asset_id,
                salt=run.settings["carve_salt"],
                share=run.settings["carve_share"],
                eval_list=eval_list,
            )
            track = _fetch_actions(zone, drop, record, Path(scratch))
            if reason is None:
                run.store.put_file(raw_key(asset_id), copy)
                if track:
                    run.store.put_file(raw_key(track.sha256), track.copy)
            else:
                vault.seal(asset_id, copy, record)
                if track:
                    vault.seal_actions(asset_id, track.copy, track.sha256, track.suffix)
        return _landed(asset_id, size_bytes, reason, path, drop, declaration, record, track)

    return land


class _Track(NamedTuple):
    """A track of actions that came with a file, fetched."""

    path: str
    copy: Path
    sha256: str
    suffix: str


def _fetch_actions(
    zone: LandingZone, drop: str, record: dict[str, Any], scratch: Path
) -> _Track | None:
    if (path := record.get("actions")) is None:
        return None
    copy = scratch / "actions"
    sha256, _ = zone.fetch(drop, path, copy)
    return _Track(path, copy, sha256, Path(path).suffix.lower())


def _landed(
    asset_id: str,
    size_bytes: int,
    reason: str | None,
    path: str,
    drop: str,
    declaration: Declaration,
    record: dict[str, Any],
    track: _Track | None,
) -> dict[str, Any]:
    in_vault = reason is not None
    return {
        "asset_id": asset_id,
        "key": None if in_vault else raw_key(asset_id),
        "size_bytes": size_bytes,
        "suffix": Path(path).suffix.lower(),
        "in_vault": in_vault,
        "carve_reason": reason,
        "sealed_actions": track.path if track and in_vault else None,
        "provenance": provenance_row(
            asset_id=asset_id,
            drop=drop,
            path=path,
            declaration=declaration,
            record=record,
            in_vault=in_vault,
            actions={"key": raw_key(track.sha256), "suffix": track.suffix} if track else None,
        ),
    }


def _scratch(run: StepRun) -> str | None:
    root = getattr(run.store, "root", None)
    if root is None:
        return None
    # Beside the store, so that a copy does not cross file systems.
    scratch = Path(root) / ".scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    return str(scratch)


def _purge(zone: LandingZone, drop: str, path: str, actions: str | None) -> None:
    """Remove the landing copies of a vault member and of its actions, and its sidecar's line."""
    zone.purge(drop, path)
    if actions:
        zone.purge(drop, actions)
    if (sidecar := zone.read(drop, RECORDS)) is None:
        return
    lines = sidecar.decode("utf-8").splitlines()
    kept = [line for line in lines if line.strip() and json.loads(line).get("path") != path]
    if len(kept) != len(lines):
        zone.rewrite(drop, RECORDS, "".join(f"{line}\n" for line in kept).encode())


def _asset_rows(landed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for each in landed:
        row = rows.setdefault(
            each["asset_id"],
            {name: each[name] for name in tables.TABLES["raw_assets"].columns if name in each}
            | {"num_files": 0},
        )
        row["num_files"] += 1
    return [rows[asset_id] for asset_id in sorted(rows)]


def _file_table(landed: list[dict[str, Any]]) -> str:
    lines = ["| file | raw asset | bytes | goes to |", "|---|---|---:|---|"]
    for each in landed[:200]:
        where = f"vault ({each['carve_reason']})" if each["in_vault"] else "store"
        lines.append(
            f"| {each['provenance']['path']} | `{each['asset_id'][:12]}` | {each['size_bytes']:,} "
            f"| {where} |"
        )
    return "\n".join(lines)
