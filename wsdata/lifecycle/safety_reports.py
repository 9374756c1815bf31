"""Safety reports: what matches a list, for the team that answers for it. Pictures are not shown.

Matches are stated by `preprocess.filters.safety_list`, which finds them; here they are read, and
what was done about them is noted. Notes and matches are append-only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.curate.withheld import withheld_clips
from wsdata.digest import digest
from wsdata.errors import CatalogError
from wsdata.ids import raw_key
from wsdata.lifecycle.exported import exports_holding
from wsdata.lifecycle.takedown import use_in
from wsdata.lifecycle.tombstone import copies, twins_of
from wsdata.lifecycle.versions import all_versions
from wsdata.records import Fact

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

REPORT, NOTE = "safety_report", "safety_note"

_OF_HIT = ("drop", "list", "entry", "source", "distance", "time_s", "method", "is_mirrored")
_OF_FILE = (
    "drop", "path", "source_tier", "source", "license_id", "crawl_url", "fetched_at", "in_vault",
)  # fmt: skip


def lists_in_force(ledger: Ledger) -> list[dict[str, Any]]:
    """Safety lists as they were last read: name, entries, digest, and when."""
    stated = ledger.facts("safety_list")
    when = _times(ledger, stated)
    newest = {fact.subject: when[seq] for seq, fact in stated}
    return [
        {
            "list": name,
            "num_entries": body["num_entries"],
            "sha256": body["sha256"],
            "read_at": newest[name],
        }
        for name, body in ledger.present("safety_list").items()
    ]


def listed_assets(ledger: Ledger) -> list[dict[str, Any]]:
    """Raw assets that match a list, oldest first.

    Returns:
        ``asset_id, in_vault, num_clips, hits, first_seen_at, notes``; of each hit the drop, the
        list, its entry and where that came from, the distance in bits of 256, and when and how
        it was seen. A hit that its list took back since is left out.
    """
    stated, notes = ledger.facts(REPORT), _notes(ledger)
    when = _times(ledger, stated)
    first: dict[str, str] = {}
    for seq, fact in stated:
        first.setdefault(fact.body["asset_id"], when[seq])
    found: dict[str, dict[str, Any]] = {}
    for body in ledger.present(REPORT).values():
        asset_id = body["asset_id"]
        mine = found.setdefault(
            asset_id,
            {
                "asset_id": asset_id,
                "in_vault": body["in_vault"],
                "num_clips": 0,
                "hits": [],
                "first_seen_at": first[asset_id],
                "notes": notes.get(asset_id, []),
            },
        )
        mine["num_clips"] = max(mine["num_clips"], len(body["clips"]))
        mine["hits"].append({name: body[name] for name in _OF_HIT})
    return sorted(found.values(), key=lambda row: (row["first_seen_at"], row["asset_id"]))


def report_asset(
    ledger: Ledger, store: BlobStore, asset_prefix: str, *, note: str = ""
) -> dict[str, Any]:
    """Tell all that is known of a raw asset that matches a list, and note what was done about it.

    Args:
        ledger: The ledger.
        store: The store; neither picture nor sound is read of it.
        asset_prefix: The asset's id, or enough of its start to be the only one that matches.
        note: What was done, such as the number under which it was reported; kept.

    Returns:
        As `listed_assets`, with ``files`` (where it came from), ``bytes`` (where they lie, and
        that they are held), ``twins``, ``clips`` (all that are withheld), ``versions`` (where
        they were used before), ``exports`` (which still hold bytes) and ``report_digest``, over
        all but itself.

    Raises:
        CatalogError: No raw asset that matches, or more than one, starts so.
    """
    rows = listed_assets(ledger)
    hits = [row for row in rows if row["asset_id"].startswith(asset_prefix)]
    if len(hits) != 1:
        raise CatalogError(
            f"{asset_prefix!r} fits {len(hits)} raw assets of {len(rows)} that match a safety "
            "list: see `wsdata safety list`"
        )
    (row,) = hits
    asset_id = row["asset_id"]
    if note.strip():
        number = 1 + sum(fact.subject == asset_id for _, fact in ledger.facts(NOTE))
        fact = Fact(kind=NOTE, subject=asset_id, body={"note": note.strip(), "number": number})
        ledger.state([fact], step="safety/report")
        row["notes"] = _notes(ledger)[asset_id]
    files = read_table(ledger, store, "provenance").filter(pl.col("asset_id") == asset_id)
    clips = read_table(ledger, store, "clips").unique("clip_id")
    pairs = read_table(ledger, store, "match_pairs")
    withheld = withheld_clips(clips, copies(ledger, store), pairs, {asset_id: {}})
    ids = sorted(withheld["clip_id"])
    report = {
        **row,
        "files": files.sort("drop", "path").select(_OF_FILE).to_dicts(),
        "bytes": {
            "where": "vault" if row["in_vault"] else "store",
            "key": raw_key(asset_id),
            "is_held": True,
        },
        "twins": twins_of(ledger, store, [asset_id]),
        "clips": ids,
        "versions": [use_in(ledger, store, version, ids) for version in all_versions(ledger)],
        "exports": exports_holding(ledger, store, ids),
    }
    return report | {"report_digest": digest(report)}


def _notes(ledger: Ledger) -> dict[str, list[dict[str, str]]]:
    stated = ledger.facts(NOTE)
    when = _times(ledger, stated)
    notes: dict[str, list[dict[str, str]]] = {}
    for seq, fact in stated:
        told = {"at": when[seq], "note": fact.body["note"]}
        notes.setdefault(fact.subject, []).append(told)
    return notes


def _times(ledger: Ledger, stated: list[tuple[int, Fact]]) -> dict[int, str]:
    """When facts were stated, by commit."""
    if not stated:
        return {}
    since = min(seq for seq, _ in stated) - 1
    return {row["seq"]: row["committed_at"] for row in ledger.commits(since=since)}
