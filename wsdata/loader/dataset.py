"""The training side's one name: `PlanDataset`, a torch IterableDataset over a dataset version.

The only module of the loader that imports torch. All that decides which sample comes when is in
`order`; reading is `prefetch`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from wsdata.loader.cache import DEFAULT_MAX_BYTES, NodeCache
from wsdata.loader.cursor import make_cursor, resume_step
from wsdata.loader.prefetch import Batch, SampleReader, read_batches
from wsdata.loader.ranks import check_world
from wsdata.loader.telemetry import Telemetry, report_served
from wsdata.loader.version import open_version
from wsdata.shard.plan import StepPlan
from wsdata.store import BlobStore, open_store

REPORT_EVERY = 100  # steps


class PlanDataset(IterableDataset[dict[str, Any]]):
    """One rank's batches of a dataset version, one dict for each step.

    A batch has ``step``, ``bucket``, and for each sample of this rank, in global order,
    ``clip_ids``, ``sample_ids``, ``latents`` (float32, shape (b, t, c, h, w)), ``captions``,
    ``variants``, ``streams`` and ``epochs``. Batches of all ranks, rank by rank, are the global
    batch. `state_dict` is JSON and knows nothing of ranks: it resumes at any world size.

    Iterate over it directly, or through a DataLoader with ``batch_size=None, num_workers=0``.
    """

    def __init__(
        self,
        *,
        version: str,
        store: str | BlobStore,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        start_step: int = 0,
        num_steps: int | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int = DEFAULT_MAX_BYTES,
        num_threads: int = 2,
        prefetch_depth: int = 2,
        pin_memory: bool = False,
        report_to: str | BlobStore | None = None,
        run: str = "",
    ) -> None:
        """Open a dataset version.

        Args:
            version: ``v3`` or ``v3.1``.
            store: Address or store that holds ``training/``.
            seed: Another order of the same mixture; None is the plan's own.
            rank: This data-parallel rank, in [0, world_size).
            world_size: Number of data-parallel ranks; must divide every global batch.
            start_step: First step to deliver.
            num_steps: How many steps to deliver from there; None goes to the plan's end.
            cache_dir: Folder of the node's cache, which all ranks of a node may share.
            cache_bytes: Bound of that cache.
            num_threads: Reader threads; 0 reads in the caller's own.
            prefetch_depth: Batches read ahead.
            pin_memory: Put latents into page-locked memory; needs a GPU.
            report_to: Where rank 0 reports served ranges of steps; see `telemetry`.
            run: Name of the training run, for those reports.

        Raises:
            CatalogError: The version is not published in the store.
            PlanError: It has no plan, or the world size does not divide every global batch.
            ValueError: An impossible number, or reports of a run without a name.
        """
        super().__init__()
        if start_step < 0 or (num_steps is not None and num_steps < 0):
            raise ValueError(f"start_step {start_step}, num_steps {num_steps}: expected >= 0")
        if report_to is not None and not run:
            raise ValueError("report_to needs run: the name under which served steps are kept")
        self._store = _open(store)
        self._opened = open_version(self._store, version, seed=seed)
        check_world(self._opened.plan.batch_sizes, rank=rank, world_size=world_size)
        self._rank, self._world_size = rank, world_size
        self._next_step = start_step
        self._end_step = self.plan.num_steps if num_steps is None else start_step + num_steps
        self._num_threads, self._depth = num_threads, prefetch_depth
        self._pin_memory = pin_memory
        self._report_to = _open(report_to) if report_to is not None and rank == 0 else None
        self._run = run
        self.telemetry = Telemetry()
        self.cache = NodeCache(Path(cache_dir), cache_bytes) if cache_dir is not None else None
        self._reader = SampleReader(
            self._store, self._opened, cache=self.cache, telemetry=self.telemetry
        )

    @property
    def plan(self) -> StepPlan:
        """The plan that is walked."""
        return self._opened.plan

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield batches from the next step on; a new iterator goes on where the last one was."""
        if get_worker_info() is not None:
            raise ValueError(
                "PlanDataset reads ahead with threads of its own, and in DataLoader workers every "
                "worker would deliver every step: use DataLoader(..., num_workers=0)"
            )
        batches = read_batches(
            self._opened,
            self._reader,
            start_step=self._next_step,
            end_step=self._end_step,
            rank=self._rank,
            world_size=self._world_size,
            num_threads=self._num_threads,
            depth=self._depth,
            telemetry=self.telemetry,
        )
        first = self._next_step
        try:
            for batch in batches:
                self._next_step = batch.step + 1
                if self._next_step - first >= REPORT_EVERY:
                    first = self._report(first)
                yield self._to_torch(batch)
        finally:
            batches.close()
            self._report(first)

    def state_dict(self) -> dict[str, Any]:
        """Where to resume: the step after the last one delivered, and whose plan it is."""
        return make_cursor(self.plan, self._next_step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, under any world size.

        Raises:
            CursorError: The state is another plan's.
        """
        self._next_step = resume_step(self.plan, state)

    def telemetry_report(self, step_s: float | None = None) -> dict[str, Any]:
        """Fetch times, stalls and cache hits so far; see `Telemetry.report`."""
        body = self.telemetry.report(ring_depth=self._depth, step_s=step_s)
        if self.cache is not None:
            body |= {"cache_hits": self.cache.num_hits, "cache_misses": self.cache.num_misses}
        return body

    def _report(self, first: int) -> int:
        if self._report_to is not None and self._next_step > first:
            report_served(
                self._report_to,
                run=self._run,
                version=self._opened.version,
                plan_id=self.plan.plan_id,
                first_step=first,
                end_step=self._next_step,
            )
        return self._next_step

    def _to_torch(self, batch: Batch) -> dict[str, Any]:
        body = batch._asdict()
        latents = torch.from_numpy(body.pop("latents_btchw"))
        return {**body, "latents": latents.pin_memory() if self._pin_memory else latents}


def _open(store: str | BlobStore) -> BlobStore:
    return open_store(store) if isinstance(store, str) else store
