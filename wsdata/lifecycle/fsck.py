"""fsck: the ledger against the store, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wsdata import tables
from wsdata.catalog.objects import read_object
from wsdata.digest import sha256_bytes
from wsdata.errors import WsdataError
from wsdata.lifecycle.patch_mend import fault_of, how_to_mend, objects_of_patches
from wsdata.lifecycle.pins import pinned_keys
from wsdata.lifecycle.retention import verdicts
from wsdata.vault import VaultWriter

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.records import ObjectRef
    from wsdata.store import BlobStore


def check_store(
    ledger: Ledger, store: BlobStore, *, vault: str | None = None, is_deep: bool = False
) -> dict[str, Any]:
    """Compare what the ledger says is there with what is.

    Args:
        ledger: The ledger.
        store: The store.
        vault: The vault's address; its members are asked for, never read.
        is_deep: Also read every blob whose digest a row records.

    Returns:
        ``{"ok", "objects", "blobs", "missing": [...], "damaged": [...], "orphans": [...],
        "broken_commit": seq or None}``. Orphans are no fault: `wsdata gc` removes them. What a
        patch lacks, or holds damaged, says what is ``to_do``, with the samples to ``exclude``.
    """
    missing: list[dict[str, Any]] = []
    damaged: list[dict[str, Any]] = []
    blobs: set[str] = set()
    refs = ledger.all_objects()
    for ref in refs:
        where = f"{ref.table} of {ref.partition}"
        if store.size(ref.key) is None:
            missing.append({"key": ref.key, "named_by": where})
            continue
        try:
            rows = read_object(store, ref)
        except WsdataError as error:
            damaged.append({"key": ref.key, "named_by": where, "fault": str(error)})
            continue
        for key, sha256 in _named(ref, rows):
            if key in blobs:
                continue
            blobs.add(key)
            size = store.size(key)
            if size is None:
                missing.append({"key": key, "named_by": where})
            elif is_deep and sha256 and sha256_bytes(store.get(key)) != sha256:
                damaged.append(
                    {"key": key, "named_by": where, "fault": "other bytes than recorded"}
                )
        if vault is not None and ref.table == "raw_assets":
            missing += _missing_in_vault(vault, rows, where)
    of_patches = _faults_of_patches(ledger, store, is_deep=is_deep)
    blobs |= {each.key for each in objects_of_patches(ledger)}
    missing += [each for each in of_patches if "fault" not in each]
    damaged += [each for each in of_patches if "fault" in each]
    told = {each["key"] for each in missing}
    missing += [
        {"key": key, "named_by": why}
        for key, why in pinned_keys(ledger).items()
        if store.size(key) is None and key not in told
    ]
    orphans = [each.key for each in verdicts(ledger, store) if each.verdict == "collectable"]
    broken = ledger.verify_chain()
    return {
        "ok": not missing and not damaged and broken is None,
        "objects": len(refs),
        "blobs": len(blobs),
        "missing": missing,
        "damaged": damaged,
        "orphans": orphans,
        "broken_commit": broken,
    }


def _faults_of_patches(ledger: Ledger, store: BlobStore, *, is_deep: bool) -> list[dict[str, Any]]:
    """Pointers and plans of patches that are missing or, with their ``fault``, damaged."""
    found: list[dict[str, Any]] = []
    for each in objects_of_patches(ledger):
        entry: dict[str, Any] = {"key": each.key, "named_by": f"patch {each.patch}"}
        if store.size(each.key) is not None:
            fault = fault_of(store, each) if is_deep else None
            if fault is None:
                continue
            entry["fault"] = fault
        found.append(entry | how_to_mend(ledger, each.patch))
    return found


def _named(ref: ObjectRef, rows) -> list[tuple[str, str | None]]:  # noqa: ANN001
    found: list[tuple[str, str | None]] = []
    for column in tables.TABLES[ref.table].blobs:
        digest_column = {"key": "sha256", "shard_key": "shard"}.get(column)
        if column == "key" and ref.table == "raw_assets":
            digest_column = "asset_id"
        recorded = digest_column if digest_column in rows.columns else None
        digests = rows[recorded] if recorded else [None] * rows.height
        found += {
            (key, sha256)
            for key, sha256 in zip(rows[column], digests, strict=True)
            if key is not None
        }
    return sorted(found, key=lambda each: each[0])


def _missing_in_vault(vault: str, rows, where: str) -> list[dict[str, str]]:  # noqa: ANN001
    writer = VaultWriter(vault)
    members = rows.filter(rows["in_vault"])["asset_id"]
    return [
        {"key": f"vault:{asset_id}", "named_by": where}
        for asset_id in members
        if not writer.holds(asset_id)
    ]
