"""The node cache beside reading files directly: hits, making room, eight ranks that fill one.

Hits: `NodeCache.read_into` beside a bare preadv of the same bytes from the same open files, and
beside a file for each range (open, read, close), warm and interleaved. Room: what appending costs
once the bound is reached, beside a cache of a file for each range that lists and stats them all to
find the oldest. Eight: processes that read the same ranges in one order; store reads are counted.
Tail: a double of a store of which some answers take a hundred times as long, with and without
second requests.

    node_cache.py [--folder DIR] [--part hits] [--room-ranges 100000]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from wsdata.loader.cache import NodeCache
from wsdata.loader.fetch import Fetcher
from wsdata.loader.hedging import Hedging
from wsdata.store import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {30_000: 4000, 300_000: 1500, 3_000_000: 300}  # bytes of a range: how many
ROUNDS = 5
ROOM_BYTES = 4096
NUM_RANKS = 8
EIGHT_RANGES = 300
EIGHT_BYTES = 300_000
TAIL_READS = 6000
TAIL_SHARE = 0.015


def main() -> None:
    """Run all parts and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", choices=("hits", "room", "eight", "tail"))
    parser.add_argument("--room-ranges", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        parts: dict[str, Callable[[], Any]] = {
            "hits": lambda: {size: hits(folder / str(size), size, SIZES[size]) for size in SIZES},
            "room": lambda: room(folder / "room", args.room_ranges),
            "eight": lambda: eight(folder / "eight"),
            "tail": lambda: tail(folder / "tail"),
        }
        found: dict[str, Any] = {"cpus": os.cpu_count()}
        for part, measure in parts.items():
            if args.part in (None, part):
                found[part] = measure()
    print(json.dumps(found, indent=1))


def hits(folder: Path, size: int, count: int) -> dict[str, Any]:
    """CPU time and rate of warm reads in random order, each way."""
    cache = NodeCache(folder / "cache", 4 << 30)
    buffer = memoryview(bytearray(size))
    digests: list[int] = []
    files = folder / "files"
    files.mkdir(parents=True)
    for number in range(count):
        data = random.Random(number).randbytes(size)  # noqa: S311
        buffer[:] = data
        cache.read_into("k", number, [buffer], fill=lambda: None, is_valid=lambda: True)
        (files / f"{number:06d}.range").write_bytes(data)
        digests.append(xxhash.xxh3_64_intdigest(data))
    places = _places(cache, size, count)

    def by_cache(number: int) -> None:
        cache.read_into("k", number, [buffer], fill=_never, is_valid=lambda: True)

    def by_cache_checked(number: int) -> None:
        wanted = digests[number]
        cache.read_into(
            "k",
            number,
            [buffer],
            fill=_never,
            is_valid=lambda: xxhash.xxh3_64_intdigest(buffer) == wanted,
        )

    def bare(number: int) -> None:
        descriptor, offset = places[number]
        os.preadv(descriptor, [buffer], offset)

    def by_file(number: int) -> None:
        with (files / f"{number:06d}.range").open("rb", buffering=0) as handle:
            handle.readinto(buffer)

    ways: dict[str, Callable[[int], None]] = {
        "cache": by_cache,
        "cache_and_digest": by_cache_checked,
        "bare_preadv": bare,
        "file_per_range": by_file,
    }
    spent = _timed(ways, count)
    num_reads = ROUNDS * count
    for descriptor in {descriptor for descriptor, _ in places}:
        os.close(descriptor)
    return {
        "ranges": count,
        **{
            name: {
                "reads_per_cpu_s": round(num_reads / seconds),
                "MB_per_cpu_s": round(num_reads * size / seconds / 1e6),
            }
            for name, seconds in spent.items()
        },
        "cache_us_over_bare": round((spent["cache"] - spent["bare_preadv"]) / num_reads * 1e6, 1),
        "speed_of_bare": round(spent["bare_preadv"] / spent["cache"], 3),
        "speed_of_file_per_range": round(spent["file_per_range"] / spent["cache"], 3),
    }


def _places(cache: NodeCache, size: int, count: int) -> list[tuple[int, int]]:
    """Descriptor and offset of each range, as the cache's own files hold it."""
    log = cache._log
    assert log is not None
    segments = {
        int(path.name[:10]): os.open(path, os.O_RDONLY) for path in cache.folder.rglob("*.segment")
    }
    places = []
    for number in range(count):
        place = log.find(xxhash.xxh3_128_digest(f"k\0{number}\0{size}".encode()))
        assert place is not None
        places.append((segments[place.segment], place.offset))
    return places


def _timed(ways: dict[str, Callable[[int], None]], count: int) -> dict[str, float]:
    """CPU-seconds of each way, interleaved: the wall clock tells of neighbours, too."""
    order = list(range(count))
    random.Random(0).shuffle(order)  # noqa: S311
    spent = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, read in ways.items():
            began = time.process_time()
            for number in order:
                read(number)
            spent[name] += time.process_time() - began
    return spent


def room(folder: Path, num_ranges: int) -> dict[str, Any]:
    """Cost of a range that needs room, once `num_ranges` lie there."""
    bound = num_ranges * ROOM_BYTES
    cache, files = NodeCache(folder / "cache", bound), FilePerRange(folder / "files", bound)
    buffer = memoryview(bytearray(ROOM_BYTES))

    def by_cache(number: int) -> None:
        cache.read_into("k", number, [buffer], fill=lambda: None, is_valid=lambda: True)

    def by_file(number: int) -> None:
        files.keep(number, buffer)

    found: dict[str, Any] = {"ranges": num_ranges, "bytes_of_a_range": ROOM_BYTES}
    for name, keep in (("cache", by_cache), ("file_per_range", by_file)):
        for number in range(num_ranges):
            keep(number)
        times = []
        for number in range(num_ranges, num_ranges + num_ranges // 5):
            began = time.process_time()
            keep(number)
            times.append(time.process_time() - began)
        times.sort()
        found[name] = {
            "mean_cpu_us": round(sum(times) / len(times) * 1e6, 1),
            "p99_cpu_us": round(times[len(times) * 99 // 100] * 1e6, 1),
            "longest_cpu_ms": round(times[-1] * 1e3, 2),
        }
    found["inodes"] = {
        "cache": sum(1 for _ in (folder / "cache").rglob("*")),
        "file_per_range": sum(1 for _ in (folder / "files").rglob("*")),
    }
    return found


class FilePerRange:
    """The plain way: a file for each range; the oldest tenth goes, found by a scan."""

    def __init__(self, folder: Path, bound: int) -> None:
        self._folder, self._bound, self._used = folder, bound, 0
        for number in range(256):
            (folder / f"{number:02x}").mkdir(parents=True)

    def keep(self, number: int, data: memoryview) -> None:
        """Write a range to a temporary file and rename it, after making room."""
        if self._used + len(data) > self._bound:
            entries = []
            for part in os.scandir(self._folder):
                for entry in os.scandir(part.path):
                    stat = entry.stat()
                    entries.append((stat.st_mtime_ns, stat.st_size, entry.path))
            for _, size, path in sorted(entries)[: len(entries) // 10]:
                Path(path).unlink()
                self._used -= size
        path = self._folder / f"{number % 256:02x}" / f"{number}.range"
        temp = path.with_suffix(".temp")
        temp.write_bytes(data)
        temp.rename(path)
        self._used += len(data)


class CountingStore(FolderStore):
    """Notes every read in a file."""

    def read_into(self, key: str, offset: int, buffers: Any, *, watch: Any = None) -> None:
        """As the folder's, noted."""
        with (self.root / "reads").open("ab", buffering=0) as log:
            log.write(b"x")
        super().read_into(key, offset, buffers, watch=watch)


def eight(folder: Path) -> dict[str, Any]:
    """Eight processes that read the same ranges at once through one cache."""
    store = CountingStore(folder / "store")
    data = random.Random(1).randbytes(EIGHT_RANGES * EIGHT_BYTES)  # noqa: S311
    store.put("k", data)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(NUM_RANKS + 1)
    ranks = [context.Process(target=_rank, args=(folder, barrier, data)) for _ in range(NUM_RANKS)]
    for rank in ranks:
        rank.start()
    barrier.wait()
    began = time.perf_counter()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    seconds = time.perf_counter() - began
    num_reads = (store.root / "reads").stat().st_size
    assert num_reads == EIGHT_RANGES, f"{num_reads} reads of {EIGHT_RANGES} ranges"
    return {
        "ranges": EIGHT_RANGES,
        "bytes_of_a_range": EIGHT_BYTES,
        "processes": NUM_RANKS,
        "store_reads": num_reads,
        "seconds": round(seconds, 2),
        "delivered_MB_per_s": round(NUM_RANKS * len(data) / seconds / 1e6),
    }


def _rank(folder: Path, barrier: Any, data: bytes) -> None:
    fetcher = Fetcher(CountingStore(folder / "store"), NodeCache(folder / "cache"))
    buffer = memoryview(bytearray(EIGHT_BYTES))
    barrier.wait()
    for number in range(EIGHT_RANGES):
        at = number * EIGHT_BYTES
        wanted = xxhash.xxh3_64_intdigest(memoryview(data)[at : at + EIGHT_BYTES])
        fetcher.read_into(
            "k",
            at,
            [buffer],
            is_valid=lambda wanted=wanted: xxhash.xxh3_64_intdigest(buffer) == wanted,
            name=lambda: "a range",
        )


class TailedStore(FolderStore):
    """Answers in 2 ms, but for 15 in a thousand, which take 200 ms; by a seed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.num_requests = 0
        self._random, self._lock = random.Random(4), threading.Lock()  # noqa: S311

    def read_into(self, key: str, offset: int, buffers: Any, *, watch: Any = None) -> None:
        """As the folder's, after a while; gives up as soon as nobody waits."""
        with self._lock:
            self.num_requests += 1
            until = time.monotonic() + (0.2 if self._random.random() < TAIL_SHARE else 0.002)
        while (left := until - time.monotonic()) > 0:
            watch.check()
            time.sleep(min(left, 0.005))
        super().read_into(key, offset, buffers, watch=watch)


def tail(folder: Path) -> dict[str, Any]:
    """Percentiles of a store with a tail, without and with second requests, by eight threads."""
    found: dict[str, Any] = {"reads": TAIL_READS, "slow_share": TAIL_SHARE}
    for name, hedging in (("once", Hedging(max_share=0)), ("hedged", Hedging())):
        store = TailedStore(folder)
        store.put("k", bytes(1 << 16))
        fetcher = Fetcher(store, hedging=hedging)

        def read(number: int, fetcher: Fetcher = fetcher) -> None:
            fetcher.read("k", number, 4096, is_valid=lambda _: True, name=lambda: "a range")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(TAIL_READS)))
        report = fetcher.telemetry.report(ring_depth=1)
        found[name] = {
            **{f"p{q}_ms": round(1e3 * report[f"fetch_p{q}_s"], 1) for q in (50, 99, 999)},
            "requests": store.num_requests,
            "won": report["num_hedges_won"],
        }
    return found


def _never() -> None:
    raise AssertionError("a warm range was fetched")


if __name__ == "__main__":
    main()
