"""Reading samples out of shards: ranges of bytes, each checked by its own digest.

All functions are pure over bytes or take a store; caching and threads belong to the loader.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wsdata.errors import IntegrityError, StoreError
from wsdata.shard.format import Sample, Span, decode_sample
from wsdata.shard.quantize import dequantize
from wsdata.store import BlobStore


def sample_digest(data: bytes | memoryview) -> str:
    """Return the xxh3 of a sample's bytes, 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def verify_sample(data: bytes | memoryview, placement: Mapping[str, Any]) -> None:
    """Check a sample's bytes against what was recorded when it was written.

    Args:
        data: The bytes found at the placement.
        placement: Row of ``placements`` or ``dataset_index``: ``clip_id``, ``sample_id``,
            ``shard``, ``offset``, ``length`` and ``xxh3`` are read.

    Raises:
        IntegrityError: They differ; clip, shard and offset are named.
    """
    if len(data) == placement["length"] and sample_digest(data) == placement["xxh3"]:
        return
    raise IntegrityError(
        f"{_where(placement)}: {len(data)} bytes with digest {sample_digest(data)}, recorded are "
        f"{placement['length']} with {placement['xxh3']}: delete the shard and run again"
    )


def parse_sample(data: bytes | memoryview, placement: Mapping[str, Any]) -> Sample:
    """Read a sample out of its bytes, checked; arrays share the memory of `data`.

    Raises:
        IntegrityError: The bytes are not those that were written, or another sample's.
    """
    verify_sample(data, placement)
    try:
        sample = decode_sample(data)
    except IntegrityError as error:
        error.add_note(f"at {_where(placement)}")
        raise
    if sample.sample_id != placement["sample_id"]:
        raise IntegrityError(
            f"{_where(placement)}: holds sample {sample.sample_id}, not {placement['sample_id']}: "
            "the index and the shard are of different writers"
        )
    return sample


def read_sample(store: BlobStore, placement: Mapping[str, Any]) -> Sample:
    """Fetch one sample by its byte range, checked.

    Raises:
        IntegrityError: Wrong bytes, or a shard that is shorter than it was.
        ObjectMissing: The shard is not in the store.
    """
    return parse_sample(_fetch(store, placement, sample_span(placement)), placement)


def read_latents(store: BlobStore, placement: Mapping[str, Any]) -> NDArray[np.float32]:
    """Fetch one sample's latents as float32, shape (t, c, h, w). Raises as `read_sample`."""
    sample = read_sample(store, placement)
    return dequantize(sample.codes_tchw, sample.scale_c, sample.dtype)


def sample_span(placement: Mapping[str, Any]) -> Span:
    """Where a sample lies in its shard."""
    return Span(placement["offset"], placement["length"])


def _fetch(store: BlobStore, placement: Mapping[str, Any], span: Span) -> bytes:
    try:
        return store.get_range(placement["shard_key"], *span)
    except StoreError as error:
        size = store.size(placement["shard_key"])
        if size is not None and size < span.offset + span.length:
            raise IntegrityError(
                f"{_where(placement)}: the shard has {size} bytes and ends before the sample does "
                f"({span.offset + span.length}): delete it and run again"
            ) from error
        error.add_note(f"wanted for {_where(placement)}")
        raise


def _where(placement: Mapping[str, Any]) -> str:
    return (
        f"clip {placement['clip_id']} (sample {placement['sample_id']}) in shard "
        f"{placement['shard']} at offset {placement['offset']}"
    )
