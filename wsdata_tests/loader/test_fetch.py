"""Ranges from stores on bad days: slow, failing, cut, missing, wrong; with a cache and without."""

import hashlib
import random
import threading
import time

import pytest

from wsdata import s3_client, s3_read
from wsdata.buffers import ReadGivenUp, ReadWatch
from wsdata.errors import IntegrityError, ObjectMissing, StoreDenied, StoreUnavailable
from wsdata.loader.cache import NodeCache
from wsdata.loader.fetch import Fetcher
from wsdata.loader.hedging import HedgedReads, Hedging, default_hedging
from wsdata.loader.telemetry import Telemetry
from wsdata.store import FolderStore, open_store
from wsdata_tests.cluster.faulty_proxy import scripted_proxy
from wsdata_tests.cluster.s3_servers import running_moto

DATA = random.Random(1).randbytes(1_200_000)  # noqa: S311
NO_HEDGING = Hedging(max_share=0)


@pytest.fixture(scope="module")
def bucket():
    """A store in a bucket behind a proxy that fails by a script."""
    with pytest.MonkeyPatch.context() as patch, running_moto() as moto:
        for name, value in moto.environment().items():
            patch.setenv(name, value)
        patch.setattr(s3_client, "BASE_PAUSE_S", 0.001)
        made = moto.make_bucket()
        with scripted_proxy(moto.endpoint) as script:
            store = open_store(f"s3://{made}?endpoint={script.endpoint}")
            store.put("k", DATA)
            yield script, store


@pytest.fixture
def proxied(bucket):
    script, store = bucket
    script.faults, script.always, script.slow_s = [], None, 0.5
    script.counts.clear()
    script.ranges.clear()
    return script, store


def telling(fetcher):
    return fetcher.telemetry.report(ring_depth=1)


def read(fetcher, offset=1000, length=900_000, key="k", *, expected=None):
    """Read a range over three buffers, checked by its digest; return it."""
    wanted = DATA[offset : offset + length] if expected is None else expected
    digest = hashlib.sha256(wanted).digest()
    sizes = [length // 3, 0, length - length // 3]
    buffers = [memoryview(bytearray(size)) for size in sizes]
    fetcher.read_into(
        key,
        offset,
        buffers,
        is_valid=lambda: hashlib.sha256(b"".join(buffers)).digest() == digest,
        name=lambda: f"clip c7 in shard {key} at offset {offset}",
    )
    return b"".join(buffers)


def test_what_may_pass_is_tried_again_and_goes_on_where_it_stopped(proxied):
    script, store = proxied
    script.slow_s = 0.05
    for faults, num_retries in (
        (["unavailable", "error", "unavailable"], 3),
        (["reset_before", "reset_after"], 2),
        (["cut_body"], 1),
        (["ends_early", "cut_body"], 2),
        (["stuck"], 0),
        (["late"], 0),
    ):
        script.faults = list(faults)
        script.ranges.clear()
        fetcher = Fetcher(store, hedging=NO_HEDGING)
        assert read(fetcher) == DATA[1000:901_000]
        report = telling(fetcher)
        assert (report["num_retries"], report["num_reread"]) == (num_retries, 0)
        starts = [int(each.removeprefix("bytes=").split("-")[0]) for each in script.ranges]
        assert len(starts) == num_retries + 1
        assert starts == sorted(starts)
        if faults[0] == "ends_early":
            assert starts[1] > 200_000, "what came before the cut is not asked for again"


def test_a_store_that_stays_ill_is_told_after_the_deadline_with_clip_and_shard(
    proxied, monkeypatch
):
    script, store = proxied
    script.always = "unavailable"
    monkeypatch.setattr(s3_read, "DEADLINE_S", 0.1)
    monkeypatch.setattr(s3_client, "MAX_PAUSE_S", 0.02)
    for hedging in (NO_HEDGING, Hedging()):
        with pytest.raises(StoreUnavailable) as caught:
            read(Fetcher(store, hedging=hedging))
        for words in (
            "clip c7 in shard k at offset 1000",
            "did not answer",
            "SlowDown",
            "last state",
        ):
            assert words in str(caught.value)
    assert script.counts["requests"] > 4
    script.always = None
    assert read(Fetcher(store)) == DATA[1000:901_000]


def test_what_is_missing_short_or_refused_is_told_at_once(proxied):
    script, store = proxied
    fetcher = Fetcher(store)
    with pytest.raises(ObjectMissing, match=r"clip c7 in shard gone.*deleted.*sync.*dataset patch"):
        read(fetcher, key="gone")
    with pytest.raises(IntegrityError, match=r"clip c7.*has 1200000 bytes, and ends before"):
        read(fetcher, offset=1_100_000, expected=b"", length=200_000)
    assert script.counts["requests"] == 3, "one each, and one for the size"


def test_a_slow_answer_is_overtaken_and_the_slow_one_hung_up(proxied):
    script, store = proxied
    script.slow_s = 20.0
    hedging = Hedging(min_delay_s=0.4, max_delay_s=0.4)
    read(Fetcher(store, hedging=NO_HEDGING))  # makes the client, which takes a while
    for fault in ("late", "stuck"):
        fetcher = Fetcher(store, hedging=hedging)
        script.faults = [fault]
        assert read(fetcher) == DATA[1000:901_000]
        report = telling(fetcher)
        assert (report["num_hedges"], report["num_hedges_won"]) == (1, 1)
        assert report["num_retries"] == 0
    deadline = time.monotonic() + 10
    while not script.counts["hung_up"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert script.counts["hung_up"] == 1, "of the answer that stopped, the connection was closed"


def test_a_refusal_is_told_as_one_with_who_was_to_be_served(proxied, monkeypatch):
    from botocore.exceptions import ClientError

    _, store = proxied
    answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}

    def refuse(**_arguments):
        raise ClientError(answer, "get_object")

    monkeypatch.setattr(store._ranges.client, "get_object", refuse)
    with pytest.raises(StoreDenied, match=r"clip c7 in shard k.*may not read k"):
        read(Fetcher(store))


class SlowStore:
    """A store whose reads take what a generator says; notes how many were asked for."""

    address = "s3://double"

    def __init__(self, seconds):
        self._seconds = iter(seconds)
        self._lock = threading.Lock()
        self.num_asked = self.num_given_up = 0

    def read_into(self, key, offset, buffers, *, watch):
        with self._lock:
            self.num_asked += 1
            seconds = next(self._seconds)
        if isinstance(seconds, Exception):
            raise seconds
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                watch.check()
                time.sleep(0.001)
            with watch.writing():
                buffers[0][:] = bytes([key])
        except Exception:
            self.num_given_up += 1
            raise


def hedged(seconds, **options):
    store, won = SlowStore(seconds), []
    return HedgedReads(store, Hedging(**options), won.append), store, won


def one(reads, key):
    buffer = memoryview(bytearray(1))
    reads.read_into(key, 0, [buffer], watch=(watch := ReadWatch()))
    assert buffer[0] == key
    return watch


def test_second_requests_stay_within_their_share_however_slow_the_store():
    reads, store, won = hedged(
        [0.004] * 1000, max_share=0.1, min_delay_s=0.0, max_delay_s=0.0005, num_warm=1000
    )
    for key in range(100):
        one(reads, key)
    assert 5 <= len(won) <= 0.1 * 100 + 1
    assert store.num_asked == 100 + len(won)


def test_the_delay_follows_what_reads_of_that_size_take():
    reads, _, won = hedged([0.002] * 40 + [5.0, 0.0], max_share=1, max_delay_s=60, num_warm=30)
    for key in range(40):
        one(reads, key)
    one(reads, 77)
    assert won == [True]


def test_a_second_request_that_fails_harms_nobody_and_two_failures_tell_the_first():
    first, second = ObjectMissing("first"), ObjectMissing("second")
    options = {"max_share": 1, "min_delay_s": 0.001, "max_delay_s": 0.01}
    reads, _, won = hedged([0.1, second], **options)
    one(reads, 3)
    assert won == [False]
    reads, _, won = hedged([first], **options)
    with pytest.raises(ObjectMissing, match="first"):
        one(reads, 3)
    assert won == []


def test_once_a_read_is_given_up_nothing_is_written_any_more(tmp_path):
    store, buffer = FolderStore(tmp_path), memoryview(bytearray(4))
    store.put("k", DATA)
    watch = ReadWatch(is_racing=True)
    watch.give_up()
    with pytest.raises(ReadGivenUp):
        store.read_into("k", 0, [buffer], watch=watch)
    assert bytes(buffer) == bytes(4)
    reads = HedgedReads(store, Hedging(max_share=1, min_delay_s=0, max_delay_s=0), lambda _: None)
    for offset in range(50):
        reads.read_into("k", offset, [buffer], watch=ReadWatch())
        assert buffer == DATA[offset : offset + 4]


def test_folders_are_asked_once_and_buckets_may_be_asked_twice(tmp_path):
    assert default_hedging(FolderStore(tmp_path)).max_share == 0
    assert 0 < default_hedging(open_store("s3://b")).max_share <= 0.05
    with pytest.raises(ValueError, match="max_share"):
        Hedging(max_share=2)
    with pytest.raises(ValueError, match="range"):
        Hedging(min_delay_s=2, max_delay_s=1)


@pytest.mark.parametrize("with_cache", [False, True])
def test_l5_wrong_bytes_are_read_once_more_and_then_named(tmp_path, with_cache):
    store = FolderStore(tmp_path / "store")
    store.put("k", DATA)
    cache = NodeCache(tmp_path / "cache") if with_cache else None
    fetcher = Fetcher(store, cache, Telemetry())
    assert read(fetcher) == DATA[1000:901_000]
    data = bytearray(DATA)
    data[5_000] ^= 1
    store.path_of("k").write_bytes(data)
    if with_cache:
        assert read(fetcher) == DATA[1000:901_000], "the cached copy is right"
    with pytest.raises(IntegrityError) as caught:
        read(fetcher, 2000, 10_000)
    for words in ("clip c7 in shard k at offset 2000", "10000 bytes of k at 2000", "read twice"):
        assert words in str(caught.value)
    store.path_of("k").write_bytes(DATA)
    assert read(fetcher, 2000, 10_000) == DATA[2000:12_000], "wrong bytes were never kept"
    report = telling(fetcher)
    assert report["num_samples"] == (3 if with_cache else 2)
    if with_cache:
        assert (report["num_cache_hits"], report["num_cache_misses"]) == (1, 2)


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("is_short", [False, True])
def test_an_object_that_was_replaced_as_the_error_says_is_read(tmp_path, with_cache, is_short):
    store, path = FolderStore(tmp_path / "store"), tmp_path / "store" / "k"
    store.put("k", DATA[:5_000] if is_short else bytes(len(DATA)))
    fetcher = Fetcher(store, NodeCache(tmp_path / "cache") if with_cache else None)
    with pytest.raises(IntegrityError, match="delete the object, and copy it anew"):
        read(fetcher, 2000, 10_000)
    path.rename(tmp_path / "aside")  # what was open has a name still
    path.write_bytes(DATA)
    assert read(fetcher, 2000, 10_000) == DATA[2000:12_000]


def parts_read(fetcher, places):
    """Read parts of `k`, as (offset, length), checked together."""
    wanted = [DATA[offset : offset + length] for offset, length in places]
    buffers = [memoryview(bytearray(length)) for _, length in places]
    fetcher.read_parts(
        "k",
        [(offset, [buffer]) for (offset, _), buffer in zip(places, buffers, strict=True)],
        is_valid=lambda: buffers == wanted,
        name=lambda: "clip c7",
    )
    return buffers == wanted


def test_parts_are_read_at_once_from_a_bucket_and_kept_as_one(proxied, tmp_path):
    script, store = proxied
    places = [(50, 100), (700_000, 3), (5, 20)]
    fetcher = Fetcher(store, NodeCache(tmp_path), hedging=NO_HEDGING)
    for _ in range(2):
        assert parts_read(fetcher, places)
    assert parts_read(fetcher, places[:2])
    asked = [each.removeprefix("bytes=").split("-")[0] for each in script.ranges]
    assert sorted(asked[:3]) == ["5", "50", "700000"]
    assert sorted(asked[3:]) == ["50", "700000"], "other parts are another entry"
    report = telling(fetcher)
    assert (report["num_samples"], report["num_cache_hits"]) == (3, 1)
    script.faults = ["cut_body", "unavailable"]
    assert parts_read(Fetcher(store, hedging=NO_HEDGING), places)
    with pytest.raises(IntegrityError, match=r"clip c7.*ends before"):
        parts_read(Fetcher(store), [(0, 10), (len(DATA) - 5, 5), (len(DATA) - 1, 10)])


def test_bytes_that_are_wrong_once_are_read_again(tmp_path):
    store = FolderStore(tmp_path)
    store.put("k", DATA)
    answers = iter([False, True, True])
    fetcher = Fetcher(store)
    for _ in range(2):
        got = fetcher.read("k", 5, 10, is_valid=lambda data: next(answers), name=str)
        assert got == DATA[5:15]
    report = telling(fetcher)
    assert (report["num_samples"], report["num_reread"], report["num_retries"]) == (2, 1, 1)
