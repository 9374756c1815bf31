"""What landing tells of files: rows of ``raw_assets`` and ``provenance``, and a table to look at.

Also rows of an earlier landing of the same drop, for what has left the landing zone since.
"""

from pathlib import Path
from typing import Any

from wsdata import tables
from wsdata.errors import ObjectMissing
from wsdata.ids import raw_key
from wsdata.ingest.declaration import Declaration
from wsdata.ingest.provenance import provenance_row
from wsdata.ingest.sidecars import MEMBER
from wsdata.orders import StepRun
from wsdata.vault import VaultWriter

_NUM_SHOWN = 200


def landed_row(
    *,
    asset_id: str,
    size_bytes: int,
    reason: str | None,
    drop: str,
    path: str,
    declaration: Declaration,
    record: dict[str, Any],
    actions: dict[str, Any] | None,
) -> dict[str, Any]:
    """What is known of one landed file: the columns of its raw asset, and its provenance."""
    in_vault = reason is not None
    return {
        "asset_id": asset_id,
        "key": None if in_vault else raw_key(asset_id),
        "size_bytes": size_bytes,
        "suffix": Path(path).suffix.lower(),
        "in_vault": in_vault,
        "carve_reason": reason,
        "provenance": provenance_row(
            asset_id=asset_id,
            drop=drop,
            path=path,
            declaration=declaration,
            record=record,
            in_vault=in_vault,
            actions=actions,
        ),
    }


def carried(run: StepRun, listing: dict[str, Any], landed: set[str]) -> list[dict[str, Any]]:
    """Files of an earlier landing whose landing copies are gone, as `landed_row` has them.

    Args:
        run: The run, with the earlier rows as its context.
        listing: ``paths`` and ``payloads`` that lie in the landing zone now.
        landed: Paths that have been landed now.

    Raises:
        ObjectMissing: The bytes of one are neither in the store nor in the vault.
    """
    there = {*listing["paths"], *listing["payloads"]}
    assets = {row["asset_id"]: row for row in run.read_context("raw_assets").to_dicts()}
    found: list[dict[str, Any]] = []
    for provenance in run.read_context("provenance").to_dicts():
        path, asset_id = provenance["path"], provenance["asset_id"]
        if path in landed or path.split(MEMBER)[0] in there or asset_id not in assets:
            continue
        row = assets[asset_id]
        if not _is_kept(run, asset_id, in_vault=row["in_vault"]):
            raise ObjectMissing(
                f"{path} of {run.order.partition} (asset {asset_id}): it was landed, and is in "
                "neither landing zone, store nor vault: deliver the same bytes again in a new drop"
            )
        found.append({**row, "provenance": provenance})
    return found


def _is_kept(run: StepRun, asset_id: str, *, in_vault: bool) -> bool:
    if in_vault:
        return VaultWriter(run.settings["vault"]).holds(asset_id)
    return run.store.size(raw_key(asset_id)) is not None


def asset_rows(landed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of ``raw_assets``: one per asset, with how many files had its bytes."""
    rows: dict[str, dict[str, Any]] = {}
    for each in landed:
        row = rows.setdefault(
            each["asset_id"],
            {name: each[name] for name in tables.TABLES["raw_assets"].columns if name in each}
            | {"num_files": 0},
        )
        row["num_files"] += 1
    return [rows[asset_id] for asset_id in sorted(rows)]


def file_table(landed: list[dict[str, Any]]) -> str:
    """The first files as a Markdown table, for people."""
    lines = ["| file | raw asset | bytes | goes to |", "|---|---|---:|---|"]
    for each in landed[:_NUM_SHOWN]:
        where = f"vault ({each['carve_reason']})" if each["in_vault"] else "store"
        lines.append(
            f"| {each['provenance']['path']} | `{each['asset_id'][:12]}` | {each['size_bytes']:,} "
            f"| {where} |"
        )
    if len(landed) > _NUM_SHOWN:
        lines.append(f"| and {len(landed) - _NUM_SHOWN:,} more | | | |")
    return "\n".join(lines)
