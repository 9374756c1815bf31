"""`dataset sync`: the same batches there, nothing half visible, nothing but ``training/``."""

import io
import json
import shutil
import subprocess
import sys
import time

import boto3
import numpy as np
import polars as pl
import pytest
from moto.server import ThreadedMotoServer

from wsdata.cli.main import run_command
from wsdata.digest import sha256_bytes
from wsdata.errors import CatalogError, IntegrityError, PlanError, StoreError
from wsdata.lifecycle import sync_copy
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.sync import sync_version
from wsdata.loader.dataset import PlanDataset
from wsdata.shard.publish import index_key, publish_dataset, published_versions, read_dataset
from wsdata.shard.training_index_write import Widths, write_training_index
from wsdata.store import FolderStore, open_store
from wsdata_tests.lifecycle.fabricated import clip_id, sample_ids
from wsdata_tests.loader.published import PARAMS, publish, sample_rows


class Watched:
    """Passes everything on, notes keys, and fails at the n-th put."""

    def __init__(self, store, *, fail_at=None):
        self._store, self.address = store, store.address
        self.read, self.written = [], []
        self._fail_at = fail_at

    def _write(self, key, call):
        if len(self.written) == self._fail_at:
            raise StoreError(f"put of {key} failed")
        self.written.append(key)
        return call()

    def put(self, key, data):
        return self._write(key, lambda: self._store.put(key, data))

    def put_file(self, key, path):
        return self._write(key, lambda: self._store.put_file(key, path))

    def delete(self, key):
        return self._write(key, lambda: self._store.delete(key))

    def __getattr__(self, name):
        def ask(key, *rest):
            self.read.append(key)
            return getattr(self._store, name)(key, *rest)

        return ask


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    store = FolderStore(tmp_path_factory.mktemp("source"))
    publish(store)
    for key in ("raw/sha256/ab/cd/abcd", "derived/transcodes_256p/t/x.mp4", "progress/p.json"):
        store.put(key, key.encode())
    return store


@pytest.fixture
def own_source(source, tmp_path):
    """A store of its own, for tests that damage it."""
    return FolderStore(shutil.copytree(source.root, tmp_path / "source"))


@pytest.fixture
def target(tmp_path):
    return FolderStore(tmp_path / "target")


def batches(store, version="v1", num_steps=None):
    options = {"version": version, "store": store, "num_threads": 0}
    return list(PlanDataset(**options, num_steps=num_steps))


def assert_same_batches(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a.pop("latents").numpy(), b.pop("latents").numpy())
        assert a == b


def training(store):
    return {key: store.get(key) for key, _ in store.list("training/")}


def some_shard(store):
    return min(key for key, _ in store.list("training/shards/"))


def overwrite(store, key, data):
    store.path_of(key).write_bytes(data)


def test_a_trainer_gets_the_same_batches_from_the_copy(source, target):
    done = sync_version(source, target, "v1")
    assert_same_batches(batches(source), batches(target))
    assert training(target) == training(source)
    assert done.is_published
    assert done.versions == ["v1"]
    assert (done.num_copied, done.num_skipped) == (done.num_objects, 0)
    assert done.bytes_copied == sum(size for _, size in target.list(""))


def test_what_is_there_is_not_copied_again(source, target):
    first = sync_version(source, target, "v1")
    watched = Watched(target)
    again = sync_version(source, watched, "v1", is_deep=True)
    assert not watched.written
    assert (again.num_copied, again.bytes_copied) == (0, 0)
    assert (again.num_skipped, again.bytes_skipped) == (first.num_objects, first.bytes_copied)


@pytest.mark.parametrize("list_from", [1, 1000])
@pytest.mark.parametrize("is_deep", [False, True])
def test_nothing_but_training_is_read_or_written(source, target, is_deep, list_from, monkeypatch):
    monkeypatch.setattr("wsdata.lifecycle.sync.LIST_FROM", list_from)
    there, here = Watched(target), Watched(source)
    sync_version(here, there, "v1", is_deep=is_deep)
    assert not here.written
    assert {key.split("/")[0] for key in here.read + there.read + there.written} == {"training"}
    assert training(target) == training(source)
    assert {key.split("/")[0] for key, _ in target.list("")} == {"training"}


def test_a_sync_that_ends_anywhere_shows_nothing_and_is_finished_by_the_next(source, tmp_path):
    num_objects = len(training(source))
    for fail_at in range(num_objects):
        target = FolderStore(tmp_path / str(fail_at))
        with pytest.raises(StoreError, match="put of"):
            sync_version(source, Watched(target, fail_at=fail_at), "v1", num_threads=1)
        assert len(training(target)) == fail_at
        assert published_versions(target) == []
        done = sync_version(source, target, "v1")
        assert (done.num_skipped, done.num_copied) == (fail_at, num_objects - fail_at)
        assert training(target) == training(source)


@pytest.mark.slow
def test_a_killed_sync_is_finished_by_the_next(tmp_path):
    """The real command, killed as soon as the target holds so many objects."""
    source = FolderStore(tmp_path / "home" / "store")
    publish(source, rows=sample_rows(600))
    words = ["dataset", "sync", "v1", str(tmp_path / "far"), "--home", str(tmp_path / "home")]
    num_objects = len(training(source))
    for num_there in range(0, num_objects, 3):
        target = FolderStore(tmp_path / "far")
        command = [sys.executable, "-m", "wsdata", *words, "--threads", "1"]
        process = subprocess.Popen(command)  # noqa: S603
        while process.poll() is None and len(list(target.list("training/"))) < num_there:
            time.sleep(0.001)
        process.kill()
        process.wait()
        whole = training(source)
        assert all(whole[key] == data for key, data in training(target).items())
        if published_versions(target):
            assert training(target) == whole
    assert run_command(words) == 0
    assert training(FolderStore(tmp_path / "far")) == training(source)


def test_a_patch_brings_its_base(home, target):
    first = patch_version(home.ledger, home.store, "v1", [clip_id("film", 0)], from_step=9)
    second = patch_version(
        home.ledger, home.store, first.version, sample_ids(clip_id("tape", 1)), from_step=20
    )
    done = sync_version(home.store, target, second.version)
    assert done.versions == ["v1", "v1.1", "v1.2"] == published_versions(target)
    for version in done.versions:
        assert_same_batches(batches(home.store, version), batches(target, version))


def test_versions_share_their_shards(own_source, target):
    sync_version(own_source, target, "v1")
    publish(own_source, "v2", params={**PARAMS, "seed": 12}, rows=sample_rows())
    done = sync_version(own_source, target, "v2")
    body = read_dataset(own_source, "v2")
    assert read_dataset(own_source, "v1")["index_key"] == body["index_key"]
    assert done.num_copied == 2  # plan and pointer
    assert_same_batches(batches(own_source, "v2"), batches(target, "v2"))


@pytest.mark.parametrize("fault", ["flipped", "short", "missing"])
@pytest.mark.parametrize("kind", ["shards", "packs", "plans", "index"])
def test_a_damaged_object_is_named_and_the_version_is_not_published(
    own_source, target, kind, fault
):
    key = min(key for key, _ in own_source.list(f"training/{kind}/"))
    data = own_source.get(key)
    if fault == "missing":
        own_source.delete(key)
    else:
        overwrite(own_source, key, bytes([data[0] ^ 1]) + data[1:] if fault == "flipped" else b"x")
    with pytest.raises((IntegrityError, StoreError), match=key):
        sync_version(own_source, target, "v1")
    assert published_versions(target) == []
    assert target.size(key) is None
    if kind in ("shards", "packs"):  # the rest is there, for the next run
        assert len(training(target)) == len(training(own_source)) - 4 - (fault != "missing")
    own_source.delete(key)
    own_source.put(key, data)
    assert sync_version(own_source, target, "v1").is_published


def test_a_copy_of_another_size_is_put_anew(source, target):
    sync_version(source, target, "v1")
    overwrite(target, some_shard(source), b"short")
    done = sync_version(source, target, "v1")
    assert done.repaired == [some_shard(source)]
    assert training(target) == training(source)


def test_a_deep_sync_finds_wrong_bytes_of_the_right_size(source, target):
    sync_version(source, target, "v1")
    key = some_shard(source)
    overwrite(target, key, bytes(source.size(key) or 0))
    assert sync_version(source, target, "v1").num_copied == 0
    assert sync_version(source, target, "v1", is_deep=True).repaired == [key]
    assert training(target) == training(source)


def test_a_damaged_source_never_takes_a_good_copy_with_it(own_source, target):
    sync_version(own_source, target, "v1")
    good = training(target)
    overwrite(own_source, some_shard(own_source), b"short")
    with pytest.raises(IntegrityError, match=some_shard(own_source)):
        sync_version(own_source, target, "v1", is_deep=True)
    assert training(target) == good


def test_large_objects_go_through_files_that_do_not_stay(source, target, monkeypatch, tmp_path):
    monkeypatch.setattr(sync_copy, "SPOOL_BYTES", 100)
    monkeypatch.setattr(sync_copy, "RANGE_BYTES", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    sync_version(source, target, "v1", is_deep=True)
    assert training(target) == training(source)
    assert not list((tmp_path / "temporary").iterdir())
    key = some_shard(source)
    damaged = FolderStore(tmp_path / "damaged")
    sync_version(source, damaged, "v1")
    overwrite(damaged, key, bytes(source.size(key) or 0))
    with pytest.raises(IntegrityError, match=key):
        sync_version(damaged, FolderStore(tmp_path / "far"), "v1")
    assert not list((tmp_path / "temporary").iterdir())


def test_a_dry_run_counts_and_writes_nothing(source, target):
    done = sync_version(source, target, "v1", is_dry_run=True)
    assert not training(target)
    assert not done.is_published
    real = sync_version(source, target, "v1")
    assert (done.num_copied, done.bytes_copied) == (real.num_copied, real.bytes_copied)


def test_progress_counts_every_object(source, target):
    told = []
    done = sync_version(source, target, "v1", progress=lambda *numbers: told.append(numbers))
    assert [number for number, _, _ in told] == list(range(1, done.num_objects + 1))
    assert told[-1] == (done.num_objects, done.num_objects, done.bytes_copied)


def test_another_version_of_that_name_is_not_overwritten(source, target):
    publish(target, params={**PARAMS, "seed": 12})
    before = training(target)
    with pytest.raises(CatalogError, match="already publishes a dataset version v1"):
        sync_version(source, target, "v1")
    assert training(target) == before


def test_a_key_outside_training_is_refused(tmp_path, target):
    store = FolderStore(tmp_path / "odd")
    store.put("raw/film", b"film")
    buffer = io.BytesIO()
    pl.DataFrame(
        {"shard_key": ["raw/film"], "caption_pack_key": [None]},
        schema_overrides={"caption_pack_key": pl.String},
    ).write_parquet(buffer)
    sha256 = sha256_bytes(buffer.getvalue())
    plan = b"{}"
    keys = {"index_key": index_key(sha256), "plan_key": f"training/plans/{sha256_bytes(plan)}.json"}
    store.put(keys["index_key"], buffer.getvalue())
    store.put(keys["plan_key"], plan)
    root = write_training_index(store, [], Widths(1, 1))
    body = {
        **keys,
        "index_sha256": sha256,
        "plan_id": sha256_bytes(plan),
        "manifest_digest": "x",
        "training_index_key": root.key,
        "training_index_sha256": root.sha256,
    }
    publish_dataset(store, "v1", body)
    with pytest.raises(IntegrityError, match="raw/film, which is not under training/"):
        sync_version(store, target, "v1")
    assert not list(target.list(""))


def test_bad_calls_are_told(source, target, tmp_path):
    with pytest.raises(CatalogError, match="v7 is not published"):
        sync_version(source, target, "v7")
    with pytest.raises(ValueError, match="is the store that v1 is read from"):
        sync_version(source, FolderStore(source.root), "v1")
    with pytest.raises(ValueError, match="0 threads"):
        sync_version(source, target, "v1", num_threads=0)
    body = read_dataset(source, "v1")
    bare = FolderStore(tmp_path / "bare")
    bare.put(body["index_key"], source.get(body["index_key"]))
    names = ("index_key", "index_sha256", "manifest_digest")
    publish_dataset(bare, "v1", {name: body[name] for name in names})
    with pytest.raises(PlanError, match="no step plan yet"):
        sync_version(bare, target, "v1")


def test_over_s3_both_ways(source, target, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(sync_copy, "SPOOL_BYTES", 10_000)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="far")
        far = open_store(f"s3://far/copy?endpoint={endpoint}")
        assert sync_version(source, far, "v1", is_deep=True).is_published
        assert_same_batches(batches(source, num_steps=8), batches(far, num_steps=8))
        assert sync_version(far, target, "v1").is_published
    finally:
        server.stop()
    assert training(target) == training(source)


def test_the_command(home, tmp_path, capsys):
    words = ["dataset", "sync", "v1", str(tmp_path / "far"), "--home", str(home.path)]
    assert run_command([*words, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["is_published"], planned["num_skipped"]) == (False, 0)
    assert planned["egress_usd"][0] <= planned["egress_usd"][1]
    assert run_command([*words, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["is_published"], done["bytes_copied"]) == (True, planned["bytes_copied"])
    assert_same_batches(batches(home.store), batches(FolderStore(tmp_path / "far")))
    assert run_command([*words, "--deep"]) == 0
    assert "v1 is published in" in capsys.readouterr().out
    assert run_command([*words, "--threads", "0"]) == 2
    overwrite(home.store, some_shard(home.store), b"x")
    assert run_command([*words, "--deep"]) == 1
    assert some_shard(home.store) in capsys.readouterr().err
