"""The bytes of a shard: the MDS layout (version 2, uncompressed) and our columns in it.

A shard is: uint32 number of samples n; uint32 offsets[n + 1] of the samples, counted from the
start of the shard; the configuration as JSON; the samples. A sample is: a uint32 size for each
column of variable size, then the columns' bytes, in the order of their names. All integers are
little-endian. `mosaicml-streaming` writes the same bytes for the same samples and reads ours.

Latents are stored time-major (t, c, h, w), so the latents of a temporal prefix, or of one
sequence-parallel chunk, are one range of bytes.
"""

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import IntegrityError

FORMAT_VERSION = 2
MAX_SHARD_BYTES = (1 << 32) - 1  # offsets are uint32

# Column -> (MDS encoding, size in bytes or None where it varies), sorted by name as MDS wants.
COLUMNS: dict[str, tuple[str, int | None]] = {
    "clip_id": ("str", None),
    "dtype": ("str", None),  # fp8 | int8
    "latents": ("bytes", None),  # one byte a value, (t, c, h, w)
    "sample_id": ("str", None),
    "scale": ("ndarray:float32:16", 64),  # of each channel
    "shape": ("ndarray:uint32:4", 16),  # t, c, h, w
    "tokenizer": ("str", None),  # version
}

_VARIABLE = tuple(name for name, (_, size) in COLUMNS.items() if size is None)
_HEAD_SIZE = 4 * len(_VARIABLE)


class Span(NamedTuple):
    """A half-open range of bytes: where it starts, and how long it is."""

    offset: int
    length: int


class Sample(NamedTuple):
    """One entry of a shard, with latents still in eight bits."""

    sample_id: str
    clip_id: str
    dtype: str
    tokenizer_version: str
    codes_tchw: NDArray[np.uint8]
    scale_c: NDArray[np.float32]


def encode_sample(sample: Sample) -> bytes:
    """Write a sample.

    Raises:
        ValueError: An array of another dtype or number of axes than its column has.
    """
    codes_tchw, scale_c = sample.codes_tchw, sample.scale_c
    if codes_tchw.dtype != np.uint8 or codes_tchw.ndim != 4:
        raise ValueError(f"{sample.sample_id}: codes are {codes_tchw.dtype} {codes_tchw.shape}")
    if scale_c.dtype != np.float32 or scale_c.nbytes != COLUMNS["scale"][1]:
        raise ValueError(f"{sample.sample_id}: scale is {scale_c.dtype} {scale_c.shape}")
    values = {
        "clip_id": sample.clip_id.encode(),
        "dtype": sample.dtype.encode(),
        "latents": codes_tchw.tobytes(),
        "sample_id": sample.sample_id.encode(),
        "scale": scale_c.astype("<f4").tobytes(),
        "shape": np.array(codes_tchw.shape, "<u4").tobytes(),
        "tokenizer": sample.tokenizer_version.encode(),
    }
    head = struct.pack(f"<{len(_VARIABLE)}I", *(len(values[name]) for name in _VARIABLE))
    return head + b"".join(values[name] for name in COLUMNS)


def column_spans(data: bytes | memoryview) -> dict[str, Span]:
    """Where each column lies in a sample, from the sample's own start.

    Raises:
        IntegrityError: The sizes do not add up to the sample's length.
    """
    if len(data) < _HEAD_SIZE:
        raise IntegrityError(f"a sample of {len(data)} bytes is shorter than its head")
    sizes = dict(zip(_VARIABLE, struct.unpack_from(f"<{len(_VARIABLE)}I", data), strict=True))
    spans: dict[str, Span] = {}
    offset = _HEAD_SIZE
    for name, (_, fixed) in COLUMNS.items():
        length = sizes[name] if fixed is None else fixed
        spans[name] = Span(offset, length)
        offset += length
    if offset != len(data):
        raise IntegrityError(f"a sample's columns take {offset} bytes, but it has {len(data)}")
    return spans


def decode_sample(data: bytes | memoryview) -> Sample:
    """Read a sample; its arrays share the memory of `data`.

    Raises:
        IntegrityError: The bytes are not a sample of this format.
    """
    view = memoryview(data)
    parts = {
        name: view[offset : offset + length]
        for name, (offset, length) in column_spans(view).items()
    }
    shape = [int(size) for size in np.frombuffer(parts["shape"], "<u4")]
    codes = np.frombuffer(parts["latents"], np.uint8)
    if codes.size != int(np.prod(shape)):
        raise IntegrityError(f"{codes.size} bytes of latents do not make the shape {shape}")
    return Sample(
        sample_id=str(parts["sample_id"], "utf-8"),
        clip_id=str(parts["clip_id"], "utf-8"),
        dtype=str(parts["dtype"], "utf-8"),
        tokenizer_version=str(parts["tokenizer"], "utf-8"),
        codes_tchw=codes.reshape(shape),
        scale_c=np.frombuffer(parts["scale"], "<f4"),
    )


def shard_config(max_bytes: int) -> dict[str, Any]:
    """Return the configuration that a shard carries and the library's index repeats."""
    return {
        "column_encodings": [encoding for encoding, _ in COLUMNS.values()],
        "column_names": list(COLUMNS),
        "column_sizes": [size for _, size in COLUMNS.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": max_bytes,
        "version": FORMAT_VERSION,
    }


def _config_bytes(max_bytes: int) -> bytes:
    return json.dumps(shard_config(max_bytes), sort_keys=True).encode()


def split_into_shards(sizes: Sequence[int], max_bytes: int) -> list[range]:
    """Cut samples of these sizes, in their order, into shards of at most `max_bytes`.

    A sample larger than that has a shard of its own. Cuts fall where the library's writer cuts.

    Raises:
        ValueError: `max_bytes` is not in (0, MAX_SHARD_BYTES].
    """
    if not 0 < max_bytes <= MAX_SHARD_BYTES:
        raise ValueError(f"shards.max_bytes {max_bytes}: expected 1..{MAX_SHARD_BYTES}")
    empty = 8 + len(_config_bytes(max_bytes))
    cuts, filled = [0], empty
    for index, size in enumerate(sizes):
        if filled + size + 4 > max_bytes and index > cuts[-1]:
            cuts.append(index)
            filled = empty
        filled += size + 4
    cuts.append(len(sizes))
    return [range(start, end) for start, end in itertools.pairwise(cuts) if start < end]


def pack_shard(samples: Sequence[bytes], max_bytes: int) -> tuple[bytes, list[Span]]:
    """Join encoded samples into one shard, and say where each lies.

    Raises:
        ValueError: The shard would exceed what uint32 offsets reach.
    """
    config = _config_bytes(max_bytes)
    start = 4 + 4 * (len(samples) + 1) + len(config)
    offsets = [start]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample))
    if offsets[-1] > MAX_SHARD_BYTES:
        raise ValueError(f"a shard of {offsets[-1]} bytes exceeds {MAX_SHARD_BYTES}")
    head = struct.pack(f"<I{len(offsets)}I", len(samples), *offsets)
    spans = [Span(offset, len(sample)) for offset, sample in zip(offsets, samples, strict=False)]
    return head + config + b"".join(samples), spans


def shard_spans(data: bytes | memoryview) -> list[Span]:
    """Where each sample lies in a shard, by its own head (a whole shard, or its beginning).

    Raises:
        IntegrityError: The head is cut short, or offsets fall.
    """
    if len(data) < 4:
        raise IntegrityError(f"a shard of {len(data)} bytes has no head")
    (num_samples,) = struct.unpack_from("<I", data)
    if len(data) < 4 * (num_samples + 2):
        raise IntegrityError(f"a shard of {len(data)} bytes cannot hold {num_samples} samples")
    offsets = struct.unpack_from(f"<{num_samples + 1}I", data, 4)
    if any(start > end for start, end in itertools.pairwise(offsets)):
        raise IntegrityError("a shard's offsets fall")
    return [Span(start, end - start) for start, end in itertools.pairwise(offsets)]


def mds_index(shards: Sequence[Mapping[str, Any]], max_bytes: int) -> bytes:
    """Write the ``index.json`` by which the library finds shards.

    Args:
        shards: Of each shard ``basename``, ``size_bytes`` and ``num_samples``.
        max_bytes: The limit that the shards were written with.
    """
    entries = [
        {
            "samples": shard["num_samples"],
            "raw_data": {
                "basename": shard["basename"],
                "bytes": shard["size_bytes"],
                "hashes": {},
            },
            "zip_data": None,
            **shard_config(max_bytes),
        }
        for shard in shards
    ]
    return json.dumps({"version": FORMAT_VERSION, "shards": entries}, sort_keys=True).encode()
