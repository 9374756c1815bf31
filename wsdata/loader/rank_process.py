"""One rank as a process of its own: reads its batches, and writes down what it was given.

``python -m wsdata.loader.rank_process --help``. Used by the loader's proof, and by anyone who
wants to see a rank at work without a training loop. By default it uses the core without torch.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wsdata.digest import canonical_json
from wsdata.loader.batch_reader import BatchReader, tokens_of
from wsdata.loader.batches import View, batch_body
from wsdata.loader.cache import NodeCache
from wsdata.loader.caption_reader import CaptionReader
from wsdata.loader.cursor import resume_run, run_cursor
from wsdata.loader.fetch import Fetcher
from wsdata.loader.order import Share, walk
from wsdata.loader.prefetch import Ring
from wsdata.loader.run import single_run
from wsdata.loader.sample_reader import SampleReader
from wsdata.loader.slabs import SlabPool
from wsdata.loader.version import open_version
from wsdata.shard.quantize import dequantize
from wsdata.store import open_store


def _batches(args: argparse.Namespace, cursor: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield batches with the cursor that follows each."""
    store = open_store(args.store)
    opened = open_version(store, args.version)
    run = single_run(args.version, opened.plan, tokens_of(opened))
    start = resume_run(run, cursor) if cursor else args.start_step
    share = Share(rank=args.rank, world_size=args.world_size, micro_batch=args.micro_batch)
    fetcher = Fetcher(store, NodeCache(Path(args.cache)) if args.cache else None)
    reader = BatchReader(
        run,
        [opened],
        share=share,
        samples=SampleReader(fetcher),
        captions=CaptionReader(fetcher),
        view=View(latents=args.latents, sp_rank=args.sp_rank, sp_size=args.sp_size),
        memory=SlabPool(max_free=4),
    )
    pieces = walk(run, share, start_step=start, end_step=args.end_step)
    for batch in Ring(reader, pieces, num_threads=args.num_threads):
        yield batch_body(batch, run_cursor(run, batch.next_step))


def _torch_batches(
    args: argparse.Namespace, cursor: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """As `_batches`, through the torch dataset."""
    from wsdata.loader.dataset import PlanDataset

    dataset = PlanDataset(
        version=args.version,
        store=args.store,
        rank=args.rank,
        world_size=args.world_size,
        start_step=args.start_step,
        num_steps=args.end_step - args.start_step,
        micro_batch=args.micro_batch,
        latents=args.latents,
        sp_rank=args.sp_rank,
        sp_size=args.sp_size,
        cache_dir=args.cache or None,
        num_threads=args.num_threads,
    )
    if cursor:
        dataset.load_state_dict(cursor)
    for batch in dataset:
        yield {**batch, **{n: batch[n].numpy() for n in ("latents", "scales") if n in batch}}


def _float_latents(batch: dict[str, Any]) -> Iterator[NDArray[np.float32]]:
    """Latents of each sample as numbers, whatever they were asked for as."""
    if batch["latents"].dtype != np.uint8:
        yield from batch["latents"]
        return
    for codes, scale in zip(batch["latents"], batch["scales"], strict=True):
        yield dequantize(codes, scale, batch["latent_dtype"])


def _line(batch: dict[str, Any]) -> str:
    return canonical_json(
        {
            "step": batch["step"],
            "micro": batch["micro"],
            "bucket": batch["bucket"],
            "sample_ids": batch["sample_ids"],
            "clip_ids": batch["clip_ids"],
            "epochs": batch["epochs"],
            "captions_digest": xxhash.xxh3_64_hexdigest("\0".join(batch["captions"]).encode()),
            # Frame by frame, so that parts of a sample can be held against the whole.
            "latents_digests": [
                [xxhash.xxh3_64_hexdigest(frame.tobytes()) for frame in each]
                for each in _float_latents(batch)
            ],
        }
    )


def _save(path: Path, cursor: dict[str, Any]) -> None:
    temp = path.with_suffix(".writing")
    temp.write_text(canonical_json(cursor))
    temp.replace(path)


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or what stands for it."""
    parser = argparse.ArgumentParser(description="Read one rank's batches, and write them down.")
    parser.add_argument("--store", required=True, help="address that holds training/")
    parser.add_argument("--version", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--start-step", type=int, default=0)
    parser.add_argument("--end-step", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="JSON line for each step")
    parser.add_argument("--cursor", type=Path, help="resumed from if there, written at each step")
    parser.add_argument("--cache", default="", help="folder of the node's cache")
    parser.add_argument("--micro-batch", type=int, help="samples of one batch")
    parser.add_argument("--latents", default="float32", help="float32 or stored")
    parser.add_argument("--sp-rank", type=int, default=0)
    parser.add_argument("--sp-size", type=int, default=1, help="ranks that share a sample")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--torch", action="store_true", help="through the torch dataset")
    parser.add_argument(
        "--hold-after", type=int, help="after this step wait to be killed, reading ahead"
    )
    return parser.parse_args(arguments)


def deliver(args: argparse.Namespace) -> None:
    """Deliver steps [start, end), one line and one saved cursor for each batch."""
    parent = os.getppid()  # whoever started this; without it there is nobody left to kill it
    cursor = None
    if args.cursor is not None and args.cursor.is_file():
        cursor = json.loads(args.cursor.read_text())
    batches = _torch_batches(args, cursor) if args.torch else _batches(args, cursor)
    with args.out.open("a", encoding="utf-8") as out:
        for batch in batches:
            out.write(_line(batch) + "\n")
            out.flush()
            if args.cursor is not None:
                _save(args.cursor, batch["cursor"])
            while args.hold_after == batch["step"] and os.getppid() == parent:
                time.sleep(0.2)


def main() -> None:
    """Be one rank."""
    deliver(parse_args())


if __name__ == "__main__":
    main()
