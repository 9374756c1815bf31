"""Small objects through the node's cache: read once by a node, healed, never kept where wrong."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from wsdata.digest import sha256_bytes
from wsdata.errors import ObjectMissing, StoreError
from wsdata.loader.cache import NodeCache
from wsdata.loader.cached_store import CachedStore
from wsdata.store import FolderStore

BODY = bytes(range(256)) * 40
KEY = f"training/packs/ab/{sha256_bytes(BODY)}.jsonl"


class Counting(FolderStore):
    """Notes what is read."""

    def __init__(self, root):
        super().__init__(root)
        self.reads = []

    def get(self, key):
        self.reads.append(key)
        return super().get(key)

    def get_range(self, key, offset, length):
        self.reads.append((key, offset))
        return super().get_range(key, offset, length)


@pytest.fixture
def store(tmp_path):
    made = Counting(tmp_path / "store")
    for key, data in ((KEY, BODY), ("training/plans/p.json", b"{}")):
        made.put(key, data)
    return made


def opened(store, tmp_path):
    return CachedStore(store, NodeCache(tmp_path / "cache"))


def flip(tmp_path):
    for path in tmp_path.rglob("*.segment"):
        path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


def test_what_is_named_by_its_content_is_read_once_by_a_node(store, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        ranks = [opened(store, tmp_path) for _ in range(4)]
        reads = [pool.submit(ranks[number % 4].get, KEY) for number in range(16)]
        assert {read.result() for read in reads} == {BODY}
    assert store.reads == [KEY]
    for _ in range(2):
        assert opened(store, tmp_path).get("training/plans/p.json") == b"{}"
    assert store.reads[1:] == ["training/plans/p.json"] * 2, "may change, so is not kept"


def test_ranges_are_read_once_by_a_node(store, tmp_path):
    for _ in range(3):
        rank = opened(store, tmp_path)
        for offset in (0, 100):
            assert rank.get_range(KEY, offset, 50) == BODY[offset : offset + 50]
    assert store.reads == [(KEY, 0), (KEY, 100)]


def test_rot_in_the_cache_is_healed(store, tmp_path):
    for number in range(4):
        rank = opened(store, tmp_path)
        assert rank.get(KEY) == BODY
        assert rank.get_range(KEY, 9, 1000) == BODY[9:1009]
        if number == 1:
            flip(tmp_path)
    assert len(store.reads) == 4, "each twice"


def test_wrong_objects_are_handed_over_and_not_kept(store, tmp_path):
    store.path_of(KEY).write_bytes(b"wrong")
    assert opened(store, tmp_path).get(KEY) == b"wrong"
    store.path_of(KEY).write_bytes(BODY)
    assert opened(store, tmp_path).get(KEY) == BODY


def test_a_range_that_its_reader_asks_for_again_is_read_past_the_cache(store, tmp_path):
    store.path_of(KEY).write_bytes(BODY[::-1])
    rank = opened(store, tmp_path)
    wrong = rank.get_range(KEY, 0, 10)
    store.path_of(KEY).write_bytes(BODY)
    assert wrong != rank.get_range(KEY, 0, 10) == BODY[:10]
    assert opened(store, tmp_path).get_range(KEY, 0, 10) == BODY[:10]
    assert len(store.reads) == 2


def test_without_a_cache_a_file_that_was_replaced_is_read_when_asked_again(store):
    rank = CachedStore(store, None)
    assert rank.get_range(KEY, 0, 9) == rank.get_range(KEY, 0, 9) == BODY[:9]
    assert rank.get_range(KEY, 9, 9) == BODY[9:18]
    store.delete(KEY)
    store.put(KEY, BODY[::-1])
    assert rank.get_range(KEY, 9, 9) == BODY[::-1][9:18]


def test_errors_are_the_stores_own_and_without_a_cache_it_is_the_store(store, tmp_path):
    for rank in (opened(store, tmp_path), CachedStore(store, None)):
        with pytest.raises(ObjectMissing):
            rank.get(KEY.replace("packs", "none"))
        with pytest.raises(StoreError, match="shorter"):
            rank.get_range(KEY, len(BODY) - 5, 10)
        assert rank.size(KEY) == len(BODY)
        assert rank.get(KEY) == BODY
        assert dict(rank.list("training/packs/")) == {KEY: len(BODY)}
