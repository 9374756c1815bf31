"""Made-up dataset versions of any size: 8 buckets, 5 streams, 2 tiers, and a real packed index.

Ids, digests and places are numbers spelt out; what is read and checked is written as the step
`shard/step_plan` writes it, but for atoms' digests, which are not of the ids.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.digest import canonical_json, sha256_bytes
from wsdata.shard.format import Span
from wsdata.shard.packed import PackedWriter
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_atoms import Atom
from wsdata.shard.plan_step import plan_key
from wsdata.shard.publish import index_key, publish_dataset
from wsdata.shard.shard_entries import FIELDS
from wsdata.shard.training_index import Kind, Root, root_key
from wsdata.shard.training_index_write import (
    SAMPLES_PER_BLOCK,
    SHARD_ENTRIES_PER_BLOCK,
    sample_fields,
)
from wsdata.shard.writer import shard_key
from wsdata.store import BlobStore

I64 = NDArray[np.int64]

BUCKETS = tuple(
    f"{rung}/{size}/{frames}"
    for rung, size in (("256p", "448x256"), ("512p", "896x512"))
    for frames in (1, 33, 65, 121)
)
STREAMS = ("crawl", "licensed", "motion", "synthetic", "sound")
TIERS = ("T0", "T1")
BATCH = 1024
SAMPLES_OF_SHARD = 1000
ROWS_AT_ONCE = 1 << 18

_CLIP = "{:024x}-0-000000000-000002000"
_REST = b".256p.000000.0033.plain"
_CLIP_LENGTH = len(_CLIP.format(0))
_WIDTH = _CLIP_LENGTH + len(_REST)


class CountedIndex:
    """A `SampleIndex` whose samples are their rows spelt out, for any number of them."""

    def __init__(self, num_samples: int) -> None:
        self.atoms = atoms_of(num_samples)

    def names(self, rows: I64) -> list[tuple[str, str]]:
        """Return (sample id, clip id) of each row."""
        clips = [_CLIP.format(row) for row in rows.tolist()]
        return [(clip + _REST.decode(), clip) for clip in clips]

    def rows_of_clip(self, clip_id: str) -> I64:
        """Return the row of the one sample of a clip."""
        return np.array([int(clip_id[:24], 16)], dtype=np.int64)

    def rows_of_samples(self, sample_ids: Sequence[str]) -> I64:
        """Return the row of each sample."""
        return np.array([int(each[:24], 16) for each in sample_ids], dtype=np.int64)


def atoms_of(num_samples: int) -> tuple[Atom, ...]:
    """Atoms of about equal size."""
    names = [(b, s, t) for b in sorted(BUCKETS) for s in sorted(STREAMS) for t in TIERS]
    cuts = np.linspace(0, num_samples, len(names) + 1).astype(np.int64).tolist()
    return tuple(
        Atom(
            bucket=bucket,
            stream=stream,
            tier=tier,
            first_row=first,
            num_samples=end - first,
            num_tokens=(end - first) * _tokens(bucket),
            digest=sha256_bytes(f"{bucket} {stream} {tier}".encode()),
        )
        for (bucket, stream, tier), first, end in zip(names, cuts, cuts[1:], strict=False)
    )


def _tokens(bucket: str) -> int:
    _, size, frames = bucket.split("/")
    width, height = (int(side) for side in size.split("x"))
    return ((int(frames) - 1) // 4 + 1) * (width // 16) * (height // 16)


TOKENS = {bucket: _tokens(bucket) for bucket in BUCKETS}


def compile_plan(index: Any, *, num_steps: int = 2_000_000) -> StepPlan:
    """Compile a plan of 40 pools and two phases."""
    weights = {"crawl": 0.5, "licensed": 0.2, "motion": 0.15, "synthetic": 0.05, "sound": 0.1}
    phase = {"rungs": ("256p", "512p"), "tiers": TIERS, "weights": weights}
    return StepPlan.compile(
        index,
        seed=7,
        phases=[
            {**phase, "name": "low", "steps": num_steps // 2, "rungs": ("256p",)},
            {**phase, "name": "all", "steps": num_steps // 2},
        ],
        streams={stream: {} for stream in STREAMS},
        samples={"global_batch": BATCH, "batch_of_bucket": {}},
    )


def publish_made(store: BlobStore, num_samples: int, version: str = "v1") -> None:
    """Write plan, packed index and pointer of a made-up version; no shard is written."""
    root = _write_root(store, num_samples)
    data = root.to_bytes()
    store.put(root_key(sha256_bytes(data)), data)
    plan = compile_plan(CountedIndex(num_samples))
    store.put(plan_key(plan.plan_id), canonical_json(plan.to_json()).encode())
    table = index_key(sha256_bytes(b""))
    store.put(table, b"")
    body = {
        "index_key": table,
        "index_sha256": sha256_bytes(b""),
        "training_index_key": root_key(sha256_bytes(data)),
        "training_index_sha256": sha256_bytes(data),
        "manifest_digest": "made",
        "plan_key": plan_key(plan.plan_id),
        "plan_id": plan.plan_id,
    }
    publish_dataset(store, version, body)


def _write_root(store: BlobStore, num_samples: int) -> Root:
    samples = PackedWriter(
        store,
        "samples",
        sample_fields(_WIDTH),
        key="sample_id",
        rows_per_block=SAMPLES_PER_BLOCK,
    )
    entries = PackedWriter(
        store, "shards", FIELDS, key="shard", rows_per_block=SHARD_ENTRIES_PER_BLOCK
    )
    for low in range(0, num_samples, ROWS_AT_ONCE):
        rows = np.arange(low, min(low + ROWS_AT_ONCE, num_samples), dtype=np.int64)
        samples.add(_records(rows, samples.dtype))
        pairs = np.zeros(len(rows), entries.dtype)
        pairs["shard"], pairs["row"] = rows // SAMPLES_OF_SHARD, rows
        entries.add(pairs)
    return Root(
        atoms=atoms_of(num_samples),
        kinds=(Kind("fp8", "made-1", (9, 16, 32, 56), is_prefix_exact=True),),
        layouts=({"latents": Span(40, 9 * 16 * 32 * 56), "scale": Span(258_088, 64)},),
        samples=samples.close(),
        shards=entries.close(),
        sources=None,
    )


def _records(rows: I64, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    records = np.zeros(len(rows), dtype)
    digits = (rows[:, None] >> np.arange(92, -4, -4, dtype=np.int64).clip(max=60)) & 15
    digits[:, :8] = 0  # a row has 16 hex digits at most
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
    ids = np.empty((len(rows), _WIDTH), np.uint8)
    ids[:, :24] = text
    tail = _CLIP.format(0)[24:].encode() + _REST
    ids[:, 24:] = np.frombuffer(tail, np.uint8)
    records["sample_id"] = ids.reshape(-1).view(f"S{_WIDTH}")
    records["clip_length"] = _CLIP_LENGTH
    shards = np.zeros((len(rows), 32), np.uint8)
    shards[:, :8] = (rows // SAMPLES_OF_SHARD).astype(">u8")[:, None].view(np.uint8).reshape(-1, 8)
    records["shard"] = shards.reshape(-1).view("V32")
    records["xxh3"] = rows
    records["row"] = rows % SAMPLES_OF_SHARD
    records["offset"] = rows % SAMPLES_OF_SHARD * 258_152
    records["length"] = 258_152
    return records


def table_rows(num_samples: int) -> pl.DataFrame:
    """Rows of a dataset index with what its manifest adds, sorted; for the writer's own speed."""
    atoms = atoms_of(num_samples)
    clips = [_CLIP.format(row) for row in range(num_samples)]
    shards = [sha256_bytes(f"{n}".encode()) for n in range(num_samples // SAMPLES_OF_SHARD + 1)]
    own = [shards[row // SAMPLES_OF_SHARD] for row in range(num_samples)]
    offsets = [row % SAMPLES_OF_SHARD * 258_152 for row in range(num_samples)]
    counts = np.array([atom.num_samples for atom in atoms])

    def spread(values: Sequence[str]) -> NDArray[Any]:
        return np.repeat(np.array(values), counts)

    return pl.DataFrame(
        {
            "sample_id": [clip + _REST.decode() for clip in clips],
            "clip_id": clips,
            "stream": spread([atom.stream for atom in atoms]),
            "bucket": spread([atom.bucket for atom in atoms]),
            "tier": spread([atom.tier for atom in atoms]),
            "num_tokens": np.repeat(np.array([_tokens(atom.bucket) for atom in atoms]), counts),
            "shard": own,
            "shard_key": [shard_key(shard) for shard in own],
            "offset": offsets,
            "columns_json": [
                f'{{"latents":[{at + 40},258048],"scale":[{at + 258_088},64]}}' for at in offsets
            ],
            "transcode_key": [f"derived/transcodes_256p/{clip}.mp4" for clip in clips],
        }
    ).with_columns(
        tokenizer_version=pl.lit("made-1"),
        latent_dtype=pl.lit("fp8"),
        latent_shape_json=pl.lit("[9,16,32,56]"),
        is_prefix_exact=pl.lit(value=True),
        row=pl.lit(0),
        length=pl.lit(258_152),
        xxh3=pl.lit("0123456789abcdef"),
        caption_pack_key=pl.lit(None, dtype=pl.String),
        caption_offset=pl.lit(None, dtype=pl.Int64),
        caption_length=pl.lit(None, dtype=pl.Int64),
        caption_xxh3=pl.lit(None, dtype=pl.String),
        rung=pl.lit("256p"),
        fps=pl.lit(24.0),
        transcode_sha256=pl.col("shard"),
        start_frame=pl.lit(0),
        num_frames=pl.lit(33),
        width_px=pl.lit(448),
        height_px=pl.lit(256),
        crop_x=pl.lit(0),
        crop_y=pl.lit(0),
        variant=pl.lit("plain"),
    )
