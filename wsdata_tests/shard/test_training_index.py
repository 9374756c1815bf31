"""The packed training index against rows in memory: same answers, and every damage is told."""

import random
import threading
import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, ObjectMissing, PlanError, StoreError
from wsdata.ids import make_clip_id, make_sample_id
from wsdata.shard.block_cache import BlockCache
from wsdata.shard.packed import PackedTable, PackedWriter
from wsdata.shard.packs import pack_key
from wsdata.shard.placement import placement_of
from wsdata.shard.plan_atoms import SampleTable, sort_rows
from wsdata.shard.training_index import TrainingIndex, read_root
from wsdata.shard.training_index_write import widths_of, write_training_index
from wsdata.shard.writer import shard_key
from wsdata.store import FolderStore
from wsdata.tables import TABLES
from wsdata_tests.shard.plan_support import BUCKETS, STREAMS, TIERS, tokens_of

ROWS_PER_PART = 256  # two blocks


def _hex(rng, digits):
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def index_rows(num, seed=0):
    """Rows of a dataset index with what its manifest adds, in no order."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    shards = [_hex(rng, 64) for _ in range(1 + num // 20)]
    return [_row(rng, number, rng.choice(shards)) for number in range(num)]


def _row(rng, number, shard):
    bucket = rng.choice(BUCKETS)
    rung, size, frames = bucket.split("/")
    start = number // 3 * 1000  # three samples of most clips
    clip_id = make_clip_id(
        f"{start * 7919 % 10**6:064d}", track=0, start_ms=start, end_ms=start + 7
    )
    sample_id = make_sample_id(clip_id, rung=rung, start_frame=number % 3, num_frames=int(frames))
    offset, sound = rng.randrange(2**31), rng.choice([0, 900])
    columns = {"latents": [offset + 40, 5000], "audio": [offset + 5040, sound]}
    pack = _hex(rng, 64)
    sourced = {
        "rung": rung,
        "fps": 24.0,
        "transcode_key": f"derived/transcodes/{number % 9}/{clip_id}.mp4",
        "transcode_sha256": _hex(rng, 64),
        "start_frame": number % 3,
        "num_frames": int(frames),
        "width_px": int(size.split("x")[0]),
        "height_px": int(size.split("x")[1]),
        "crop_x": number % 5,
        "crop_y": 0,
        "variant": rng.choice(["plain", "flip"]),
    }
    return sourced | {
        "sample_id": sample_id,
        "clip_id": clip_id,
        "stream": rng.choice(STREAMS),
        "bucket": bucket,
        "tier": rng.choice(TIERS),
        "num_tokens": tokens_of(bucket),
        "tokenizer_version": "noise-1",
        "latent_dtype": rng.choice(["fp8", "int8"]),
        "latent_shape_json": f"[{(int(frames) - 1) // 4 + 1},16,4,8]",
        "is_prefix_exact": rng.choice([True, None]),
        "shard": shard,
        "shard_key": shard_key(shard),
        "row": number,
        "offset": offset,
        "length": 5040 + sound,
        "columns_json": str(columns).replace("'", '"'),
        "xxh3": _hex(rng, 16),
        **rng.choice([NO_CAPTIONS, _captions(rng, pack)]),
    }


NO_CAPTIONS = dict.fromkeys(
    ("caption_pack_key", "caption_offset", "caption_length", "caption_xxh3")
)


def _captions(rng, pack):
    return {
        "caption_pack_key": pack_key(pack),
        "caption_offset": rng.randrange(2**32),
        "caption_length": rng.randrange(1, 2**20),
        "caption_xxh3": _hex(rng, 16),
    }


def frame_of(rows):
    types = TABLES["manifests"].columns | TABLES["dataset_index"].columns
    types["is_prefix_exact"] = pl.Boolean
    return pl.DataFrame(rows, schema={name: types[name] for name in rows[0]})


def write(store, rows, *, chunk=1000):
    frame = sort_rows(frame_of(rows))
    return write_training_index(
        store,
        frame.iter_slices(chunk),
        widths_of(frame["sample_id"], frame["transcode_key"]),
        rows_per_part=ROWS_PER_PART,
    )


def open_written(store, written):
    return TrainingIndex(read_root(store, written.key, written.sha256), store.get_range)


@settings(max_examples=6, deadline=None)
@given(num=st.integers(1, 700), seed=st.integers(0, 99), data=st.data())
def test_packed_index_answers_as_rows_in_memory_for_any_order_of_rows(
    tmp_path_factory, num, seed, data
):
    rows = index_rows(num, seed)
    store = FolderStore(tmp_path_factory.mktemp("index"))
    written = write(store, rows)
    rows = data.draw(st.permutations(rows)) if num < 60 else rows[::-1]
    again = write(store, rows, chunk=data.draw(st.integers(1, 90)))
    assert again == written
    packed, table = open_written(store, written), SampleTable(frame_of(rows))
    assert packed.atoms == table.atoms
    assert packed.num_rows == num
    asked = np.array(data.draw(st.lists(st.integers(0, num - 1), max_size=40)), dtype=np.int64)
    assert packed.names(asked) == table.names(asked)
    full = sort_rows(frame_of(rows)).rows(named=True)
    assert packed.placements(asked) == [placement_of(full[row]) for row in asked]
    for source, row in zip(packed.sources(asked), asked, strict=True):
        assert all(getattr(source, name) == full[row][name] for name in source._fields)
    sample_ids = [full[row]["sample_id"] for row in asked] + ["nothing", "~"]
    assert packed.rows_of_samples(sample_ids).tolist() == [*asked, -1, -1]
    for row in asked[:8]:
        for name in ("clip_id", "shard"):
            found = getattr(packed, f"rows_of_{name.split('_')[0]}")(full[row][name])
            assert found.tolist() == [i for i, r in enumerate(full) if r[name] == full[row][name]]
    assert packed.rows_of_clip("no such clip").tolist() == []
    assert packed.rows_of_shard("ff" * 32).tolist() == []


@given(
    keys=st.lists(st.integers(0, 40), max_size=200),
    asked=st.integers(-1, 41),
    span=st.tuples(st.integers(0, 200), st.integers(0, 200)),
)
@settings(max_examples=30, deadline=None)
def test_search_finds_the_first_row_that_is_not_less(tmp_path_factory, keys, asked, span):
    keys.sort()
    store = FolderStore(tmp_path_factory.mktemp("table"))
    writer = PackedWriter(
        store, "t", [("key", "S4")], key="key", rows_per_block=4, rows_per_part=16
    )
    writer.add(np.array([(f"{key:02d}".encode(),) for key in keys], writer.dtype))
    table = PackedTable(writer.close(), store.get_range, BlockCache())
    first, end = sorted(min(each, len(keys)) for each in span)
    expected = next((row for row in range(first, end) if keys[row] >= asked), end)
    key = f"{asked:02d}".encode() if asked >= 0 else b""
    assert table.lower_bound(key, first, end) == expected


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    store = FolderStore(tmp_path_factory.mktemp("index"))
    return store, write(store, index_rows(600))


def _damaged(home, tmp_path, change):
    store, written = home
    copy = FolderStore(tmp_path)
    for key, _ in store.list("training/"):
        copy.put(key, store.get(key))
    change(copy, written)
    return open_written(copy, written)


def test_a_flipped_bit_names_object_and_block_and_hurts_no_other(home, tmp_path):
    def flip(store, written):
        key = written.root.samples.object_keys[1]
        data = bytearray(store.get(key))
        data[written.root.samples.dtype.itemsize * 140] ^= 1  # row 256 + 140, in its second block
        store.path_of(key).write_bytes(data)

    index = _damaged(home, tmp_path, flip)
    key = home[1].root.samples.object_keys[1]
    with pytest.raises(IntegrityError, match=rf"{key} is damaged: block 1 \(rows 384 to 511\)"):
        index.placements([3, 390])
    assert index.placements([0, 255, 300, 599]) == open_written(*home).placements(
        [0, 255, 300, 599]
    )


def test_a_damaged_list_of_digests_a_cut_object_and_a_lost_one_are_told(home, tmp_path):
    samples, shards = home[1].root.samples, home[1].root.shards

    def damage(store, _):
        data = bytearray(store.get(samples.object_keys[0]))
        data[samples.dtype.itemsize * ROWS_PER_PART] ^= 1
        store.path_of(samples.object_keys[0]).write_bytes(data)
        whole = store.get(samples.object_keys[1])
        store.path_of(samples.object_keys[1]).write_bytes(whole[:100])
        store.delete(shards.object_keys[0])

    index = _damaged(home, tmp_path, damage)
    with pytest.raises(IntegrityError, match=r"its list of digests.*delete the object"):
        index.names(np.array([0]))
    with pytest.raises(StoreError, match=r"the object is shorter\nwanted for .*delete it"):
        index.names(np.array([300]))
    with pytest.raises(ObjectMissing, match=r"training/index/.*\.shards"):
        index.rows_of_shard("ab" * 32)


def test_wrong_bytes_are_read_once_more_before_they_are_an_error(home):
    store, written = home
    reads = []

    def read(key, offset, length):
        reads.append(key)
        data = store.get_range(key, offset, length)
        return data[::-1] if len(reads) in (1, 3) else data

    index = TrainingIndex(read_root(store, written.key, written.sha256), read)
    assert index.names(np.array([5])) == open_written(store, written).names(np.array([5]))
    assert len(reads) == 4  # digests and block, each twice


def test_memory_of_blocks_is_bounded_and_threads_agree(home):
    store, written = home
    reads = []

    def read(key, offset, length):
        reads.append(length)
        return store.get_range(key, offset, length)

    root = read_root(store, written.key, written.sha256)
    block = root.samples.rows_per_block * root.samples.dtype.itemsize
    index = TrainingIndex(root, read, cache_bytes=2 * block)
    expected = open_written(store, written).placements(range(600))
    found = []

    def ask(seed):
        rows = np.random.default_rng(seed).choice(600, 200).tolist()
        found.append(
            all(p == expected[r] for r, p in zip(rows, index.placements(rows), strict=True))
        )

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert index.cached_bytes <= 2 * block
    before = len(reads)
    index.placements([599, 599, 598])
    index.placements([599])
    assert len(reads) <= before + 2  # digests and the block, once


def test_a_slow_store_is_asked_for_several_blocks_at_once(home):
    store, written = home
    asking, together = [], []

    def read(key, offset, length):
        asking.append(offset)
        together.append(len(asking))
        time.sleep(0.01)
        asking.remove(offset)
        return store.get_range(key, offset, length)

    index = TrainingIndex(read_root(store, written.key, written.sha256), read)
    rows = [*range(599, -1, -7), 3, 3]
    assert index.placements(rows) == open_written(store, written).placements(rows)
    assert max(together) > 1
    assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]


def test_another_root_or_format_is_refused(home, tmp_path):
    store, written = home
    with pytest.raises(IntegrityError, match="the pointer says"):
        read_root(store, written.key, "ab" * 32)
    data = store.get(written.key).replace(b'"format_version":2', b'"format_version":7')
    other = FolderStore(tmp_path)
    other.put("training/index/x.json", data)
    with pytest.raises(PlanError, match="format 7, this code reads 2"):
        read_root(other, "training/index/x.json", sha256_bytes(data))


@pytest.mark.parametrize(
    "broken",
    [
        {"clip_id": "another"},
        {"shard_key": "training/shards/elsewhere.mds"},
        {"caption_pack_key": "packs/1.parquet", "caption_length": 9},
        {"caption_pack_key": f"training/packs/ab/{'ab' * 32}.parquet", "caption_length": 9},
        {"caption_pack_key": pack_key("ab" * 32), "caption_length": None},
    ],
)
def test_what_could_not_be_given_back_is_refused(tmp_path, broken):
    rows = index_rows(3)
    with pytest.raises(PlanError, match="1 rows of the dataset index cannot be indexed"):
        write(FolderStore(tmp_path), [*rows[:2], rows[2] | broken])


def test_a_version_without_transcodes_says_so(tmp_path):
    rows = [row | {"transcode_key": None, "transcode_sha256": None} for row in index_rows(5)]
    store = FolderStore(tmp_path)
    index = open_written(store, write(store, rows))
    with pytest.raises(PlanError, match="names no transcodes"):
        index.sources([0])
    rows[0] |= {"transcode_key": "t.mp4", "transcode_sha256": "ab" * 32}
    index = open_written(store, write(store, rows))
    with pytest.raises(PlanError, match="names no transcode for sample"):
        index.sources(range(5))
