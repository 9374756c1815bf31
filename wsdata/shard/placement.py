"""Where a sample of a dataset version lies: the one record that readers of shards go by.

Whence it is taken (a packed training index, rows of a table) belongs to `training_index` and
`loader.version`; reading the bytes, to `reader` and the loader.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from wsdata.errors import PlanError
from wsdata.shard.format import Span

NO_XXH3 = "0" * 16  # of no captions


class Placement(NamedTuple):
    """One sample: what it is, and where its bytes and its captions are.

    Attributes:
        bucket: "<rung>/<width>x<height>/<frames>".
        shard: sha256 of the shard's bytes, hex.
        row: Of the sample in its shard.
        offset: First byte of the sample in its shard.
        length: Bytes of the sample.
        xxh3: Digest of those bytes, 16 hex digits.
        dtype: fp8 or int8.
        latent_shape: (t, c, h, w).
        columns: Column -> where it lies, counted from the sample's first byte.
        caption_pack_key: Empty where the sample has no captions.
        caption_offset: First byte of its captions in that pack.
        caption_length: Bytes of them; 0 where the sample has none.
        caption_xxh3: Digest of those bytes, 16 hex digits.
        is_prefix_exact: Whether its first latent frames are what a shorter clip would give.
    """

    sample_id: str
    clip_id: str
    stream: str
    bucket: str
    shard: str
    shard_key: str
    row: int
    offset: int
    length: int
    xxh3: str
    dtype: str
    tokenizer_version: str
    latent_shape: tuple[int, int, int, int]
    columns: dict[str, Span]
    caption_pack_key: str
    caption_offset: int
    caption_length: int
    caption_xxh3: str
    is_prefix_exact: bool = False

    @property
    def words(self) -> str:
        """What errors call it: clip, sample, shard and offset."""
        return (
            f"clip {self.clip_id} (sample {self.sample_id}) in shard {self.shard} "
            f"at offset {self.offset}"
        )

    @property
    def caption_words(self) -> str:
        """What errors call its captions: clip, sample, pack and offset."""
        return (
            f"captions of clip {self.clip_id} (sample {self.sample_id}) in caption pack "
            f"{self.caption_pack_key} at offset {self.caption_offset}"
        )


def placement_of(row: Mapping[str, Any]) -> Placement:
    """Read a row of table ``dataset_index``, whose columns are counted from the shard's start.

    Raises:
        PlanError: It is of a release whose captions were not read by row.
    """
    shape = cast("list[int]", json.loads(row["latent_shape_json"]))
    columns = cast("dict[str, list[int]]", json.loads(row["columns_json"]))
    frames, channels, height, width = shape
    if row["caption_pack_key"] and row.get("caption_offset") is None:
        raise PlanError(
            f"sample {row['sample_id']}: the dataset index names caption pack "
            f"{row['caption_pack_key']}, and not where the sample's captions lie in it, as this "
            "code expects: use the release of wsdata that wrote it, or cut the next dataset "
            "version with this one"
        )
    return Placement(
        sample_id=row["sample_id"],
        clip_id=row["clip_id"],
        stream=row["stream"],
        bucket=row["bucket"],
        shard=row["shard"],
        shard_key=row["shard_key"],
        row=row["row"],
        offset=row["offset"],
        length=row["length"],
        xxh3=row["xxh3"],
        dtype=row["latent_dtype"],
        tokenizer_version=row["tokenizer_version"],
        latent_shape=(frames, channels, height, width),
        columns={
            name: Span(start - row["offset"], length) for name, (start, length) in columns.items()
        },
        caption_pack_key=row["caption_pack_key"] or "",
        caption_offset=row.get("caption_offset") or 0,
        caption_length=row.get("caption_length") or 0,
        caption_xxh3=row.get("caption_xxh3") or NO_XXH3,
        is_prefix_exact=bool(row.get("is_prefix_exact")),  # where unknown, it is not relied upon
    )
