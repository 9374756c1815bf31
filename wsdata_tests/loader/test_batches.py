"""Batches in every form: the same bytes whoever reads them, in memory that is used again."""

import gc
import itertools
import json
import threading

import numpy as np
import pytest
import torch

from wsdata.errors import CursorError, IntegrityError, PlanError
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.dequantize import dequantize
from wsdata.loader.slabs import SlabPool
from wsdata.loader.version import open_version
from wsdata.shard.plan_patch import changed_slots
from wsdata.store import FolderStore
from wsdata_tests.loader.published import (
    columns_of,
    latents_of,
    publish,
    publish_patch,
    sample_rows,
)


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """Samples of which two thirds have sound and actions; prefixes of video are exact."""
    store = FolderStore(tmp_path_factory.mktemp("batches"))
    rows = [
        {**row, "is_prefix_exact": row["bucket"].endswith("/9"), "has_columns": number % 3 > 0}
        for number, row in enumerate(sample_rows())
    ]
    publish(store, rows=rows)
    return store, {row["sample_id"]: row for row in rows}


@pytest.fixture
def own_version(tmp_path):
    store = FolderStore(tmp_path / "store")
    return store, publish(store)[0]


def dataset(store, **options):
    return PlanDataset(**{"version": "v1", "store": store, "num_threads": 1, **options})


def rows_of(batches):
    """Every sample that batches hold, with its step and bytes."""
    return [
        (batch["step"], batch["bucket"], sample_id, epoch, caption, latents.numpy().tobytes())
        for batch in batches
        for sample_id, epoch, caption, latents in zip(
            batch["sample_ids"], batch["epochs"], batch["captions"], batch["latents"], strict=True
        )
    ]


class CountingStore:
    """Passes reads on, counting bytes of shards; some may hang or fail."""

    def __init__(self, store, hang=None):
        self._store, self._hang = store, hang
        self.address = store.address
        self.num_bytes = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def read_into(self, key, offset, buffers, *, watch=None):
        if self._hang is not None:
            self._hang.wait()
        self.num_bytes += sum(len(buffer) for buffer in buffers)
        self._store.read_into(key, offset, buffers, watch=watch)


def test_a_slab_is_used_again_only_when_nobody_looks_at_it():
    pool = SlabPool(max_free=2)
    first = pool.take(1000)
    first[:] = 7
    views = [first[10:20], torch.from_numpy(first)[5:]]
    del first
    gc.collect()
    other = pool.take(1000)
    other[:] = 9
    assert (views[0] == 7).all()
    assert (views[1] == 7).all()
    assert pool.num_made == 2
    address = views[0].ctypes.data - 10
    views.clear()
    assert pool.take(500).ctypes.data == address
    kept = [pool.take(100) for _ in range(6)]
    assert len({each.ctypes.data for each in kept}) == 6
    del kept, other
    assert pool.take(10) is not None
    assert pool.num_free <= 2


@pytest.mark.parametrize("num_threads", [0, 2])
def test_held_batches_keep_their_bytes_and_dropped_ones_give_their_memory_back(
    version, monkeypatch, num_threads
):
    store, rows = version
    pools = []
    monkeypatch.setattr(
        "wsdata.loader.dataset.SlabPool", lambda n: pools.append(SlabPool(n)) or pools[-1]
    )
    options = {"num_threads": num_threads, "prefetch_depth": 2}
    for _ in dataset(store, num_steps=40, **options):
        pass
    assert pools[0].num_made <= 4
    held = list(dataset(store, num_steps=12, **options))
    for batch in held:
        for sample_id, latents in zip(batch["sample_ids"], batch["latents"], strict=True):
            assert np.array_equal(latents, latents_of(sample_id, rows[sample_id]["shape"]))


@pytest.mark.parametrize(
    ("world_size", "num_threads", "micro_batch"),
    [(1, 0, 1), (1, 4, 3), (2, 1, None), (2, 4, 1), (4, 0, None)],
)
def test_one_sequence_of_samples_and_bytes_however_it_is_read(
    version, world_size, num_threads, micro_batch
):
    store, _ = version
    whole = rows_of(dataset(store, num_steps=10))
    options = {"num_threads": num_threads, "micro_batch": micro_batch, "num_steps": 10}
    ranks = [
        rows_of(dataset(store, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]
    joined = [
        row
        for step in range(10)
        for rank in ranks
        for row in rank
        if row[0] == step
    ]  # fmt: skip
    assert joined == whole
    assert len({len(rank) for rank in ranks}) == 1


def test_around_the_border_of_an_epoch_every_resume_yields_the_tail(version):
    store, _ = version
    whole = list(dataset(store))
    borders = [
        batch["step"] for batch in whole if batch["bucket"].endswith("/9") and 1 in batch["epochs"]
    ]
    (border,) = borders[:1]
    assert 0 in {epoch for batch in whole[border - 3 : border + 1] for epoch in batch["epochs"]}
    for step in range(border - 2, border + 3):
        state = json.loads(json.dumps(whole[step]["cursor"]))
        for options in ({}, {"num_threads": 4, "micro_batch": 1}):
            resumed = dataset(store, num_steps=border + 4, **options)
            resumed.load_state_dict(state)
            assert rows_of(resumed) == rows_of(whole[step + 1 : border + 4])


def test_a_step_that_was_begun_is_delivered_again(version):
    store, _ = version
    running = dataset(store, micro_batch=1, num_steps=3)
    for batch in itertools.islice(running, 6):
        last = batch
    assert (last["step"], last["micro"]) == (1, [1, 4])
    assert running.state_dict()["step"] == last["cursor"]["step"] == 1


@pytest.mark.parametrize("num_threads", [0, 2])
def test_stored_latents_are_the_float32_ones(version, num_threads):
    store, _ = version
    plain = dataset(store, num_steps=12)
    stored = dataset(store, num_steps=12, latents="stored", num_threads=num_threads)
    for one, other in zip(plain, stored, strict=True):
        assert other["latents"].dtype == torch.uint8
        assert other["latent_dtype"] == "fp8"
        bits = dequantize(other).numpy().view(np.uint32)
        assert np.array_equal(bits, one["latents"].numpy().view(np.uint32))
        cast = other["latents"].view(torch.float8_e4m3fn).float()
        assert torch.equal(cast * other["scales"][:, None, :, None, None], one["latents"])
        assert torch.equal(dequantize(other, dtype=torch.bfloat16), one["latents"].bfloat16())
        assert torch.equal(dequantize(one), one["latents"])


@pytest.mark.parametrize("latents", ["stored", "float32"])
def test_a_sequence_parallel_group_reads_each_frame_once_and_shares_the_rest(version, latents):
    store, _ = version
    options = {"num_steps": 12, "latents": latents}
    whole = list(dataset(store, **options))
    ranks = [list(dataset(store, sp_rank=rank, sp_size=2, **options)) for rank in range(2)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        joined = torch.cat([part["latents"] for part in parts], dim=1)
        assert torch.equal(joined, batch["latents"])
        assert [part["captions"] for part in parts] == [batch["captions"]] * 2
        num_frames = batch["latents"].shape[1]
        middle = (num_frames + 1) // 2  # the first rank has the odd frame
        assert [part["frames"] for part in parts] == [
            [0, middle, num_frames],
            [middle, num_frames, num_frames],
        ]


def test_part_of_the_frames_is_read_alone_and_a_flipped_byte_in_it_is_found(own_version):
    store, index = own_version
    whole, part = CountingStore(store), CountingStore(store)
    list(dataset(whole, num_steps=12, latents="stored"))
    list(dataset(part, num_steps=12, latents="stored", sp_rank=1, sp_size=2))
    assert part.num_bytes < 0.6 * whole.num_bytes
    video = next(b for b in dataset(store) if b["bucket"].endswith("/9"))
    first, step = video["sample_ids"][0], video["step"]
    row = index[first]
    columns = json.loads(row["columns_json"])
    path = store.path_of(row["shard_key"])
    good = path.read_bytes()
    offset, length = columns["latents"]
    for place, fails in (
        (offset + length - 1, (1,)),  # in the last frame
        (columns["scale"][0], (0, 1)),
        (columns["frame_xxh3"][0] + columns["frame_xxh3"][1] - 1, (1,)),
    ):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        for rank in range(2):
            batches = iter(dataset(store, start_step=step, sp_rank=rank, sp_size=2))
            if rank in fails:
                with pytest.raises(IntegrityError, match=f"offset {row['offset']}"):
                    next(batches)
            else:
                assert next(batches)["sample_ids"][0] == first
        path.write_bytes(good)


def test_prefixes_are_read_where_the_tokenizer_makes_them_exact_and_refused_elsewhere(version):
    store, _ = version
    whole = list(dataset(store, num_steps=12))
    cropped = dataset(store, num_steps=12, max_frames=2)
    for batch in whole:
        if not batch["bucket"].endswith("/9"):
            continue
        one = dataset(store, start_step=batch["step"], num_steps=1, max_frames=2)
        (part,) = one
        assert part["frames"] == [0, 2, 3]
        assert torch.equal(part["latents"], batch["latents"][:, :2])
    assert [batch["latents"].shape[1] for batch in cropped] == [
        min(2, batch["latents"].shape[1]) for batch in whole
    ]
    with pytest.raises(PlanError, match=r"max_frames 1: bucket 256p/64x32/5.*noise-1"):
        list(dataset(store, num_steps=12, max_frames=1))


@pytest.mark.parametrize("sp_size", [1, 2])
def test_sound_and_actions_come_where_a_sample_has_them(version, sp_size):
    store, rows = version
    for batch in dataset(store, num_steps=12, columns=("audio", "actions"), sp_size=sp_size):
        for place, sample_id in enumerate(batch["sample_ids"]):
            audio, actions = batch["audio"][place], batch["actions"][place]
            if not rows[sample_id]["has_columns"]:
                assert (audio.numel(), actions.numel()) == (0, 0)
                continue
            expected = columns_of(sample_id, rows[sample_id]["shape"])
            assert np.array_equal(audio, expected[0])
            assert np.array_equal(actions, expected[1])


def test_impossible_forms_say_so(version):
    store, _ = version
    for options, match in (
        ({"latents": "fp8"}, "expected one of"),
        ({"columns": ("depth",)}, r"columns \['depth'\]"),
        ({"max_frames": 0}, "at least 1"),
        ({"sp_rank": 2, "sp_size": 2}, "sp_rank 2 of 2"),
        ({"micro_batch": 0}, "micro_batch 0"),
        ({"version": None}, "either version or segments"),
    ):
        with pytest.raises(ValueError, match=match):
            dataset(store, **options)


@pytest.mark.parametrize(("num_threads", "micro_batch"), [(0, None), (2, None), (2, 3)])
def test_a_patch_is_swapped_in_under_way_and_what_it_changed_is_told(
    own_version, num_threads, micro_batch
):
    store, _ = own_version
    options = {"num_steps": 20, "num_threads": num_threads, "prefetch_depth": 4}
    running = dataset(store, micro_batch=micro_batch, **options)
    plan = running.plan
    bad = sorted({sample.sample_id for sample in plan.samples(9)})[:2]
    patched = publish_patch(store, plan, "v1.1", bad, 8)
    got = []
    for batch in running:
        got.append(batch)
        if batch["step"] == 6 and batch["micro"][0] == 0:
            running.swap_to("v1.1")
    expected = list(dataset(store, version="v1.1", **options))
    assert rows_of(got) == rows_of(expected)
    assert rows_of(got[:1]) == rows_of(dataset(store, num_steps=20))[: len(got[0]["sample_ids"])]
    changed = [slot for slot in changed_slots(plan, patched, 20) if slot.step >= 8]
    report = running.telemetry_report()
    assert report["num_skipped"] == len(changed) > 0
    told = {
        (slot["step"], slot["slot"], slot["before"], slot["after"]) for slot in report["skipped"]
    }
    assert told == {(slot.step, slot.slot, slot.before, slot.after) for slot in changed}
    again = dataset(store, version="v1.1", num_steps=20)
    again.load_state_dict(got[-1]["cursor"])
    assert list(again) == []


def test_a_patch_of_what_was_delivered_or_of_another_version_is_not_swapped_in(own_version):
    store, _ = own_version
    running = dataset(store, micro_batch=1)
    bad = sorted({sample.sample_id for sample in running.plan.samples(9)})[:2]
    publish_patch(store, running.plan, "v1.1", bad, 4)
    batches = iter(running)
    while next(batches)["step"] < 4:
        pass
    with pytest.raises(CursorError, match="has passed step 4"):
        running.swap_to("v1.1")
    assert next(batches)["micro"] == [1, 4]  # goes on as before
    with pytest.raises(PlanError, match=r"swap to v2\.1"):
        running.swap_to("v2.1")


def test_a_rank_that_stalls_holds_no_other_up(version):
    store, _ = version
    hang = threading.Event()
    stalled = iter(dataset(CountingStore(store, hang), rank=0, world_size=2, num_steps=8))
    got = []
    waiting = threading.Thread(target=lambda: got.extend(stalled))
    waiting.start()
    other = list(dataset(store, rank=1, world_size=2, num_steps=8))
    assert [batch["step"] for batch in other] == list(range(8))
    assert got == []
    hang.set()
    waiting.join(30)
    assert [batch["step"] for batch in got] == list(range(8))


def test_an_error_names_the_steps_that_want_the_sample(own_version):
    store, index = own_version
    first = next(iter(dataset(store)))["sample_ids"][0]
    path = store.path_of(index[first]["shard_key"])
    data = bytearray(path.read_bytes())
    data[index[first]["offset"] + 400] ^= 1
    path.write_bytes(bytes(data))
    opened = open_version(store, "v1")
    served = {sample.step for sample in opened.plan.where(index[first]["clip_id"])
              if opened.plan.samples(sample.step)[sample.slot].sample_id == first}  # fmt: skip
    with pytest.raises(IntegrityError) as caught:
        next(iter(dataset(store)))
    (note,) = [note for note in caught.value.__notes__ if "wanted by step" in note]
    assert "wanted by step 0, slot 0" in note
    assert ", ".join(map(str, sorted(served)[:5])) in note
