"""Export a dataset version to where other loaders read it, as MDS or as WebDataset.

The very same samples: what leaves is checked against the digests of the index on the way. The
same version and options give the same bytes, wherever an export was killed. The ledger is told
before the first byte leaves (`exported`); which samples, in which files, is `export_choice`.
"""

from __future__ import annotations

import functools
import io
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from wsdata.digest import sha256_bytes, short_digest
from wsdata.errors import IntegrityError, WsdataError
from wsdata.lifecycle.export_choice import FORMATS, Choice, ExportOptions, choose
from wsdata.lifecycle.exported import all_exports, state_export
from wsdata.loader.caption_reader import CaptionReader
from wsdata.loader.fetch import Fetcher
from wsdata.shard.export_folder import sha256_of
from wsdata.shard.export_items import Exported, FilePlan, Item, read_verified
from wsdata.shard.export_mds import (
    INDEX,
    MdsHead,
    check_same,
    index_bytes,
    line_beside,
    num_head_bytes,
    read_head,
    write_mds,
)
from wsdata.shard.export_place import ExportPlace, open_place
from wsdata.shard.export_tar import write_tar
from wsdata.shard.export_target import ExportTarget, FileRecord
from wsdata.shard.packs import CaptionRecord, read_pack
from wsdata.shard.publish import read_dataset
from wsdata.store import FolderStore

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.shard.placement import Placement
    from wsdata.store import BlobStore

Progress = Callable[[int, int, int], None]  # samples done, samples in all, bytes written

MAX_OPEN_PACKS = 4  # whole; files of an export follow the shards
READ_AHEAD = 4  # samples waiting for each thread


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportResult:
    """An export as it lies in its place.

    Attributes:
        export_id: Under which the ledger knows it.
        where: The folder, or the address of the bucket's prefix.
        num_whole_shards: Files that are shards as they are; of MDS alone.
        num_left_out: Samples of the cut version that a patch, a takedown or a safety list keeps
            back.
        manifest_sha256: Of ``export.json``.
    """

    export_id: str
    version: str
    format: str
    where: str
    num_samples: int
    num_files: int
    num_bytes: int
    num_whole_shards: int
    num_left_out: int
    manifest_sha256: str


def export_version(
    ledger: Ledger,
    store: BlobStore,
    version: str,
    where: str | Path,
    options: ExportOptions,
    *,
    num_threads: int = 8,
    is_linked: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a dataset version; one that was killed is gone on with, a finished one checked.

    Args:
        ledger: The ledger; told where to.
        store: The store.
        version: ``v3`` or ``v3.1``.
        where: Where to: a folder, or an address as `wsdata.store.open_store` takes it; new, empty,
            or of this very export.
        options: How.
        num_threads: Samples read at once, at least 1.
        is_linked: Let whole shards be the store's own files, where it is a folder of the same
            disk: they take no space, and nobody may write into them.
        progress: Told how far it is, in the caller's own thread.

    Raises:
        CatalogError: There is no such version, or no sample is left of what was asked for.
        PlanError: Steps that serve what may not go out.
        IntegrityError: Bytes of the store are not those that were written.
        WsdataError: The place holds something else, or is the store's own.
        ValueError: An impossible number, an address of no place, or links into a bucket.
    """
    if num_threads < 1:
        raise ValueError(f"{num_threads} threads: expected at least 1")
    place = open_place(where)
    _check_place(place, store, is_linked=is_linked)
    words = _Words(store, is_by_shard=options.steps is None)
    choice = choose(ledger, store, version, options, words.of)
    spec = _spec(store, version, options, choice)
    body = _fact(spec, choice, place)
    export_id = _export_id(ledger, spec, body)
    with ExportTarget(place, spec, is_known=export_id in all_exports(ledger)) as out:
        state_export(ledger, export_id, body)
        writer = _Writer(store, out, options, words, choice, num_threads, progress)
        writer.is_linked = is_linked
        try:
            records = writer.write_all()
        finally:
            writer.close()
        counts = {
            "num_samples": choice.num_samples,
            "num_bytes": sum(record["bytes"] for record in records),
            "num_left_out": {"patched": len(choice.patched), "withheld": len(choice.withheld)},
        }
        sha256 = out.finish(records, **counts)
        done = {"state": "done", "num_bytes": counts["num_bytes"], "manifest_sha256": sha256}
        state_export(ledger, export_id, {**body, **done})
    return ExportResult(
        export_id=export_id,
        version=version,
        format=options.format,
        where=place.name,
        num_samples=choice.num_samples,
        num_files=len(records),
        num_bytes=counts["num_bytes"],
        num_whole_shards=sum("shard" in record for record in records),
        num_left_out=len(choice.patched) + len(choice.withheld),
        manifest_sha256=sha256,
    )


def _check_place(place: ExportPlace, store: BlobStore, *, is_linked: bool) -> None:
    if place.is_within(store):
        raise WsdataError(
            f"{place.name} lies within the object store {store.address}, where what no table names "
            "is garbage: export to a place outside it"
        )
    if is_linked and place.kind != "folder":
        raise ValueError(f"{place.name}: only files of a folder can be links to a store's own")


def _spec(store: BlobStore, version: str, options: ExportOptions, choice: Choice) -> dict[str, Any]:
    """What decides the bytes of an export."""
    return {
        "version": version,
        "manifest_digest": read_dataset(store, version)["manifest_digest"],
        "index_sha256": read_dataset(store, version)["index_sha256"],
        "plan_id": choice.plan_id,
        "withheld": short_digest(choice.withheld),
        **asdict(options),
    }


def _fact(spec: dict[str, Any], choice: Choice, place: ExportPlace) -> dict[str, Any]:
    names = ("version", "format", "order", "bucket", "steps", "seed")
    return {
        **{name: spec[name] for name in names},
        "steps": None if spec["steps"] is None else list(spec["steps"]),
        "address": place.address,
        "host": place.host,  # whose folder it is
        "num_samples": choice.num_samples,
        "without": sorted([*choice.patched, *choice.withheld]),
        "state": "started",
    }


def _export_id(ledger: Ledger, spec: dict[str, Any], body: dict[str, Any]) -> str:
    """Of version, options, host and place; an export known by an older id keeps it."""
    without_host = "e" + short_digest([spec, body["address"]])
    if body["host"] is None:
        return without_host
    known = all_exports(ledger).get(without_host)
    if known is not None and known.get("host") == body["host"]:
        return without_host
    return "e" + short_digest([spec, body["address"], body["host"]])


class _Words:
    """Captions of samples, out of the packs beside their shards; safe to use from threads.

    Whoever goes through shards reads whole packs; in the plan's order each is from another one.
    """

    def __init__(self, store: BlobStore, *, is_by_shard: bool) -> None:
        self._store, self._is_by_shard = store, is_by_shard
        self._pack = functools.lru_cache(MAX_OPEN_PACKS)(self._read_pack)
        self._lock = threading.Lock()  # so that a pack is read once
        self._reader = CaptionReader(Fetcher(store))

    def of(self, placement: Placement) -> dict[str, str]:
        """Return a sample's captions by variant."""
        key, row = placement.caption_pack_key, placement.row
        if not key:
            return {}
        if not self._is_by_shard:
            return self._reader.read(placement)
        with self._lock:
            records = self._pack(key)
        if row >= len(records) or records[row].sample_id != placement.sample_id:
            raise IntegrityError(
                f"caption pack {key}: row {row} is not of sample {placement.sample_id}: run "
                "shard/caption_packs of its group again"
            )
        return records[row].captions

    def _read_pack(self, key: str) -> list[CaptionRecord]:
        data = self._store.get(key)
        if (found := sha256_bytes(data)) != PurePosixPath(key).stem:
            raise IntegrityError(
                f"caption pack {key} has digest {found[:12]}, not the one in its name: delete it "
                "and run shard/caption_packs of its group again"
            )
        return read_pack(data)


class _Writer:
    """Writes the files of one export."""

    def __init__(
        self,
        store: BlobStore,
        out: ExportTarget,
        options: ExportOptions,
        words: _Words,
        choice: Choice,
        num_threads: int,
        progress: Progress | None,
    ) -> None:
        self._store, self._out, self._options, self._words = store, out, options, words
        self._ahead = num_threads * READ_AHEAD
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="wsdata-export")
        self._choice, self._progress = choice, progress
        self._done = self._bytes = 0
        self.is_linked = False

    def close(self) -> None:
        """End the reading threads."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def write_all(self) -> list[FileRecord]:
        """Write every file, and of MDS the index of each folder; return what was noted of each."""
        records: list[FileRecord] = []
        for folder, plans in itertools.groupby(self._choice.files(), lambda plan: plan.folder):
            mine = [record for plan in plans for record in self._write(plan)]
            if self._options.format == "mds":
                mine.append(self._write_index(folder, mine))
            records += mine
        return records

    def _write(self, plan: FilePlan) -> list[FileRecord]:
        made = [self._out.add(plan.path, functools.partial(self._write_samples, plan))]
        if self._options.format == "mds" and plan.items[0].served is None:
            beside = plan.path.removesuffix(FORMATS["mds"]) + ".captions.jsonl"
            write = functools.partial(self._write_captions, plan)
            made.append(self._out.add(beside, write, num_samples=0))
        self._tell(len(plan.items), sum(record["bytes"] for record in made))
        return made

    def _tell(self, num_samples: int, num_bytes: int) -> None:
        self._done += num_samples
        self._bytes += num_bytes
        if self._progress is not None:
            self._progress(self._done, self._choice.num_samples, self._bytes)

    def _write_samples(self, plan: FilePlan, path: Path) -> FileRecord:
        count = len(plan.items)
        if self._is_whole_shard(plan):
            return {"num_samples": count, "shard": self._copy_shard(plan, path)}
        if self._options.format == "mds":
            write_mds(path, self._read(plan.items), count, max_bytes=self._options.limit)
        else:
            write_tar(path, self._read(plan.items))
        return {"num_samples": count}

    def _is_whole_shard(self, plan: FilePlan) -> bool:
        if self._options.format != "mds" or self._options.max_bytes is not None:
            return False
        first = plan.items[0]
        if first.served is not None:
            return False
        count = int.from_bytes(self._store.get_range(first.placement.shard_key, 0, 4), "little")
        return count == len(plan.items)

    def _copy_shard(self, plan: FilePlan, path: Path) -> str:
        placement = plan.items[0].placement
        if not (self.is_linked and _link(self._store, placement.shard_key, path)):
            self._store.fetch(placement.shard_key, path)
        if (found := sha256_of(path)) != placement.shard:
            raise IntegrityError(
                f"shard {placement.shard_key} has digest {found[:12]}, not the one in its name: "
                "delete it, run `wsdata run`, and export again"
            )
        with path.open("rb") as file:
            head = read_head(file, path.stat().st_size)
        check_same(head, (item.placement for item in plan.items), placement.shard_key)
        return placement.shard

    def _write_captions(self, plan: FilePlan, path: Path) -> FileRecord:
        with path.open("w", encoding="utf-8") as file:
            for item in plan.items:
                name, captions = item.placement.sample_id, self._words.of(item.placement)
                channels = self._choice.channels.get(name, "")
                file.write(line_beside(name, captions, channels) + "\n")
        return {}

    def _write_index(self, folder: str, records: list[FileRecord]) -> FileRecord:
        heads: dict[str, tuple[MdsHead, int]] = {}
        for record in records:
            path = PurePosixPath(record["path"])
            if path.suffix == FORMATS["mds"]:
                head = self._out.place.read(record["path"], num_head_bytes(record["num_samples"]))
                heads[path.name] = (
                    read_head(io.BytesIO(head or b""), record["bytes"]),
                    record["bytes"],
                )
        data = index_bytes(heads)

        def write(path: Path) -> FileRecord:
            path.write_bytes(data)
            return {"num_samples": 0}

        return self._out.add(f"{folder}/{INDEX}", write)

    def _read(self, items: list[Item]) -> Iterator[Exported]:
        """Read samples in their order, some ahead of their use."""
        waiting: deque[Future[Exported]] = deque()
        try:
            for item in items:
                waiting.append(self._executor.submit(self._exported, item))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _exported(self, item: Item) -> Exported:
        data, captions = read_verified(self._store, item.placement), self._words.of(item.placement)
        channels = self._choice.channels.get(item.placement.sample_id, "")
        return Exported(item.placement, item.served, data, captions, channels)


def _link(store: BlobStore, key: str, path: Path) -> bool:
    """Let a new file be a folder store's own, and say whether that could be done."""
    if not isinstance(store, FolderStore):
        return False
    try:
        path.hardlink_to(store.path_of(key))
    except OSError:  # another disk, or one that knows no links: it is copied instead
        return False
    return True
