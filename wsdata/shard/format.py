"""The bytes of a shard: the MDS layout (version 2, uncompressed) and our columns in it.

A shard is: uint32 number of samples n; uint32 offsets[n + 1] of the samples, counted from the
start of the shard; the configuration as JSON; the samples. A sample is: a uint32 size for each
column of variable size, then the columns' bytes, in the order of their names. All integers are
little-endian. `mosaicml-streaming` writes the same bytes for the same samples and reads ours.

Latents are stored time-major (t, c, h, w), so the latents of a temporal prefix, or of one
sequence-parallel chunk, are one range of bytes. Each latent frame has a digest of its own, seeded
with the sample's scales, so such a range is verified without the rest: see `verify_frames`.

Sound and actions lie beside the latents of the same span of time, where the sample's stream asks
for them: audio_n (one channel at AUDIO_RATE_HZ), actions_fd (one row for each frame of pixels).
"""

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from wsdata.errors import IntegrityError
from wsdata.shard.latents import TEMPORAL_FACTOR

FORMAT_VERSION = 2  # of the MDS layout
AUDIO_RATE_HZ = 16000
MAX_SHARD_BYTES = (1 << 32) - 1  # offsets are uint32

# Column -> (MDS encoding, size in bytes or None where it varies), sorted by name as MDS wants.
COLUMNS: dict[str, tuple[str, int | None]] = {
    "actions": ("bytes", None),  # float32 (num_frames, dims), empty where it has none
    "audio": ("bytes", None),  # int16 PCM, mono at AUDIO_RATE_HZ, empty where it has none
    "clip_id": ("str", None),
    "dtype": ("str", None),  # fp8 | int8
    "frame_xxh3": ("bytes", None),  # uint64 of each latent frame; see `frame_digests`
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
    """One entry of a shard, with latents still in eight bits.

    Attributes:
        audio_n: int16, of exactly the sample's time span; None where the sample carries no sound.
        actions_fd: float32, one row for each of the sample's frames; None where it carries none.
    """

    sample_id: str
    clip_id: str
    dtype: str
    tokenizer_version: str
    codes_tchw: NDArray[np.uint8]
    scale_c: NDArray[np.float32]
    audio_n: NDArray[np.int16] | None = None
    actions_fd: NDArray[np.float32] | None = None


def num_pixel_frames(num_latent_frames: int) -> int:
    """Frames of pixels that a number of latent frames stands for: 4 (t - 1) + 1."""
    return TEMPORAL_FACTOR * (num_latent_frames - 1) + 1


def frame_digests(
    codes_tchw: NDArray[np.uint8], scale_c: NDArray[np.float32]
) -> NDArray[np.uint64]:
    """Return the xxh3 of each latent frame's bytes, seeded with that of the scales' bytes."""
    seed = xxhash.xxh3_64_intdigest(np.ascontiguousarray(scale_c, "<f4").data)
    codes_tchw = np.ascontiguousarray(codes_tchw)
    return np.array([xxhash.xxh3_64_intdigest(frame.data, seed) for frame in codes_tchw], "<u8")


def verify_frames(
    digests_t: NDArray[np.uint64],
    first: int,
    codes_tchw: NDArray[np.uint8],
    scale_c: NDArray[np.float32],
) -> bool:
    """Whether latent frames that were read alone, and their scales, are those that were written.

    Args:
        digests_t: The sample's column ``frame_xxh3``, whole.
        first: Which of the sample's frames `codes_tchw` begins with.
        codes_tchw: Frames [first, first + len(codes_tchw)), as stored.
        scale_c: The sample's scales.
    """
    stop = first + len(codes_tchw)
    if not 0 <= first < stop <= len(digests_t):
        return False
    return bool((frame_digests(codes_tchw, scale_c) == digests_t[first:stop]).all())


def encode_sample(sample: Sample) -> bytes:
    """Write a sample.

    Raises:
        ValueError: An array of another dtype or number of axes than its column has, or actions
            that are not one row for each frame.
    """
    _check_arrays(sample)
    codes_tchw, scale_c = np.ascontiguousarray(sample.codes_tchw), sample.scale_c.astype("<f4")
    values: dict[str, bytes | memoryview] = {
        "actions": b"" if sample.actions_fd is None else sample.actions_fd.astype("<f4").tobytes(),
        "audio": b"" if sample.audio_n is None else sample.audio_n.astype("<i2").tobytes(),
        "clip_id": sample.clip_id.encode(),
        "dtype": sample.dtype.encode(),
        "frame_xxh3": frame_digests(codes_tchw, scale_c).tobytes(),
        "latents": codes_tchw.reshape(-1).data,
        "sample_id": sample.sample_id.encode(),
        "scale": scale_c.tobytes(),
        "shape": np.array(codes_tchw.shape, "<u4").tobytes(),
        "tokenizer": sample.tokenizer_version.encode(),
    }
    head = struct.pack(f"<{len(_VARIABLE)}I", *(len(values[name]) for name in _VARIABLE))
    return b"".join([head, *(values[name] for name in COLUMNS)])


def _check_arrays(sample: Sample) -> None:
    codes_tchw, scale_c = sample.codes_tchw, sample.scale_c
    if codes_tchw.dtype != np.uint8 or codes_tchw.ndim != 4 or not len(codes_tchw):
        raise ValueError(f"{sample.sample_id}: codes are {codes_tchw.dtype} {codes_tchw.shape}")
    if scale_c.dtype != np.float32 or scale_c.nbytes != COLUMNS["scale"][1]:
        raise ValueError(f"{sample.sample_id}: scale is {scale_c.dtype} {scale_c.shape}")
    audio_n, actions_fd = sample.audio_n, sample.actions_fd
    if audio_n is not None and (audio_n.dtype != np.int16 or audio_n.ndim != 1):
        raise ValueError(
            f"{sample.sample_id}: audio is {audio_n.dtype} {audio_n.shape}, expected int16 (n,)"
        )
    if actions_fd is None:
        return
    rows = num_pixel_frames(len(codes_tchw))
    if actions_fd.dtype != np.float32 or actions_fd.ndim != 2 or len(actions_fd) != rows:
        raise ValueError(
            f"{sample.sample_id}: actions are {actions_fd.dtype} {actions_fd.shape}, expected "
            f"float32 ({rows}, dims)"
        )


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
        audio_n=decode_audio(parts["audio"]),
        actions_fd=decode_actions(parts["actions"], shape[0]),
    )


def decode_audio(data: bytes | memoryview) -> NDArray[np.int16] | None:
    """Read the column ``audio``, sharing its memory; None where it is empty.

    Raises:
        IntegrityError: Half a sample of sound.
    """
    if len(data) % 2:
        raise IntegrityError(f"{len(data)} bytes of audio are no whole number of int16")
    return np.frombuffer(data, "<i2") if len(data) else None


def decode_actions(data: bytes | memoryview, num_latent_frames: int) -> NDArray[np.float32] | None:
    """Read the column ``actions``, sharing its memory; None where it is empty.

    Raises:
        IntegrityError: The bytes are no whole number of values for each frame.
    """
    rows = num_pixel_frames(num_latent_frames)
    if len(data) % (4 * rows):
        raise IntegrityError(f"{len(data)} bytes of actions are not float32 for {rows} frames")
    return np.frombuffer(data, "<f4").reshape(rows, -1) if len(data) else None


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


def shard_head(sizes: Sequence[int], max_bytes: int) -> tuple[bytes, list[Span]]:
    """Write what stands before the samples of a shard, and say where each of them will lie.

    Args:
        sizes: Of the encoded samples, in their order.
        max_bytes: Limit that the configuration states.

    Raises:
        ValueError: The shard would exceed what uint32 offsets reach.
    """
    config = _config_bytes(max_bytes)
    start = 4 + 4 * (len(sizes) + 1) + len(config)
    offsets = list(itertools.accumulate(sizes, initial=start))
    if offsets[-1] > MAX_SHARD_BYTES:
        raise ValueError(f"a shard of {offsets[-1]} bytes exceeds {MAX_SHARD_BYTES}")
    head = struct.pack(f"<I{len(offsets)}I", len(sizes), *offsets)
    spans = [Span(offset, size) for offset, size in zip(offsets, sizes, strict=False)]
    return head + config, spans


def pack_shard(samples: Sequence[bytes], max_bytes: int) -> tuple[bytes, list[Span]]:
    """Join encoded samples into one shard, and say where each lies.

    Raises:
        ValueError: The shard would exceed what uint32 offsets reach.
    """
    head, spans = shard_head([len(sample) for sample in samples], max_bytes)
    return b"".join([head, *samples]), spans


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
