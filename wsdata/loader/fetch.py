"""Byte ranges of a store's objects into memory of the caller's, checked: from the cache or not.

Every range has a digest, so that it is known whether bytes are right whatever they came from:
wrong ones are dropped from the cache and read once more from the store. What is still wrong,
missing or out of reach is an error that says for whom it was wanted.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from wsdata.buffers import ReadWatch, num_bytes
from wsdata.errors import (
    IntegrityError,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from wsdata.loader.cache import NodeCache, Outcome
from wsdata.loader.hedging import HedgedReads, Hedging, default_hedging
from wsdata.loader.telemetry import Telemetry
from wsdata.store import BlobStore, FolderStore


class Fetcher:
    """Reads of one rank. Safe to use from threads, and after a fork.

    Args:
        store: Where the objects lie.
        cache: The node's, or None.
        telemetry: Told of every fetch.
        hedging: When a second request is sent; None is what suits the store.
    """

    def __init__(
        self,
        store: BlobStore,
        cache: NodeCache | None = None,
        telemetry: Telemetry | None = None,
        hedging: Hedging | None = None,
    ) -> None:
        self.store = store
        self.cache = cache
        self.telemetry = telemetry = telemetry or Telemetry()
        self._reads = HedgedReads(
            store,
            default_hedging(store) if hedging is None else hedging,
            lambda is_won: telemetry.hedged(is_won=is_won),
        )
        self._is_plain = cache is None and not (self._reads.is_remote or self._reads.may_race)
        # of a class derived from it, reads may be more than reads of its files
        is_folder = self._is_plain and type(store) is FolderStore
        self._folder = cast("FolderStore", store) if is_folder else None

    @contextlib.contextmanager
    def held(self, ranges: Sequence[tuple[str, int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Hold open the files that ranges lie in, and yield each one's descriptor and offset there.

        For those who read and check files themselves, and come back here when anything is amiss.

        Args:
            ranges: Key of the object, offset and length of each.

        Yields:
            Of the first ones, as far as all of them lie in a plain folder or in the node's cache;
            none where the store is to be asked.
        """
        with contextlib.ExitStack() as stack:
            found: list[tuple[int, int]] = []
            with contextlib.suppress(OSError):
                if self._folder is not None:
                    keys = [key for key, _, _ in ranges]
                    descriptors = stack.enter_context(self._folder.held(keys))
                    found = [
                        (file, at) for file, (_, at, _) in zip(descriptors, ranges, strict=True)
                    ]
                elif self.cache is not None:
                    found = stack.enter_context(self.cache.held(ranges))
            yield found

    def note_read(self, seconds: list[float], num_bytes: int) -> None:
        """Note that ranges which were held were read and right; see `Telemetry.fetched_plainly`."""
        is_hit = None if self._folder is not None else True
        self.telemetry.fetched_plainly(seconds, num_bytes, is_hit=is_hit)
        if is_hit and self.cache is not None:
            self.cache.num_hits += len(seconds)

    def read_into(
        self,
        key: str,
        offset: int,
        buffers: Sequence[memoryview],
        *,
        is_valid: Callable[[], bool],
        name: Callable[[], str],
    ) -> None:
        """Fill buffers, one after the other, with the bytes of an object from `offset` on.

        Args:
            key: The object.
            offset: First byte.
            buffers: Writable and contiguous; on an error they hold anything.
            is_valid: Whether the buffers hold what was recorded.
            name: For whom the bytes are wanted, as an error begins: clip, shard and offset.

        Raises:
            IntegrityError: The bytes are wrong in the store itself, or it has fewer.
            ObjectMissing: There is no such object.
            StoreUnavailable: The store failed for longer than reads wait.
            StoreDenied: This identity may not read it.
            StoreError: It cannot be read.
        """
        self.read_parts(key, [(offset, buffers)], is_valid=is_valid, name=name)

    def read_parts(
        self,
        key: str,
        parts: Sequence[tuple[int, Sequence[memoryview]]],
        *,
        is_valid: Callable[[], bool],
        name: Callable[[], str],
    ) -> None:
        """Fill buffers from several places of an object, as (offset, buffers), checked together.

        Kept in the cache as one; of a bucket, the parts are asked for at once. See `read_into`.
        """
        began = time.monotonic()
        wanted = sum([num_bytes(buffers) for _, buffers in parts])
        watch = None
        try:
            if self._is_plain and len(parts) == 1:  # a folder: nothing to keep, nothing to race
                self.store.read_into(key, *parts[0])
                is_hit, is_right = None, is_valid()
            else:
                watch = ReadWatch()
                is_hit, is_right = self._read(key, parts, is_valid, watch)
            is_reread = not is_right
            if is_reread:
                watch = watch or ReadWatch()
                watch.num_retries += 1
                self.store.reopen(key)  # it may have been replaced, as the error asks for
                self._fill(key, parts, watch)
                if not is_valid():
                    raise IntegrityError(
                        f"{name()}: {wanted} bytes of {key} at {parts[0][0]} are not those that "
                        f"were recorded, read twice from {self.store.address}: delete the object, "
                        "and copy it anew (`wsdata dataset sync`) or run `wsdata run` to make it "
                        "again"
                    )
        except StoreError as error:
            end = max(offset + num_bytes(buffers) for offset, buffers in parts)
            raise self._told(error, key, end, name) from error
        self.telemetry.fetched(
            time.monotonic() - began,
            wanted,
            is_reread=is_reread,
            is_hit=is_hit,
            num_retries=watch.num_retries if watch else 0,
        )

    def read(
        self,
        key: str,
        offset: int,
        length: int,
        *,
        is_valid: Callable[[memoryview], bool],
        name: Callable[[], str],
    ) -> memoryview:
        """Return a range in memory of its own; as `read_into`."""
        buffer = memoryview(bytearray(length))
        self.read_into(key, offset, [buffer], is_valid=lambda: is_valid(buffer), name=name)
        return buffer

    def _read(
        self,
        key: str,
        parts: Sequence[tuple[int, Sequence[memoryview]]],
        is_valid: Callable[[], bool],
        watch: ReadWatch,
    ) -> tuple[bool | None, bool]:
        """Read once; return whether the cache had it (None without one), and if it is right."""
        if self.cache is None:
            self._fill(key, parts, watch)
            return None, is_valid()
        offset, buffers = parts[0]
        if len(parts) > 1:
            key_of_parts = "".join([f"\0{at}+{num_bytes(some)}" for at, some in parts])
            buffers = [buffer for _, some in parts for buffer in some]
        else:
            key_of_parts = ""
        outcome = self.cache.read_into(
            key + key_of_parts,
            offset,
            buffers,
            fill=lambda: self._fill(key, parts, watch),
            is_valid=is_valid,
        )
        return outcome is Outcome.HIT, outcome is not Outcome.WRONG

    def _fill(
        self, key: str, parts: Sequence[tuple[int, Sequence[memoryview]]], watch: ReadWatch
    ) -> None:
        """Read all parts from the store; at once where each waits for an answer of its own."""
        if len(parts) == 1 or not self._reads.is_remote:
            for offset, buffers in parts:
                self._reads.read_into(key, offset, buffers, watch=watch)
            return
        watches = [ReadWatch() for _ in parts]
        with ThreadPoolExecutor(len(parts), thread_name_prefix="wsdata-parts") as pool:
            reads = [
                pool.submit(self._reads.read_into, key, offset, buffers, watch=each)
                for (offset, buffers), each in zip(parts, watches, strict=True)
            ]
        watch.num_retries += sum(each.num_retries for each in watches)
        for read in reads:
            read.result()

    def _told(
        self, error: StoreError, key: str, end: int, name: Callable[[], str]
    ) -> StoreError | IntegrityError:
        """The same error in words that say for whom the bytes were wanted, and what to do."""
        where = self.store.address
        if isinstance(error, ObjectMissing):
            return ObjectMissing(
                f"{name()}: {key} is not in {where}: it was deleted, or never copied there. Copy "
                "it again (`wsdata dataset sync`), make it again (`wsdata run`), or go on without "
                "these samples (`wsdata dataset patch`); `wsdata dataset pin` keeps the objects of "
                "a version"
            )
        if isinstance(error, StoreUnavailable):
            return StoreUnavailable(
                f"{name()}: {where} did not answer: {error}. Nothing is wrong with the data: start "
                "again from the last state when the store is back"
            )
        size = None
        if not isinstance(error, StoreDenied):
            with contextlib.suppress(StoreError):
                size = self.store.size(key)
        if size is not None and size < end:
            return IntegrityError(
                f"{name()}: {key} in {where} has {size} bytes, and ends before the {end} that "
                "were recorded: delete the object, and copy it anew (`wsdata dataset sync`) or run "
                "`wsdata run` to make it again"
            )
        return type(error)(f"{name()}: {error}")
