"""The training side's one name: `PlanDataset`, a torch IterableDataset over dataset versions.

All that decides which sample comes when is in `pieces` and the plans; reading is `batch_reader`
and `prefetch`, which know no torch.
"""

import dataclasses
import functools
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from wsdata.errors import CursorError
from wsdata.loader.batch_reader import BatchReader, tokens_of
from wsdata.loader.batches import Batch, View, batch_body
from wsdata.loader.cache import DEFAULT_MAX_BYTES, NodeCache
from wsdata.loader.cached_store import CachedStore
from wsdata.loader.caption_reader import CaptionReader
from wsdata.loader.cursor import resume_run, run_cursor
from wsdata.loader.fetch import Fetcher
from wsdata.loader.hedging import Hedging, check_hedging
from wsdata.loader.order import Share, walk
from wsdata.loader.pixels import Decoder, PixelReader
from wsdata.loader.prefetch import Ring
from wsdata.loader.reports import Reporter, Reports
from wsdata.loader.run import Segment, Tokens, bind_run
from wsdata.loader.sample_reader import SampleReader
from wsdata.loader.served import check_run_name
from wsdata.loader.slabs import Memory, SlabPool
from wsdata.loader.swap import swap_in
from wsdata.loader.telemetry import Telemetry
from wsdata.loader.version import OpenVersion, open_version
from wsdata.shard.plan import StepPlan
from wsdata.store import BlobStore, open_store


class PlanDataset(IterableDataset[dict[str, Any]]):
    """One rank's batches of a run, one dict for each step (or for each micro-batch of one).

    A batch has ``step``, ``bucket``, and for each sample of this rank, in global order,
    ``clip_ids``, ``sample_ids``, ``latents``, ``captions``, ``variants``, ``streams`` and
    ``epochs``. Batches of all ranks, rank by rank, are the global batch. ``latents`` are float32
    of shape (b, t, c, h, w), or as stored: uint8, with ``scales`` (b, c) and ``latent_dtype``;
    see `wsdata.loader.dequantize`. ``frames`` says which latent frames these are: [start, stop,
    of how many]; ``micro`` which micro-batch of the step: [number, count]. ``audio`` and
    ``actions`` are lists of tensors, where asked for.

    ``segment`` is the number of the run's segment, ``version`` its dataset version,
    ``tokenizer_version`` and ``latent_dtype`` what its latents were made by: they change where a
    segment begins alone.

    ``cursor`` is where to resume once the batch is done with: JSON, knowing nothing of ranks, so
    that it resumes at any world size, micro-batch or worker count. `state_dict` is the cursor of
    the last batch that this object delivered.

    With a decoder, ``pixels`` (uint8 RGB, (b, t, h, w, 3)) come instead of latents, of the same
    samples in the same order; ``frames`` are frames of pixels then. See `loader.pixels`.

    Iterate over it directly, or through a DataLoader with ``batch_size=None`` and any
    ``num_workers``: workers take turns, so the order is the same. Then what was delivered is
    known to the training loop alone: save ``batch["cursor"]``, or tell `consumed`.
    """

    def __init__(
        self,
        *,
        version: str | None = None,
        segments: Sequence[Segment] | None = None,
        store: str | BlobStore,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int | None = None,
        start_step: int = 0,
        num_steps: int | None = None,
        latents: str = "float32",
        columns: Sequence[str] = (),
        max_frames: int | None = None,
        sp_rank: int = 0,
        sp_size: int = 1,
        decoder: Decoder | None = None,
        transcodes: str | BlobStore | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int = DEFAULT_MAX_BYTES,
        num_threads: int = 2,
        prefetch_depth: int = 2,
        pin_memory: bool = False,
        hedging: Hedging | None = None,
        report_to: str | BlobStore | None = None,
        run: str = "",
    ) -> None:
        """Open the dataset version, or all versions, of a run.

        Args:
            version: ``v3`` or ``v3.1``: a run of this one alone.
            segments: A run of several, instead of `version` and `seed`; see `loader.run`.
            store: Address or store that holds ``training/``.
            seed: Another order of the same mixture; None is the plan's own.
            rank: This data-parallel rank, in [0, world_size).
            world_size: Number of data-parallel ranks; must divide every global batch.
            micro_batch: Deliver a step in pieces of so many samples; the last may have fewer.
            start_step: First step to deliver.
            num_steps: How many steps to deliver from `start_step`, wherever a cursor goes on, and
                at most to the end of a closed run; None goes to the run's end.
            latents: ``float32``, or ``stored``.
            columns: Of ``audio`` and ``actions``.
            max_frames: Latent frames of each sample that are read from its start at most.
            sp_rank: This rank within its sequence-parallel group, in [0, sp_size).
            sp_size: Ranks that share the slots of `rank`, and split each sample's latent frames.
            decoder: Decode transcodes instead of reading latents, such as
                `wsdata.media.transcode_frames.transcode_decoder`.
            transcodes: Where they lie, under ``derived/``; None is `store`.
            cache_dir: Folder of the node's cache, which all ranks of a node may share.
            cache_bytes: Bound of that cache.
            num_threads: Reader threads; 0 reads in the caller's own.
            prefetch_depth: Batches read ahead.
            pin_memory: Put latents into page-locked memory; needs a GPU.
            hedging: When a slow read is asked for again; None is what suits each store.
            report_to: Where served steps are told by rank 0, and its telemetry by every rank; see
                `reports`.
            run: Name of the training run, for those reports.

        Raises:
            CatalogError: A version is not published in the store.
            PlanError: One has no plan, or the world size does not divide every global batch.
            ValueError: An impossible number, or reports of a run without a name.
        """
        super().__init__()
        if start_step < 0 or (num_steps is not None and num_steps < 0):
            raise ValueError(f"start_step {start_step}, num_steps {num_steps}: expected >= 0")
        if report_to is not None and not run:
            raise ValueError("report_to needs run: the name under which served steps are kept")
        self._name = check_run_name(run) if run else ""
        if (version is None) == (segments is None):
            raise ValueError("expected either version or segments")
        if segments is not None and seed is not None:
            raise ValueError(f"seed {seed!r} beside segments: each segment has a seed of its own")
        self._share = Share(rank=rank, world_size=world_size, micro_batch=micro_batch)
        self._view = View(
            latents=latents,
            columns=tuple(columns),
            max_frames=max_frames,
            sp_rank=sp_rank,
            sp_size=sp_size,
        )
        self._store = _open(store)
        self.cache = NodeCache(Path(cache_dir), cache_bytes) if cache_dir is not None else None
        self._small = CachedStore(self._store, self.cache)
        self._decoder, self._transcodes = decoder, _open(transcodes or self._store)
        self._versions: list[OpenVersion] = []
        declared = [Segment(version=version, seed=seed)] if version is not None else segments or ()
        self._run = bind_run(declared, self._open_segment)
        self._run.check_world(rank=rank, world_size=world_size)
        self._next_step = start_step
        self._is_step_begun = False
        self._end_step = self._run.end_of(start_step, num_steps)
        self._num_threads, self._depth = num_threads, prefetch_depth
        self._pin_memory, self._hedging = pin_memory, check_hedging(hedging)
        self._report_to = _open(report_to) if report_to is not None else None
        self._resumed_step: int | None = None
        self._num_loads = 0
        self._consumed: Reports | None = None
        self._unpatched: dict[int, StepPlan] = {}
        self._swaps: list[int] = []  # the step that each swap takes effect at
        self._process = os.getpid()
        self.telemetry = Telemetry()

    @property
    def plan(self) -> StepPlan:
        """The plan that is walked; of a run of several segments, the first one's."""
        return self._run.segments[0].plan

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield batches from the next step on; a new iterator goes on where the last one was."""
        worker = get_worker_info()
        if worker is None:
            yield from self._deliver(self._share)
            return
        share = dataclasses.replace(self._share, worker=worker.id, num_workers=worker.num_workers)
        ring = self._ring(share)
        try:
            for batch in ring:
                yield {
                    **self._to_torch(batch),
                    "telemetry": self.telemetry.told(worker.num_workers),
                }
        finally:
            ring.close()

    def _deliver(self, share: Share) -> Iterator[dict[str, Any]]:
        ring = self._ring(share)
        num_swaps, reports = len(self._swaps), self._reports()
        num_loads = self._num_loads
        try:
            while True:
                if self._num_loads != num_loads:
                    raise CursorError(
                        f"a state at step {self._resumed_step} was loaded while iterating: begin "
                        "a new iterator, which goes on from there"
                    )
                if len(self._swaps) > num_swaps:
                    self._replace(ring, share, min(self._swaps[num_swaps:]))
                    num_swaps = len(self._swaps)
                    if reports is not None:
                        reports.swap(self._run)
                batch = next(ring, None)
                if batch is None:
                    return
                self._next_step, self._is_step_begun = batch.next_step, not batch.piece.is_last
                if reports is not None and batch.piece.is_last:
                    reports.delivered(batch.step)
                yield self._to_torch(batch)
        finally:
            ring.close()
            if reports is not None:
                reports.close()

    def state_dict(self) -> dict[str, Any]:
        """Where to resume: the step after the last one delivered, and whose run it is.

        A step of which only some micro-batches were delivered is delivered again.
        """
        return run_cursor(self._run, self._next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, under any world size.

        An iterator that is going on raises CursorError at its next batch: begin a new one.

        Raises:
            CursorError: The state is another run's.
        """
        self._next_step, self._is_step_begun = resume_run(self._run, state), False
        self._resumed_step, self._consumed = self._next_step, None
        self._num_loads += 1

    def consumed(self, batch: Mapping[str, Any]) -> None:
        """Say that a batch was delivered, where workers read it, for `state_dict` and telemetry."""
        number, count = batch["micro"]
        self._next_step = batch["cursor"]["step"]
        self._is_step_begun = number < count - 1
        if told := batch.get("telemetry"):  # of the worker that read it
            self.telemetry.take(told)
        if self._consumed is None and (reports := self._reports()) is not None:
            self._consumed = reports
            weakref.finalize(self, reports.close)  # nobody says which batch was the last one
        if self._consumed is not None and not self._is_step_begun:
            self._consumed.delivered(batch["step"])

    def __getstate__(self) -> dict[str, Any]:
        """A DataLoader's worker reports nothing: it does not know what was delivered."""
        return {**self.__dict__, "_consumed": None, "_report_to": None, "telemetry": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._process, self.telemetry = os.getpid(), Telemetry()

    def swap_to(self, version: str) -> None:
        """Go on with a patched version, from the patch's first step on.

        Batches that were read ahead from that step on are read again; those before it stay. What
        the patch changed is told by `telemetry_report`. With DataLoader workers, make a new
        DataLoader afterwards.

        Args:
            version: A patch of a version of the run, such as ``v3.1`` of ``v3``.

        Raises:
            CursorError: The patch changes steps that were delivered already.
            PlanError: It is no patch of the plans of this run.
        """
        swapped = swap_in(
            self._run, version, lambda seed: open_version(self._small, version, seed=seed)
        )
        run, undelivered = swapped.run, self._next_step + self._is_step_begun
        resume_run(run, run_cursor(self._run, undelivered))
        for number, opened in swapped.opened.items():
            self._unpatched.setdefault(number, self._run.segments[number].plan)
            self._versions[number] = opened
        self._run = run
        self._swaps.append(max(swapped.first_step, undelivered))
        if self._consumed is not None:
            self._consumed.swap(run)

    def telemetry_report(self, step_s: float | None = None) -> dict[str, Any]:
        """Fetch times, stalls, cache hits, slots that a swap changed; see `Telemetry.report`."""
        body = self.telemetry.report(ring_depth=self._depth, step_s=step_s)
        return body | self.telemetry.skips()

    def _open_segment(self, segment: Segment) -> tuple[StepPlan, Tokens]:
        opened = open_version(self._small, segment.version, seed=segment.seed)
        self._versions.append(opened)
        return opened.plan, tokens_of(opened)

    def _ring(self, share: Share) -> Ring:
        """Start to read ahead. All that threads or a fork could harm is made here."""
        if os.getpid() != self._process:  # a DataLoader's worker: locks are not its own
            self._process, self.telemetry = os.getpid(), Telemetry()
        fetcher = Fetcher(self._store, self.cache, self.telemetry, self._hedging)
        pixels = None
        if self._decoder is not None:
            media = Fetcher(self._transcodes, self.cache, self.telemetry, self._hedging)
            pixels = PixelReader(media, self._decoder)
        memory: Memory = PinnedMemory() if self._pin_memory else SlabPool(self._depth + 2)
        reader = BatchReader(
            self._run,
            self._versions,
            share=share,
            samples=SampleReader(fetcher),
            captions=CaptionReader(fetcher),
            view=self._view,
            memory=memory,
            unpatched=self._unpatched,
            pixels=pixels,
        )
        return Ring(
            reader,
            walk(self._run, share, start_step=self._next_step, end_step=self._end_step),
            num_threads=self._num_threads,
            depth=self._depth,
            telemetry=self.telemetry,
            on_skipped=self.telemetry.skipped,
        )

    def _replace(self, ring: Ring, share: Share, from_step: int) -> None:
        pieces = walk(self._run, share, start_step=self._next_step, end_step=self._end_step)
        ring.replace(ring.reader.replaced(self._run, self._versions, self._unpatched), pieces,
                     from_step)  # fmt: skip

    def _reports(self) -> Reports | None:
        """Reports of an attempt that begins now."""
        if self._report_to is None:
            return None
        reporter = Reporter(
            store=self._report_to,
            name=self._name,
            rank=self._share.rank * self._view.sp_size + self._view.sp_rank,
            world_size=self._share.world_size,
            telemetry=functools.partial(self.telemetry.report, ring_depth=self._depth),
            session=self.telemetry.session,
        )
        return Reports(reporter, self._run, resumed_step=self._resumed_step)

    def _to_torch(self, batch: Batch) -> dict[str, Any]:
        segment = self._run.segments[batch.piece.segment]
        body = batch_body(batch, run_cursor(self._run, batch.next_step))
        body |= {
            "segment": batch.piece.segment,
            "version": segment.version,
            "tokenizer_version": segment.tokens.tokenizer_version,
            "latent_dtype": segment.tokens.dtype,
        }
        for name in ("latents", "scales", "pixels"):
            if name in body:
                body[name] = as_tensor(body[name])
        for name in self._view.columns:
            body[name] = [torch.from_numpy(array) for array in body[name]]
        return body


class PinnedMemory:
    """Page-locked memory, from torch's own pool: that one waits for copies still under way."""

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory as `Memory.take`."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array as a tensor over the same memory; one of torch's own, where it came from torch.

    Only so does torch know, when a copy to a device is under way, whose memory it is.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, torch.Tensor):
        return torch.from_numpy(array)
    start = array.ctypes.data - base.data_ptr()
    flat = base.view(-1)[start : start + array.nbytes]
    return flat.view(torch.from_numpy(array[:0]).dtype).view(array.shape)


def _open(store: str | BlobStore) -> BlobStore:
    return open_store(store) if isinstance(store, str) else store
