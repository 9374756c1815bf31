"""Provenance: one immutable row per raw asset and drop, saying by what right it is here.

Corrections are new rows in later drops. Enforcing rights belongs to `curate.rights`.
"""

from typing import Any

from wsdata.digest import canonical_json
from wsdata.ingest.delivery import Declaration

RECORD_FIELDS = ("crawl_url", "fetched_at", "robots_allowed", "title", "page_text")
NARROWING_FIELDS = (
    "license_id", "territory", "rights_from", "rights_until", "opt_out", "pii_policy", "generator",
)  # fmt: skip


def provenance_row(
    *,
    asset_id: str,
    drop: str,
    path: str,
    declaration: Declaration,
    record: dict[str, Any],
    in_vault: bool,
    actions: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Build one row of table ``provenance``.

    A record may narrow what the drop declares. Of a vault member only that it came is kept:
    its record is sealed with its bytes, and so is its track of actions.

    Args:
        asset_id: The raw asset.
        drop: The drop that brought it.
        path: Its path within the drop.
        declaration: What the drop states of all its files.
        record: What the sidecar states of this one.
        in_vault: Whether it is a vault member.
        actions: ``key`` and ``suffix`` of the track of actions that came with it, if any.
    """
    stated: dict[str, Any] = {
        name: record.get(name, getattr(declaration, name)) for name in NARROWING_FIELDS
    }
    row = {
        "asset_id": asset_id,
        "drop": drop,
        "path": path,
        "source_tier": declaration.source_tier,
        "source": declaration.source,
        "in_vault": in_vault,
        **{name: (value if value != "" else None) for name, value in stated.items()},
        **{name: record.get(name) for name in RECORD_FIELDS},
        "record_json": canonical_json({**record, "is_generated": declaration.is_generated}),
        "actions_key": actions["key"] if actions else None,
        "actions_suffix": actions["suffix"] if actions else None,
        "is_continuous": declaration.continuous,
    }
    if in_vault:
        row |= dict.fromkeys((*RECORD_FIELDS, "record_json", "actions_key", "actions_suffix"))
    return row
