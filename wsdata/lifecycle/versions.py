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
            f"no dataset version {version!r}: there are {', '.join(known) or 'none yet'}; "
            "`wsdata run` cuts the next"
        )


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
