"""The store in a bucket: on a server that fails, on one that refuses, and with large files."""

import multiprocessing
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from wsdata import s3_client
from wsdata.errors import ObjectMissing, StoreDenied, StoreError, StoreFull
from wsdata.s3_client import S3Bucket, parse_s3_address
from wsdata.s3_store import S3Store
from wsdata.store import FolderStore, open_store
from wsdata_tests.cluster.faulty_proxy import FAULTS, failing_proxy
from wsdata_tests.cluster.s3_servers import SERVERS, running_s3

PART = 5 << 20  # the least that S3 takes for any part but the last


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with running_s3(request.param) as s3:
        yield s3


@pytest.fixture
def as_owner(server, monkeypatch):
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3_client, "BASE_PAUSE_S", 0.001)
    return server


@pytest.fixture
def store(as_owner):
    bucket = as_owner.make_bucket()
    return S3Store(bucket_at(as_owner.address(bucket, "some/prefix")), part_bytes=PART)


def bucket_at(address, **options):
    return S3Bucket(parse_s3_address(address), **options)


def refusing(store, operation, code, status=403):
    """Let a store's client answer one operation with an error, as a server would."""
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def refuse(**_arguments):
        raise ClientError(answer, operation)

    setattr(store.bucket.client, operation, refuse)


def test_an_address_says_where_and_how():
    there = "s3://bucket/some/prefix/?endpoint=http://127.0.0.1:9000&region=eu-west-1"
    assert str(parse_s3_address(there)) == there
    assert open_store("s3://bucket").address == "s3://bucket/"
    assert parse_s3_address("s3://b/p").prefix == "p/"
    with pytest.raises(ValueError, match="unknown options"):
        open_store("s3://b/p?endpont=x")
    with pytest.raises(ValueError, match="expected s3://bucket"):
        parse_s3_address("s3:///prefix")


def test_opening_contacts_nobody_and_needs_no_credentials(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    store = open_store("s3://b/p?endpoint=http://127.0.0.1:9")
    assert pickle.loads(pickle.dumps(store)).address == store.address  # noqa: S301
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID"):
        store.get("k")


def test_a_server_that_is_gone_is_told_after_some_tries(as_owner):
    store = S3Store(bucket_at("s3://b/p?endpoint=http://127.0.0.1:9", max_tries=3))
    with pytest.raises(StoreError, match="Check the endpoint"):
        store.get("k")
    assert store.num_retries == 2


def noise(seed, size_bytes):
    return random.Random(seed).randbytes(size_bytes)  # noqa: S311


def workload(store, seed):
    """Hundreds of requests; what they gave, in words that name no server."""
    rng, told = random.Random(seed), []  # noqa: S311
    bodies = {f"k/{i:03d}": rng.randbytes(rng.choice([0, 1, 700, 40_000])) for i in range(60)}
    for key, body in bodies.items():
        told.append(("put", key, store.put(key, body)))
        told.append(("again", key, store.put(key, b"other")))
    for key, body in bodies.items():
        told.append(("get", key, store.get(key)))
        if body:
            start = rng.randrange(len(body))
            length = rng.randrange(len(body) - start + 1)
            told.append(("range", key, store.get_range(key, start, length)))
        told.append(("size", key, store.size(key)))
    told.append(("missing", "no", store.size("no")))
    told += [("list", prefix, list(store.list(prefix))) for prefix in ("", "k/", "k/00", "x")]
    for key in list(bodies)[:20]:
        store.delete(key)
    told.append(("left", "", list(store.list(""))))
    return told


def test_a_server_that_fails_one_request_in_twenty_gives_what_a_faultless_one_gives(
    as_owner, tmp_path
):
    expected = workload(FolderStore(tmp_path / "folder"), seed=1)
    bucket = as_owner.make_bucket()
    with failing_proxy(as_owner.endpoint, share=0.05, seed=7) as faults:
        store = open_store(f"s3://{bucket}/p?endpoint={faults.endpoint}")
        assert workload(store, seed=1) == expected
        assert set(FAULTS) <= set(faults.counts), "every fault was met"
        assert faults.counts["requests"] > 300
        assert store.num_retries > 10


def test_one_of_many_writers_wins_though_answers_are_lost(as_owner):
    bucket = as_owner.make_bucket()
    with failing_proxy(as_owner.endpoint, share=0.3, seed=3) as faults:
        store = open_store(f"s3://{bucket}?endpoint={faults.endpoint}")
        for number in range(6):
            key = f"k{number}"
            with ThreadPoolExecutor(6) as writers:
                bodies = [b"%d" % n * 5000 for n in range(6)]
                wins = list(writers.map(lambda body, key=key: store.put(key, body), bodies))
            assert sum(wins) == 1, "the server's word was lost, and found out"
            assert store.get(key) == bodies[wins.index(True)]


def test_large_files_go_up_and_come_down_in_parts(as_owner, store, tmp_path):
    path, back = tmp_path / "f", tmp_path / "back"
    path.write_bytes(noise(1, 2 * PART + 12_345))
    assert store.put_file("f", path)
    assert not store.put_file("f", path)
    assert store.size("f") == path.stat().st_size
    assert store.fetch("f", back) == path.stat().st_size
    assert back.read_bytes() == path.read_bytes()
    assert (
        not as_owner.client()
        .list_multipart_uploads(Bucket=store.bucket.address.bucket)
        .get("Uploads")
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["back", "f"]


def test_large_files_survive_a_server_that_fails(as_owner, tmp_path):
    bucket = as_owner.make_bucket()
    path, back = tmp_path / "f", tmp_path / "back"
    path.write_bytes(noise(2, 2 * PART + 1))
    with failing_proxy(as_owner.endpoint, share=0.3, seed=5) as faults:
        store = S3Store(bucket_at(f"s3://{bucket}?endpoint={faults.endpoint}"), part_bytes=PART)
        assert store.put_file("f", path)
        store.fetch("f", back)
        assert faults.counts.total() > faults.counts["requests"], "something failed"
    assert back.read_bytes() == path.read_bytes()
    assert not as_owner.client().list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_an_upload_that_fails_leaves_no_parts(as_owner, store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(PART + 1))
    refusing(store, "complete_multipart_upload", "AccessDenied")
    with pytest.raises(StoreDenied):
        store.put_file("f", path)
    assert store.size("f") is None
    assert (
        not as_owner.client()
        .list_multipart_uploads(Bucket=store.bucket.address.bucket)
        .get("Uploads")
    )


def test_what_is_fetched_whole_or_not_at_all(store, tmp_path):
    with pytest.raises(ObjectMissing):
        store.fetch("no", tmp_path / "f")
    store.put("empty", b"")
    assert store.fetch("empty", tmp_path / "f") == 0
    store.put("k", b"abc")
    refusing(store, "get_object", "AccessDenied")
    with pytest.raises(StoreDenied):
        store.fetch("k", tmp_path / "g")
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


def test_an_object_replaced_while_it_is_read_is_noticed(as_owner, store):
    data = noise(3, 3 << 20)
    store.put("k", data)
    blocks = store.bucket.stream("k", 0, 1 << 20)
    assert next(blocks) == data[: 1 << 20]
    etag = store.bucket.head("k").response["ETag"]
    store.delete("k")
    store.put("k", data[::-1])
    with pytest.raises(StoreError, match="replaced while being read"):
        list(store.bucket.stream("k", etag=etag))


def test_a_refusal_names_who_what_and_where(store, monkeypatch):
    monkeypatch.setenv("WSDATA_IDENTITY", "decode")
    refusing(store, "get_object", "AccessDenied")
    with pytest.raises(StoreDenied) as refused:
        store.get("raw/x")
    for word in ("identity decode may not read raw/x", "s3:GetObject", "`vault` pool alone"):
        assert word in str(refused.value)
    assert store.num_retries == 0, "asking again would not help"


def test_who_may_list_but_not_read_learns_sizes(store):
    store.put("k", b"abc")
    store.put("k2", b"")
    refusing(store, "head_object", "403")
    assert store.size("k") == 3
    assert store.size("no") is None


def test_a_used_up_quota_is_no_space_left(store):
    refusing(store, "put_object", "QuotaExceeded")
    with pytest.raises(StoreFull, match="raise the quota"):
        store.put("k", b"x")


def test_a_bucket_that_is_not_there_is_named(as_owner):
    store = open_store(as_owner.address("nothere"))
    for ask in (lambda: store.get("k"), lambda: store.put("k", b""), lambda: list(store.list(""))):
        with pytest.raises(StoreError, match="no bucket nothere"):
            ask()


def test_lists_go_over_pages_in_order(store):
    keys = sorted(f"{'ab'[i % 2]}/{i:04d}" for i in range(25))
    for key in keys:
        store.put(key, b"")
    pages = list(store.bucket.pages("a/", limit=5))
    assert len(pages) == 3
    assert [key for key, _ in store.list("")] == keys


def _get_in_child(store, key, answers):
    answers.put(store.get(key))


def test_a_forked_child_and_many_threads_use_one_store(store):
    store.put("k", b"abc")
    parents = store.bucket.client
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    children = [context.Process(target=_get_in_child, args=(store, "k", answers)) for _ in range(2)]
    for child in children:
        child.start()
    assert [answers.get() for _ in children] == [b"abc"] * 2
    for child in children:
        child.join()
    assert store.bucket.client is parents
    clients, bucket = [], S3Bucket(store.bucket.address)
    threads = [threading.Thread(target=lambda: clients.append(bucket.client)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client) for client in clients}) == 1
