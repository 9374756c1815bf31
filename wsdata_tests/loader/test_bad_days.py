"""Bad days of a training host: a shard that is gone, eight loaders at once, a slow store."""

import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsdata import s3_client
from wsdata.catalog.ledger import Ledger
from wsdata.errors import ObjectMissing
from wsdata.lifecycle.retention import collect_garbage
from wsdata.loader.dataset import PlanDataset
from wsdata.records import Fact
from wsdata.store import FolderStore, open_store
from wsdata_tests.cluster.faulty_proxy import failing_proxy
from wsdata_tests.cluster.s3_servers import running_moto
from wsdata_tests.loader.published import publish


@pytest.fixture
def version(tmp_path):
    store = FolderStore(tmp_path / "store")
    index, _ = publish(store)
    return store, index


def served(batches):
    return [(batch["step"], batch["sample_ids"], batch["captions"]) for batch in batches]


def dataset(store, **options):
    return PlanDataset(**{"version": "v1", "store": store, "num_threads": 2, **options})


def test_l5_a_pinned_shard_is_not_deleted_and_a_deleted_one_says_whose_it_was(version, tmp_path):
    store, index = version
    ledger = Ledger(f"sqlite:///{tmp_path}/catalog.db")
    plan = dataset(store).plan
    first = plan.samples(3)[0]
    row = index[first.sample_id]
    keys = sorted({row["shard_key"] for row in index.values()})
    ledger.state([Fact(kind="pin", subject="v1", body={"keys": keys})], step="test")
    collect_garbage(ledger, store, is_applied=True, min_age_s=0)
    assert len(served(dataset(store, num_steps=10))) == 10
    ledger.state([Fact(kind="pin", subject="v1", body={"withdrawn": True})], step="test")
    gone = collect_garbage(ledger, store, is_applied=True, min_age_s=0)
    assert {each.key for each in gone} >= set(keys)
    with pytest.raises(ObjectMissing) as caught:
        list(dataset(store, start_step=3, num_threads=0))
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    for part in (first.clip_id, row["shard"], f"offset {row['offset']}", "deleted", "dataset sync"):
        assert part in told
    of_shard = {id_ for id_, other in index.items() if other["shard"] == row["shard"]}
    steps = [
        step
        for step in range(3, 60)
        if of_shard & {sample.sample_id for sample in plan.samples(step)}
    ]
    listed = ", ".join(map(str, steps[:5]))
    assert f"wanted by step 3, slot 0; its shard is for steps {listed} and later ones" in told


def test_a_shard_that_is_gone_is_told_though_its_list_of_samples_is_gone_too(version):
    store, index = version
    first = dataset(store).plan.samples(3)[0]
    for key, _ in list(store.list("training/")):
        if key.endswith((".mds", ".shards")):
            store.path_of(key).unlink()
    with pytest.raises(ObjectMissing) as caught:
        list(dataset(store, start_step=3, num_threads=0))
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    row = index[first.sample_id]
    for part in (first.clip_id, row["shard"], f"offset {row['offset']}", "cannot be told"):
        assert part in told


class Counting(FolderStore):
    """Notes the ranges that are read, and lets some take long."""

    def __init__(self, root, slow_s=0.0):
        super().__init__(root)
        self.ranges, self._slow_s, self._lock = [], slow_s, threading.Lock()

    def read_into(self, key, offset, buffers, *, watch=None):
        with self._lock:
            self.ranges.append((key, offset))
            is_slow = len(self.ranges) % 10 == 0
        time.sleep(self._slow_s * is_slow)
        super().read_into(key, offset, buffers, watch=watch)


def test_l1_l6_eight_loaders_of_one_host_read_each_range_once(version, tmp_path):
    store = Counting(version[0].root)
    expected = served(dataset(version[0], num_steps=12))
    with ThreadPoolExecutor(8) as pool:
        loaders = [
            pool.submit(lambda: served(dataset(store, num_steps=12, cache_dir=tmp_path / "cache")))
            for _ in range(8)
        ]
        assert [loader.result() for loader in loaders] == [expected] * 8
    assert len(store.ranges) == len(set(store.ranges))


def test_a_slow_store_changes_no_batch_and_is_alarmed(version):
    store = Counting(version[0].root, slow_s=0.05)
    slow = dataset(store, num_steps=12)
    assert served(slow) == served(dataset(version[0], num_steps=12))
    report = slow.telemetry_report()
    assert report["num_stalls"] > 0
    assert report["stalled_s"] > 0
    assert report["fetch_p999_s"] >= 0.05 > report["fetch_p50_s"]
    assert report["step_s"] is not None, "measured between deliveries"
    assert report["is_too_slow"], "the trainer did nothing meanwhile"
    assert not slow.telemetry_report(step_s=60.0)["is_too_slow"]


_RANK = """
import sys, time
from pathlib import Path
from wsdata.loader.dataset import PlanDataset
store, cache, rank, out = sys.argv[1:]
dataset = PlanDataset(version="v1", store=store, rank=int(rank), world_size=4, cache_dir=cache,
                      cache_bytes=1 << 17)
with Path(out).open("w") as told:
    for batch in dataset:
        print(batch["step"], *batch["sample_ids"], float(batch["latents"].double().sum()),
              file=told, flush=True)
        time.sleep(0.005)
"""


@pytest.mark.slow
def test_l1_eight_processes_some_killed_and_started_again_need_no_hand(version, tmp_path):
    def start(number):
        out = tmp_path / f"{number}.txt"
        command = [sys.executable, "-c", _RANK, str(version[0].root), str(tmp_path / "cache")]
        return out, subprocess.Popen([*command, str(number % 4), str(out)])  # noqa: S603

    rng = random.Random(3)  # noqa: S311
    running = [start(number) for number in range(8)]
    for number in (0, 3, 6):
        out, process = running[number]
        while not out.exists() or out.read_text().count("\n") < rng.randrange(1, 30):
            time.sleep(0.02)
        process.kill()
        process.wait()
        running[number] = start(number)
    assert [process.wait() for _, process in running] == [0] * 8
    told = [out.read_text().splitlines() for out, _ in running]
    assert told[:4] == told[4:]
    whole = list(dataset(version[0]))
    for step, batch in enumerate(whole):
        ids = [id_ for rank in range(4) for id_ in told[rank][step].split()[1:-1]]
        assert ids == batch["sample_ids"]
    cache = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert cache <= 1 << 17


@pytest.mark.slow
def test_a_bucket_that_fails_three_requests_in_ten_serves_what_a_folder_serves(
    version, tmp_path, monkeypatch
):
    folder, _ = version
    monkeypatch.setattr(s3_client, "BASE_PAUSE_S", 0.001)
    with running_moto() as moto:
        for name, value in moto.environment().items():
            monkeypatch.setenv(name, value)
        bucket = moto.make_bucket()
        direct = open_store(moto.address(bucket))
        for key, _ in folder.list("training/"):
            direct.put(key, folder.get(key))
        with failing_proxy(moto.endpoint, share=0.3, seed=11) as faults:
            store = f"s3://{bucket}?endpoint={faults.endpoint}"
            ranks = [
                dataset(store, rank=rank, world_size=2, cache_dir=tmp_path / "cache")
                for rank in range(2)
            ]
            found = [served(rank) for rank in ranks]
    whole = served(dataset(folder))
    assert [ids for _, ids, _ in whole] == [
        one[1] + other[1] for one, other in zip(*found, strict=True)
    ]
    assert faults.counts.total() > faults.counts["requests"] + 10, "requests failed"
    assert sum(rank.telemetry_report()["num_retries"] for rank in ranks) > 0
