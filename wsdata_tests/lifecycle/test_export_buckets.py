"""Exports into a bucket: the same files as in a folder, with the same promises."""

import contextlib
import copy
import itertools
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsdata import s3_client
from wsdata.cli.main import run_command
from wsdata.digest import sha256_bytes
from wsdata.errors import ObjectMissing, StoreError, WsdataError
from wsdata.lifecycle import export as export_module
from wsdata.lifecycle.export import export_version
from wsdata.lifecycle.export_choice import ExportOptions
from wsdata.lifecycle.takedown import request_takedown
from wsdata.lifecycle.tombstone import Criteria
from wsdata.shard import export_place
from wsdata.shard.export_bucket import NOTES, BucketPlace
from wsdata.shard.export_check import check_export
from wsdata.shard.export_folder import STATE
from wsdata.store import open_store
from wsdata_tests.cluster.s3_servers import SERVERS, running_s3
from wsdata_tests.lifecycle.fabricated import BUCKET, Home, asset_id
from wsdata_tests.lifecycle.test_export import Failing, everything

FORMATS = ("mds", "webdataset")
OPTIONS = {"format": "mds", "max_bytes": 9_000}


class MemoryStore:
    """An object store of this process, with what an export asks of one."""

    def __init__(self, address):
        self.address, self._objects = address, {}

    def put(self, key, data):
        return self._objects.setdefault(key, data) is data

    def put_file(self, key, path):
        return self.put(key, path.read_bytes())

    def get(self, key):
        if key not in self._objects:
            raise ObjectMissing(key)
        return self._objects[key]

    def get_range(self, key, offset, length):
        return self.get(key)[offset : offset + length]

    def fetch(self, key, path):
        return path.write_bytes(self.get(key))

    def size(self, key):
        return len(self._objects[key]) if key in self._objects else None

    def list(self, prefix):
        return iter(sorted((k, len(v)) for k, v in self._objects.items() if k.startswith(prefix)))

    def delete(self, key):
        self._objects.pop(key, None)


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with running_s3(request.param) as s3:
        yield s3


@pytest.fixture(scope="module", params=["memory", *(pytest.param(s, marks=pytest.mark.slow)
                                                    for s in ("moto", "radosgw"))])  # fmt: skip
def server_or_none(request):
    if request.param == "memory":
        yield None
        return
    with running_s3(request.param) as s3:
        yield s3


def new_bucket(server, monkeypatch):
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3_client, "BASE_PAUSE_S", 0.001)
    return server.address(server.make_bucket(), "exports/v1/")


@pytest.fixture
def there(server, monkeypatch):
    """Address of an empty prefix of a new bucket."""
    return new_bucket(server, monkeypatch)


@pytest.fixture
def anywhere(server_or_none, monkeypatch):
    """The same; of a store in memory, but for slow tests."""
    if server_or_none is not None:
        return new_bucket(server_or_none, monkeypatch)
    stores = {}
    open_memory = lambda where: stores.setdefault(where, MemoryStore(where))  # noqa: E731
    monkeypatch.setattr(export_place, "open_store", open_memory)
    return "memory:exports/v1/?"


def beside(where, name):
    return where.replace("?", f"{name}/?")


def export(home, where, *, version="v1", store=None, **options):
    return export_version(
        home.ledger, store or home.store, version, where,
        ExportOptions(**{"format": "webdataset", **options}), num_threads=2,
    )  # fmt: skip


def objects(where):
    store = export_place.open_store(where)
    return {key: store.get(key) for key, _ in store.list("")}


@pytest.fixture
def wanted(home, tmp_path):
    """What a folder gets with OPTIONS."""
    export(home, tmp_path / "folder", **OPTIONS)
    return everything(tmp_path / "folder")


@pytest.mark.parametrize("options", [
    {"format": "mds"},
    pytest.param({"format": "webdataset", "order": "plan", "steps": (3, 9), "max_bytes": 20_000},
                 marks=pytest.mark.slow),
])  # fmt: skip
def test_a_bucket_gets_the_files_that_a_folder_gets(home, tmp_path, there, options):
    folder, bucket = (export(home, where, **options) for where in (tmp_path / "out", there))
    assert objects(there) == everything(tmp_path / "out")
    assert (bucket.num_files, bucket.num_bytes, bucket.manifest_sha256) == (
        folder.num_files, folder.num_bytes, folder.manifest_sha256
    )  # fmt: skip
    found = check_export(there)
    assert found == check_export(tmp_path / "out")
    assert (found.faults, found.num_samples) == ([], bucket.num_samples)
    before = home.ledger.seq
    assert export(home, there, **options).export_id == bucket.export_id
    assert home.ledger.seq == before + 2, "started, and done again"


class FailingPlace(BucketPlace):
    """A bucket that can be written to only so often."""

    def __init__(self, store, num_left):
        super().__init__(store)
        self._left = itertools.count(-num_left)
        put, put_file, delete = store.put, store.put_file, store.delete
        store.put = lambda *given: self._may(put, *given)
        store.put_file = lambda *given: self._may(put_file, *given)
        store.delete = lambda *given: self._may(delete, *given)

    def _may(self, call, *given):
        if next(self._left) == 0:
            raise StoreError("the bucket was lost")
        return call(*given)


def test_an_export_that_ends_anywhere_is_finished_by_the_next(home, anywhere, wanted, monkeypatch):
    """Ended at every single request that changes the bucket, one after the other."""
    opened = export_module.open_place
    for num_left in itertools.count():
        where = beside(anywhere, num_left)
        store = copy.copy(export_place.open_store(where))
        place = FailingPlace(store, num_left)
        monkeypatch.setattr(export_module, "open_place", lambda _, place=place: place)
        with contextlib.suppress(StoreError):
            export(home, where, **OPTIONS)
            break
        monkeypatch.setattr(export_module, "open_place", opened)
        left = objects(where)
        mine = {path: data for path, data in left.items() if not path.startswith(NOTES[:-1])}
        assert mine.items() <= wanted.items()
        if "export.json" in left:
            assert mine == wanted
        elif left:
            with pytest.raises(WsdataError, match="not finished"):
                check_export(where)
        if num_left % 3 == 0:
            export(home, where, **OPTIONS)
            assert objects(where) == wanted
    assert num_left > 2 * len(wanted)


def test_what_was_written_whole_is_not_written_again(home, anywhere, wanted):
    with pytest.raises(StoreError, match="read of"):
        export(home, anywhere, store=Failing(home.store, 9), **OPTIONS)
    done = {key for key in objects(anywhere) if not key.startswith(NOTES[:-1])}
    assert done
    reads = Failing(home.store, 10**9)
    export(home, anywhere, store=reads, **OPTIONS)
    assert objects(anywhere) == wanted
    whole = Failing(home.store, 10**9)
    export(home, beside(anywhere, "new"), store=whole, **OPTIONS)
    assert next(reads._left) < next(whole._left)


def test_two_that_write_the_same_at_once_end_with_the_same(home, anywhere, wanted):
    homes = [Home(home.path) for _ in range(2)]
    with ThreadPoolExecutor(len(homes)) as executor:
        doing = [executor.submit(export, each, anywhere, **OPTIONS) for each in homes]
        made = {each.result().manifest_sha256 for each in doing}
    assert objects(anywhere) == wanted
    assert made == {sha256_bytes(wanted["export.json"])}
    assert [body["state"] for body in home.ledger.present("export").values()] == ["done", "done"]


def test_a_rerun_repairs_what_was_damaged_and_changes_nothing_else(home, anywhere, wanted):
    export(home, anywhere, **OPTIONS)
    store = export_place.open_store(anywhere)
    (damaged, *_, lost) = sorted(path for path in wanted if path.endswith(".mds"))
    store.delete(damaged)
    store.put(damaged, wanted[damaged][:-1] + b"?")
    store.delete(lost)
    store.put("mine.txt", b"mine")
    faults = {fault.split(":")[0] for fault in check_export(anywhere).faults}
    assert faults == {damaged, lost, "mine.txt", lost.rpartition("/")[0] + "/index.json"}
    export(home, anywhere, **OPTIONS)
    assert objects(anywhere) == wanted | {"mine.txt": b"mine"}


@pytest.mark.parametrize("name", ["export.json", STATE])
def test_what_no_longer_tells_what_it_is_is_made_anew_or_left_alone(home, anywhere, wanted, name):
    if name == STATE:
        with pytest.raises(StoreError):
            export(home, anywhere, store=Failing(home.store, 9), **OPTIONS)
    else:
        export(home, anywhere, **OPTIONS)
    store = export_place.open_store(anywhere)
    store.delete(name)
    store.put(name, b"{")
    before = objects(anywhere)
    with pytest.raises(WsdataError, match="is damaged"):
        export(home, anywhere, format="webdataset")
    assert objects(anywhere) == before
    export(home, anywhere, **OPTIONS)
    assert objects(anywhere) == wanted


def test_foreign_objects_and_other_exports_are_left_alone(home, anywhere):
    there = anywhere
    store = export_place.open_store(there)
    store.put("model.bin", b"theirs")
    with pytest.raises(WsdataError, match=r"holds things that no export made.*model\.bin"):
        export(home, there)
    assert objects(there) == {"model.bin": b"theirs"}
    assert not home.ledger.present("export")
    other = beside(there, "other")
    export(home, other, format="mds")
    before = objects(other)
    with pytest.raises(WsdataError, match="another format"):
        export(home, other)
    assert objects(other) == before


def test_the_store_itself_is_no_place_for_an_export(home):
    there = "s3://bucket/store/?endpoint=http://127.0.0.1:9"  # nobody answers, nobody is asked
    inside = beside(there, "exports")
    with pytest.raises(WsdataError, match="within the object store"):
        export(home, inside, store=open_store(there))
    with pytest.raises(WsdataError, match="within the object store"):
        export(home, home.store.root / "exports")
    with pytest.raises(ValueError, match="links"):
        export_version(
            home.ledger, home.store, "v1", there, ExportOptions(format="mds"), is_linked=True
        )
    assert not home.ledger.present("export")


def test_one_bucket_is_one_export_to_all_hosts_and_a_takedown_names_it(
    home, anywhere, monkeypatch, capsys
):
    there = anywhere
    for host in ("one", "two"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        export(home, there, format="mds")
    asked = Criteria(assets=(asset_id("film"),))
    report = request_takedown(home.ledger, home.store, asked, reason="asked")
    (held,) = report["exports"]
    assert (held["host"], held["address"], held["where"]) == (None, there, there)
    taken = home.rows("dataset_index", "v1").filter(asset_id=asset_id("film"))
    assert held["samples"] == taken.height
    command = ["dataset", "exports", "--home", str(home.path)]
    assert run_command(command) == 0
    shown = capsys.readouterr().out
    assert there in shown
    assert "None" not in shown
    assert run_command([*command, "--gone", held["export_id"], "--reason", "deleted"]) == 0
    assert not home.ledger.present("export")


def test_the_command_exports_to_a_bucket_and_reads_back(home, there, tmp_path, capsys):
    words = ["dataset", "export", "v1", "--home", str(home.path), "--json", "--format", "mds"]
    assert run_command([*words, "--out", there, "--bucket", BUCKET]) == 0
    assert json.loads(capsys.readouterr().out)["where"] == there
    assert run_command(["dataset", "export-check", there, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_whole"]
    open_store(there).delete(f"{BUCKET.replace('/', '_')}/index.json")
    assert run_command(["dataset", "export-check", there]) == 1
    assert "index.json" in capsys.readouterr().out
    out = (tmp_path / "out").as_uri()
    assert run_command([*words, "--out", out]) == 0
    assert not check_export(tmp_path / "out").faults
    words[2] = "run.toml"
    assert run_command([*words, "--out", f"{out}2", "--order", "plan", "--steps", "0:3"]) == 2
    assert "wsdata plan run" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_a_killed_export_is_finished_by_the_next(home, tmp_path, there, format):  # noqa: A002
    """The real command, killed as soon as the bucket holds so many objects."""
    options = {"format": format, "max_bytes": 1500}
    export(home, tmp_path / "whole", **options)
    wanted, store = everything(tmp_path / "whole"), open_store(there)
    words = ["dataset", "export", "v1", "--home", str(home.path), "--out", there]
    words += ["--format", format, "--max-bytes", "1500", "--threads", "1"]
    for num_there in range(0, 2 * len(wanted), 9):
        process = subprocess.Popen([sys.executable, "-m", "wsdata", *words])  # noqa: S603
        while process.poll() is None and sum(1 for _ in store.list("")) < num_there:
            time.sleep(0.0005)
        process.kill()
        process.wait()
        left = objects(there)
        mine = {path: data for path, data in left.items() if not path.startswith(NOTES[:-1])}
        assert mine.items() <= wanted.items()
        assert "export.json" not in left or mine == wanted
    assert run_command(words) == 0
    assert objects(there) == wanted
