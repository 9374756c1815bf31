"""The bytes of shards: an independent writer of the MDS layout gives the same ones."""

import hashlib
import json

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.errors import IntegrityError
from wsdata.shard.format import (
    COLUMNS,
    Sample,
    column_spans,
    decode_actions,
    decode_audio,
    decode_sample,
    encode_sample,
    mds_index,
    num_pixel_frames,
    pack_shard,
    shard_spans,
    split_into_shards,
    verify_frames,
)


def oracle_sample(values):
    """A sample as the format's documentation tells it: sizes of variable columns, then data."""
    names = sorted(COLUMNS)
    sizes = [len(values[name]) for name in names if COLUMNS[name][1] is None]
    return np.array(sizes, np.uint32).tobytes() + b"".join(values[name] for name in names)


def oracle_shard(samples, size_limit):
    """A shard as the library lays it down, written with numpy alone."""
    config = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": size_limit,
        "column_names": sorted(COLUMNS),
        "column_encodings": [COLUMNS[name][0] for name in sorted(COLUMNS)],
        "column_sizes": [COLUMNS[name][1] for name in sorted(COLUMNS)],
    }
    text = json.dumps(config, sort_keys=True).encode("utf-8")
    offsets = np.array([0, *map(len, samples)]).cumsum().astype(np.uint32)
    offsets += 4 + offsets.nbytes + len(text)
    return np.uint32(len(samples)).tobytes() + offsets.tobytes() + text + b"".join(samples)


def oracle_split(sizes, size_limit, extra):
    """The library's rule, sample by sample, less the empty shard that it writes before a giant."""
    shards, current, filled = [], [], extra
    for index, size in enumerate(sizes):
        if size_limit < filled + size + 4 and current:
            shards.append(current)
            current, filled = [], extra
        current.append(index)
        filled += size + 4
    return [*shards, current] if current else shards


# What MDSWriter of mosaicml-streaming 0.13.0 made of `golden_samples` with size_limit 1 << 20:
# sha256 of its shard.00000.mds and of its index.json.
LIBRARY_SHARD = "92d4346b1e32a25330d800382b7706350c7f797caa63c9f1354c05bfe20e4453"
LIBRARY_INDEX = "81e2c5cabe0f5f39ceb0ffd4ebd106f7d41e4c734e2e72beb13a6884a55eeab5"


def golden_samples():
    """Five samples, the same on every machine."""
    made = []
    for index in range(5):
        shape = (1 + index, 16, 2, 3)
        data = hashlib.shake_256(bytes([index])).digest(int(np.prod(shape)))
        made.append(
            Sample(
                sample_id=f"sample-{index}",
                clip_id=f"clip-\u00e9-{index}",
                dtype="fp8",
                tokenizer_version="t-1",
                codes_tchw=np.frombuffer(data, np.uint8).reshape(shape),
                scale_c=np.arange(16, dtype=np.float32) / 8 + index,
                audio_n=np.arange(index * 100, dtype=np.int16) if index % 2 else None,
                actions_fd=np.arange((1 + 4 * index) * index, dtype=np.float32).reshape(-1, index)
                if index > 2
                else None,
            )
        )
    return made


def test_bytes_are_those_that_the_library_wrote():
    shard, spans = pack_shard([encode_sample(sample) for sample in golden_samples()], 1 << 20)
    assert hashlib.sha256(shard).hexdigest() == LIBRARY_SHARD
    entry = {"basename": "shard.00000.mds", "size_bytes": len(shard), "num_samples": len(spans)}
    assert hashlib.sha256(mds_index([entry], 1 << 20)).hexdigest() == LIBRARY_INDEX


@st.composite
def samples(draw, max_side=3):
    shape = (draw(st.integers(1, 3)), 16, draw(st.integers(1, max_side)), draw(st.integers(1, 2)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_audio, dims = draw(st.integers(0, 9)), draw(st.integers(0, 3))
    audio_n = generator.integers(-(2**15), 2**15, num_audio, dtype=np.int16)
    actions_fd = generator.standard_normal((num_pixel_frames(shape[0]), dims)).astype(np.float32)
    return Sample(
        sample_id=draw(st.text(max_size=20)),
        clip_id=draw(st.text(max_size=20)),
        dtype=draw(st.sampled_from(["fp8", "int8"])),
        tokenizer_version=draw(st.text(max_size=8)),
        codes_tchw=generator.integers(0, 256, shape, dtype=np.uint8),
        scale_c=generator.standard_normal(16).astype(np.float32),
        audio_n=audio_n if num_audio else None,
        actions_fd=actions_fd if dims else None,
    )


def _assert_same(one, other):
    assert one[:4] == other[:4]
    for found, expected in zip(one[4:], other[4:], strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def oracle_frame_digests(sample):
    """One seeded xxh3 for each frame, as another reader would compute it from the columns."""
    seed = xxhash.xxh3_64(sample.scale_c.tobytes()).intdigest()
    return b"".join(
        xxhash.xxh3_64(frame.tobytes(), seed=seed).intdigest().to_bytes(8, "little")
        for frame in sample.codes_tchw
    )


@given(written=st.lists(samples(), max_size=6), limit=st.integers(1, 1 << 20))
@settings(max_examples=60, deadline=None)
def test_shards_round_trip_and_are_the_oracles_bytes(written, limit):
    encoded = [encode_sample(sample) for sample in written]
    for sample, data in zip(written, encoded, strict=True):
        values = {
            "actions": b"" if sample.actions_fd is None else sample.actions_fd.tobytes(),
            "audio": b"" if sample.audio_n is None else sample.audio_n.tobytes(),
            "clip_id": sample.clip_id.encode(),
            "dtype": sample.dtype.encode(),
            "frame_xxh3": oracle_frame_digests(sample),
            "latents": sample.codes_tchw.tobytes(),
            "sample_id": sample.sample_id.encode(),
            "scale": sample.scale_c.tobytes(),
            "shape": np.array(sample.codes_tchw.shape, np.uint32).tobytes(),
            "tokenizer": sample.tokenizer_version.encode(),
        }
        assert data == oracle_sample(values)
    shard, spans = pack_shard(encoded, limit)
    assert shard == oracle_shard(encoded, limit)
    assert shard_spans(shard) == spans
    for sample, (offset, length) in zip(written, spans, strict=True):
        _assert_same(decode_sample(shard[offset : offset + length]), sample)


@given(sizes=st.lists(st.integers(1, 3000), max_size=30), limit=st.integers(1, 8000))
@settings(max_examples=200, deadline=None)
def test_shards_are_cut_where_the_library_cuts(sizes, limit):
    extra = len(oracle_shard([], limit)) - 4 + 4  # head of an empty shard: count, offset, config
    found = [list(cut) for cut in split_into_shards(sizes, limit)]
    assert found == oracle_split(sizes, limit, extra)


@given(sample=samples())
@settings(max_examples=30, deadline=None)
def test_a_temporal_prefix_is_one_range_of_bytes(sample):
    data = encode_sample(sample)
    offset, length = column_spans(data)["latents"]
    frame = length // sample.codes_tchw.shape[0]
    for stop in range(1, sample.codes_tchw.shape[0] + 1):
        assert data[offset : offset + stop * frame] == sample.codes_tchw[:stop].tobytes()


@given(sample=samples(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_range_of_frames_is_verified_alone_and_one_wrong_bit_is_found(sample, data):
    encoded = encode_sample(sample)
    spans = column_spans(encoded)
    offset, length = spans["frame_xxh3"]
    digests = np.frombuffer(encoded[offset : offset + length], "<u8")
    num_frames = len(sample.codes_tchw)
    first = data.draw(st.integers(0, num_frames - 1))
    stop = data.draw(st.integers(first + 1, num_frames))
    offset, length = spans["latents"]
    frame_bytes = length // num_frames
    part = bytearray(encoded[offset + first * frame_bytes : offset + stop * frame_bytes])
    shape = (stop - first, *sample.codes_tchw.shape[1:])

    def is_whole(codes, scale):
        return verify_frames(digests, first, np.frombuffer(codes, np.uint8).reshape(shape), scale)

    assert is_whole(part, sample.scale_c)
    scale = sample.scale_c.copy()
    scale.view(np.uint8)[data.draw(st.integers(0, 63))] ^= 1 << data.draw(st.integers(0, 7))
    assert not is_whole(part, scale)
    part[data.draw(st.integers(0, len(part) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not is_whole(part, sample.scale_c)


def test_frames_beyond_the_digests_are_not_verified():
    codes, scale = np.ones((2, 16, 1, 1), np.uint8), np.ones(16, np.float32)
    digests = np.frombuffer(oracle_frame_digests(Sample("s", "c", "fp8", "t", codes, scale)), "<u8")
    assert verify_frames(digests, 0, codes, scale)
    assert not verify_frames(digests, 1, codes, scale)
    assert not verify_frames(digests, -1, codes, scale)
    assert not verify_frames(digests, 0, codes[:0], scale)


@given(sample=samples(), cut=st.integers(1, 400))
@settings(max_examples=50, deadline=None)
def test_a_sample_cut_short_is_found(sample, cut):
    data = encode_sample(sample)
    with pytest.raises(IntegrityError):
        decode_sample(data[: max(0, len(data) - cut)])


def test_a_shard_cut_short_in_its_head_is_found():
    shard, _ = pack_shard([b"x" * 10, b"y" * 20], 1000)
    for kept in (0, 3, 11):
        with pytest.raises(IntegrityError):
            shard_spans(shard[:kept])


def test_offsets_that_fall_are_found():
    with pytest.raises(IntegrityError, match="fall"):
        shard_spans(np.array([1, 100, 50], np.uint32).tobytes())


def test_limits_beyond_uint32_are_refused():
    for limit in (0, 1 << 32):
        with pytest.raises(ValueError, match="max_bytes"):
            split_into_shards([1], limit)


def test_columns_are_sorted_as_the_library_sorts_them():
    assert list(COLUMNS) == sorted(COLUMNS)


def test_the_index_lists_shards_as_the_library_does():
    shard, _ = pack_shard([b"x" * 10], 1000)
    shown = json.loads(
        mds_index([{"basename": "a.mds", "size_bytes": len(shard), "num_samples": 1}], 1000)
    )
    (entry,) = shown["shards"]
    assert shown["version"] == entry["version"] == 2
    assert entry["raw_data"] == {"basename": "a.mds", "bytes": len(shard), "hashes": {}}
    assert entry["zip_data"] is None
    assert (entry["samples"], entry["size_limit"], entry["format"]) == (1, 1000, "mds")
    config = shard[12 : len(shard) - 10]
    assert json.loads(config) == {
        key: entry[key] for key in entry if key not in ("samples", "raw_data", "zip_data")
    }


def test_arrays_of_another_kind_are_refused():
    good = Sample("s", "c", "fp8", "t", np.zeros((1, 16, 1, 1), np.uint8), np.ones(16, np.float32))
    with pytest.raises(ValueError, match="codes"):
        encode_sample(good._replace(codes_tchw=np.zeros((1, 16, 1, 1), np.int8)))
    with pytest.raises(ValueError, match="scale"):
        encode_sample(good._replace(scale_c=np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="audio is float32"):
        encode_sample(good._replace(audio_n=np.ones(3, np.float32)))
    with pytest.raises(ValueError, match=r"expected float32 \(1, dims\)"):
        encode_sample(good._replace(actions_fd=np.ones((2, 3), np.float32)))


def test_half_values_of_sound_and_actions_are_found():
    with pytest.raises(IntegrityError, match="3 bytes of audio"):
        decode_audio(b"abc")
    with pytest.raises(IntegrityError, match="24 bytes of actions are not float32 for 5 frames"):
        decode_actions(bytes(24), 2)
