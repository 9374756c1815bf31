import polars as pl
import pytest

from wsdata import tables
from wsdata.curate.withheld import withheld_assets
from wsdata.ids import make_clip_id
from wsdata.ingest.neardup import canonical_copies
from wsdata_tests.curate.catalog_support import CRAWL, DROP, SYNTHETIC, Catalog, asset_id
from wsdata_tests.curate.test_cut import cut, pair

TAKEN = {"request_id": "t1"}


def told(result) -> dict[str, tuple[str, str]]:
    """Exclusions by raw asset: (reason, detail)."""
    rows = result.exclusions.filter(pl.col("reason") != "remainder")
    return {row["asset_id"]: (row["reason"], row["detail"]) for row in rows.iter_rows(named=True)}


@pytest.mark.parametrize("best", ["film", "copy", "copy of copy"])
def test_every_copy_of_a_taken_asset_goes_whichever_of_them_is_canonical(best):
    """The copies arrive in later drops, after the request, and one only through another."""
    catalog = Catalog()
    for name, drop in (("film", DROP), ("copy", CRAWL), ("copy of copy", SYNTHETIC)):
        catalog.add_asset(name, drop=drop, rank=9.0 if name == best else 1.0)
    catalog.add_asset("else")
    catalog.add("match_pairs", CRAWL, **pair("film", "copy"))
    catalog.add("match_pairs", SYNTHETIC, **pair("copy", "copy of copy"))
    result = cut(catalog, tombstones={asset_id("film"): TAKEN})
    assert set(result.manifest["asset_id"]) == {asset_id("else")}
    as_copy = f"takedown t1, as a copy of {asset_id('film')[:24]}"
    assert told(result) == {
        asset_id("film"): ("tombstoned", "takedown t1"),
        asset_id("copy"): ("tombstoned", as_copy),
        asset_id("copy of copy"): ("tombstoned", as_copy),
    }


def test_a_copy_of_a_taken_asset_that_never_decoded_goes():
    catalog = Catalog()
    catalog.add("asset_quality", DROP, asset_id=asset_id("film"), rank_value=9.0)
    catalog.add_asset("copy", drop=CRAWL)
    catalog.add("match_pairs", CRAWL, **pair("film", "copy"))
    assert cut(catalog, tombstones={asset_id("film"): TAKEN}).manifest.is_empty()


def test_what_excerpts_a_taken_asset_goes_and_the_rest_of_it_stays():
    catalog = Catalog()
    catalog.add_asset("film", rank=1.0, clips=((0.0, 5.0),))
    catalog.add_asset("tape", rank=9.0, clips=((0.0, 5.0), (5.0, 10.0), (10.0, 15.0)))
    mine, other = ("a", "b") if asset_id("tape") < asset_id("film") else ("b", "a")
    span = {f"{mine}_start_s": 4.5, f"{mine}_end_s": 10.0, f"{other}_start_s": 0.0,
            f"{other}_end_s": 5.0}  # fmt: skip
    catalog.add("match_pairs", DROP, **pair("film", "tape", kind="span", **span))
    result = cut(catalog, tombstones={asset_id("film"): TAKEN})
    last = make_clip_id(asset_id("tape"), track=0, start_ms=10_000, end_ms=15_000)
    assert set(result.manifest["clip_id"]) == {last}
    lost = result.exclusions.filter(pl.col("reason") == "tombstoned")
    assert lost["subject"].n_unique() == lost.height == 3
    assert set(lost.filter(pl.col("asset_id") == asset_id("tape"))["detail"]) == {
        f"takedown t1, as it shows part of {asset_id('film')[:24]}"
    }


def test_an_excerpt_of_a_copy_of_a_taken_asset_goes():
    catalog = Catalog()
    for name in ("film", "copy"):
        catalog.add_asset(name)
    catalog.add_asset("tape", clips=((0.0, 5.0),))
    catalog.add("match_pairs", DROP, **pair("film", "copy"))
    catalog.add("match_pairs", DROP, **pair("copy", "tape", kind="span"))
    assert cut(catalog, tombstones={asset_id("film"): TAKEN}).manifest.is_empty()


def test_a_tombstone_that_lists_clips_leaves_copies_alone():
    catalog = Catalog()
    catalog.add_asset("film", rank=1.0)
    catalog.add_asset("copy", rank=9.0)
    catalog.add("match_pairs", DROP, **pair("film", "copy"))
    clip = make_clip_id(asset_id("film"), track=0, start_ms=0, end_ms=5000)
    result = cut(catalog, tombstones={asset_id("film"): {"clips": [clip], **TAKEN}})
    assert set(result.manifest["asset_id"]) == {asset_id("copy")}
    assert told(result) == {asset_id("film"): ("tombstoned", "takedown t1")}


def test_an_asset_named_itself_keeps_its_own_request():
    pairs = pl.DataFrame([pair("one", "two")])
    quality = pl.DataFrame(
        {"asset_id": [asset_id("one"), asset_id("two")], "rank_value": [1.0, 2.0]}
    )
    groups = canonical_copies(pairs, quality, quality["asset_id"], tables.empty("decode_status"))
    stones = {asset_id("one"): {"request_id": "t1"}, asset_id("two"): {"request_id": "t2"}}
    found = withheld_assets(groups, stones)
    assert dict(found.select("asset_id", "request_id").rows()) == {
        asset_id("one"): "t1", asset_id("two"): "t2"
    }  # fmt: skip
    assert found["copy_of"].null_count() == 2


def test_canonical_copies_rank_what_did_not_decode_last():
    pairs = pl.DataFrame([pair("one", "two"), pair("two", "three")])
    quality = pl.DataFrame(
        {"asset_id": [asset_id("two"), asset_id("three")], "rank_value": [9.0, 2.0]}
    )
    status = tables.empty("decode_status")
    groups = canonical_copies(pairs, quality, [asset_id("one"), asset_id("three")], status)
    assert set(groups["canonical_id"]) == {asset_id("three")}
    assert set(groups["asset_id"]) == {asset_id(name) for name in ("one", "two", "three")}


def test_a_salvaged_copy_stands_for_salvaged_ones_alone():
    """Of the best bit rate, it is kept where no whole copy is: then the whole one is."""
    pairs = pl.DataFrame([pair("best", "good"), pair("good", "whole"), pair("lone", "poor")])
    names = {"best": 9e12, "good": 8e12, "whole": 1.0, "lone": 5.0, "poor": 4.0, "lost": 7.0}
    quality = pl.DataFrame(
        {"asset_id": [asset_id(name) for name in names], "rank_value": list(names.values())}
    )
    status = tables.rows_of(
        "decode_status",
        [
            {"asset_id": asset_id(name), "status": "ok" if name == "whole" else "salvaged"}
            for name in names
        ],
    )
    decoded = [asset_id(name) for name in names if name != "lost"]
    kept = dict(canonical_copies(pairs, quality, decoded, status).rows())
    told = {name: kept[asset_id(name)] for name in names}
    assert told == {
        "best": asset_id("whole"), "good": asset_id("whole"), "whole": asset_id("whole"),
        "lone": asset_id("lone"), "poor": asset_id("lone"), "lost": asset_id("lost"),
    }  # fmt: skip
    with_best = canonical_copies(pairs, quality, decoded, status.with_columns(status=pl.lit("ok")))
    assert dict(with_best.rows())[asset_id("whole")] == asset_id("best")


def test_a_listed_asset_goes_with_its_copies_whatever_drop_says_so():
    """The original lies in another drop than its copies, which matched nothing themselves."""
    catalog = Catalog()
    for name, drop in (("film", DROP), ("copy", CRAWL), ("else", CRAWL)):
        catalog.add_asset(name, drop=drop, rank=9.0 if name == "copy" else 1.0)
    catalog.add("match_pairs", CRAWL, **pair("film", "copy"))
    for name, hits, why in (("film", 1.0, "list police entry 7 at 3 of 256 bits"),
                            ("else", 0.0, None)):  # fmt: skip
        clip_id = make_clip_id(asset_id(name), track=0, start_ms=0, end_ms=5_000)
        catalog.add(
            "safety_list_scores", DROP, clip_id=clip_id, asset_id=asset_id(name),
            filter="safety_list", score_name="asset_hits", score=hits, status="ok",
            model_version="1", detail_json=f'{{"why":"{why}"}}' if why else None,
        )  # fmt: skip
    result = cut(catalog)
    assert set(result.manifest["asset_id"]) == {asset_id("else")}
    why = "matches list police entry 7 at 3 of 256 bits"
    assert told(result) == {
        asset_id("film"): ("unsafe", why),
        asset_id("copy"): ("unsafe", f"{why}, as a copy of {asset_id('film')[:24]}"),
    }
