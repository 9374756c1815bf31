"""Caption packs: a record for each row, one per shard and caption version, in any order."""

import json

import polars as pl
import pytest
import xxhash

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError
from wsdata.recipe import Captions, Recipe
from wsdata.shard import captions as caption_packs
from wsdata.shard.captions import STEP, choose_captions
from wsdata.shard.packs import read_pack
from wsdata.store import FolderStore
from wsdata_tests.shard.shard_support import execute, order_of, put_rows

GROUP = "v1.0000"


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path)


def _placement(shard, row, clip):
    return {"sample_id": f"{clip}.s{row}", "clip_id": clip, "shard": shard, "row": row}


def _caption(clip, variant, text, *, version="describer-1", status="ok"):
    return {
        "clip_id": clip,
        "variant": variant,
        "text": text,
        "captioner_version": version,
        "status": status,
    }


PLACEMENTS = [
    _placement("a" * 64, 1, "clip1"),
    _placement("a" * 64, 0, "clip2"),
    _placement("b" * 64, 0, "clip1"),
    _placement("b" * 64, 1, "clip3"),
]
CAPTIONS = [
    _caption("clip1", "dense", "a long river"),
    _caption("clip1", "short", "river"),
    _caption("clip2", "short", "street"),
    _caption("clip2", "dense", None, status="failed"),
    _caption("clip9", "dense", "not in this group"),
]


def _order(store, drops, *, variants=("dense", "short"), placements=PLACEMENTS):
    return order_of(
        STEP,
        GROUP,
        params=caption_packs._params(Recipe(name="t", captions=Captions(variants=variants))),
        inputs={"placements": [put_rows(store, "placements", GROUP, placements)]},
        context={
            "captions": [
                put_rows(store, "captions", f"drop{index}", rows)
                for index, rows in enumerate(drops)
            ]
        },
    )


def _packs(store, rows):
    return {row["shard"][0]: read_pack(store.get(row["key"])) for row in rows.to_dicts()}


def test_rows_follow_the_shard_and_say_what_there_is(store):
    report, rows = execute(STEP, _order(store, [CAPTIONS]), store)
    packs = _packs(store, rows["caption_packs"])
    assert [record.sample_id for record in packs["a"]] == ["clip2.s0", "clip1.s1"]
    assert packs["a"][1].captions == {"dense": "a long river", "short": "river"}
    assert packs["a"][0].captions == {"short": "street"}
    assert packs["b"][1].captions == {}
    assert set(rows["caption_packs"]["caption_version"]) == {"describer-1"}
    assert report.metrics["num_without_caption"] == 1


def test_packs_lie_among_the_training_objects_under_their_digest(store):
    _, rows = execute(STEP, _order(store, [CAPTIONS]), store)
    for row in rows["caption_packs"].to_dicts():
        sha256 = sha256_bytes(store.get(row["key"]))
        assert row["key"] == f"training/packs/{sha256[:2]}/{sha256}.jsonl"
        assert row["sha256"] == sha256


def test_a_new_captioner_makes_new_packs_and_leaves_the_old(store):
    _, old = execute(STEP, _order(store, [CAPTIONS]), store)
    newer = [{**row, "captioner_version": "vlm-2", "text": "new"} for row in CAPTIONS]
    _, new = execute(STEP, _order(store, [newer]), store)
    assert set(new["caption_packs"]["caption_version"]) == {"vlm-2"}
    assert not set(old["caption_packs"]["key"]) & set(new["caption_packs"]["key"])
    assert all(store.size(key) for key in old["caption_packs"]["key"])


def test_the_order_of_drops_does_not_matter(store):
    first, second = (
        CAPTIONS[:3],
        [*CAPTIONS[3:], _caption("clip1", "short", "stream", version="vlm-2")],
    )
    one, _ = execute(STEP, _order(store, [first, second]), store)
    other, rows = execute(STEP, _order(store, [second, first]), store)
    assert one.objects == other.objects
    assert all(v.startswith("mixed-") for v in rows["caption_packs"]["caption_version"])
    assert _packs(store, rows["caption_packs"])["b"][0].captions["short"] == "stream"


def test_without_any_caption_the_pack_is_there_and_empty(store):
    _, rows = execute(STEP, _order(store, []), store)
    assert set(rows["caption_packs"]["caption_version"]) == {"none"}
    assert _packs(store, rows["caption_packs"])["a"][0].captions == {}


def test_only_the_recipes_variants_are_packed(store):
    _, rows = execute(STEP, _order(store, [CAPTIONS], variants=("short",)), store)
    assert _packs(store, rows["caption_packs"])["a"][1].captions == {"short": "river"}


def test_a_mirror_image_is_told_no_caption_that_names_a_side(store):
    placements = [
        {**_placement("a" * 64, row, clip), "sample_id": f"{clip}.256p.000000.0009.{variant}"}
        for row, (clip, variant) in enumerate(
            [("clip1", "flip"), ("clip1", "plain"), ("clip2", "flip"), ("clip3", "flip")]
        )
    ]
    captions = [
        _caption("clip1", "dense", "a river seen from the left bank"),
        _caption("clip1", "short", "river"),
        _caption("clip2", "short", "street"),
        _caption("clip3", "short", "the right one"),
    ]
    report, rows = execute(STEP, _order(store, [captions], placements=placements), store)
    packs = _packs(store, rows["caption_packs"])
    assert [record.captions for record in packs["a"]] == [
        {"short": "river"},
        {"dense": "a river seen from the left bank", "short": "river"},
        {"short": "street"},
        {},
    ]
    assert report.metrics["num_without_caption"] == 1


def test_choosing_is_the_same_for_any_order_of_rows():
    rows = tables.rows_of("captions", CAPTIONS)
    chosen = choose_captions(rows, ["dense", "short"])
    assert chosen.equals(choose_captions(rows.reverse(), ["dense", "short"]))
    assert chosen.filter(pl.col("clip_id") == "clip2").height == 1


def test_each_record_is_found_by_its_place_and_says_whose_it_is(store):
    texts = ['a\nb\u2028 \u00e9\u732b \x00"', "", "\U0001f30a" * 400]
    told = [_caption("clip1", name, text) for name, text in zip("abc", texts, strict=True)]
    _, rows = execute(STEP, _order(store, [told], variants=("a", "b", "c")), store)
    for row in rows["caption_packs"].to_dicts():
        data = store.get(row["key"])
        header, *lines = data.decode().split("\n")[:-1]
        assert json.loads(header) == {"format_version": 2, "num_samples": 2}
        wanted = sorted(
            (each for each in PLACEMENTS if each["shard"] == row["shard"]), key=lambda p: p["row"]
        )
        assert len(lines) == len(wanted) == row["num_samples"]
        places = (row["record_offsets"], row["record_lengths"], row["record_xxh3"])
        for line, placed, offset, length, xxh3 in zip(lines, wanted, *places, strict=True):
            record = data[offset : offset + length]
            assert record.decode() == line
            assert xxhash.xxh3_64_hexdigest(record) == xxh3
            body = json.loads(line)
            assert body["sample_id"] == placed["sample_id"]
            assert body["captions"] == (
                dict(zip("abc", texts, strict=True)) if placed["clip_id"] == "clip1" else {}
            )
            assert body["captioner_version"] == ("describer-1" if body["captions"] else "")


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", b'{"format_version":1,"num_samples":0}\n', b'{"format_version":2}\n', b"[]\n",
     b'{"format_version":2,"num_samples":2}\n{"sample_id":"a","captions":{}}\n'],
)  # fmt: skip
def test_a_whole_pack_of_another_format_or_cut_short_is_refused(data):
    with pytest.raises(IntegrityError, match=r"caption pack of format .*run shard/caption_packs"):
        read_pack(data)
