"""The node cache: one read for many, bounded, survives kills, deletes only its own."""

import errno
import hashlib
import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wsdata.loader import cache as cache_module
from wsdata.loader.cache import NodeCache


def content(name, size=100):
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]


class Source:
    """Counts how often a range is read."""

    def __init__(self):
        self.reads = []

    def read(self, cache, name, size=100, data=None):
        wanted = content(name, size)

        def fetch():
            self.reads.append(name)
            return wanted if data is None else data

        return cache.read(name, 0, size, fetch=fetch, is_valid=lambda got: got == wanted)


def test_second_read_comes_from_disk_even_in_another_cache_object(tmp_path):
    source = Source()
    assert source.read(NodeCache(tmp_path), "a") == content("a")
    again = NodeCache(tmp_path)
    assert source.read(again, "a") == content("a")
    assert source.reads == ["a"]
    assert (again.num_hits, again.num_misses) == (1, 0)


def test_ranges_of_one_object_do_not_meet(tmp_path):
    cache = NodeCache(tmp_path)
    for offset, length in ((0, 5), (5, 5), (0, 10)):
        expected = f"{offset}+{length}".encode()
        for _ in range(2):
            got = cache.read("k", offset, length, fetch=lambda e=expected: e, is_valid=bool)
            assert got == expected


def test_flipped_byte_on_disk_is_dropped_and_read_again(tmp_path):
    cache, source = NodeCache(tmp_path), Source()
    source.read(cache, "a")
    (kept,) = tmp_path.rglob("*.range")
    kept.write_bytes(b"x" + kept.read_bytes()[1:])
    assert source.read(cache, "a") == content("a")
    assert source.read(cache, "a") == content("a")
    assert source.reads == ["a", "a"]


def test_wrong_bytes_from_the_store_are_handed_over_but_never_kept(tmp_path):
    cache, source = NodeCache(tmp_path), Source()
    assert source.read(cache, "a", data=b"wrong") == b"wrong"
    assert not list(tmp_path.rglob("*.range"))


def test_bound_holds_and_the_least_recently_used_goes_first(tmp_path):
    cache, source = NodeCache(tmp_path, max_bytes=1000), Source()
    for number in range(8):
        source.read(cache, f"n{number}")
        time.sleep(0.01)
    source.read(cache, "n0")  # used again: not the oldest any more
    for number in range(8, 40):
        source.read(cache, f"n{number}")
        source.read(cache, "n0")
        assert cache.size_bytes <= 1000
        time.sleep(0.01)
    assert source.reads.count("n0") == 1
    source.reads.clear()
    source.read(cache, "n1")
    assert source.reads == ["n1"]


def test_range_larger_than_the_bound_is_read_past_the_cache(tmp_path):
    cache, source = NodeCache(tmp_path, max_bytes=50), Source()
    assert source.read(cache, "big") == content("big")
    assert cache.size_bytes == 0


def test_only_files_that_the_cache_made_are_deleted(tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    mine = {shards / "mine.range": b"1", tmp_path / "a.mds": b"2"}
    cache = NodeCache(tmp_path, max_bytes=300)
    inside = cache.folder / "ranges" / "ab"
    inside.mkdir()
    mine[inside / "notes.range"] = b"3" * 500
    for path, data in mine.items():
        path.write_bytes(data)
    source = Source()
    for number in range(20):
        source.read(cache, f"n{number}")
    assert cache.size_bytes <= 300
    assert {path: path.read_bytes() for path in mine} == mine


def test_full_disk_means_direct_reads_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    cache, source = NodeCache(tmp_path), Source()

    def no_space(self, data):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    assert source.read(cache, "a") == content("a")
    assert source.read(cache, "a") == content("a")
    assert source.reads == ["a", "a"]
    assert not [path for path in (cache.folder / "ranges").rglob("*") if path.is_file()]


def test_folder_that_cannot_be_made_means_direct_reads(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache, source = NodeCache(tmp_path / "file"), Source()
    assert source.read(cache, "a") == content("a")
    assert not cache.is_usable


def test_stalled_neighbour_blocks_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "WAIT_S", 0.05)
    source, cache = Source(), NodeCache(tmp_path)
    with cache._locked("usage") as is_mine:  # stands for a stopped process
        assert is_mine
        assert source.read(NodeCache(tmp_path), "a") == content("a")
    assert source.read(cache, "a") == content("a")


def _read_slowly(folder, log, barrier):
    cache = NodeCache(folder)
    barrier.wait()
    for name in ("a", "b", "c"):
        wanted = content(name)

        def fetch(name=name, wanted=wanted):
            with Path(log).open("a") as out:
                out.write(f"{name}\n")
            time.sleep(0.05)
            return wanted

        got = cache.read(name, 0, 100, fetch=fetch, is_valid=lambda got, w=wanted: got == w)
        assert got == wanted


def test_eight_processes_that_want_one_range_do_one_read(tmp_path):
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


def test_process_killed_while_filling_leaves_nothing_that_needs_a_hand(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from wsdata.loader.cache import NodeCache\n"
        "def fetch():\n    print('in', flush=True); time.sleep(600)\n"
        "NodeCache(Path(sys.argv[1])).read('a', 0, 100, fetch=fetch, is_valid=bool)\n"
    )
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"in\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    source = Source()
    cache = NodeCache(tmp_path)
    assert source.read(cache, "a") == content("a")
    assert source.read(cache, "a") == content("a")
    assert source.reads == ["a"]


def test_impossible_bound_is_a_bad_argument(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        NodeCache(tmp_path, max_bytes=0)
