"""Bytes of a caption pack: a header line, then one line of JSON for each row of its shard.

A training host reads one line of a pack by its place and its digest, which the index records, and
never the whole; whoever goes through a shard reads the whole once. Which captions go in belongs to
`captions`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
import xxhash

from wsdata.digest import canonical_json
from wsdata.errors import IntegrityError

FORMAT_VERSION = 2

_decode = json.JSONDecoder().raw_decode


class Pack(NamedTuple):
    """A pack, and where the line of each row of its shard lies in it.

    Attributes:
        data: Its bytes.
        offsets: First byte of each row's line.
        lengths: Bytes of each, without the end of the line.
        digests: xxh3 of each, 16 hex digits.
    """

    data: bytes
    offsets: list[int]
    lengths: list[int]
    digests: list[str]

    @property
    def columns(self) -> dict[str, Any]:
        """The places as columns of table ``caption_packs``."""
        return {
            "record_offsets": self.offsets,
            "record_lengths": self.lengths,
            "record_xxh3": self.digests,
        }


class CaptionRecord(NamedTuple):
    """What a pack says of one row: captions are by variant, sorted; it may have none."""

    sample_id: str
    captions: dict[str, str]


def pack_key(sha256: str) -> str:
    """Object key of a caption pack by the sha256 of its bytes."""
    return f"training/packs/{sha256[:2]}/{sha256}.jsonl"


def build_pack(rows: pl.DataFrame, captions: pl.DataFrame) -> Pack:
    """Build one pack.

    Args:
        rows: Of one shard: ``row, sample_id``.
        captions: ``sample_id, variant, captioner_version, text``, at most one of each variant.

    Returns:
        A line for each row of the shard, in its order, with the captioner of what it says.

    Raises:
        ValueError: Rows are not 0, 1, 2 and so on.
    """
    rows = rows.select("row", "sample_id").sort("row")
    if rows["row"].to_list() != list(range(rows.height)):
        raise ValueError(f"{rows.height} rows of a shard are not numbered from 0 on: {rows['row']}")
    of_sample: dict[str, dict[str, tuple[str, str]]] = {}
    for sample_id, variant, captioner, text in captions.select(
        "sample_id", "variant", "captioner_version", "text"
    ).iter_rows():
        of_sample.setdefault(sample_id, {})[variant] = (captioner, text)
    lines = [canonical_json({"format_version": FORMAT_VERSION, "num_samples": rows.height})]
    for _, sample_id in rows.iter_rows():
        told = of_sample.get(sample_id, {})
        lines.append(
            canonical_json(
                {
                    "sample_id": sample_id,
                    "captions": {variant: text for variant, (_, text) in told.items()},
                    "captioner_version": "+".join(sorted({name for name, _ in told.values()})),
                }
            )
        )
    return _pack([line.encode() for line in lines])


def _pack(lines: Sequence[bytes]) -> Pack:
    lengths = [len(line) for line in lines]
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length + 1)
    return Pack(
        b"\n".join(lines) + b"\n",
        offsets[1:-1],
        lengths[1:],
        [xxhash.xxh3_64_hexdigest(line) for line in lines[1:]],
    )


def parse_record(line: str) -> CaptionRecord:
    """Read a line of a pack, which was checked against its digest."""
    body, _ = _decode(line)  # not `loads`, which looks for spaces around it first
    return CaptionRecord(body["sample_id"], body["captions"])


def read_pack(data: bytes) -> list[CaptionRecord]:
    """Read a whole pack, whose bytes were checked: a record for each row of its shard.

    Raises:
        IntegrityError: Another format, or not as many rows as it says.
    """
    header, *lines = data.split(b"\n")[:-1] or [b""]
    try:
        told: Mapping[str, Any] = json.loads(header)
        version, num_samples = told["format_version"], told["num_samples"]
    except (ValueError, KeyError, TypeError):
        version = num_samples = None
    if version != FORMAT_VERSION or num_samples != len(lines):
        raise IntegrityError(
            f"caption pack of format {version}, of {num_samples} samples, with {len(lines)} lines "
            f"of captions: expected format {FORMAT_VERSION}, and a line for each sample; use the "
            "release of wsdata that wrote it, or run shard/caption_packs of its group again"
        )
    return [parse_record(line.decode()) for line in lines]
