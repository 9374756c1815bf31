"""The torch dataset: right bytes, one order at any world size, exact resumption, honest errors."""

import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from wsdata.errors import CatalogError, CursorError, IntegrityError, PlanError
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.rank_reports import parse_rank_report
from wsdata.loader.run import Segment
from wsdata.loader.served import Range, parse_report
from wsdata.loader.version import open_version
from wsdata.shard.plan_patch import apply_patch
from wsdata.shard.plan_step import plan_key
from wsdata.shard.publish import publish_dataset, read_dataset
from wsdata.store import FolderStore
from wsdata_tests.loader.published import latents_of, publish


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    store = FolderStore(tmp_path_factory.mktemp("version"))
    index, _ = publish(store)
    return store, index


@pytest.fixture
def own_version(tmp_path):
    """A version of its own, for tests that damage it."""
    store = FolderStore(tmp_path / "store")
    index, _ = publish(store)
    return store, index


def dataset(store, **options):
    return PlanDataset(**{"version": "v1", "store": store, "num_threads": 1, **options})


def served(batches):
    return [(b["step"], b["bucket"], b["sample_ids"], b["epochs"], b["captions"]) for b in batches]


class WatchedStore:
    """Passes reads on, and notes their keys."""

    def __init__(self, store):
        self._store = store
        self.address = store.address
        self.keys = []
        self.ranges = []

    def get(self, key):
        self.keys.append(key)
        return self._store.get(key)

    def get_range(self, key, offset, length):
        self.keys.append(key)
        self.ranges.append((key, offset, length))
        return self._store.get_range(key, offset, length)

    def read_into(self, key, offset, buffers, *, watch=None):
        self.keys.append(key)
        self.ranges.append((key, offset, sum(len(buffer) for buffer in buffers)))
        self._store.read_into(key, offset, buffers, watch=watch)

    def size(self, key):
        self.keys.append(key)
        return self._store.size(key)

    @property
    def num_shard_reads(self):
        return sum(key.startswith("training/shards/") for key, _, _ in self.ranges)


def test_batches_hold_what_the_plan_says_and_what_was_written(version):
    store, index = version
    read = list(dataset(store))
    plan = open_version(store, "v1").plan
    assert [batch["step"] for batch in read] == list(range(60))
    for batch in read:
        planned = plan.samples(batch["step"])
        assert batch["bucket"] == plan.bucket(batch["step"])
        assert batch["clip_ids"] == [sample.clip_id for sample in planned]
        assert batch["streams"] == [sample.stream for sample in planned]
        assert batch["epochs"] == [sample.epoch for sample in planned]
        assert batch["latents"].dtype == torch.float32
        for sample, latents in zip(planned, batch["latents"], strict=True):
            shape = json.loads(index[sample.sample_id]["latent_shape_json"])
            assert np.array_equal(latents.numpy(), latents_of(sample.sample_id, shape))
        for sample, text, variant in zip(
            planned, batch["captions"], batch["variants"], strict=True
        ):
            assert text == f"{variant} words on {sample.clip_id}"
    variants = [variant for batch in read for variant in batch["variants"]]
    assert 0.3 < variants.count("short") / len(variants) < 0.7


def test_only_training_objects_are_read_and_nothing_from_the_environment(version, monkeypatch):
    store = WatchedStore(version[0])
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "3")
    assert len(list(dataset(store, num_steps=5))) == 5
    assert {key.split("/")[0] for key in store.keys} == {"training"}


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_of_any_world_size_rebuild_the_global_batches(version, world_size):
    store, _ = version
    whole = list(dataset(store, num_steps=20))
    ranks = [
        list(dataset(store, num_steps=20, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    for number, batch in enumerate(whole):
        parts = [rank[number] for rank in ranks]
        assert len({len(part["clip_ids"]) for part in parts}) == 1
        for name in ("sample_ids", "clip_ids", "captions", "epochs"):
            assert [item for part in parts for item in part[name]] == batch[name]
        assert torch.equal(torch.cat([part["latents"] for part in parts]), batch["latents"])


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_saved_at_every_step_each_resume_yields_the_tail(version, num_threads):
    store, _ = version
    options = {"num_steps": 12, "num_threads": num_threads}
    first = dataset(store, **options)
    states, whole = [first.state_dict()], []
    for batch in first:
        whole += served([batch])
        states.append(json.loads(json.dumps(first.state_dict())))
    for done, state in enumerate(states):
        resumed = dataset(store, **options)
        resumed.load_state_dict(state)
        assert served(resumed) == whole[done:]
        if done % 4 == 0:  # another world size goes on with the same global sequence
            ranks = [dataset(store, rank=r, world_size=2, num_steps=12) for r in range(2)]
            for rank in ranks:
                rank.load_state_dict(state)
            joined = [
                (a[0], a[1], a[2] + b[2], a[3] + b[3], a[4] + b[4])
                for a, b in zip(*(served(rank) for rank in ranks), strict=True)
            ]
            assert joined == whole[done:]


def test_stopping_and_going_on_with_the_same_object_loses_and_repeats_nothing(version):
    store, _ = version
    one = dataset(store, num_steps=10, num_threads=2)
    iterator = iter(one)
    got = served([next(iterator) for _ in range(4)])
    del iterator
    got += served(one)
    assert got == served(dataset(store, num_steps=10))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_state_that_is_loaded_while_iterating_is_never_passed_over(version, num_threads):
    store, _ = version
    ahead = dataset(store, start_step=20, num_steps=4)
    expected = served(dataset(store, start_step=20, num_steps=4))
    one = dataset(store, num_steps=24, num_threads=num_threads)
    running = iter(one)
    for _ in range(3):
        next(running)
    one.load_state_dict(ahead.state_dict())
    with pytest.raises(CursorError, match=r"state at step 20 was loaded while.*new iterator"):
        next(running)
    assert one.state_dict() == ahead.state_dict()
    assert served(one) == expected
    not_begun = iter(one)  # it begins with its first batch
    one.load_state_dict(ahead.state_dict())
    assert served(not_begun) == expected


@pytest.mark.parametrize("seed", ["7", 1.5, -1, True, 2**48])
def test_a_seed_that_no_report_could_tell_is_refused(version, seed):
    with pytest.raises(ValueError, match=r"segment of v1: seed .*expected a seed >= 0"):
        dataset(version[0], seed=seed)
    with pytest.raises(ValueError, match=r"segment of v3: seed .*expected a seed >= 0"):
        Segment(version="v3", seed=seed)
    with pytest.raises(ValueError, match="beside segments"):
        dataset(version[0], version=None, segments=[Segment(version="v1")], seed=seed)


def test_steps_start_where_told_and_go_past_the_plans_end_when_asked(version):
    store, _ = version
    assert [b["step"] for b in dataset(store, start_step=55)] == list(range(55, 60))
    assert [b["step"] for b in dataset(store, start_step=58, num_steps=5)] == list(range(58, 63))
    assert list(dataset(store, start_step=60)) == []


def test_another_seed_is_another_order_and_its_cursor_is_refused(version):
    store, _ = version
    own, other = dataset(store), dataset(store, seed=99)
    assert [b["bucket"] for b in own] == [b["bucket"] for b in other]
    assert served(dataset(store)) != served(dataset(store, seed=99))
    with pytest.raises(CursorError, match="belongs to run"):
        other.load_state_dict(own.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_dataloader_gives_the_same_order_and_cursors_that_resume(version, num_workers):
    store, _ = version
    options = {"num_steps": 7, "micro_batch": 3, "columns": ("audio",)}
    plain = list(dataset(store, **options))
    loader = DataLoader(dataset(store, **options), batch_size=None, num_workers=num_workers)
    through = list(loader)
    assert served(through) == served(plain)
    for one, other in zip(through, plain, strict=True):
        assert one["micro"] == other["micro"]
        assert one["cursor"] == other["cursor"]
        assert torch.equal(one["latents"], other["latents"])
    done = dataset(store, **options)
    done.consumed(through[4])  # the first piece of step 2 again: it was not done with
    assert done.state_dict() == through[4]["cursor"]
    assert served(done) == served(plain[4:])


def test_a_pickled_dataset_goes_on_where_it_was_and_reports_nothing(version, tmp_path):
    store, _ = version
    one = dataset(store, num_steps=9, cache_dir=tmp_path / "cache", report_to=tmp_path.as_uri(),
                  run="r1")  # fmt: skip
    iterator = iter(one)
    for _ in range(4):
        next(iterator)
    other = pickle.loads(pickle.dumps(one))  # noqa: S301
    assert other.state_dict() == one.state_dict()
    assert served(other) == served(dataset(store, num_steps=9))[4:]
    assert other.telemetry.session != one.telemetry.session
    iterator.close()
    assert len(list(FolderStore(tmp_path).list("inbox/served/"))) == 1  # its own


@pytest.mark.slow
def test_workers_that_are_spawned_give_the_same_order(version, tmp_path):
    store, _ = version
    options = {"num_steps": 7, "micro_batch": 3, "cache_dir": tmp_path}
    loader = DataLoader(dataset(store, **options), batch_size=None, num_workers=2,
                        multiprocessing_context="spawn")  # fmt: skip
    assert served(loader) == served(dataset(store, **options))


def test_impossible_arguments_say_so(version):
    store, _ = version
    with pytest.raises(PlanError, match=r"3 ranks does not divide.*one of \[1, 2, 4\]"):
        dataset(store, world_size=3)
    with pytest.raises(CatalogError, match="v9 is not published"):
        dataset(store, version="v9")
    with pytest.raises(ValueError, match="expected >= 0"):
        dataset(store, start_step=-1)
    with pytest.raises(ValueError, match="needs run"):
        dataset(store, report_to=store)


def test_flipped_byte_in_the_store_names_clip_shard_and_offset(own_version, tmp_path):
    store, index = own_version
    first = dataset(store).plan.samples(0)[0]
    row = index[first.sample_id]
    path = store.path_of(row["shard_key"])
    data = bytearray(path.read_bytes())
    data[row["offset"] + row["length"] // 2] ^= 1
    path.write_bytes(bytes(data))
    for cache_dir in (None, tmp_path / "cache"):
        with pytest.raises(IntegrityError) as caught:
            next(iter(dataset(store, cache_dir=cache_dir)))
        for part in (first.clip_id, row["shard"], f"offset {row['offset']}"):
            assert part in str(caught.value)


def test_shard_cut_short_names_clip_shard_and_offset(own_version):
    store, index = own_version
    row = max(index.values(), key=lambda row: (row["shard_key"], row["offset"]))
    path = store.path_of(row["shard_key"])
    path.write_bytes(path.read_bytes()[: row["offset"] + 10])
    with pytest.raises(IntegrityError, match=f"clip {row['clip_id']}.*ends before the"):
        list(dataset(store))


def test_rotten_cached_copy_is_healed_from_the_store(version, tmp_path):
    store = WatchedStore(version[0])
    expected = served(dataset(store, num_steps=6, cache_dir=tmp_path))
    num_reads = store.num_shard_reads
    assert served(dataset(store, num_steps=6, cache_dir=tmp_path)) == expected
    assert store.num_shard_reads == num_reads  # all from the cache
    for path in tmp_path.rglob("*.segment"):
        path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    assert served(dataset(store, num_steps=6, cache_dir=tmp_path)) == expected
    assert store.num_shard_reads == 2 * num_reads


def test_store_is_byte_identical_after_reading_with_a_tiny_cache(version, tmp_path):
    store, _ = version
    before = {key: store.get(key) for key, _ in store.list("")}
    list(dataset(store, cache_dir=tmp_path, cache_bytes=1 << 16))
    assert {key: store.get(key) for key, _ in store.list("")} == before


def test_damaged_index_plan_or_pack_is_refused(own_version):
    store, index = own_version
    pointer = read_dataset(store, "v1")
    pack_key = next(iter(index.values()))["caption_pack_key"]
    for key, match in (
        (pack_key, "caption pack"),
        (pointer["plan_key"], "plan of dataset version v1"),
        (pointer["training_index_key"], "training index"),
    ):
        path = store.path_of(key)
        good = path.read_bytes()
        if key == pointer["plan_key"]:
            path.write_bytes(good.replace(b'"seed":11', b'"seed":12'))
        elif key == pack_key:
            path.write_bytes(good.replace(b"words", b"sword"))
        else:
            path.write_bytes(good + b"\0")
        with pytest.raises(IntegrityError, match=match):
            list(dataset(store))
        path.write_bytes(good)


def test_served_ranges_are_reported_by_rank_zero_alone(version, tmp_path):
    store, _ = version
    inbox = FolderStore(tmp_path)
    for rank in (1, 0):
        list(dataset(store, rank=rank, world_size=2, num_steps=7, report_to=inbox, run="r1"))
    (key,) = [key for key, _ in inbox.list("inbox/served/")]
    told = parse_report(inbox.get(key))
    assert (told.run, told.world_size, told.resumed_step) == ("r1", 2, None)
    assert told.ranges == (Range(0, 7, "v1", dataset(store).plan.plan_id, 11, 0, 0),)
    ranks = [parse_rank_report(inbox.get(key)) for key, _ in inbox.list("inbox/telemetry/")]
    assert [(each["rank"], each["step"], each["num_batches"]) for each in ranks] == [
        (0, 7, 7),
        (1, 7, 7),
    ]


def test_telemetry_counts_what_was_read(version, tmp_path):
    store, _ = version
    one = dataset(store, num_steps=10, cache_dir=tmp_path)
    list(one)
    report = one.telemetry_report(step_s=60.0)
    assert report["num_batches"] == 10
    assert report["num_samples"] == 80 == report["num_cache_hits"] + report["num_cache_misses"]
    assert 0 < report["fetch_p50_s"] <= report["fetch_p99_s"] <= report["fetch_p999_s"]
    assert report["is_too_slow"] is False


def test_patched_version_swaps_in_at_a_step_boundary(own_version):
    store, _ = own_version
    running = dataset(store, num_steps=20)
    head = []
    for batch in running:
        head += served([batch])
        if batch["step"] == 7:
            break
    plan = running.plan
    bad = sorted({sample.sample_id for sample in plan.samples(9)})[:2]
    patched = apply_patch(plan, bad, 8)
    store.put(plan_key(patched.plan_id), json.dumps(patched.to_json()).encode())
    pointer = read_dataset(store, "v1")
    body = {n: v for n, v in pointer.items() if n not in ("format_version", "version")}
    plan_fields = {"plan_key": plan_key(patched.plan_id), "plan_id": patched.plan_id}
    publish_dataset(store, "v1.1", body | plan_fields)
    swapped = dataset(store, version="v1.1", num_steps=20)
    swapped.load_state_dict(running.state_dict())
    tail = served(swapped)
    unpatched = served(dataset(store, num_steps=20))
    assert head == unpatched[:8]
    assert [step[0] for step in tail] == list(range(8, 20))
    for before, after in zip(unpatched[8:], tail, strict=True):
        assert not set(after[2]) & set(bad)
        for old, new in zip(before[2], after[2], strict=True):
            assert old == new or old in bad
