"""Writing shards: samples of one bucket, in scatter order, as immutable content-named objects."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wsdata.digest import canonical_json
from wsdata.shard.format import Span, column_spans, shard_head, split_into_shards
from wsdata.shard.reader import sample_digest
from wsdata.shard.scatter import scatter_order
from wsdata.store import BlobStore


def shard_key(sha256: str) -> str:
    """Object key of a shard by the sha256 of its bytes."""
    return f"training/shards/{sha256[:2]}/{sha256}.mds"


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Say which samples of one bucket share a shard, and in which order.

    Args:
        sizes: Encoded size of each sample, in bytes.
        max_bytes: Size at which a shard is full.

    Raises:
        ValueError: `max_bytes` is more than a shard can have.
    """
    order = scatter_order(sizes)
    cuts = split_into_shards([sizes[sample_id] for sample_id in order], max_bytes)
    return [[order[index] for index in cut] for cut in cuts]


def write_shard(
    store: BlobStore,
    sample_ids: Sequence[str],
    read: Callable[[str], bytes],
    *,
    max_bytes: int,
) -> dict[str, Any]:
    """Join encoded samples into one shard and store it under the digest of its bytes.

    One sample at a time is held in memory; the shard grows in a temporary file.

    Args:
        store: Where to.
        sample_ids: Samples of one bucket, in their order.
        read: Returns a sample's encoded bytes.
        max_bytes: Limit that the shard's configuration states.

    Returns:
        ``shard`` (sha256), ``shard_key``, ``size_bytes``, and ``samples``: for each sample its
        ``sample_id``, ``row``, ``offset``, ``length``, ``columns_json`` and ``xxh3``.
    """
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="wsdata-shard-") as folder:
        path = Path(folder) / "shard"
        with path.open("wb") as file:
            file.write(shard_head([0] * len(sample_ids), max_bytes)[0])  # as long as the true one
            for row, sample_id in enumerate(sample_ids):
                sample = read(sample_id)
                span = Span(file.tell(), len(sample))
                samples.append(
                    {
                        "sample_id": sample_id,
                        "row": row,
                        "offset": span.offset,
                        "length": span.length,
                        "columns_json": _columns_json(sample, span),
                        "xxh3": sample_digest(sample),
                    }
                )
                file.write(sample)
            size_bytes = file.tell()
            file.seek(0)
            file.write(shard_head([sample["length"] for sample in samples], max_bytes)[0])
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        store.put_file(shard_key(sha256), path)
    return {
        "shard": sha256,
        "shard_key": shard_key(sha256),
        "size_bytes": size_bytes,
        "samples": samples,
    }


def _columns_json(sample: bytes, span: Span) -> str:
    return canonical_json(
        {
            name: [span.offset + column.offset, column.length]
            for name, column in column_spans(sample).items()
        }
    )
