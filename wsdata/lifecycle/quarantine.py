"""Quarantine: files that could not be decoded stay out until a person lets them try again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wsdata.digest import short_digest
from wsdata.errors import CatalogError
from wsdata.ids import parse_drop_key
from wsdata.records import Fact

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which quarantined assets: those that fit all that is given.

    Attributes:
        assets: Asset ids, or enough of the start of each to be the only one quarantined.
        drop: A drop's key.
        source: A source's name.
        matching: Text within the reason, in any case of letters.
    """

    assets: tuple[str, ...] = ()
    drop: str = ""
    source: str = ""
    matching: str = ""

    def __str__(self) -> str:
        """As the command line says it, with a space before each word."""
        words = [f"--{name} {value!r}" for name in ("drop", "source", "matching")
                 if (value := getattr(self, name))]  # fmt: skip
        return "".join(f" {word}" for word in [*self.assets, *words])

    def fits(self, body: dict[str, Any]) -> bool:
        """Whether an asset's quarantine is of the drop, of the source, and for the reason."""
        return (
            self.drop in ("", body["drop"])
            and self.source in ("", parse_drop_key(body["drop"]).source)
            and self.matching.casefold() in str(body.get("reason", "")).casefold()
        )


def list_quarantined(
    ledger: Ledger, store: BlobStore | None = None, choice: Choice | None = None
) -> list[dict[str, Any]]:
    """Quarantined assets, the latest first.

    Args:
        ledger: The ledger.
        store: Where the rows lie that know what a file was called; None for no paths.
        choice: Which; None for all.

    Returns:
        Per asset its id, drop, source, path, reason, attempts, when it was first found unreadable
        (``since``, of its present quarantine) and when last (``tried``), and whether a release is
        waiting for a run.
    """
    held = _chosen(ledger, choice or Choice())
    waiting = {  # a run that tried a release again says so in what it states
        asset_id: short_digest(body) for asset_id, body in ledger.present("release").items()
    }
    when = _first_and_last(ledger, set(held))
    paths = _paths(ledger, store, held) if store is not None else {}
    rows = [
        {
            "asset_id": asset_id,
            "source": parse_drop_key(body["drop"]).source,
            "path": paths.get(asset_id),
            "since": when.get(asset_id, (None, None))[0],
            "tried": when.get(asset_id, (None, None))[1],
            **body,
            "released": waiting.get(asset_id, body.get("release")) != body.get("release"),
        }
        for asset_id, body in held.items()
    ]
    return sorted(rows, key=lambda row: (row["since"] or "", row["asset_id"]), reverse=True)


def _chosen(ledger: Ledger, choice: Choice) -> dict[str, dict[str, Any]]:
    held = ledger.present("quarantine")
    if choice.assets:
        held = {asset_id: held[asset_id] for asset_id in _named(held, choice.assets)}
    return {asset_id: body for asset_id, body in held.items() if choice.fits(body)}


def _named(held: dict[str, dict[str, Any]], prefixes: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for prefix in prefixes:
        hits = [asset_id for asset_id in held if asset_id.startswith(prefix)]
        if len(hits) != 1:
            raise CatalogError(
                f"{prefix!r} fits {len(hits)} quarantined assets of {len(held)}: "
                "see `wsdata quarantine list`"
            )
        found += hits
    return list(dict.fromkeys(found))


def _first_and_last(ledger: Ledger, asset_ids: set[str]) -> dict[str, tuple[str, str]]:
    """When the present quarantine of each asset began, and when it was last found unreadable."""
    told: dict[str, tuple[int, int]] = {}
    for seq, fact in ledger.facts("quarantine"):
        if fact.subject not in asset_ids or fact.body.get("withdrawn"):
            told.pop(fact.subject, None)
        else:
            told[fact.subject] = (told.get(fact.subject, (seq, seq))[0], seq)
    if not told:
        return {}
    commits = ledger.commits(since=min(first for first, _ in told.values()) - 1)
    at = {commit["seq"]: str(commit["committed_at"]) for commit in commits}
    return {asset_id: (at[first], at[last]) for asset_id, (first, last) in told.items()}


def _paths(ledger: Ledger, store: BlobStore, held: dict[str, dict[str, Any]]) -> dict[str, str]:
    from wsdata.catalog.objects import read_table

    paths: dict[str, str] = {}
    for drop in sorted({body["drop"] for body in held.values()}):
        rows = read_table(ledger, store, "provenance", drop).select("asset_id", "path")
        paths |= dict(rows.sort("asset_id", "path", descending=True).iter_rows())
    return paths


def release(ledger: Ledger, asset_prefix: str, reason: str) -> str:
    """Let one quarantined asset be tried once more by the next run; see `release_all`.

    Returns:
        The asset's id.
    """
    (asset_id,) = release_all(ledger, Choice(assets=(asset_prefix,)), reason)
    return asset_id


def release_all(
    ledger: Ledger, choice: Choice, reason: str, *, is_dry_run: bool = False
) -> list[str]:
    """Let quarantined assets be tried once more by the next run.

    Args:
        ledger: The ledger.
        choice: Which of them.
        reason: Why a new try may end otherwise; kept.
        is_dry_run: Whether only to say which they would be.

    Returns:
        Their ids, sorted.

    Raises:
        CatalogError: Nothing is chosen or nothing fits, a prefix fits no or several quarantined
            assets, or no reason is given.
    """
    if not reason.strip():
        raise CatalogError("a release needs a reason: say what has changed")
    if choice == Choice():
        raise CatalogError(
            "a release needs assets: ids, --drop, --source or --matching; see "
            "`wsdata quarantine list`"
        )
    held = _chosen(ledger, choice)
    if not held:
        raise CatalogError(f"nothing in quarantine fits{choice}: see `wsdata quarantine list`")
    if not is_dry_run:
        earlier = Counter(fact.subject for _, fact in ledger.facts("release"))
        facts = [
            Fact(
                kind="release",
                subject=asset_id,
                body={"drop": body["drop"], "reason": reason, "number": 1 + earlier[asset_id]},
            )
            for asset_id, body in held.items()
        ]
        ledger.state(facts, step="quarantine/release")
    return sorted(held)
