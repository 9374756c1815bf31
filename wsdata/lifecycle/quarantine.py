"""Quarantine: files that could not be decoded stay out until a person lets them try again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wsdata.digest import short_digest
from wsdata.errors import CatalogError
from wsdata.records import Fact

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger


def list_quarantined(ledger: Ledger) -> list[dict[str, Any]]:
    """Quarantined assets: id, drop, reason, attempts, and whether a release is waiting."""
    waiting = {  # a run that tried a release again says so in what it states
        asset_id: short_digest(body) for asset_id, body in ledger.present("release").items()
    }
    return [
        {
            "asset_id": asset_id,
            **body,
            "released": waiting.get(asset_id, body.get("release")) != body.get("release"),
        }
        for asset_id, body in ledger.present("quarantine").items()
    ]


def release(ledger: Ledger, asset_prefix: str, reason: str) -> str:
    """Let a quarantined asset be tried once more by the next run.

    Args:
        ledger: The ledger.
        asset_prefix: An asset id, or enough of its start to be the only one quarantined.
        reason: Why a new try may end otherwise; kept.

    Returns:
        The asset's id.

    Raises:
        CatalogError: No quarantined asset, or more than one, starts so; or no reason is given.
    """
    if not reason.strip():
        raise CatalogError("a release needs a reason: say what has changed")
    held = ledger.present("quarantine")
    hits = [asset_id for asset_id in held if asset_id.startswith(asset_prefix)]
    if len(hits) != 1:
        raise CatalogError(
            f"{asset_prefix!r} fits {len(hits)} quarantined assets of {len(held)}: "
            "see `wsdata quarantine list`"
        )
    (asset_id,) = hits
    number = 1 + sum(fact.subject == asset_id for _, fact in ledger.facts("release"))
    body = {"drop": held[asset_id]["drop"], "reason": reason, "number": number}
    ledger.state([Fact(kind="release", subject=asset_id, body=body)], step="quarantine/release")
    return asset_id
