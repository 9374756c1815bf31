"""Ready batches ahead of their use: reader threads fill a ring, steps come out in order.

The core of the loader, free of torch. Threads only: no worker process, no shared memory, no
collective, and nothing is read from the environment. A rank reads its own slots and waits for
no other rank.
"""

import functools
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, ObjectMissing, StoreError
from wsdata.loader.cache import NodeCache
from wsdata.loader.order import RankStep, choose_variant, walk
from wsdata.loader.telemetry import Telemetry
from wsdata.loader.version import OpenVersion
from wsdata.shard.packs import captions_of, read_pack
from wsdata.shard.plan import PlannedSample
from wsdata.shard.quantize import dequantize
from wsdata.shard.reader import parse_sample, read_sample, sample_digest
from wsdata.store import BlobStore

MAX_OPEN_PACKS = 64  # caption packs kept parsed


class Batch(NamedTuple):
    """One rank's part of one step, in global order.

    Attributes:
        latents_btchw: float32.
        captions: One for each sample; empty where it has none.
        variants: Which variant each caption is; empty where there is none.
        epochs: How often each sample's pool had been through before.
    """

    step: int
    bucket: str
    clip_ids: list[str]
    sample_ids: list[str]
    latents_btchw: NDArray[np.float32]
    captions: list[str]
    variants: list[str]
    streams: list[str]
    epochs: list[int]


class _Read(NamedTuple):
    latents_tchw: NDArray[np.float32]
    caption: str
    variant: str


class SampleReader:
    """Reads single samples: latents checked against their digest, and a caption."""

    def __init__(
        self,
        store: BlobStore,
        opened: OpenVersion,
        *,
        cache: NodeCache | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._store = store
        self._opened = opened
        self._cache = cache
        self._telemetry = telemetry or Telemetry()
        self._pack = functools.lru_cache(MAX_OPEN_PACKS)(self._read_pack)

    def read(self, step: int, planned: PlannedSample) -> _Read:
        """Read what one slot of one step serves.

        Raises:
            IntegrityError: The bytes are wrong in the store itself; clip, shard and offset named.
            ObjectMissing: The shard or its caption pack is not in the store.
        """
        placement = self._opened.placement(planned.row)
        latents_tchw = self.latents(placement)
        captions = self._captions(placement)
        if not captions:
            return _Read(latents_tchw, "", "")
        variant = choose_variant(
            list(captions), seed=self._opened.plan.seed, step=step, slot=planned.slot
        )
        return _Read(latents_tchw, captions[variant], variant)

    def latents(self, placement: dict[str, Any]) -> NDArray[np.float32]:
        """Latents of a row of the dataset index, as float32 of shape (t, c, h, w)."""
        start = time.monotonic()
        data = self._bytes(placement)
        is_reread = not _is_valid(placement, data)
        # Bytes that are wrong are no longer in the cache: once more from the store, then it fails.
        sample = read_sample(self._store, placement) if is_reread else parse_sample(data, placement)
        self._telemetry.fetched(time.monotonic() - start, placement["length"], is_reread=is_reread)
        return dequantize(sample.codes_tchw, sample.scale_c, sample.dtype)

    def _bytes(self, placement: dict[str, Any]) -> bytes:
        def fetch() -> bytes:
            try:
                return self._store.get_range(
                    placement["shard_key"], placement["offset"], placement["length"]
                )
            except ObjectMissing:
                raise
            except StoreError:  # a shard cut short: the second read says so
                return b""

        if self._cache is None:
            return fetch()
        return self._cache.read(
            placement["shard_key"],
            placement["offset"],
            placement["length"],
            fetch=fetch,
            is_valid=functools.partial(_is_valid, placement),
        )

    def _captions(self, placement: dict[str, Any]) -> dict[str, str]:
        key = placement["caption_pack_key"]
        if not key:
            return {}
        pack, row = self._pack(key), placement["row"]
        if row >= pack.height or pack["sample_id"][row] != placement["sample_id"]:
            raise IntegrityError(
                f"caption pack {key}: row {row} is not of sample {placement['sample_id']}: run "
                "shard/caption_packs of its group again"
            )
        return captions_of(pack, row)

    def _read_pack(self, key: str) -> pl.DataFrame:
        data = self._store.get(key)
        if PurePosixPath(key).stem != (found := sha256_bytes(data)):
            raise IntegrityError(
                f"caption pack {key} has digest {found[:12]}, not the one in its name: delete it "
                "and run shard/caption_packs of its group again"
            )
        return read_pack(data)


def _is_valid(placement: dict[str, Any], data: bytes) -> bool:
    return len(data) == placement["length"] and sample_digest(data) == placement["xxh3"]


def read_batches(
    opened: OpenVersion,
    reader: SampleReader,
    *,
    start_step: int,
    end_step: int,
    rank: int = 0,
    world_size: int = 1,
    num_threads: int = 2,
    depth: int = 2,
    telemetry: Telemetry | None = None,
) -> Generator[Batch]:
    """Yield a rank's batches of steps [start_step, end_step), read ahead by `depth`.

    Args:
        opened: The dataset version.
        reader: Reads its samples.
        start_step: First step.
        end_step: End of the steps.
        rank: Which rank this is.
        world_size: How many there are.
        num_threads: Reader threads; 0 reads in the caller's own, when a batch is asked for.
        depth: Batches that are read ahead of the one in use, at least 1.
        telemetry: Told how long batches were waited for.

    Raises:
        PlanError: The world size does not divide every global batch.
        IntegrityError: Bytes are wrong in the store; raised at the step that has them.
        ValueError: A negative number of threads, or a depth under 1.
    """
    if num_threads < 0 or depth < 1:
        raise ValueError(f"{num_threads} threads, depth {depth}: expected >= 0, and >= 1")
    steps = walk(
        opened.plan, start_step=start_step, end_step=end_step, rank=rank, world_size=world_size
    )
    if num_threads == 0:
        for part in steps:
            yield _assemble(part, [reader.read(part.step, sample) for sample in part.samples])
        return
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="wsdata-read")
    ring: deque[tuple[RankStep, list[Future[_Read]]]] = deque()

    def fill() -> None:
        while len(ring) <= depth:
            part = next(steps, None)
            if part is None:
                return
            ring.append((part, [pool.submit(reader.read, part.step, s) for s in part.samples]))

    try:
        fill()
        while ring:
            part, reads = ring.popleft()
            asked = time.monotonic()
            is_stall = not all(read.done() for read in reads)
            batch = _assemble(part, [read.result() for read in reads])
            if telemetry:
                telemetry.delivered(time.monotonic() - asked, is_stall=is_stall)
            fill()
            yield batch
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _assemble(part: RankStep, reads: list[_Read]) -> Batch:
    return Batch(
        step=part.step,
        bucket=part.bucket,
        clip_ids=[sample.clip_id for sample in part.samples],
        sample_ids=[sample.sample_id for sample in part.samples],
        latents_btchw=np.stack([read.latents_tchw for read in reads]),
        captions=[read.caption for read in reads],
        variants=[read.variant for read in reads],
        streams=[sample.stream for sample in part.samples],
        epochs=[sample.epoch for sample in part.samples],
    )
