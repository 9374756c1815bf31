"""Which samples an export takes, in which order, and into which files they go.

In the order of the shards every sample of a version goes out once, bucket by bucket. In the order
of the plan the samples of some steps go out as training is served them, slot by slot, as often as
it is served them. What a patch leaves out, and what a takedown or a safety list has withheld
since the cut, never goes out: the first order skips it, the second cannot and is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.curate.withheld import listed_assets, withheld_clips
from wsdata.errors import CatalogError, PlanError
from wsdata.lifecycle.tombstone import copies
from wsdata.lifecycle.versions import base_of, left_out, require_version
from wsdata.loader.order import choose_variant
from wsdata.loader.run import check_number
from wsdata.loader.version import OpenVersion, open_version
from wsdata.shard.export_items import (
    DEFAULT_MAX_BYTES,
    MAX_FILE_BYTES,
    FilePlan,
    Item,
    ServedAs,
    bucket_folder,
)
from wsdata.shard.placement import Placement, placement_of

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

FORMATS = {"mds": ".mds", "webdataset": ".tar"}
ORDERS = ("shard", "plan")
CAPTIONS_AT_ONCE = 16  # reads of a step's captions, in the order of the plan
SEQUENCE = "sequence"  # the one folder of an export in the plan's order
CaptionsOf = Callable[[Placement], dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """How to export.

    Attributes:
        format: mds or webdataset.
        order: shard or plan.
        steps: Half-open range of steps; of the plan's order alone, which needs it.
        seed: Of a run that has another order than the plan's own, 0 .. 2^48 - 1; of the plan's
            order alone.
        bucket: "<rung>/<width>x<height>/<frames>": this one alone.
        max_bytes: Where a file is full. None: of MDS in the shards' order one file for each
            shard, else `DEFAULT_MAX_BYTES`.

    Raises:
        ValueError: What does not go together.
    """

    format: str
    order: str = "shard"
    steps: tuple[int, int] | None = None
    seed: int | None = None
    bucket: str | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS or self.order not in ORDERS:
            raise ValueError(
                f"export as {self.format!r} in the order of {self.order!r}: expected one of "
                f"{', '.join(FORMATS)} and one of {', '.join(ORDERS)}"
            )
        if (self.steps is not None) != (self.order == "plan"):
            raise ValueError("--order plan needs --steps A:B, and --steps needs --order plan")
        if self.seed is not None and self.order != "plan":
            raise ValueError("--seed needs --order plan: the shards' order has none")
        if self.seed is not None:
            check_number(self.seed, "seed", "a seed")
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1]:
            raise ValueError(f"steps {self.steps[0]}:{self.steps[1]}: expected 0 <= A < B")
        if self.max_bytes is not None and not 0 < self.max_bytes <= MAX_FILE_BYTES:
            raise ValueError(f"max_bytes {self.max_bytes}: expected 1..{MAX_FILE_BYTES}")

    @property
    def limit(self) -> int:
        """Bytes at which a file is full, where it is not one for each shard."""
        return self.max_bytes or DEFAULT_MAX_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What an export takes.

    Attributes:
        num_samples: Samples in all; one that is served twice counts twice.
        patched: Samples of the cut version that the patch leaves out.
        withheld: Samples of the version that nothing may serve any more.
        plan_id: Of the plan whose order it is; empty in the shards' order.
        channels: Sample -> what the columns of its actions are, as JSON; of those that have any.
        files: Makes the files, in their order, each time it is called.
    """

    num_samples: int
    patched: list[str]
    withheld: list[str]
    plan_id: str
    channels: dict[str, str] = field(repr=False)
    files: Callable[[], Iterator[FilePlan]] = field(repr=False)


def choose(
    ledger: Ledger,
    store: BlobStore,
    version: str,
    options: ExportOptions,
    captions_of: CaptionsOf,
) -> Choice:
    """Say what an export takes. No sample is read.

    Args:
        ledger: The ledger.
        store: The store.
        version: ``v3`` or ``v3.1``.
        options: How to export.
        captions_of: Reads a sample's captions; called from threads.

    Raises:
        CatalogError: There is no such version, or no sample is left of what was asked for.
        PlanError: Steps that serve what may not go out, or that the plan does not have.
    """
    require_version(ledger, version)
    index = read_table(ledger, store, "dataset_index", base_of(version))
    patched = left_out(ledger, version)
    withheld = _withheld(ledger, store, index.filter(~pl.col("sample_id").is_in(patched)))
    if options.bucket is not None and options.bucket not in set(index["bucket"]):
        known = ", ".join(index["bucket"].unique().sort())
        raise CatalogError(f"{version} has no bucket {options.bucket!r}: it has {known}")
    if options.steps is not None:
        opened = open_version(store, version, seed=options.seed)
        order = _PlanOrder(opened, options, captions_of)
        order.refuse(set(patched), "the patch leaves out")
        order.refuse(set(withheld), "a takedown or safety list withholds")
        num, plan_id, files = order.num_samples, opened.plan.plan_id, order.files
    else:
        kept = index.filter(~pl.col("sample_id").is_in([*patched, *withheld]))
        if options.bucket is not None:
            kept = kept.filter(pl.col("bucket") == options.bucket)
        kept = kept.sort("bucket", "shard", "row")
        num, plan_id, files = kept.height, "", lambda: _shard_files(kept, options)
    if not num:
        raise CatalogError(f"no sample of {version} is left of what was asked for")
    return Choice(
        num_samples=num,
        patched=patched,
        withheld=withheld,
        plan_id=plan_id,
        channels=dict(index.select("sample_id", "channels_json").drop_nulls().rows()),
        files=files,
    )


def _withheld(ledger: Ledger, store: BlobStore, index: pl.DataFrame) -> list[str]:
    """Samples of clips that tombstones or safety lists withhold now, asked as the cut asks."""
    stones = ledger.present("tombstone")
    listed = listed_assets(read_table(ledger, store, "safety_list_scores"))
    if not stones and not listed:
        return []
    clips = read_table(ledger, store, "clips").unique("clip_id")
    pairs, groups = read_table(ledger, store, "match_pairs"), copies(ledger, store)
    gone = [withheld_clips(clips, groups, pairs, which)["clip_id"] for which in (stones, listed)]
    hit = index.filter(pl.col("clip_id").is_in(pl.concat(gone).implode()))
    return hit["sample_id"].sort().to_list()


def _shard_files(kept: pl.DataFrame, options: ExportOptions) -> Iterator[FilePlan]:
    for rows in kept.partition_by("bucket", maintain_order=True):
        if options.format == "mds" and options.max_bytes is None:
            parts = rows.partition_by("shard", maintain_order=True)
        else:
            parts = (rows[cut.start : cut.stop] for cut in _cuts(rows["length"], options.limit))
        for number, part in enumerate(parts):
            items = [Item(placement_of(row), None) for row in part.iter_rows(named=True)]
            folder = bucket_folder(items[0].placement.bucket)
            yield FilePlan(folder, _name(number, options), items)


def _cuts(lengths: pl.Series, limit: int) -> list[range]:
    ends, filled = [0], 0
    for index, length in enumerate(lengths):
        if filled + length > limit and index > ends[-1]:
            ends.append(index)
            filled = 0
        filled += length
    return [range(a, b) for a, b in itertools.pairwise([*ends, len(lengths)]) if a < b]


def _name(number: int, options: ExportOptions) -> str:
    return f"shard.{number:05d}{FORMATS[options.format]}"


class _PlanOrder:
    """Steps of a plan, walked slot by slot, free of ranks."""

    def __init__(
        self, opened: OpenVersion, options: ExportOptions, captions_of: CaptionsOf
    ) -> None:
        assert options.steps is not None  # noqa: S101
        first, end = options.steps
        if end > opened.plan.num_steps:
            raise PlanError(
                f"steps {first}:{end} of {opened.version}: its plan has steps "
                f"0:{opened.plan.num_steps}"
            )
        self._opened, self._options, self._captions_of = opened, options, captions_of
        self._steps = [
            step
            for step in range(first, end)
            if options.bucket is None or opened.plan.bucket(step) == options.bucket
        ]

    @property
    def num_samples(self) -> int:
        return sum(self._opened.plan.batch_size(step) for step in self._steps)

    def refuse(self, samples: set[str], why: str) -> None:
        """Raise where a step serves any of some samples."""
        if not samples:
            return
        hits = [
            (step, placement.sample_id)
            for step in self._steps
            for placement, _ in self._step(step)
            if placement.sample_id in samples
        ]
        if hits:
            (first, sample_id), last = hits[0], hits[-1][0]
            raise PlanError(
                f"{len(hits)} slots of the steps asked for serve what {why}, steps {first} to "
                f"{last}, such as {sample_id}: without it the order would be another. Export later "
                "steps of a patch (`wsdata dataset patch`), or with --order shard"
            )

    def _step(self, step: int) -> list[tuple[Placement, tuple[int, int]]]:
        planned = self._opened.plan.samples(step)
        placements = self._opened.placements([sample.row for sample in planned])
        return [
            (placement, (sample.slot, sample.epoch))
            for sample, placement in zip(planned, placements, strict=True)
        ]

    def files(self) -> Iterator[FilePlan]:
        number, items, filled = 0, list[Item](), 0
        for step in self._steps:
            samples = self._step(step)
            with ThreadPoolExecutor(CAPTIONS_AT_ONCE) as pool:
                captions = list(pool.map(self._captions_of, [sample[0] for sample in samples]))
            for (placement, (slot, epoch)), told in zip(samples, captions, strict=True):
                if items and filled + placement.length > self._options.limit:
                    yield FilePlan(SEQUENCE, _name(number, self._options), items)
                    number, items, filled = number + 1, [], 0
                variant = self._variant(told, step, slot)
                items.append(Item(placement, ServedAs(step, slot, epoch, variant)))
                filled += placement.length
        if items:
            yield FilePlan(SEQUENCE, _name(number, self._options), items)

    def _variant(self, captions: Mapping[str, str], step: int, slot: int) -> str:
        seed = self._opened.plan.seed
        return choose_variant(list(captions), seed=seed, step=step, slot=slot) if captions else ""
