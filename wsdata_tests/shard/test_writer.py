"""Shards are a function of their set of samples, whatever order these come in."""

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.digest import sha256_bytes
from wsdata.shard.format import Sample, encode_sample, pack_shard
from wsdata.shard.reader import read_sample, sample_digest
from wsdata.shard.scatter import scatter_key, scatter_order
from wsdata.shard.writer import plan_shards, shard_key, write_shard
from wsdata.store import FolderStore

IDS = st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=9), unique=True)


def _encoded(sample_id):
    generator = np.random.default_rng(len(sample_id))
    codes = generator.integers(0, 256, (2, 16, 2, 3), dtype=np.uint8)
    return encode_sample(Sample(sample_id, "clip", "fp8", "t-1", codes, np.ones(16, np.float32)))


@given(ids=IDS, limit=st.integers(600, 4000), seed=st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_every_sample_is_in_one_shard_and_arrival_order_does_not_matter(ids, limit, seed):
    sizes = {sample_id: len(_encoded(sample_id)) for sample_id in ids}
    shards = plan_shards(sizes, limit)
    assert [sample_id for shard in shards for sample_id in shard] == scatter_order(ids)
    shuffled = list(sizes.items())
    seed.shuffle(shuffled)
    assert plan_shards(dict(shuffled), limit) == shards


def test_a_shard_is_written_under_its_digest_and_every_entry_reads_back(tmp_path):
    store = FolderStore(tmp_path)
    ids = scatter_order([f"sample-{index}" for index in range(7)])
    written = write_shard(store, ids, _encoded, max_bytes=1 << 20)
    data = store.get(written["shard_key"])
    assert written["shard"] == sha256_bytes(data)
    assert written["shard_key"] == shard_key(written["shard"])
    assert written["size_bytes"] == len(data)
    assert [entry["sample_id"] for entry in written["samples"]] == ids
    for row, entry in enumerate(written["samples"]):
        assert entry["row"] == row
        placement = {**entry, "shard_key": written["shard_key"], "shard": written["shard"]}
        placement["clip_id"] = "clip"
        sample = read_sample(store, placement)
        assert sample.sample_id == entry["sample_id"]
        assert sample_digest(_encoded(entry["sample_id"])) == entry["xxh3"]
        offset, length = json.loads(entry["columns_json"])["latents"]
        assert data[offset : offset + length] == sample.codes_tchw.tobytes()


@given(ids=st.lists(st.text(st.characters(codec="ascii"), min_size=1), unique=True, max_size=8))
@settings(max_examples=20, deadline=None)
def test_a_shard_that_grew_in_a_file_is_the_one_packed_in_memory(ids):
    with tempfile.TemporaryDirectory() as folder:
        store = FolderStore(Path(folder))
        written = write_shard(store, ids, _encoded, max_bytes=1 << 20)
        data, spans = pack_shard([_encoded(sample_id) for sample_id in ids], 1 << 20)
        assert store.get(written["shard_key"]) == data
        assert written["size_bytes"] == len(data)
        assert [(row["offset"], row["length"]) for row in written["samples"]] == spans


def test_writing_again_gives_the_same_and_changes_nothing(tmp_path):
    store = FolderStore(tmp_path)
    first = write_shard(store, ["a", "b"], _encoded, max_bytes=1 << 20)
    assert write_shard(store, ["a", "b"], _encoded, max_bytes=1 << 20) == first
    assert len(list(store.list("training/"))) == 1


def test_neighbours_in_a_clip_are_not_neighbours_in_a_shard():
    """Of 2,000 samples of 20 clips, about one in 20 neighbours share a clip, as by chance."""
    ids = [f"{clip:024x}.{start:06d}" for clip in range(20) for start in range(100)]
    order = scatter_order(ids)
    same = sum(a[:24] == b[:24] for a, b in itertools.pairwise(order))
    assert 50 < same < 150
    assert scatter_key(ids[0]).hex() == "e721d34debd6e82882f718b575785e60"
