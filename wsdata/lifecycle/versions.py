"""Dataset versions as the ledger knows them: what each was cut from, and which is next.

Fact ``dataset_version`` about ``v3`` holds its recipe, as-of date and the digest of what it was
cut from; about the patch ``v3.1`` its parent, first step and the samples it leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.errors import CatalogError
from wsdata.ids import parse_version
from wsdata.shard.publish import dataset_key, published_versions, read_dataset, remake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionSummary:
    """One dataset version in a list. Counts are of the manifest; a patch counts what is left."""

    version: str
    parent: str | None
    as_of_date: str | None
    manifest_digest: str
    num_samples: int
    num_shards: int
    num_lost: int


def all_versions(ledger: Ledger) -> list[str]:
    """Every version with a live manifest, and every patch of one, in order."""
    names = {ref.partition for ref in ledger.live("manifests")}
    names |= {name for name, body in ledger.present("dataset_version").items() if "patch" in body}
    return sorted(names, key=parse_version)


def latest_version(ledger: Ledger) -> str | None:
    """The newest cut version (patches aside), or None before the first."""
    names = [ref.partition for ref in ledger.live("manifests")]
    return max(names, key=parse_version) if names else None


def next_version(ledger: Ledger) -> str:
    """The name that the next cut gets."""
    latest = latest_version(ledger)
    return f"v{parse_version(latest)[0] + 1}" if latest else "v1"


def base_of(version: str) -> str:
    """The cut version that a patch belongs to; a cut version is its own base."""
    return f"v{parse_version(version)[0]}"


def left_out(ledger: Ledger, version: str) -> list[str]:
    """Samples that a patch leaves out of its base, sorted; none for a cut version."""
    body = ledger.present("dataset_version").get(version, {})
    return body.get("patch", {}).get("excluded", [])


def left_out_from(stated: Mapping[str, dict[str, Any]], version: str) -> dict[str, int]:
    """The step, at the latest, from which a patch leaves each sample out: sample id -> step.

    Steps before it may serve the sample. Later patches of a patch may have named it once more.

    Args:
        stated: Facts ``dataset_version``.
        version: A version; a cut one leaves nothing out.
    """
    found: dict[str, int] = {}
    while "patch" in (body := stated.get(version, {})):
        # Patches list what their parents leave out too, so the oldest says when it began.
        found |= dict.fromkeys(body["patch"]["excluded"], body["patch"]["from_step"])
        version = body["parent"]
    return found


def require_version(ledger: Ledger, version: str) -> None:
    """Check that a version exists.

    Raises:
        ValueError: The name is not a version's.
        CatalogError: There is none of that name.
    """
    parse_version(version)
    known = all_versions(ledger)
    if version not in known:
        raise CatalogError(
            f"no dataset version {version!r}{_former(ledger, version)}: there are "
            f"{', '.join(known) or 'none yet'}; `wsdata run` cuts the next"
        )


def read_pointer(ledger: Ledger, store: BlobStore, version: str) -> dict[str, Any]:
    """Read the pointer of a version; where it is gone, say what the ledger knows of it.

    Raises:
        ValueError: The name is not a version's.
        CatalogError: There is no such version, it is not published yet, or its pointer is gone.
        IntegrityError: The pointer is damaged; it is named.
    """
    require_version(ledger, version)
    try:
        return read_dataset(store, version)
    except CatalogError as error:
        if store.size(dataset_key(version)) is not None:
            raise
        raise CatalogError(_why_gone(ledger, store, version)) from error


def _why_gone(ledger: Ledger, store: BlobStore, version: str) -> str:
    there = f"published there are {', '.join(published_versions(store)) or 'none'}"
    is_cut = not parse_version(version)[1]
    if is_cut and not ledger.live("step_plans", version):
        return (
            f"{version} was cut{_since(ledger, version)} and is not published yet in "
            f"{store.address}; {there}: {remake(version)}, which completes it"
        )
    return (
        f"{version} was {'cut' if is_cut else 'made'}{_since(ledger, version)} and published, but "
        f"its pointer {dataset_key(version)} is gone from {store.address}; {there}: "
        f"{remake(version)}, and see `wsdata fsck` for what else is lost"
    )


def _former(ledger: Ledger, version: str) -> str:
    """What the ledger knows of a version that is none now."""
    said = [fact.body for _, fact in ledger.facts("dataset_version") if fact.subject == version]
    if not said:
        return ", nor was there ever"
    if said[-1].get("withdrawn"):
        why = said[-1].get("reason") or "no reason is given"
        return f": it was withdrawn{_since(ledger, version)} ({why})"
    return f": it was named{_since(ledger, version)}, and its cut has not ended"


def _since(ledger: Ledger, version: str) -> str:
    """When something was last stated of a version, as words to put behind a verb."""
    import sqlalchemy as sa

    from wsdata.catalog.schema import COMMITS

    seqs = [seq for seq, fact in ledger.facts("dataset_version") if fact.subject == version]
    if not seqs:
        return ""
    times = ledger.ask(sa.select(COMMITS.c.committed_at).where(COMMITS.c.seq == seqs[-1]))
    return f" at {times[0][0]} (commit {seqs[-1]})" if times else f" in commit {seqs[-1]}"


def summarize(ledger: Ledger, store: BlobStore, version: str) -> VersionSummary:
    """Count what a version holds."""
    from wsdata.curate.manifest import manifest_digest

    require_version(ledger, version)
    base = base_of(version)
    manifest = read_table(ledger, store, "manifests", base)
    index = read_table(ledger, store, "dataset_index", base)
    stated: dict[str, dict[str, Any]] = ledger.present("dataset_version")
    manifest = manifest.filter(~pl.col("sample_id").is_in(left_out(ledger, version)))
    return VersionSummary(
        version=version,
        parent=stated.get(version, {}).get("parent"),
        as_of_date=stated.get(base, {}).get("as_of_date"),
        manifest_digest=manifest_digest(manifest),
        num_samples=manifest.height,
        num_shards=index["shard"].n_unique(),
        num_lost=read_table(ledger, store, "index_losses", base).height,
    )
