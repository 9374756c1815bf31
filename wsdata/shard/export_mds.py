"""MDS files of an export: whole shards as they lie in the store, or samples packed anew.

A shard all of whose samples go out is copied byte for byte. Else its samples are packed anew
with the same columns, and so nothing else that lay in the shard leaves. In the order of the plan
columns are added that say what training does there, the caption among them; elsewhere captions,
and what the columns of actions are, lie beside a file, one line of JSON for each of its samples.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wsdata.digest import canonical_json
from wsdata.errors import IntegrityError
from wsdata.shard.export_items import Exported, ServedAs
from wsdata.shard.format import COLUMNS, FORMAT_VERSION, column_spans
from wsdata.shard.placement import Placement

INDEX = "index.json"
MAX_CONFIG_BYTES = 16_384  # of a file's configuration: that of all columns takes 1,100

# What a sample carries besides where it is exported in the order of the plan.
SERVED_COLUMNS: dict[str, tuple[str, int | None]] = {
    "action_channels": ("str", None),  # JSON, empty where there are no actions
    "bucket": ("str", None),
    "caption": ("str", None),
    "epoch": ("int", 8),
    "slot": ("int", 8),
    "step": ("int", 8),
    "stream": ("str", None),
    "variant": ("str", None),
}


class MdsHead(NamedTuple):
    """What a file says of itself: where its samples lie, and the columns they have."""

    offsets: tuple[int, ...]  # of each sample, and the end
    config: dict[str, Any]

    @property
    def num_samples(self) -> int:
        """Samples in the file."""
        return len(self.offsets) - 1


def num_head_bytes(num_samples: int) -> int:
    """Bytes within which the head of one of our files ends, so that no sample need be read."""
    return 4 * (num_samples + 2) + MAX_CONFIG_BYTES


def read_head(file: BinaryIO, size_bytes: int) -> MdsHead:
    """Read the head of an MDS file.

    Raises:
        IntegrityError: It is none.
    """
    head = file.read(4)
    count = struct.unpack("<I", head)[0] if len(head) == 4 else 0
    length = 4 * (count + 1)
    if length > size_bytes:
        raise IntegrityError(f"a file of {size_bytes} bytes cannot hold {count} samples")
    raw = file.read(length)
    if len(raw) != length:
        raise IntegrityError(f"a file of {size_bytes} bytes ends within its head")
    offsets = struct.unpack(f"<{count + 1}I", raw)
    if list(offsets) != sorted(offsets) or offsets[0] < 4 + length or offsets[-1] != size_bytes:
        raise IntegrityError(f"offsets of {count} samples do not fit a file of {size_bytes} bytes")
    try:
        config = json.loads(file.read(offsets[0] - 4 - length))
    except ValueError as error:
        raise IntegrityError(f"the head of the file holds no configuration: {error}") from error
    return MdsHead(offsets, config)


def write_mds(path: Path, items: Iterable[Exported], count: int, *, max_bytes: int) -> None:
    """Write samples into one file, one after the other; all or none are in the plan's order.

    Args:
        path: Where to; nothing is there.
        items: The samples.
        count: How many they are.
        max_bytes: Limit that the file's configuration states.

    Raises:
        IntegrityError: A sample has other columns than shards of this release.
        ValueError: The file would exceed what uint32 offsets reach.
    """
    offsets: list[int] = []
    with path.open("wb") as file:
        for item in items:
            if not offsets:
                config = _config_bytes(_columns(item.served), max_bytes)
                offsets.append(4 + 4 * (count + 1) + len(config))
                file.write(bytes(offsets[0] - len(config)) + config)
            parts = _parts(item)
            data = item.data if item.served is None else _with_served(item, item.served, parts)
            offsets.append(offsets[-1] + file.write(data))
        if offsets[-1] >= 1 << 32:
            raise ValueError(f"a file of {offsets[-1]} bytes: MDS reaches 4 GiB; lower --max-bytes")
        assert len(offsets) == count + 1  # noqa: S101
        file.seek(0)
        file.write(struct.pack(f"<I{count + 1}I", count, *offsets))


def check_same(head: MdsHead, placements: Iterable[Placement], name: str) -> None:
    """Check that a whole shard holds what the index says, in its order.

    Raises:
        IntegrityError: It does not.
    """
    wanted = [(p.offset, p.offset + p.length) for p in placements]
    if wanted != list(zip(head.offsets, head.offsets[1:], strict=False)):
        raise IntegrityError(f"{name}: its samples lie elsewhere than the dataset index says")


def index_bytes(files: Mapping[str, tuple[MdsHead, int]]) -> bytes:
    """Write the ``index.json`` by which the library finds the files of one folder.

    Args:
        files: Name -> head and size in bytes, in the order that samples are counted in.
    """
    shards = [
        {
            "samples": head.num_samples,
            "raw_data": {"basename": name, "bytes": size, "hashes": {}},
            "zip_data": None,
            **head.config,
        }
        for name, (head, size) in files.items()
    ]
    return json.dumps({"version": FORMAT_VERSION, "shards": shards}, sort_keys=True).encode()


def line_beside(sample_id: str, captions: Mapping[str, str], channels_json: str) -> str:
    """Return what stands beside a file for one of its samples, as one line."""
    told: dict[str, Any] = {"captions": captions, "sample_id": sample_id}
    if channels_json:
        told["action_channels"] = json.loads(channels_json)
    return canonical_json(told)


def base_sample(data: bytes, config: Mapping[str, Any]) -> bytes:
    """Return a sample as its shard has it, of one that may have columns added."""
    columns = dict(zip(config["column_names"], config["column_sizes"], strict=True))
    if not columns.keys() & SERVED_COLUMNS.keys():
        return data
    varying = [name for name, size in columns.items() if size is None]
    try:
        given = struct.unpack_from(f"<{len(varying)}I", data)
    except struct.error as error:
        raise IntegrityError(f"a sample of {len(data)} bytes has no head") from error
    sizes = {**columns, **dict(zip(varying, given, strict=True))}
    parts: dict[str, bytes] = {}
    offset = 4 * len(varying)
    for name, size in sizes.items():
        parts[name] = data[offset : offset + size]
        offset += size
    return _join({name: parts.get(name, b"") for name in COLUMNS}, COLUMNS)


def _columns(served: ServedAs | None) -> dict[str, tuple[str, int | None]]:
    both = COLUMNS if served is None else {**COLUMNS, **SERVED_COLUMNS}
    return {name: both[name] for name in sorted(both)}


def _config_bytes(columns: Mapping[str, tuple[str, int | None]], max_bytes: int) -> bytes:
    body = {
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_names": list(columns),
        "column_sizes": [size for _, size in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": max_bytes,
        "version": FORMAT_VERSION,
    }
    return json.dumps(body, sort_keys=True).encode()


def _parts(item: Exported) -> dict[str, bytes]:
    """Cut a sample into its columns.

    Raises:
        IntegrityError: It has other columns than the file says.
    """
    try:
        spans = column_spans(item.data)
    except IntegrityError as error:
        error.add_note(f"at {item.placement.words}: a shard of another release of wsdata?")
        raise
    return {name: item.data[at : at + length] for name, (at, length) in spans.items()}


def _with_served(item: Exported, served: ServedAs, parts: dict[str, bytes]) -> bytes:
    parts |= {
        "action_channels": item.channels_json.encode(),
        "bucket": item.placement.bucket.encode(),
        "caption": item.caption.encode(),
        "epoch": struct.pack("<q", served.epoch),
        "slot": struct.pack("<q", served.slot),
        "step": struct.pack("<q", served.step),
        "stream": item.placement.stream.encode(),
        "variant": served.variant.encode(),
    }
    return _join(parts, _columns(served))


def _join(parts: Mapping[str, bytes], columns: Mapping[str, tuple[str, int | None]]) -> bytes:
    sizes = [len(parts[name]) for name, (_, size) in columns.items() if size is None]
    return struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(parts[name] for name in columns)
