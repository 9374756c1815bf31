"""The node cache: one read for many, bounded, survives kills, deletes only its own."""

import contextlib
import errno
import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wsdata.loader import cache as cache_module
from wsdata.loader.cache import NodeCache, Outcome

SMALL = 1 << 16  # the least bound there is


def content(name, size=100):
    return hashlib.shake_128(name.encode()).digest(size)


class Source:
    """Counts how often a range is read."""

    def __init__(self):
        self.reads = []

    def read(self, cache, name, size=100, data=None, pause_s=0.0):
        wanted = content(name, size)
        half = size // 3
        buffers = [memoryview(bytearray(half)), memoryview(bytearray(size - half))]

        def fill():
            self.reads.append(name)
            time.sleep(pause_s)
            found = wanted if data is None else data
            buffers[0][:], buffers[1][:] = found[:half], found[half:]

        self.outcome = cache.read_into(
            name, 7, buffers, fill=fill, is_valid=lambda: b"".join(buffers) == wanted
        )
        return b"".join(buffers)


def keep(cache, name, size, fetch):
    """Read a range whose bytes `fetch` returns."""
    buffer = memoryview(bytearray(size))

    def fill():
        buffer[:] = fetch()

    wanted = content(name, size)
    cache.read_into(name, 7, [buffer], fill=fill, is_valid=lambda: buffer == wanted)
    return bytes(buffer)


def on_disk(cache):
    """Bytes that the files of a cache take, as the file system counts them or as they say."""
    files = [path.stat() for path in cache.folder.rglob("*") if path.is_file()]
    return max(sum(each.st_size for each in files), 512 * sum(each.st_blocks for each in files))


def rot(cache, rng=None):
    """Flip bits in the segments: every byte, or some by a generator."""
    for path in (cache.folder / "segments").iterdir():
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as handle:
            data = bytearray(handle.read())
            for at in range(len(data)) if rng is None or not data else [rng.randrange(len(data))]:
                os.pwrite(handle.fileno(), bytes([data[at] ^ 0x55]), at)


def _damage(cache, rng):
    index = cache.folder / "index"
    for _ in range(40):
        rot(cache, rng)
        with index.open("r+b") as handle:
            os.pwrite(handle.fileno(), rng.randbytes(3), rng.randrange(index.stat().st_size))


def test_second_read_comes_from_disk_even_in_another_cache_object(tmp_path):
    source, first = Source(), NodeCache(tmp_path)
    assert source.read(first, "a") == content("a")
    assert source.outcome is Outcome.MISS
    again = NodeCache(tmp_path)
    assert source.read(again, "a") == content("a")
    assert source.outcome is Outcome.HIT
    assert source.reads == ["a"]
    assert (again.num_hits, again.num_misses) == (1, 0)
    assert (first.num_hits, first.num_misses) == (0, 1)


def test_ranges_of_one_object_do_not_meet(tmp_path):
    cache = NodeCache(tmp_path)
    for offset, length in ((0, 5), (5, 5), (0, 10), (0, 5)):
        expected, buffer = content(f"{offset}+{length}", length), memoryview(bytearray(length))

        def fill(buffer=buffer, expected=expected):
            buffer[:] = expected

        for _ in range(2):
            cache.read_into(
                "k", offset, [buffer], fill=fill, is_valid=lambda b=buffer, e=expected: b == e
            )
            assert buffer == expected
            buffer[:] = bytes(length)
    assert cache.num_misses == 3


def test_flipped_bytes_on_disk_are_dropped_and_read_again(tmp_path):
    cache, source = NodeCache(tmp_path), Source()
    source.read(cache, "a")
    rot(cache)
    for _ in range(2):
        assert source.read(cache, "a") == content("a")
    assert source.reads == ["a", "a"]
    assert cache.num_rotten == 1


def test_bits_that_flip_while_many_read_reach_nobody(tmp_path):
    cache, source, rng = NodeCache(tmp_path, 1 << 18), Source(), random.Random(2)  # noqa: S311
    names = [f"n{number}" for number in range(30)]
    stop = threading.Event()

    def read(seed):
        mine = random.Random(seed)  # noqa: S311
        while not stop.is_set():
            name = mine.choice(names)
            assert Source().read(cache, name, 900) == content(name, 900)

    for name in names:
        source.read(cache, name, 900)
    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, seed) for seed in range(4)]
        try:
            _damage(cache, rng)
        finally:
            stop.set()
        for reader in readers:
            reader.result()
    assert cache.num_rotten > 0


def test_wrong_bytes_from_the_store_are_handed_over_but_never_kept(tmp_path):
    cache, source = NodeCache(tmp_path), Source()
    assert source.read(cache, "a", data=bytes(100)) == bytes(100)
    assert source.outcome is Outcome.WRONG
    assert cache.size_bytes == 0


def test_bound_holds_and_what_is_used_stays(tmp_path):
    cache, source = NodeCache(tmp_path, SMALL), Source()
    source.read(cache, "hot", 500)
    for number in range(400):
        source.read(cache, f"n{number}", 700)
        source.read(cache, "hot", 500)
        assert on_disk(cache) <= SMALL
    assert source.reads.count("hot") <= 2
    assert cache.size_bytes > 0.5 * SMALL
    source.reads.clear()
    source.read(cache, "n399", 700)
    source.read(cache, "n1", 700)
    assert source.reads == ["n1"]


def test_a_larger_bound_is_kept_to_a_smaller_one_when_opened_so(tmp_path):
    large, source = NodeCache(tmp_path, 8 * SMALL), Source()
    for number in range(200):
        source.read(large, f"n{number}", 2000)
    assert on_disk(large) > 2 * SMALL
    assert on_disk(NodeCache(tmp_path, 2 * SMALL)) <= 2 * SMALL


def test_more_ranges_than_the_index_has_room_for(tmp_path):
    cache, source = NodeCache(tmp_path, SMALL), Source()
    for number in range(500):
        assert source.read(cache, f"n{number}", 10) == content(f"n{number}", 10)
    source.reads.clear()
    for number in range(500):
        assert source.read(cache, f"n{number}", 10) == content(f"n{number}", 10)
    assert len(source.reads) >= 500 - 256


def test_range_larger_than_the_bound_is_read_past_the_cache(tmp_path):
    cache, source = NodeCache(tmp_path, SMALL), Source()
    assert source.read(cache, "big", SMALL) == content("big", SMALL)
    assert cache.size_bytes == 0


def test_l4_only_files_that_the_cache_made_are_deleted(tmp_path):
    cache = NodeCache(tmp_path, SMALL)
    segments = cache.folder / "segments"
    mine = {tmp_path / "a.mds": b"2", segments / "my.segment": b"3" * 500}
    mine |= {cache.folder / "notes.txt": b"4", tmp_path / "0000000001.segment": b"5"}
    for path, data in mine.items():
        path.write_bytes(data)
    source = Source()
    for number in range(200):
        source.read(cache, f"n{number}", 1000)
    NodeCache(tmp_path, SMALL)
    assert 0 < cache.size_bytes <= SMALL
    assert {path: path.read_bytes() for path in mine} == mine


def test_full_disk_means_direct_reads_until_there_is_room(tmp_path, monkeypatch):
    cache, source = NodeCache(tmp_path), Source()
    source.read(cache, "before")

    def no_space(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", no_space)
        for _ in range(2):
            assert source.read(cache, "a") == content("a")
    assert source.read(cache, "before") == content("before")
    assert source.reads == ["before", "a", "a"]
    other = NodeCache(tmp_path)  # this one has not seen the disk full
    for _ in range(2):
        assert source.read(other, "a") == content("a")
    assert source.reads == ["before", "a", "a", "a"]


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from wsdata_tests.loader.test_node_cache import NodeCache, Source, content
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache, source = NodeCache(Path(sys.argv[1]), 8 << 20), Source()
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
for _ in range(2):
    for number in range(30):
        assert source.read(cache, f"n{number}", 1500) == content(f"n{number}", 1500)
print(len(source.reads), cache.num_hits)
"""


def test_a_file_that_can_grow_no_further_means_direct_reads(tmp_path):
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    num_reads, num_hits = map(int, done.stdout.split())
    assert num_reads + num_hits == 60
    assert 20 <= num_hits <= 26, "what was kept before the limit is read from disk"


def test_folder_that_cannot_be_made_means_direct_reads(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache, source = NodeCache(tmp_path / "file"), Source()
    assert source.read(cache, "a") == content("a")
    assert not cache.is_usable
    assert cache.size_bytes == 0


def test_folder_that_somebody_deletes_means_direct_reads(tmp_path):
    cache, source = NodeCache(tmp_path), Source()
    source.read(cache, "a")
    subprocess.run(["rm", "-r", str(cache.folder)], check=True)  # noqa: S603, S607
    for name in ("a", "b", "a", "b"):
        assert source.read(cache, name) == content(name)
    assert source.reads.count("b") == 2
    again = NodeCache(tmp_path)
    for _ in range(2):
        assert source.read(again, "b") == content("b")
    assert source.reads.count("b") == 3


def test_two_users_have_files_of_their_own(tmp_path, monkeypatch):
    folder, source = tmp_path / "made" / "here", Source()
    one = NodeCache(folder)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    other = NodeCache(folder)
    assert one.folder != other.folder
    assert folder.stat().st_mode & 0o1777 == 0o1777, "the second user may make a folder in it"
    for cache in (one, other, one, other):
        assert source.read(cache, "a") == content("a")
    assert source.reads == ["a", "a"]


def test_stopped_neighbour_blocks_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "WAIT_S", 0.05)
    monkeypatch.setattr("wsdata.loader.cache_log.SPACE_WAIT_S", 0.05)
    source, cache, kept = Source(), NodeCache(tmp_path), threading.Event()

    def stall():
        kept.set()
        time.sleep(0.5)
        return content("a")

    with ThreadPoolExecutor(1) as pool:  # stands for a process that was stopped while it fills
        stalled = pool.submit(keep, cache, "a", 100, stall)
        kept.wait()
        assert source.read(NodeCache(tmp_path), "a") == content("a")
        assert not stalled.done()
    with cache._log._locked():  # and this for one that was stopped in the header
        assert not NodeCache(tmp_path).is_usable
        for name in ("b", "c"):
            assert source.read(cache, name) == content(name)
        assert source.read(cache, "a") == content("a")
    assert source.reads == ["a", "b", "c"]


def test_l6_many_threads_and_caches_that_want_one_range_do_one_read(tmp_path):
    caches, source = [NodeCache(tmp_path) for _ in range(2)], Source()
    with ThreadPoolExecutor(8) as pool:
        for name in ("a", "b"):
            reads = [
                pool.submit(source.read, caches[number % 2], name, pause_s=0.05)
                for number in range(8)
            ]
            assert {read.result() for read in reads} == {content(name)}
    assert sorted(source.reads) == ["a", "b"]


def _read_slowly(folder, log, barrier):
    cache = NodeCache(folder)
    barrier.wait()
    for name in ("a", "b", "c"):

        def fetch(name=name):
            with Path(log).open("a") as out:
                out.write(f"{name}\n")
            time.sleep(0.05)
            return content(name)

        assert keep(cache, name, 100, fetch) == content(name)


def test_l6_eight_processes_that_want_one_range_do_one_read(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, log = context.Barrier(8), tmp_path / "log"
    processes = [
        context.Process(target=_read_slowly, args=(tmp_path / "cache", log, barrier))
        for _ in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert sorted(log.read_text().split()) == ["a", "b", "c"]


def test_process_killed_while_fetching_leaves_nothing_that_needs_a_hand(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from wsdata.loader.cache import NodeCache\n"
        "def fill():\n    print('in', flush=True); time.sleep(600)\n"
        "NodeCache(Path(sys.argv[1])).read_into(\n"
        "    'a', 7, [memoryview(bytearray(100))], fill=fill, is_valid=lambda: True)\n"
    )
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"in\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    source, cache = Source(), NodeCache(tmp_path)
    for _ in range(2):
        assert source.read(cache, "a") == content("a")
    assert source.reads == ["a"]


def _fill_on_and_on(folder, started):
    cache, rng = NodeCache(folder, SMALL), random.Random()  # noqa: S311
    started.set()
    while True:
        name = f"n{rng.randrange(500)}"
        assert Source().read(cache, name, 900) == content(name, 900)


def test_l1_processes_killed_at_any_moment_leave_a_cache_that_goes_on(tmp_path):
    context, rng = multiprocessing.get_context("fork"), random.Random(5)  # noqa: S311
    for _ in range(6):
        started = [context.Event() for _ in range(2)]
        fillers = [context.Process(target=_fill_on_and_on, args=(tmp_path, s)) for s in started]
        for filler, event in zip(fillers, started, strict=True):
            filler.start()
            event.wait()
        time.sleep(rng.uniform(0, 0.05))
        for filler in fillers:
            filler.kill()
            filler.join()
            assert filler.exitcode == -signal.SIGKILL
        cache, source = NodeCache(tmp_path, SMALL), Source()
        assert on_disk(cache) <= SMALL
        for number in range(0, 500, 25):
            for _ in range(2):
                assert source.read(cache, f"n{number}", 900) == content(f"n{number}", 900)
        assert cache.num_rotten == 0, "nothing half written is found"
        assert cache.num_hits >= 20
        assert on_disk(cache) <= SMALL


def test_a_header_that_a_crash_of_the_host_broke_begins_the_cache_anew(tmp_path):
    cache, source = NodeCache(tmp_path, SMALL), Source()
    for number in range(30):
        source.read(cache, f"n{number}", 900)
    with (cache.folder / "index").open("r+b") as index:
        index.write(bytes(30))
    for opened in (NodeCache(tmp_path, SMALL), cache):
        assert source.read(opened, "n3", 900) == content("n3", 900)
    assert source.reads.count("n3") == 2
    for number in range(100):
        source.read(cache, f"n{number}", 900)
    assert on_disk(cache) <= SMALL


@pytest.mark.parametrize("left_bytes", [0.5, 9000, 64, 30])
@pytest.mark.parametrize("is_open", [False, True])
def test_an_index_that_was_cut_short_begins_the_cache_anew(tmp_path, left_bytes, is_open):
    bound = 1 << 20
    cache, source = NodeCache(tmp_path, bound), Source()
    for number in range(60):
        source.read(cache, f"n{number}", 900)
    index = cache.folder / "index"
    whole = index.stat().st_size
    os.truncate(index, int(whole * left_bytes) if left_bytes < 1 else left_bytes)
    source.reads.clear()
    opened = cache if is_open else NodeCache(tmp_path, bound)
    for _ in range(2):
        for number in range(100):
            name = f"n{number}"
            assert source.read(opened, name, 900) == content(name, 900)
    assert index.stat().st_size == whole
    assert len(source.reads) == len(set(source.reads)), "what is kept again is found"
    assert source.reads[-1] == "n99"
    assert on_disk(opened) <= bound


def test_impossible_bound_is_a_bad_argument(tmp_path):
    with pytest.raises(ValueError, match="at least 65536"):
        NodeCache(tmp_path, max_bytes=1000)
