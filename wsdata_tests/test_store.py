import errno
import os
import threading

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


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="expected file"):
        open_store("ftp://x/y")
