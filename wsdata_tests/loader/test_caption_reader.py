"""Captions by row: one small read for a sample, and every damage of a pack told by its place."""

import json
import re

import pytest
import xxhash

from wsdata.digest import canonical_json
from wsdata.errors import IntegrityError, ObjectMissing, PlanError
from wsdata.loader.cache import NodeCache
from wsdata.loader.caption_reader import CaptionReader
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.fetch import Fetcher
from wsdata.loader.version import open_version
from wsdata.shard.placement import placement_of
from wsdata.store import FolderStore
from wsdata_tests.loader.published import publish


class CountedStore(FolderStore):
    """Notes every read of a caption pack: by range, and of the whole."""

    def __init__(self, root):
        super().__init__(root)
        self.ranges, self.wholes = [], []

    def read_into(self, key, offset, buffers, *, watch=None):
        if key.startswith("training/packs/"):
            self.ranges.append((key, offset, sum(len(buffer) for buffer in buffers)))
        super().read_into(key, offset, buffers, watch=watch)

    def get(self, key):
        if key.startswith("training/packs/"):
            self.wholes.append(key)
        return super().get(key)


@pytest.fixture
def version(tmp_path):
    store = CountedStore(tmp_path / "store")
    return store, publish(store)[0]


def _placements(store):
    opened = open_version(store, "v1")
    return opened.placements(range(opened.index.num_rows))


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_sample_costs_one_read_of_its_own_record(version, tmp_path, is_cached):
    store, index = version
    cache = NodeCache(tmp_path / "cache") if is_cached else None
    placements = _placements(store)
    for times in (1, 2):
        fetcher = Fetcher(store, cache)  # of a rank each
        reader = CaptionReader(fetcher)
        for placement in placements:
            assert reader.read(placement) == {
                variant: f"{variant} words on {placement.clip_id}" for variant in ("dense", "short")
            }
        report = fetcher.telemetry.report(ring_depth=1)
        assert report["num_bytes"] == sum(row["caption_length"] for row in index.values())
        assert report["num_cache_hits"] == (len(index) if is_cached and times == 2 else 0)
    wanted = [(p.caption_pack_key, p.caption_offset, p.caption_length) for p in placements]
    assert store.ranges == (wanted if is_cached else wanted * 2)
    assert not store.wholes


def test_a_sample_without_a_pack_has_no_captions_and_is_not_read_for(version):
    store, index = version
    bare = dict.fromkeys(("caption_pack_key", "caption_offset", "caption_length", "caption_xxh3"))
    placement = placement_of({**next(iter(index.values())), **bare})
    assert CaptionReader(Fetcher(store)).read(placement) == {}
    assert not store.ranges


def _flip(data, placement):
    at = placement.caption_offset + placement.caption_length // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (_flip, IntegrityError, "are not those that were recorded, read twice.*delete the object"),
        (lambda data, p: data[: p.caption_offset + 9], IntegrityError, "bytes, and ends before"),
        (None, ObjectMissing, "it was deleted, or never copied there"),
    ],
    ids=["damaged", "cut short", "lost"],
)
def test_a_bad_pack_names_clip_pack_offset_and_steps_and_hurts_no_other(
    version, change, error, told
):
    store, _ = version
    placement = max(_placements(store), key=lambda each: each.caption_offset)
    key, good = placement.caption_pack_key, store.get(placement.caption_pack_key)
    store.delete(key)
    if change is not None:
        store.put(key, change(good, placement))
    words = (
        f"captions of clip {placement.clip_id} (sample {placement.sample_id}) in caption pack "
        f"{key} at offset {placement.caption_offset}"
    )
    reader = CaptionReader(Fetcher(store))
    with pytest.raises(error, match=rf"{re.escape(words)}: .*{told}"):
        reader.read(placement)
    for other in _placements(store):
        if other.caption_pack_key != key:
            assert reader.read(other)
    with pytest.raises(error, match=rf"in caption pack {key} at offset[\s\S]*wanted by step"):
        list(PlanDataset(version="v1", store=store, num_steps=60))
    store.delete(key)
    store.put(key, good)
    assert reader.read(placement)  # as soon as it is there again


def test_a_pack_of_other_samples_is_found_though_its_digests_are_right(version):
    store, index = version
    row = next(iter(index.values()))
    key, line = row["caption_pack_key"], canonical_json({"sample_id": "other", "captions": {}})
    store.delete(key)
    store.put(key, line.encode())
    place = {"offset": 0, "length": len(line), "xxh3": xxhash.xxh3_64_hexdigest(line.encode())}
    placement = placement_of({**row, **{f"caption_{name}": it for name, it in place.items()}})
    with pytest.raises(IntegrityError, match=rf"in caption pack {key} at offset 0: .* of sample"):
        CaptionReader(Fetcher(store)).read(placement)


def test_an_index_of_before_captions_were_read_by_row_is_refused(version):
    _, index = version
    row = next(iter(index.values()))
    with pytest.raises(PlanError, match=r"not where .* captions lie.*cut the next dataset version"):
        placement_of({**row, "caption_offset": None})


def test_captions_of_any_length_and_script_come_back_as_they_were(tmp_path, version):
    store, index = version
    reader, row = CaptionReader(Fetcher(store)), next(iter(index.values()))
    for number, text in enumerate(["", "x" * 9000, "\U0001f30a\n\u732b\x00", "short"]):
        body = {"sample_id": row["sample_id"], "captions": {"dense": text}}
        line = json.dumps(body).encode()
        place = {
            "pack_key": f"training/packs/{number}.jsonl",
            "offset": number,
            "length": len(line),
            "xxh3": xxhash.xxh3_64_hexdigest(line),
        }
        store.put(place["pack_key"], bytes(number) + line)
        placement = placement_of({**row, **{f"caption_{name}": it for name, it in place.items()}})
        assert reader.read(placement) == {"dense": text}
