"""Captions of samples, each of another shard: by their own record, beside whole packs.

    PYTHONPATH=. .venv/bin/python benchmarks/caption_reads.py [--folder DIR] [--packs 100]

Packs hold 4,000 rows of three captions of 400 characters each, made of words, so that they compress
as text does. Beside ours stands what a pack was before, a Parquet table (zstd) that is read whole,
checked, parsed, and kept, the 64 last ones. Samples are asked for in rounds over all packs, so that
none is among the last: in a shuffled order over 10^5 shards hardly any is either. Each way is a
process of its own that reads a folder whose files are in memory; bytes are those asked of the
store. Prints JSON.
"""

import argparse
import functools
import io
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.loader.cache import NodeCache
from wsdata.loader.caption_reader import CaptionReader
from wsdata.loader.fetch import Fetcher
from wsdata.shard.packs import build_pack, pack_key
from wsdata.shard.placement import Placement, placement_of
from wsdata.store import FolderStore

ROWS, VARIANTS, LETTERS = 4_000, ("dense", "medium", "short"), 400
MAX_OPEN_PACKS = 64
RUN = 16  # samples that a thread of the loader reads in a row
ASKED = {"record": 40_000, "record_cached": 40_000, "whole": 400}
NUM_WORDS = 5_000


def make(folder: Path, num_packs: int) -> None:
    """Write packs in both forms, and where each record lies."""
    store, rng = FolderStore(folder), random.Random(3)  # noqa: S311
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = [
        "".join(rng.choices(letters, range(26, 0, -1), k=rng.randint(2, 9)))
        for _ in range(NUM_WORDS)
    ]
    places: list[list[Any]] = []
    for number in range(num_packs):
        clips = [f"{number:08x}{row:016x}-0-000000000-000002000" for row in range(ROWS)]
        rows = pl.DataFrame({"row": range(ROWS), "sample_id": [f"{c}.256p" for c in clips]})
        texts = [" ".join(rng.choices(words, k=90))[:LETTERS] for _ in range(ROWS * len(VARIANTS))]
        captions = pl.DataFrame(
            {
                "sample_id": [f"{clip}.256p" for clip in clips for _ in VARIANTS],
                "variant": VARIANTS * ROWS,
                "text": texts,
            }
        ).with_columns(captioner_version=pl.lit("describer-3"))
        pack = build_pack(rows, captions)
        key = pack_key(sha256_bytes(pack.data))
        store.put(key, pack.data)
        columns = {f"caption_{v}": texts[n :: len(VARIANTS)] for n, v in enumerate(VARIANTS)}
        table = tables.to_parquet(
            rows.with_columns(**{n: pl.Series(t) for n, t in columns.items()})
        )
        old = f"training/packs/{sha256_bytes(table)}.parquet"
        store.put(old, table)
        for row, *record in zip(range(ROWS), pack.offsets, pack.lengths, pack.digests, strict=True):
            places.append([key, old, rows["sample_id"][row], row, *record])
    random.Random(4).shuffle(places)  # noqa: S311
    rounds: dict[str, int] = {}
    turns = [rounds.update({p[0]: rounds.get(p[0], 0) + 1}) or rounds[p[0]] for p in places]
    places = [p for _, p in sorted(zip(turns, places, strict=True))]  # one of each pack, and again
    (folder / "places.json").write_text(json.dumps(places[: max(ASKED.values())]))


def placements(folder: Path, num: int) -> list[tuple[Placement, str]]:
    """Samples in a shuffled order, each with its pack as it was before."""
    row = dict.fromkeys(
        ("clip_id", "stream", "bucket", "shard", "shard_key", "offset", "length", "xxh3",
         "latent_dtype", "tokenizer_version")
    ) | {"latent_shape_json": "[1,1,1,1]", "columns_json": "{}"}  # fmt: skip
    found: list[tuple[Placement, str]] = []
    for key, old, sample_id, number, offset, length, xxh3 in json.loads(
        (folder / "places.json").read_text()
    )[:num]:
        place = {"pack_key": key, "offset": offset, "length": length, "xxh3": xxh3}
        named = {f"caption_{name}": value for name, value in place.items()}
        found.append((placement_of({**row, **named, "sample_id": sample_id, "row": number}), old))
    return found


def read_records(folder: Path, asked: list[tuple[Placement, str]]) -> tuple[list[int], int]:
    """Ours, straight from the store: bytes of each read, and how many texts came."""
    reader = CaptionReader(Fetcher(FolderStore(folder)))
    return [placement.caption_length for placement, _ in asked], _num_texts(reader, asked)


def read_cached(folder: Path, asked: list[tuple[Placement, str]]) -> tuple[list[int], int]:
    """Ours, out of the node's cache."""
    reader = CaptionReader(Fetcher(FolderStore(folder), NodeCache(folder / "cache")))
    return [0], _num_texts(reader, asked)


def _num_texts(reader: CaptionReader, asked: list[tuple[Placement, str]]) -> int:
    """Read as the loader does: a run of samples at once, and by itself what that left out."""
    found = 0
    for start in range(0, len(asked), RUN):
        run = [placement for placement, _ in asked[start : start + RUN]]
        captions = reader.read_straight(run)
        captions += [reader.read(placement) for placement in run[len(captions) :]]
        found += sum(map(len, captions))
    return found


def read_wholes(folder: Path, asked: list[tuple[Placement, str]]) -> tuple[list[int], int]:
    """As captions were read before: packs whole, checked, parsed, the last 64 kept."""
    import pyarrow.parquet as pq

    store, sizes = FolderStore(folder), list[int]()

    @functools.lru_cache(MAX_OPEN_PACKS)
    def read(key: str) -> tuple[list[str], list[list[str]]]:
        data = store.get(key)
        sizes.append(len(data))
        if sha256_bytes(data) != Path(key).stem:
            raise SystemExit(f"{key} is damaged")
        table = pq.read_table(io.BytesIO(data), use_threads=False, pre_buffer=False).sort_by("row")
        texts = [table[f"caption_{variant}"].to_pylist() for variant in VARIANTS]
        return table["sample_id"].to_pylist(), texts

    num_texts = 0
    for placement, old in asked:
        sample_ids, texts = read(old)
        if sample_ids[placement.row] != placement.sample_id:
            raise SystemExit("another sample's row")
        num_texts += len([column[placement.row] for column in texts])
    return sizes, num_texts


WAYS = {"record": read_records, "record_cached": read_cached, "whole": read_wholes}


def measure(folder: Path, way: str) -> dict[str, Any]:
    """Read captions one way, in this process."""
    asked = placements(folder, ASKED[way])
    if way == "record_cached":
        read_cached(folder, asked)  # fills it
    before, begun, clock = _resident_mb(), time.process_time(), time.perf_counter()
    sizes, num_texts = WAYS[way](folder, asked)
    cpu_s, wall_s = time.process_time() - begun, time.perf_counter() - clock
    if num_texts != len(VARIANTS) * len(asked):
        raise SystemExit(f"{num_texts} captions of {len(asked)} samples")
    return {
        "samples": len(asked),
        "bytes_a_sample": sum(sizes) / len(asked),
        "cpu_us_a_sample": 1e6 * cpu_s / len(asked),
        "wall_us_a_sample": 1e6 * wall_s / len(asked),
        "memory_grown_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before,
    }


def _resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    """Measure all ways, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--packs", type=int, default=100)
    parser.add_argument("--way", choices=sorted(WAYS))
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.folder, args.way)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        make(folder, args.packs)
        body: dict[str, Any] = {"packs": args.packs, "rows": ROWS}
        for way in WAYS:
            command = [sys.executable, __file__, "--folder", name, "--way", way]
            done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603
            body[way] = json.loads(done.stdout)
        for suffix in ("jsonl", "parquet"):
            sizes = [path.stat().st_size for path in folder.rglob(f"*.{suffix}")]
            body[f"pack_mb_{suffix}"] = sum(sizes) / len(sizes) / 1e6
        for name in ("bytes", "cpu_us"):
            value = f"{name}_a_sample"
            body[f"whole_over_record_{name}"] = body["whole"][value] / body["record"][value]
    print(json.dumps(body, indent=2))


if __name__ == "__main__":
    main()
