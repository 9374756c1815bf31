"""Reading samples: any damage is an error that names clip, shard and offset."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.errors import IntegrityError, ObjectMissing
from wsdata.shard.format import Sample, encode_sample
from wsdata.shard.quantize import dequantize, quantize
from wsdata.shard.reader import read_latents, read_sample
from wsdata.shard.writer import write_shard
from wsdata.store import FolderStore

LATENTS = np.random.default_rng(0).standard_normal((3, 16, 2, 4)).astype(np.float32)
IDS = ("sample-a", "sample-b", "sample-c")


def _encoded(sample_id):
    codes, scale = quantize(LATENTS * (1 + IDS.index(sample_id)), "int8")
    return encode_sample(Sample(sample_id, f"clip-{sample_id}", "int8", "t-1", codes, scale))


def _written(store):
    written = write_shard(store, IDS, _encoded, max_bytes=1 << 20)
    return [
        {
            **entry,
            "clip_id": f"clip-{entry['sample_id']}",
            "shard": written["shard"],
            "shard_key": written["shard_key"],
        }
        for entry in written["samples"]
    ]


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path)


@pytest.fixture
def placements(store):
    return _written(store)


def _assert_named(caught, placement):
    for named in (placement["clip_id"], placement["shard"], f"offset {placement['offset']}"):
        assert named in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


def test_latents_read_back(store, placements):
    for index, placement in enumerate(placements):
        expected = dequantize(*quantize(LATENTS * (1 + index), "int8"), "int8")
        np.testing.assert_array_equal(read_latents(store, placement), expected)


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), index=st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_any_flipped_bit_of_a_sample_is_found_there_and_nowhere_else(
    tmp_path_factory, where, bit, index
):
    store = FolderStore(tmp_path_factory.mktemp("flip"))
    placements = _written(store)
    hit = placements[index]
    path = store.path_of(hit["shard_key"])
    data = bytearray(path.read_bytes())
    data[hit["offset"] + int(where * hit["length"])] ^= 1 << bit
    path.write_bytes(data)
    for placement in placements:
        if placement is hit:
            with pytest.raises(IntegrityError) as caught:
                read_sample(store, placement)
            _assert_named(caught, placement)
        else:
            read_sample(store, placement)


def test_a_truncated_shard_is_named_as_such(store, placements):
    last = placements[-1]
    path = store.path_of(last["shard_key"])
    path.write_bytes(path.read_bytes()[:-10])
    read_sample(store, placements[0])
    with pytest.raises(IntegrityError, match="ends before the sample does") as caught:
        read_sample(store, last)
    _assert_named(caught, last)


def test_a_missing_shard_says_which_sample_wanted_it(store, placements):
    store.delete(placements[0]["shard_key"])
    with pytest.raises(ObjectMissing) as caught:
        read_sample(store, placements[0])
    _assert_named(caught, placements[0])


def test_an_index_that_points_at_another_sample_is_found(store, placements):
    wrong = {**placements[0], "sample_id": "sample-z"}
    with pytest.raises(IntegrityError, match="holds sample sample-a, not sample-z"):
        read_sample(store, wrong)


def test_whole_bytes_that_are_no_sample_are_found(store, placements):
    import xxhash

    data = b"\x00" * placements[0]["length"]
    forged = {**placements[0], "xxh3": xxhash.xxh3_64_hexdigest(data), "shard_key": "forged"}
    store.put("forged", b"\x00" * (placements[0]["offset"]) + data)
    with pytest.raises(IntegrityError) as caught:
        read_sample(store, forged)
    _assert_named(caught, placements[0])
