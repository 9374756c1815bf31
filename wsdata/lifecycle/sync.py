"""Replicate what training reads of a dataset version to another region's store.

Only ``training/`` is read or written: shards, caption packs, indexes, plan, and last the pointers
that make a version visible there, a patch's parents before it. All but pointers are named by the
digest of their bytes, which is checked on what was read before it is put. What was copied before
is skipped, so a sync that was killed goes on where it was. How objects are moved belongs to
`sync_copy`; what an object store promises, to `store`.
"""

import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

import polars as pl

from wsdata.digest import sha256_bytes
from wsdata.errors import CatalogError, IntegrityError, ObjectMissing, PlanError, StoreError
from wsdata.lifecycle.sync_copy import SyncStopped, copy_object, is_whole
from wsdata.shard.publish import dataset_key, read_dataset
from wsdata.shard.training_index import read_root
from wsdata.store import BlobStore

PREFIX = "training/"
NUM_NAMED = 5  # faults told in an error; all of them are counted
WAITING_PER_THREAD = 4  # so that millions of objects are never queued at once
LIST_FROM = 16  # wanted objects of one folder of keys; fewer are asked for one by one


class SyncProgress(Protocol):
    """Told how far a sync is."""

    def __call__(self, done: int, total: int, num_bytes: int, /) -> None:
        """Take (objects done, objects in all, bytes copied so far)."""
        ...


class Wanted(NamedTuple):
    """One object of a dataset version, and the sha256 that its bytes must have."""

    key: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncResult:
    """What a sync did; of a dry run, what it would do.

    Attributes:
        version: The version asked for.
        versions: All that are visible by it: parents first, the version last.
        source: Address that was read.
        target: Address that was written.
        num_objects: Objects that the versions consist of, pointers included.
        num_copied: Objects that were not there.
        bytes_copied: Their bytes.
        num_skipped: Objects that were there.
        bytes_skipped: Their bytes.
        repaired: Keys whose bytes in the target were wrong, and were put anew.
        is_deep: Whether all that lies in the target was read back and checked.
        is_dry_run: Whether nothing was written.
        is_published: Whether a trainer can open the version in the target now.
    """

    version: str
    versions: list[str]
    source: str
    target: str
    num_objects: int
    num_copied: int
    bytes_copied: int
    num_skipped: int
    bytes_skipped: int
    repaired: list[str]
    is_deep: bool
    is_dry_run: bool
    is_published: bool


class _Sizes(NamedTuple):
    """An object's size in source and target, in bytes; None where it is not."""

    source: int | None
    target: int | None


class _Moved(NamedTuple):
    """What became of one object: its size, and whether it was copied or repaired."""

    key: str
    size: int
    is_copied: bool
    is_repaired: bool


class _Tally:
    """Counts what became of objects, and remembers which of the source are damaged."""

    def __init__(self, total: int, progress: SyncProgress | None) -> None:
        self.total, self._progress = total, progress
        self.num_copied = self.bytes_copied = self.num_skipped = self.bytes_skipped = 0
        self.repaired: list[str] = []
        self.faults: list[str] = []

    def add(self, moved: _Moved) -> None:
        if moved.is_copied:
            self.num_copied += 1
            self.bytes_copied += moved.size
        else:
            self.num_skipped += 1
            self.bytes_skipped += moved.size
        if moved.is_repaired:
            self.repaired.append(moved.key)
        self._tell()

    def add_fault(self, fault: Exception) -> None:
        self.faults.append(str(fault))
        self._tell()

    def _tell(self) -> None:
        done = self.num_copied + self.num_skipped + len(self.faults)
        if self._progress is not None:
            self._progress(done, self.total, self.bytes_copied)


def sync_version(
    source: BlobStore,
    target: BlobStore,
    version: str,
    *,
    num_threads: int = 8,
    is_deep: bool = False,
    is_dry_run: bool = False,
    progress: SyncProgress | None = None,
) -> SyncResult:
    """Bring a dataset version, and the versions that it patches, to another store.

    Args:
        source: Store that holds ``training/``; nothing else of it is read.
        target: Where to; nothing of it but ``training/`` is read or written.
        version: ``v3`` or ``v3.1``.
        num_threads: Objects moved at once, at least 1. Each may hold one object of up to
            `sync_copy.SPOOL_BYTES` in memory; what is larger goes through a temporary file.
        is_deep: Also read back all that lies in the target, and put anew what is damaged.
        is_dry_run: Only say what would be copied. Sizes are compared, bytes are not read.
        progress: Told how far it is, in the caller's own thread.

    Raises:
        CatalogError: The version is not published in the source, or the target publishes another
            one of that name.
        PlanError: It has no step plan yet, so no trainer could open it.
        IntegrityError: Objects of the source are damaged or missing: they are named, and the
            version is not published.
        StoreError: A store failed; what was copied stays, and a rerun goes on from there.
        ValueError: The target is the source, or an impossible number.
    """
    if num_threads < 1:
        raise ValueError(f"{num_threads} threads: expected at least 1")
    if target.address.rstrip("/") == source.address.rstrip("/"):
        raise ValueError(f"{target.address} is the store that {version} is read from")
    pointers = _pointers(source, version)
    for name, body in pointers.items():
        _check_target(target, name, body)
    payload = _payload(source, pointers)
    steering = _steering(pointers)
    total = len(payload) + len(steering) + len(pointers)
    tally = _Tally(total, progress)
    mover = _Mover(source, target, is_deep=is_deep, is_dry_run=is_dry_run)
    for stage in (payload, steering):  # nothing that names an object goes before it
        mover.move(stage, tally, num_threads)
        _raise_faults(tally.faults, version, source)
    for name in pointers:  # a version is visible once its pointer is
        tally.add(_publish(source, target, name, is_dry_run=is_dry_run))
    return SyncResult(
        version=version,
        versions=list(pointers),
        source=source.address,
        target=target.address,
        num_objects=total,
        num_copied=tally.num_copied,
        bytes_copied=tally.bytes_copied,
        num_skipped=tally.num_skipped,
        bytes_skipped=tally.bytes_skipped,
        repaired=sorted(tally.repaired),
        is_deep=is_deep,
        is_dry_run=is_dry_run,
        is_published=target.size(dataset_key(version)) is not None,
    )


def _pointers(source: BlobStore, version: str) -> dict[str, dict[str, Any]]:
    """Pointers of a version and of all that it patches, the oldest first."""
    chain: dict[str, dict[str, Any]] = {}
    name: str | None = version
    while name is not None and name not in chain:
        body = read_dataset(source, name)
        if not {"plan_key", "training_index_key"} <= body.keys():
            raise PlanError(f"dataset version {name} has no step plan yet: run `wsdata run`")
        chain[name] = body
        name = body.get("parent")
    return dict(reversed(chain.items()))


def _check_target(target: BlobStore, version: str, body: dict[str, Any]) -> None:
    """Refuse a target in which the version is another one, before anything is copied."""
    if target.size(dataset_key(version)) is None:
        return
    there = read_dataset(target, version)
    if there != body:
        names = sorted(k for k in {*there, *body} if there.get(k) != body.get(k))
        raise CatalogError(
            f"{target.address} already publishes a dataset version {version} with another "
            f"{', '.join(names)}: it is not a copy of this store; sync to another address"
        )


def _steering(pointers: dict[str, dict[str, Any]]) -> list[Wanted]:
    """Indexes and plans: what a pointer names. A plan's id is the digest of its bytes."""
    indexes = {
        Wanted(body[f"{name}_key"], body[f"{name}_sha256"])
        for body in pointers.values()
        for name in ("index", "training_index")
    }
    plans = {Wanted(body["plan_key"], body["plan_id"]) for body in pointers.values()}
    return [_checked(wanted) for wanted in sorted(indexes | plans)]


def _payload(source: BlobStore, pointers: dict[str, dict[str, Any]]) -> list[Wanted]:
    """Shards, caption packs and parts of indexes of some versions, each once, sorted by key."""
    keys: set[str] = set()
    for body in pointers.values():
        root = _checked(Wanted(body["training_index_key"], body["training_index_sha256"]))
        keys.update(read_root(source, *root).objects)
    for key, sha256 in sorted({(p["index_key"], p["index_sha256"]) for p in pointers.values()}):
        _checked(Wanted(key, sha256))
        data = source.get(key)
        if (found := sha256_bytes(data)) != sha256:
            raise IntegrityError(
                f"dataset index {key} of {source.address} has digest {found[:12]}, the pointer "
                f"says {sha256[:12]}: delete it and run `wsdata run`; nothing was published"
            )
        columns = pl.read_parquet(io.BytesIO(data), columns=["shard_key", "caption_pack_key"])
        for name in columns.columns:
            keys.update(columns[name].drop_nulls().unique().to_list())
    return [_checked(Wanted(key, PurePosixPath(key).stem)) for key in sorted(keys)]


def _checked(wanted: Wanted) -> Wanted:
    """Refuse a key outside ``training/``, whoever wrote it: no other object is for trainers."""
    if not wanted.key.startswith(PREFIX):
        raise IntegrityError(
            f"the dataset version names {wanted.key}, which is not under {PREFIX}: index or "
            "pointer were not written by wsdata; nothing was copied"
        )
    return wanted


class _Mover:
    """Moves objects from one store to another, several at once."""

    def __init__(
        self, source: BlobStore, target: BlobStore, *, is_deep: bool, is_dry_run: bool
    ) -> None:
        self._source, self._target = source, target
        self._is_deep, self._is_dry_run = is_deep, is_dry_run
        self._stopped = threading.Event()

    def move(self, objects: list[Wanted], tally: _Tally, num_threads: int) -> None:
        """Move objects; damaged ones of the source are noted in the tally, and the rest goes on.

        Raises:
            StoreError: As the stores raise; what is in flight ends first.
        """
        executor = ThreadPoolExecutor(num_threads, thread_name_prefix="wsdata-sync")
        waiting: set[Future[_Moved]] = set()
        try:
            for wanted, sizes in self._with_sizes(objects):
                waiting.add(executor.submit(self._one, wanted, sizes))
                if len(waiting) >= num_threads * WAITING_PER_THREAD:
                    waiting = _collect(waiting, tally)
            while waiting:
                waiting = _collect(waiting, tally)
        finally:
            self._stopped.set()  # after an error or an interrupt: no copy goes on
            executor.shutdown(wait=True, cancel_futures=True)
            self._stopped.clear()

    def _with_sizes(self, objects: list[Wanted]) -> Iterator[tuple[Wanted, _Sizes | None]]:
        """Each object with its sizes, where one listing of a folder of keys tells many."""
        for folder, group in groupby(objects, lambda wanted: wanted.key.rpartition("/")[0]):
            members = list(group)
            if len(members) < LIST_FROM:
                yield from ((wanted, None) for wanted in members)
                continue
            here, there = (dict(s.list(f"{folder}/")) for s in (self._source, self._target))
            yield from ((w, _Sizes(here.get(w.key), there.get(w.key))) for w in members)

    def _one(self, wanted: Wanted, sizes: _Sizes | None) -> _Moved:
        size, there = sizes or [store.size(wanted.key) for store in (self._source, self._target)]
        if size is None:
            raise ObjectMissing(f"{wanted.key} is not there")
        is_there = there is not None
        if there == size and not (
            self._is_deep and not is_whole(self._target, wanted, size, self._stopped)
        ):
            return _Moved(wanted.key, size, is_copied=False, is_repaired=False)
        if not self._is_dry_run:
            copy_object(
                self._source, self._target, wanted, size, replace=is_there, stop=self._stopped
            )
            if self._is_deep and not is_whole(self._target, wanted, size, self._stopped):
                raise StoreError(
                    f"{wanted.key}: {self._target.address} does not give back what was put"
                )
        return _Moved(wanted.key, size, is_copied=True, is_repaired=is_there)


def _collect(waiting: set[Future[_Moved]], tally: _Tally) -> set[Future[_Moved]]:
    done, pending = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        try:
            tally.add(future.result())
        except (IntegrityError, ObjectMissing) as fault:
            tally.add_fault(fault)
        except SyncStopped:  # another object's error ends the sync
            continue
    return pending


def _raise_faults(faults: list[str], version: str, source: BlobStore) -> None:
    if not faults:
        return
    listed = "\n".join(f"  - {fault}" for fault in sorted(faults)[:NUM_NAMED])
    more = f"\n  and {len(faults) - NUM_NAMED} more" if len(faults) > NUM_NAMED else ""
    raise IntegrityError(
        f"dataset version {version} is not published in the target: {len(faults)} of its objects "
        f"are damaged or missing in {source.address}:\n{listed}{more}\n"
        "Delete the damaged ones, run `wsdata run` to make them again, and sync again."
    )


def _publish(source: BlobStore, target: BlobStore, version: str, *, is_dry_run: bool) -> _Moved:
    """Put a pointer, byte for byte as in the source, unless it is there."""
    key = dataset_key(version)
    data = source.get(key)
    is_there = target.size(key) is not None
    if not is_there and not is_dry_run:
        target.put(key, data)
        _check_target(target, version, json.loads(data))
    return _Moved(key, len(data), is_copied=not is_there, is_repaired=False)
