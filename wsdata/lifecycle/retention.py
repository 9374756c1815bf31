"""Retention: what every object of the store is kept for, and what is garbage.

Nothing is deleted here but by `collect_garbage`, which is dry unless told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wsdata import tables
from wsdata.catalog.objects import read_object
from wsdata.errors import CatalogError, IntegrityError, ObjectMissing
from wsdata.ids import raw_key
from wsdata.lifecycle.pins import pinned_keys
from wsdata.orders import FactInput, Input, Step, StepResult, StepRun
from wsdata.records import ObjectRef, table_key
from wsdata.units import SPEEDS

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

STEP = Step(
    stage="lifecycle",
    name="retention",
    function="wsdata.lifecycle.retention:run",
    code_version="retention-2",
    partition="none",
    assets={"retention": ("retention",)},
    inputs=tuple(
        Input(table=table, scope="all", is_optional=True)
        for table in tables.TABLES
        if table not in tables.SELF_REPORTS
    ),
    facts=(FactInput(kind="pin"), FactInput(kind="safety_report")),
    description="Of each stored object, what it is kept for; what nothing refers to is listed.",
)

# Derived by prefix: these explain themselves, and no row names them.
_KEPT_PREFIXES = {
    "progress/": "memory of finished units",
    "training/datasets/": "pointer of a dataset version",
    "training/plans/": "step plan",
    "training/index/": "dataset index",
    "training/packs/": "caption pack",
    "derived/captions/": "contact sheet",
    "inbox/": "reports of trainers",
    "mirror/": "engine mirror: logs, and links to rows",
    "locator/": "segment of the locator, which takes away what it no longer needs",
    SPEEDS: "how fast a step was, for capacity",  # asked before the reports that it lies among
}

# Made into something else that is kept; they save work where that is lost.
_SPARE_PREFIXES = {
    "derived/latents/": "encoded sample, of which a shard was made",
    "orders/": "order of a worker pod, which has read it",
    "reports/": "report of a worker pod, which is committed",
}
COLLECTED = ("spare", "collectable")
MIN_AGE_S = 24 * 3600.0  # longer than any step runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one object is kept for.

    `verdict`: held | pinned | live | history | kept | spare | collectable. What is held was
    reported to whoever answers for unsafe material, and stays until that is settled. What is
    spare is not needed while what was made of it is there; made again, it gives the same.
    """

    key: str
    size_bytes: int
    verdict: str
    reason: str


def run(run: StepRun) -> StepResult:
    """Report on the whole store; in rows, only what could be collected."""
    found = verdicts(run.ledger, run.store)
    totals: dict[str, list[int]] = {}
    for each in found:
        total = totals.setdefault(each.verdict, [0, 0])
        total[0] += 1
        total[1] += each.size_bytes
    lines = ["| verdict | objects | bytes |", "|---|---:|---:|"]
    lines += [f"| {name} | {n:,} | {size:,} |" for name, (n, size) in sorted(totals.items())]
    garbage = [
        {"key": v.key, "size_bytes": v.size_bytes, "verdict": v.verdict, "reason": v.reason}
        for v in found
        if v.verdict == "collectable"
    ]
    return StepResult(
        tables={"retention": tables.rows_of("retention", garbage)},
        metrics={f"{name}_bytes": size for name, (_, size) in totals.items()},
        display={"retention": {"totals": {"type": "md", "raw_value": "\n".join(lines)}}},
    )


def verdicts(ledger: Ledger, store: BlobStore) -> list[Verdict]:
    """Judge every object of the store, sorted by key."""
    live = {ref.sha256: ref for ref in ledger.all_objects()}
    history = {table_key(sha) for sha in ledger.ever()}
    live_tables = {table_key(sha) for sha in live}
    named = blobs_named(store, list(live.values()))
    pinned, held = pinned_keys(ledger), held_keys(ledger)
    found: list[Verdict] = []
    for key, size in store.list(""):
        if key in held:
            verdict, reason = "held", held[key]
        elif key in pinned:
            verdict, reason = "pinned", pinned[key]
        elif key in live_tables:
            verdict, reason = "live", "rows of a live object"
        elif key in named:
            verdict, reason = "live", f"named by {named[key]}"
        elif key in history:
            verdict, reason = "history", "rows that as-of reads may ask"
        else:
            verdict, reason = _by_prefix(key)
        found.append(Verdict(key=key, size_bytes=size, verdict=verdict, reason=reason))
    return found


def _by_prefix(key: str) -> tuple[str, str]:
    for verdict, reasons in (("kept", _KEPT_PREFIXES), ("spare", _SPARE_PREFIXES)):
        for prefix, reason in reasons.items():
            if key.startswith(prefix):
                return verdict, reason
    return "collectable", "nothing names it"


def blobs_named(store: BlobStore, refs: list[ObjectRef]) -> dict[str, str]:
    """Blob keys that rows of live objects name: key -> table."""
    named: dict[str, str] = {}
    for ref in refs:
        for column in tables.TABLES[ref.table].blobs:
            try:
                keys = read_object(store, ref)[column].drop_nulls().unique()
            except (ObjectMissing, IntegrityError):
                continue  # fsck tells of it, and nothing is collected meanwhile
            named |= dict.fromkeys(keys, ref.table)
    return named


def held_keys(ledger: Ledger) -> dict[str, str]:
    """Keys of raw assets that a safety report holds: key -> which list's.

    Vault members are held too; the vault deletes nothing.
    """
    return {
        raw_key(body["asset_id"]): f"safety report: list {body['list']}"
        for body in ledger.present("safety_report").values()
        if body["is_held"] and not body["in_vault"]
    }


def collect_garbage(
    ledger: Ledger, store: BlobStore, *, is_applied: bool, min_age_s: float = MIN_AGE_S
) -> list[Verdict]:
    """List what nothing refers to, and delete it if told so.

    Args:
        ledger: The ledger.
        store: The store.
        is_applied: Delete what is listed.
        min_age_s: Younger objects are left: a running step may be about to name them.

    Raises:
        CatalogError: Live rows are lost or damaged, so what they name would look like garbage.
    """
    naming = [ref for ref in ledger.all_objects() if tables.TABLES[ref.table].blobs]
    unread = [ref for ref in naming if not _is_readable(store, ref)]
    if unread:
        listed = ", ".join(sorted(f"{ref.table} of {ref.partition}" for ref in unread)[:3])
        raise CatalogError(
            f"{len(unread)} live objects of rows are lost or damaged ({listed}), and what they "
            "name cannot be told from garbage: see `wsdata fsck`, mend them, then collect"
        )
    garbage = [
        each
        for each in verdicts(ledger, store)
        if each.verdict in COLLECTED and store.age_s(each.key) >= min_age_s
    ]
    if is_applied:
        for each in garbage:
            store.delete(each.key)
    return garbage


def _is_readable(store: BlobStore, ref: ObjectRef) -> bool:
    try:
        read_object(store, ref)
    except (ObjectMissing, IntegrityError):
        return False
    return True
