"""The short way from files into a batch: the same bytes and errors as the long one, or none."""

import sys

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wsdata.loader
from wsdata.errors import WsdataError
from wsdata.loader import _straight, caption_reader, sample_reader, straight
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.straight import Asked, Range, is_compiled, read_ranges, read_samples
from wsdata.store import FolderStore
from wsdata_tests.loader.published import publish


def test_the_compiled_module_is_there():
    """`make` sees to a compiler, so that everything here is about what it is meant to be."""
    assert is_compiled()


def laid_out(rng, size, width, count):
    """Samples one after the other in a file: their bytes, latents, scales and how to ask."""
    data, latents, scales, asked = bytearray(rng.bytes(rng.integers(0, 50))), [], [], []
    for number in range(count):
        sample_id = f"sample-{number:0{rng.integers(1, 9)}d}"
        scale = rng.bytes(width)
        before = rng.bytes(rng.integers(0, 40)) + sample_id.encode() + rng.bytes(3)
        after = rng.bytes(rng.integers(0, 9)) + scale + rng.bytes(rng.integers(0, 5))
        codes = rng.bytes(size)
        whole = before + codes + after
        rest = before + after
        asked.append(
            Asked(
                -1,
                len(data),
                len(whole),
                len(before),
                rest.index(sample_id.encode()),
                rest.rindex(scale) if width else 0,
                xxhash.xxh3_64_intdigest(whole),
                sample_id,
            )
        )
        data += whole + rng.bytes(rng.integers(0, 20))
        latents.append(codes)
        scales.append(scale)
    return bytes(data), latents, scales, asked


def read(path, asked, size, width):
    codes, scales = bytearray(size * len(asked)), bytearray(width * len(asked))
    with path.open("rb") as file:
        wanted = [each._replace(descriptor=file.fileno()) for each in asked]
        seconds = read_samples(wanted, memoryview(codes), memoryview(scales))
    assert all(each >= 0 for each in seconds)
    return len(seconds), codes, scales


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(0, 5000) | st.sampled_from([1 << 17, (1 << 17) + 1, 500_000]),
    width=st.integers(0, 64),
    count=st.integers(1, 12),
    harm=st.sampled_from(["", "flip", "cut", "id", "digest"]),
)
def test_samples_are_read_until_the_first_that_is_not_as_recorded(
    tmp_path, seed, size, width, count, harm
):
    rng = np.random.default_rng(seed)
    data, latents, scales, asked = laid_out(rng, size, width, count)
    bad = int(rng.integers(0, count))
    victim, path = asked[bad], tmp_path / "shard"
    at = victim.offset + int(rng.integers(0, victim.length))
    if harm == "flip":
        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    elif harm == "cut":
        data = data[:at]
    elif harm == "id":
        asked[bad] = victim._replace(sample_id=victim.sample_id[:-1] + "x")
    elif harm == "digest":
        asked[bad] = victim._replace(xxh3=victim.xxh3 ^ 1)
    path.write_bytes(data)
    num_read, found_codes, found_scales = read(path, asked, size, width)
    assert num_read == (bad if harm else count)
    assert found_codes[: size * num_read] == b"".join(latents[:num_read])
    assert found_scales[: width * num_read] == b"".join(scales[:num_read])


def test_what_cannot_be_read_is_not_read_and_nothing_is_kept(tmp_path):
    data, _, _, asked = laid_out(np.random.default_rng(1), 100, 8, 3)
    path = tmp_path / "shard"
    path.write_bytes(data)
    assert read(path, [asked[0], *asked[1:]], 100, 8)[0] == 3
    closed = [each._replace(descriptor=2**20) for each in asked]
    codes, scales = bytearray(300), bytearray(24)
    assert read_samples(closed, memoryview(codes), memoryview(scales)) == []
    wrong = [
        ([asked[0]._replace(start=asked[0].length)], ValueError, "parts lie outside"),
        ([asked[0]._replace(start=-1)], ValueError, "parts lie outside"),
        ([asked[0]._replace(length=50, start=0)], ValueError, "parts lie outside"),
        ([asked[0]._replace(id_at=-1)], ValueError, "parts lie outside"),
        ([asked[0]._replace(scale_at=10_000)], ValueError, "parts lie outside"),
        ([asked[0]._replace(sample_id=7)], TypeError, "not 'int'"),
        ([[1, 2]], TypeError, "not a tuple"),
        ([()], TypeError, "argument"),
        ((), TypeError, "list"),
    ]
    for given_samples, error, words in wrong:
        with pytest.raises(error, match=words):
            _straight.read_samples(given_samples, memoryview(codes)[:100], memoryview(scales)[:8])
    with pytest.raises((TypeError, BufferError)):
        _straight.read_samples(closed, bytes(300), memoryview(scales))
    codes += b"x"  # nobody holds its memory


@pytest.mark.parametrize("harm", ["", "flip", "cut", "digest"])
def test_ranges_are_read_until_the_first_that_is_not_as_recorded(tmp_path, harm):
    rng = np.random.default_rng(5)
    data, path = rng.bytes(9000), tmp_path / "pack"
    spans = [(0, 0), (10, 0), (7, 300), (300, 1), (0, 9000), (4000, 900), (6000, 3000)]
    asked = [Range(-1, at, n, xxhash.xxh3_64_intdigest(data[at : at + n])) for at, n in spans]
    harmed_data = {"flip": data[:4444] + b"~" + data[4445:], "cut": data[:8999]}.get(harm, data)
    if harm == "digest":
        asked[5] = asked[5]._replace(xxh3=0)
    path.write_bytes(harmed_data)
    with path.open("rb") as file:
        found = read_ranges([each._replace(descriptor=file.fileno()) for each in asked])
    good = {"": 7, "digest": 5}.get(harm, 4)
    assert [told for told, _ in found] == [data[at : at + n] for at, n in spans[:good]]
    assert all(seconds >= 0 for _, seconds in found)
    assert read_ranges(asked[2:]) == [], "no such file"
    with pytest.raises(ValueError, match="range of -1 bytes"):
        read_ranges([asked[0]._replace(length=-1)])
    with pytest.raises(TypeError):
        _straight.read_ranges([(1, 2)])
    with pytest.raises(TypeError):
        _straight.read_ranges(tuple(asked))


def outcome(store, **options):
    """What a trainer sees: batches, and the error that ends them."""
    seen = []
    dataset = PlanDataset(version="v1", store=str(store.root), latents="stored", **options)
    try:
        for batch in dataset:
            latents, scales = batch["latents"].numpy().tobytes(), batch["scales"].numpy().tobytes()
            captions = [batch["captions"], batch["variants"]]
            seen.append((batch["step"], batch["sample_ids"], latents, scales, captions))
    except WsdataError as error:
        seen.append((type(error), str(error), getattr(error, "__notes__", [])))
    report = dataset.telemetry_report()
    names = ("num_samples", "num_bytes", "num_reread", "num_cache_hits", "num_cache_misses")
    return seen, [report[name] for name in names]


def harmed(store, index, harm):
    step = [each.sample_id for each in PlanDataset(version="v1", store=store).plan.samples(7)]
    row = index[step[2]]
    path = store.path_of(row["shard_key"])
    data = bytearray(path.read_bytes())
    if harm == "pack":
        path = store.path_of(row["caption_pack_key"])
        data = bytearray(path.read_bytes())
        data[row["caption_offset"] + 20] ^= 4
    elif harm == "flip":
        data[row["offset"] + row["length"] // 2] ^= 4
    elif harm == "head":
        data[row["offset"] + 3] ^= 4
    elif harm == "cut":
        del data[row["offset"] + row["length"] - 1 :]
    path.unlink()
    if harm != "gone":
        path.write_bytes(data)


@pytest.mark.parametrize("harm", ["", "flip", "head", "cut", "gone", "pack"])
@pytest.mark.parametrize(("num_threads", "is_cached"), [(0, False), (2, False), (0, True)])
def test_with_it_and_without_it_a_trainer_sees_the_same(
    tmp_path, monkeypatch, harm, num_threads, is_cached
):
    store = FolderStore(tmp_path / "store")
    index, _ = publish(store)
    if harm:
        harmed(store, index, harm)
    asked_of = []

    def noting(samples, codes, scales):
        seconds = read_samples(samples, codes, scales)
        asked_of.append((len(samples), len(seconds)))
        return seconds

    def served(name):
        cached = {"cache_dir": tmp_path / name} if is_cached else {}
        first = outcome(store, num_threads=num_threads, num_steps=20, **cached)
        return [
            first,
            *(outcome(store, num_threads=num_threads, num_steps=20, **cached),) * is_cached,
        ]

    monkeypatch.setattr(sample_reader, "read_samples", noting)
    short = served("short")
    assert sum(done for _, done in asked_of) > 0, "the short way was gone"
    if not is_cached:  # wrong bytes are never kept in a cache
        is_wrong = harm in {"flip", "head", "cut"}
        assert is_wrong == any(done < asked for asked, done in asked_of)
    monkeypatch.setattr(sample_reader, "read_samples", lambda *_: [])
    monkeypatch.setattr(caption_reader, "read_ranges", lambda *_: [])
    long = served("long")
    for mine, other in zip(short, long, strict=True):
        if num_threads:  # which of a batch's samples is told of is a matter of who was faster
            assert [each[0] for each in mine[0]] == [each[0] for each in other[0]]
        else:
            assert mine[0] == other[0]
        if not harm:
            assert mine[1] == other[1], "telemetry counts the same"


def test_a_host_without_the_compiled_module_reads_the_long_way(tmp_path, monkeypatch):
    store = FolderStore(tmp_path / "store")
    publish(store)
    whole = outcome(store, num_steps=5)[0]
    monkeypatch.delattr(wsdata.loader, "_straight")
    monkeypatch.setitem(sys.modules, "wsdata.loader._straight", None)
    straight._compiled.cache_clear()
    try:
        assert not is_compiled()
        assert outcome(store, num_steps=5)[0] == whole
    finally:
        straight._compiled.cache_clear()
