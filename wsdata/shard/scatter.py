"""The order of samples inside a shard: a keyed hash, so that neighbours come from other clips."""

import hashlib
from collections.abc import Iterable

_KEY = b"wsdata scatter 1"


def scatter_key(sample_id: str) -> bytes:
    """Return what a sample is sorted by inside its bucket; uniform, and the same anywhere."""
    return hashlib.blake2b(sample_id.encode(), key=_KEY, digest_size=16).digest()


def scatter_order(sample_ids: Iterable[str]) -> list[str]:
    """Sort samples into their order in shards, whatever order they come in."""
    return sorted(sample_ids, key=lambda sample_id: (scatter_key(sample_id), sample_id))
