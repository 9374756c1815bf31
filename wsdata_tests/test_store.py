import errno
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from wsdata.errors import ObjectMissing, StoreError, StoreFull
from wsdata.store import FolderStore, open_store


@pytest.fixture(scope="module")
def s3_endpoint():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path, monkeypatch):
    if request.param == "folder":
        return open_store(f"file://{tmp_path}/store")
    endpoint = request.getfixturevalue("s3_endpoint")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"b{abs(hash(request.node.name))}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}/some/prefix?endpoint={endpoint}")


def test_the_first_put_of_a_key_stays(store):
    assert store.put("a/b", b"first")
    assert not store.put("a/b", b"second")
    assert store.get("a/b") == b"first"
    assert store.size("a/b") == 5


def test_ranges_are_exact_or_an_error(store):
    store.put("k", b"0123456789")
    assert store.get_range("k", 3, 4) == b"3456"
    assert store.get_range("k", 3, 0) == b""
    with pytest.raises(StoreError):
        store.get_range("k", 8, 4)


def test_what_is_missing_is_named(store):
    assert store.size("no") is None
    with pytest.raises(ObjectMissing, match="no"):
        store.get("no")
    store.delete("no")


def test_lists_are_sorted_and_by_prefix(store):
    for key in ("x/2", "x/1", "x1", "y/1"):
        store.put(key, b"..")
    assert list(store.list("x/")) == [("x/1", 2), ("x/2", 2)]
    assert [key for key, _ in store.list("")] == ["x/1", "x/2", "x1", "y/1"]


def test_files_are_put_and_stay(store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert store.put_file("f", path)
    assert store.get("f") == b"abc"
    assert path.read_bytes() == b"abc"


def test_one_of_many_writers_wins_and_nothing_is_left(tmp_path):
    store = FolderStore(tmp_path)
    wins: list[bool] = []
    writers = [
        threading.Thread(target=lambda i=i: wins.append(store.put("k", bytes([i]) * 10_000)))
        for i in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sum(wins) == 1
    assert len(set(store.get("k"))) == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["k"]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)

    def full(_handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match="no space left"):
        store.put("k", b"x")
    assert store.size("k") is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("key", ["", "../x", "a//b", "/abs", "a/./b"])
def test_keys_cannot_leave_the_store(tmp_path, key):
    with pytest.raises(ValueError, match="not allowed"):
        FolderStore(tmp_path).put(key, b"x")


@pytest.mark.parametrize("name", ["my data#1", "a?b", "100%25", "c;d#e?f=g", " tab\tbed"])
@pytest.mark.parametrize("scheme", ["", "file://", "file://localhost", "file:"])
def test_every_character_of_a_folders_path_stands_for_itself(tmp_path, name, scheme):
    address = f"{scheme}{tmp_path}/{name}/store"
    store = open_store(address)
    store.put("k", b"1")
    assert (tmp_path / name / "store" / "k").read_bytes() == b"1"
    assert open_store(store.address).get("k") == b"1"


@pytest.mark.parametrize("address", ["file://rel/store", "file://store", "file://"])
def test_a_host_before_a_folder_is_refused(address):
    with pytest.raises(ValueError, match="expected file:///folder with three slashes"):
        open_store(address)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="expected file"):
        open_store("ftp://x/y")


def views(*sizes):
    return [memoryview(bytearray(size)) for size in sizes]


def test_reads_scatter_over_buffers_and_say_when_there_is_too_little(store):
    data = bytes(range(256)) * 20
    store.put("a/b", data)
    buffers = views(3, 0, 1000, 7)
    for offset in (0, 5, len(data) - 1010):
        store.read_into("a/b", offset, buffers)
        assert b"".join(buffers) == data[offset : offset + 1010]
    halves = memoryview(bytearray(24)).cast("H", (3, 4))
    store.read_into("a/b", 2, [halves])
    assert halves.tobytes() == data[2:26]
    many = views(*[1] * 3000)
    store.read_into("a/b", 100, many)
    assert b"".join(many) == data[100:3100], "more than one call takes"
    with pytest.raises(StoreError, match="the object is shorter"):
        store.read_into("a/b", len(data) - 5, views(6))
    with pytest.raises(ObjectMissing):
        store.read_into("a/c", 0, views(1))


def test_an_object_deleted_and_put_anew_is_read_anew(tmp_path):
    store, buffers = FolderStore(tmp_path), views(3)
    for data in (b"abc", b"xyz"):
        store.put("k", data)
        store.read_into("k", 0, buffers)
        assert bytes(buffers[0]) == data
        store.delete("k")
        with pytest.raises(ObjectMissing):
            store.read_into("k", 0, buffers)


def _read_some(store, answers):
    store.read_into("k3", 0, buffers := views(2))
    answers.put(bytes(buffers[0]))


def test_few_files_stay_open_in_threads_and_in_forked_children(tmp_path):
    def open_files():
        links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        return sum(link.startswith(f"{tmp_path}/") for link in links)

    store = pickle.loads(pickle.dumps(FolderStore(tmp_path)))  # noqa: S301
    for number in range(300):
        store.put(f"k{number}", b"%02d" % (number % 100))

    def read(number, store=store):
        store.read_into(f"k{number % 300}", 0, buffers := views(2))
        return bytes(buffers[0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(2000))) == [b"%02d" % (n % 300 % 100) for n in range(2000)]
    assert 0 < open_files() <= 128
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_read_some, args=(store, answers))
    child.start()
    assert answers.get() == b"03"
    child.join()
    del store, read
    assert open_files() == 0
