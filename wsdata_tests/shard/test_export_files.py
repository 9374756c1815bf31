"""Files of an export, sample by sample: sound and actions, and what is no such file."""

import numpy as np
import pytest
import webdataset

from wsdata.errors import IntegrityError
from wsdata.shard.export_check import read_mds
from wsdata.shard.export_items import Exported, ServedAs, sample_key
from wsdata.shard.export_mds import read_head, write_mds
from wsdata.shard.export_tar import write_tar
from wsdata.shard.format import Sample, encode_sample
from wsdata.shard.placement import placement_of

CHANNELS = '[{"kind":"continuous","name":"steer","unit":"rad"}]'


def exported(number, served=None):
    draw = np.random.default_rng(number)
    sample = Sample(
        f"clip{number}.256p.000000.0005.plain", f"clip{number}", "fp8", "tok-1",
        draw.integers(0, 255, (2, 16, 4, 8), np.uint8), np.ones(16, np.float32),
        draw.integers(-9, 9, 3333, np.int16) if number % 2 else None,
        draw.normal(size=(5, 3)).astype(np.float32) if number % 3 else None,
    )  # fmt: skip
    data = encode_sample(sample)
    placement = placement_of(
        {"sample_id": sample.sample_id, "clip_id": sample.clip_id, "stream": "driving",
         "bucket": "256p/64x32/5", "shard": "s", "shard_key": "k", "row": 0, "offset": 0,
         "length": len(data), "xxh3": "x", "latent_dtype": "fp8", "tokenizer_version": "tok-1",
         "latent_shape_json": "[2,16,4,8]", "columns_json": "{}", "caption_pack_key": None,
         "is_prefix_exact": True}
    )  # fmt: skip
    captions = {"dense": f"dense words on {number}", "short": "short"}
    channels = CHANNELS if sample.actions_fd is not None else ""
    return sample, Exported(placement, served, data, captions, channels)


def same(one, other):
    return (one is None and other is None) or np.array_equal(one, other)


def test_sound_and_actions_come_out_of_a_tar(tmp_path):
    samples, items = zip(*(exported(number) for number in range(6)), strict=True)
    write_tar(tmp_path / "x.tar", items)
    read = list(webdataset.WebDataset([str(tmp_path / "x.tar")], shardshuffle=False).decode())
    for sample, item, found in zip(samples, items, read, strict=True):
        assert found["__key__"] == sample_key(item)
        assert np.array_equal(found["latents.npy"], sample.codes_tchw)
        assert same(found.get("audio.npy"), sample.audio_n)
        assert same(found.get("actions.npy"), sample.actions_fd)
        assert ("audio_rate_hz" in found["json"]) == (sample.audio_n is not None)
        assert ("action_channels" in found["json"]) == (sample.actions_fd is not None)


def test_added_columns_leave_the_sample_as_it_was(tmp_path):
    samples, items = zip(
        *(exported(number, ServedAs(7, number, 2, "short")) for number in range(6)), strict=True
    )
    write_mds(tmp_path / "x.mds", items, 6, max_bytes=1 << 20)
    for sample, found in zip(samples, read_mds(tmp_path / "x.mds"), strict=True):
        assert (found.sample_id, found.clip_id) == (sample.sample_id, sample.clip_id)
        assert np.array_equal(found.codes_tchw, sample.codes_tchw)
        assert same(found.audio_n, sample.audio_n)
        assert same(found.actions_fd, sample.actions_fd)
    data = (tmp_path / "x.mds").read_bytes()
    assert data.count(CHANNELS.encode()) == sum(s.actions_fd is not None for s in samples)


def test_a_sample_of_other_columns_is_not_packed_under_ours(tmp_path):
    _, item = exported(1)
    with pytest.raises(IntegrityError):
        write_mds(tmp_path / "x.mds", [item._replace(data=item.data[4:])], 1, max_bytes=1 << 20)


def test_what_is_cut_short_or_shifted_is_no_file(tmp_path):
    _, items = zip(*(exported(number) for number in range(3)), strict=True)
    path = tmp_path / "x.mds"
    write_mds(path, items, 3, max_bytes=1 << 20)
    whole = path.read_bytes()
    for data in (b"", whole[:3], whole[:9], whole[:-1], whole + b"?", b"\xff" * 4 + whole[4:]):
        path.write_bytes(data)
        with pytest.raises(IntegrityError), path.open("rb") as file:
            read_head(file, len(data))
