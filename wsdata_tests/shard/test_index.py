"""The dataset index: every sample is placed, or lost with a reason; old shards are reused."""

import pytest

from wsdata.digest import sha256_bytes
from wsdata.errors import StepFailed
from wsdata.recipe import Recipe
from wsdata.shard import index as dataset_index
from wsdata.shard.analytic import VERSION
from wsdata.shard.index import STEP
from wsdata.shard.publish import index_key
from wsdata.store import FolderStore
from wsdata_tests.shard.shard_support import execute, order_of, put_rows

BUCKET = "256p/96x64/5"


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path)


def _sample(name, *, bucket=BUCKET, transcode="t1", columns="2:-:-"):
    return {
        "sample_id": name,
        "clip_id": f"clip-{name}",
        "asset_id": "asset",
        "bucket": bucket,
        "stream": "real",
        "tier": "T0",
        "source": "acme",
        "cluster": 3,
        "weight": 1.0,
        "num_tokens": 48,
        "transcode_sha256": transcode,
        "columns_digest": columns,
        "channels_json": "[]",
    }


def _placement(
    name,
    shard,
    row,
    *,
    version=VERSION,
    dtype="fp8",
    bucket=BUCKET,
    transcode="t1",
    columns="2:-:-",
):
    return {
        "sample_id": name,
        "clip_id": f"clip-{name}",
        "bucket": bucket,
        "tokenizer_version": version,
        "latent_dtype": dtype,
        "shard": shard,
        "shard_key": f"training/shards/{shard}.mds",
        "row": row,
        "offset": 100 * row,
        "length": 100,
        "columns_json": "{}",
        "latent_shape_json": "[2,16,8,12]",
        "xxh3": "0" * 16,
        "psnr_db": 33.0,
        "job": "v1.0000@x",
        "transcode_sha256": transcode,
        "columns_digest": columns,
    }


def test_a_sample_that_asks_for_sound_takes_latents_with_that_sound_beside_them(store):
    with_sound = "2:0123456789abcdef:-"
    others = [_placement("a", "plain", 0), _placement("a", "heard", 3, columns=with_sound)]
    others[1]["columns_json"] = '{"actions":[300,0],"audio":[300,4000]}'
    order = _order(store, [_sample("a", columns=with_sound)], others=others)
    report, rows = execute(STEP, order, store)
    (found,) = rows["dataset_index"].to_dicts()
    assert (found["shard"], found["row"]) == ("heard", 3)
    assert found["channels_json"] is None  # what the placement says, not what was asked for
    assert (report.metrics["num_with_audio"], report.metrics["num_with_actions"]) == (1, 0)
    order = _order(store, [_sample("a", columns=None)], others=others)  # an older manifest
    _, rows = execute(STEP, order, store)
    assert rows["dataset_index"]["shard"].to_list() == ["plain"]


def _pack(shard, version="describer-1"):
    return {
        "shard": shard,
        "caption_version": version,
        "key": f"pack-{shard}-{version}",
        "record_offsets": list(range(0, 50, 10)),
        "record_lengths": [9] * 5,
        "record_xxh3": [f"{row:016x}" for row in range(5)],
    }


def _order(store, samples, *, assigned=(), own=(), others=(), losses=(), packs=(), old_packs=()):
    inputs = {
        "manifests": [put_rows(store, "manifests", "v2", list(samples))],
        "shard_assignments": [
            put_rows(
                store,
                "shard_assignments",
                "v2",
                [{"sample_id": name, "shard_group": "v2.0000"} for name in assigned],
            )
        ],
        "placements": [put_rows(store, "placements", "v2.0000", list(own))],
        "latent_losses": [put_rows(store, "latent_losses", "v2.0000", list(losses))],
        "caption_packs": [put_rows(store, "caption_packs", "v2.0000", list(packs))],
    }
    context = {
        "placements": [
            put_rows(store, "placements", f"v1.{i:04}", [row]) for i, row in enumerate(others)
        ],
        "caption_packs": [
            put_rows(store, "caption_packs", f"v1.{i:04}", [row]) for i, row in enumerate(old_packs)
        ],
    }
    params = dataset_index._params(Recipe(name="t"))
    return order_of(STEP, "v2", params=params, inputs=inputs, context=context)


def test_new_samples_come_from_own_shards_and_old_ones_are_reused_where_they_lie(store):
    order = _order(
        store,
        [_sample("a"), _sample("b"), _sample("c")],
        assigned=["a", "c"],
        own=[_placement("a", "new", 0)],
        others=[_placement("b", "old", 4), _placement("a", "older", 0)],
        losses=[{"sample_id": "c", "clip_id": "clip-c", "reason": "flat", "detail": "d"}],
        packs=[_pack("new")],
        old_packs=[_pack("old"), _pack("old", "describer-2")],
    )
    report, rows = execute(STEP, order, store)
    found = {row["sample_id"]: row for row in rows["dataset_index"].to_dicts()}
    assert sorted(found) == ["a", "b"]
    assert (found["a"]["shard"], found["a"]["caption_pack_key"]) == ("new", "pack-new-describer-1")
    assert (found["b"]["shard"], found["b"]["row"]) == ("old", 4)
    assert found["b"]["caption_version"] == "describer-2"
    words = [found["b"][f"caption_{name}"] for name in ("offset", "length", "xxh3")]
    assert words == [40, 9, f"{4:016x}"]
    assert found["b"]["clip_id"] == "clip-b"
    assert rows["index_losses"].to_dicts() == [
        {"sample_id": "c", "clip_id": "clip-c", "reason": "flat", "detail": "d"}
    ]
    assert report.metrics["num_reused_samples"] == 1


@pytest.mark.parametrize("told", [None, [0]], ids=["of an older format", "of other rows"])
def test_a_pack_that_does_not_say_where_captions_lie_is_refused(store, told):
    pack = _pack("new") | {f"record_{name}": told for name in ("offsets", "lengths")}
    pack["record_xxh3"] = told and ["0" * 16]
    order = _order(
        store, [_sample("a")], assigned=["a"], own=[_placement("a", "new", 3)], packs=[pack]
    )
    with pytest.raises(StepFailed, match=r"of 1 samples lie, such as those of shards new.*again"):
        execute(STEP, order, store)


def test_the_published_bytes_are_those_of_the_table(store):
    order = _order(store, [_sample("a")], assigned=["a"], own=[_placement("a", "new", 0)])
    report, _ = execute(STEP, order, store)
    sha256 = report.objects["dataset_index"].sha256
    assert sha256_bytes(store.get(index_key(sha256))) == sha256


def test_a_sample_that_is_neither_placed_nor_lost_fails_the_step_and_names_its_group(store):
    order = _order(
        store,
        [_sample("a"), _sample("b")],
        assigned=["a", "b"],
        own=[_placement("a", "new", 0)],
    )
    with pytest.raises(StepFailed, match=r"1 of 2 samples .* such as b: run .* of v2\.0000"):
        execute(STEP, order, store)


@pytest.mark.parametrize(
    "stale",
    [
        {"version": "analytic-lofi-0"},
        {"dtype": "int8"},
        {"bucket": "256p/64x64/5"},
        {"transcode": "t0"},
        {"columns": "2:0123456789abcdef:-"},
        {"columns": None},  # of before samples had columns: bytes that this code does not read
    ],
)
def test_latents_of_another_tokenizer_dtype_shape_source_or_columns_are_never_reused(store, stale):
    order = _order(store, [_sample("a")], others=[_placement("a", "old", 0, **stale)])
    with pytest.raises(StepFailed, match="cut the version again"):
        execute(STEP, order, store)


def test_two_tokenizers_in_one_version_are_refused(store):
    order = _order(
        store,
        [_sample("a"), _sample("b")],
        assigned=["a", "b"],
        own=[_placement("a", "s0", 0), _placement("b", "s1", 0, version="other")],
    )
    with pytest.raises(StepFailed, match="one version has one tokenizer"):
        execute(STEP, order, store)


def test_where_old_shards_came_from_first_does_not_matter(store):
    others = [_placement("a", "y", 0), _placement("a", "x", 1)]
    one, _ = execute(STEP, _order(store, [_sample("a")], others=others), store)
    other, rows = execute(STEP, _order(store, [_sample("a")], others=others[::-1]), store)
    assert one.objects == other.objects
    assert rows["dataset_index"]["shard"].to_list() == ["x"]


def test_an_empty_manifest_gives_an_empty_index(store):
    _, rows = execute(STEP, _order(store, []), store)
    assert rows["dataset_index"].is_empty()
    assert rows["index_losses"].is_empty()
