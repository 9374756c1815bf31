import dataclasses

import polars as pl
import pytest

from wsdata import tables
from wsdata.curate.cut import assign_shards, make_cut
from wsdata.curate.diff import diff_manifests
from wsdata.curate.manifest import manifest_digest
from wsdata.curate.summary import gap_notes
from wsdata.errors import RecipeError
from wsdata.ids import make_clip_id, parse_sample_id
from wsdata_tests.curate.catalog_support import (
    CRAWL,
    DROP,
    SYNTHETIC,
    Catalog,
    asset_id,
    make_recipe,
    vector,
)

AS_OF = "2026-11-01"


def cut(catalog: Catalog, recipe=None, *, as_of_date=AS_OF, tombstones=None):
    return make_cut(
        catalog.read, recipe or make_recipe(), as_of_date=as_of_date, tombstones=tombstones or {}
    )


def reasons(result) -> dict[str, str]:
    rows = result.exclusions.filter(pl.col("reason") != "remainder")
    return {subject[:8]: reason for subject, reason in rows["subject", "reason"].rows()}


def key(name: str) -> str:
    return asset_id(name)[:8]


def test_a_clip_becomes_back_to_back_samples_and_the_rest_is_reported():
    catalog = Catalog()
    asset = catalog.add_asset("lake", clips=((0.0, 10.0),))
    result = cut(catalog)
    spans = sorted(
        (s.start_frame, s.num_frames) for s in map(parse_sample_id, result.manifest["sample_id"])
    )
    assert spans == [(0, 121), (121, 65), (186, 33)]
    assert result.exclusions["reason"].to_list() == ["remainder"]
    assert result.exclusions["asset_id"].to_list() == [asset]
    assert "21 of 240 frames at 256p" in result.exclusions["detail"][0]
    row = result.manifest.row(by_predicate=pl.col("num_frames") == 121, named=True)
    assert row["bucket"] == "256p/256x144/121"
    assert row["num_tokens"] == 31 * 16 * 9
    assert row["tier"] == "T0"
    assert row["stream"] == "video"


def phase_at(*rungs: str):
    return [{"name": "p", "steps": 1, "rungs": list(rungs), "tiers": ["T0"],
             "weights": {"video": 1.0}}]  # fmt: skip


def test_rungs_of_48_frames_a_second_are_cut_from_transcodes_of_their_own():
    catalog = Catalog()
    catalog.add_asset("slow", rungs=("256p", "512p"))
    fast = catalog.add_asset("fast", rungs=("256p", "512p", "512p48"))
    result = cut(catalog, make_recipe(phases=phase_at("256p", "512p48")))
    at_48 = result.manifest.filter(pl.col("rung") == "512p48").sort("start_frame")
    assert at_48["asset_id"].unique().to_list() == [fast]
    spans = at_48["bucket", "start_frame", "num_tokens"].rows()
    assert spans == [
        ("512p48/512x288/121", 0, 31 * 32 * 18),
        ("512p48/512x288/65", 121, 17 * 32 * 18),
        ("512p48/512x288/33", 186, 9 * 32 * 18),
    ]
    assert at_48["fps"].unique().to_list() == [48.0]
    assert at_48["transcode_key"].unique().to_list() == [f"derived/512p48/{at_48['clip_id'][0]}"]
    others = result.manifest.filter(pl.col("rung") != "512p48")
    assert set(others["rung"]) == {"256p"}
    assert set(others["fps"]) == {24.0}
    (left_over,) = result.exclusions.filter(pl.col("asset_id") == fast)["detail"]
    assert "21 of 240 frames at 512p48" in left_over


def test_a_clip_at_no_rung_that_is_asked_for_is_told_where_it_is_stored():
    catalog = Catalog()
    catalog.add_asset("small", rungs=("512p", "256p48", "256p"))
    catalog.add_asset("nowhere", rungs=())
    recipe = make_recipe(phases=phase_at("720p", "512p48"))
    result = cut(catalog, recipe)
    assert result.manifest.is_empty()
    told = dict(result.exclusions["asset_id", "detail"].rows())
    asked = "phases ask for it at 512p48, 720p; it is stored at"
    assert told[asset_id("small")] == f"{asked} 256p, 256p48, 512p"
    assert told[asset_id("nowhere")] == f"{asked} no rung"
    (slow, fast) = [note for note in gap_notes(result.manifest, recipe) if "nothing at" in note]
    assert slow == "phase p: nothing at 720p"
    assert fast.startswith("phase p: nothing at 512p48: 48 fps is stored of a clip's largest rung")


def test_every_reason_is_told_once_per_clip_and_the_funnel_adds_up():
    catalog = Catalog()
    catalog.add_asset("fine")
    catalog.add_asset("unsafe", nsfw=0.95)
    catalog.add_asset("copy", rank=0.5)
    catalog.add("match_pairs", DROP, **pair("copy", "fine"))
    catalog.add_asset("taken")
    catalog.add_asset("no-rights", opt_out=True)
    catalog.add_asset("leak", hashes="sealed")
    add_vault(catalog, "sealed")
    catalog.add_asset("silent", caption="failed")
    catalog.add_asset("dull", quality=0.1)
    catalog.add_asset("rendered", drop=SYNTHETIC)
    catalog.add_asset("tiny", clips=((0.0, 2.0),), rungs=())
    recipe = make_recipe(
        streams={"video": {"source_tiers": ["licensed", "crawl"]}},
        phases=[
            {"name": "p", "steps": 1, "rungs": ["256p"], "tiers": ["T0", "T1", "T2"],
             "weights": {"video": 1.0}}
        ],
    )  # fmt: skip
    result = cut(catalog, recipe, tombstones={asset_id("taken"): {"request_id": "r1"}})
    assert reasons(result) == {
        key("unsafe"): "gated",
        key("copy"): "near_duplicate",
        key("taken"): "tombstoned",
        key("no-rights"): "refused_rights",
        key("leak"): "purged",
        key("silent"): "no_caption",
        key("dull"): "tier_not_admitted",
        key("rendered"): "no_stream",
        key("tiny"): "no_sample",
    }
    assert result.manifest["asset_id"].unique().to_list() == [asset_id("fine")]
    assert result.left_after[-1][1] == 1
    assert result.clips.height == len(reasons(result)) + 1


def pair(one: str, other: str, **changes):
    a, b = sorted((asset_id(one), asset_id(other)))
    return {
        "asset_a": a, "asset_b": b, "kind": "whole", "coverage_a": 1.0, "coverage_b": 1.0,
        "mean_distance": 2.0, "is_mirrored": False, "a_start_s": 0.0, "a_end_s": 5.0,
        "b_start_s": 0.0, "b_end_s": 5.0, "num_matched": 5, **changes,
    }  # fmt: skip


def add_vault(catalog: Catalog, name: str) -> None:
    from wsdata_tests.curate.catalog_support import frame_hash

    for index in range(5):
        catalog.add(
            "vault_prints", DROP, asset_id=asset_id(f"vault {name}"), level="frame",
            frame_index=index, time_s=float(index), hash=frame_hash(f"{name} {index}"),
            mirror_hash=frame_hash(f"{name} {index} flipped"), quality=90,
        )  # fmt: skip


def mixed_catalog(drops: list[str]) -> Catalog:
    """The same bytes in two drops of differing rights, beside material of each drop's own."""
    catalog = Catalog()
    for drop in drops:
        tier = drop.split(".")[0]
        catalog.add_asset("shared", drop=drop, clips=((0.0, 5.0), (5.0, 12.0)))
        catalog.add_asset(f"own {tier}", drop=drop, quality=0.8)
        catalog.add_asset(f"still {tier}", drop=drop, kind="image", aspect="1:1")
    return catalog


def test_drops_in_any_order_give_the_same_bytes():
    orders = ([DROP, CRAWL, SYNTHETIC], [SYNTHETIC, CRAWL, DROP], [CRAWL, DROP, SYNTHETIC])
    made = []
    for drops in orders:
        result = cut(mixed_catalog(drops))
        made.append(
            (tables.to_parquet(result.manifest), tables.to_parquet(result.exclusions),
             manifest_digest(result.manifest))
        )  # fmt: skip
    assert made[0] == made[1] == made[2]
    shared = result.manifest.filter(pl.col("asset_id") == asset_id("shared"))
    assert set(shared["source_tier"]) == {"synthetic"}
    assert shared["clip_id"].n_unique() == 2


def test_the_digest_is_free_of_row_order_and_sees_content():
    rows = cut(mixed_catalog([DROP])).manifest
    assert manifest_digest(rows.reverse()) == manifest_digest(rows)
    changed = rows.with_columns(pl.lit("T3").alias("tier"))
    assert manifest_digest(changed) != manifest_digest(rows)


def test_one_refusal_in_any_drop_refuses_the_asset():
    catalog = Catalog()
    catalog.add_asset("shared", drop=DROP)
    catalog.add_asset("shared", drop=CRAWL, opt_out=True)
    result = cut(catalog)
    assert result.manifest.is_empty()
    assert result.exclusions["detail"].to_list() == ["opt_out: declared"]


@pytest.mark.parametrize(
    ("as_of_date", "is_in"),
    [("2026-01-31", False), ("2026-02-01", True), ("2026-05-31", True), ("2026-06-01", False)],
)
def test_the_rights_window_is_judged_at_the_as_of_date(as_of_date, is_in):
    catalog = Catalog()
    catalog.add_asset("lake", rights_from="2026-02-01", rights_until="2026-06-01")
    result = cut(catalog, as_of_date=as_of_date)
    assert (result.manifest.height > 0) == is_in
    if not is_in:
        assert result.exclusions["detail"][0] == f"window: [2026-02-01, 2026-06-01) at {as_of_date}"


def test_a_changed_threshold_changes_exactly_the_affected_clips():
    catalog = Catalog()
    catalog.add_asset("safe", nsfw=0.1)
    catalog.add_asset("edge", nsfw=0.6)
    before = cut(catalog)
    after = cut(catalog, make_recipe(gates={"safety_max": 0.5}))
    gone = set(before.manifest["asset_id"]) - set(after.manifest["asset_id"])
    assert gone == {asset_id("edge")}
    kept = before.manifest.filter(pl.col("asset_id") == asset_id("safe"))
    assert after.manifest.equals(kept)
    told = diff_manifests(before.manifest, before.exclusions, after.manifest, after.exclusions)
    assert set(told["change"]) == {"went"}
    assert told["why"][0].startswith("gated: safety")
    back = diff_manifests(after.manifest, after.exclusions, before.manifest, before.exclusions)
    assert back["why"][0].startswith("no longer gated")


def test_a_changed_tier_is_told_as_a_change():
    catalog = Catalog()
    catalog.add_asset("lake", quality=0.7)
    before = cut(catalog)
    after = cut(catalog, make_recipe(tiers={"t0_min": 0.6}))
    told = diff_manifests(before.manifest, before.exclusions, after.manifest, after.exclusions)
    assert set(told["why"]) == {"tier T1 -> T0"}


def test_a_stored_gate_is_never_trusted():
    catalog = Catalog()
    catalog.add_asset("unsafe", nsfw=0.99)  # its row of `gates` says passed
    assert cut(catalog).manifest.is_empty()


def test_a_copy_stands_in_where_the_better_one_did_not_decode():
    catalog = Catalog()
    catalog.add("asset_quality", DROP, asset_id=asset_id("best"), rank_value=9.0)
    catalog.add_asset("copy", rank=1.0)
    catalog.add("match_pairs", DROP, **pair("best", "copy"))
    assert set(cut(catalog).manifest["asset_id"]) == {asset_id("copy")}


def test_a_copy_of_something_unsafe_does_not_stand_in():
    catalog = Catalog()
    catalog.add_asset("best", rank=9.0, nsfw=0.99)
    catalog.add_asset("copy", rank=1.0)
    catalog.add("match_pairs", DROP, **pair("best", "copy"))
    assert cut(catalog).manifest.is_empty()


def test_a_span_takes_the_clips_that_it_covers_and_no_other():
    catalog = Catalog()
    catalog.add_asset("film", rank=9.0, clips=((0.0, 5.0),))
    catalog.add_asset("compilation", rank=1.0, clips=((0.0, 5.0), (5.0, 10.0), (10.0, 15.0)))
    is_a = asset_id("compilation") < asset_id("film")
    mine, other = ("a", "b") if is_a else ("b", "a")
    span = {f"{mine}_start_s": 4.0, f"{mine}_end_s": 9.0, f"{other}_start_s": 0.0,
            f"{other}_end_s": 5.0}  # fmt: skip
    catalog.add("match_pairs", DROP, **pair("film", "compilation", kind="span", **span))
    result = cut(catalog)
    lost = result.exclusions.filter(pl.col("reason") == "near_duplicate")
    wanted = make_clip_id(asset_id("compilation"), track=0, start_ms=5000, end_ms=10000)
    assert lost["subject"].to_list() == [wanted]


def test_a_tombstone_may_name_clips():
    catalog = Catalog()
    catalog.add_asset("lake", clips=((0.0, 5.0), (5.0, 10.0)))
    clip = make_clip_id(asset_id("lake"), track=0, start_ms=0, end_ms=5000)
    result = cut(catalog, tombstones={asset_id("lake"): {"clips": [clip]}})
    assert clip not in set(result.manifest["clip_id"])
    assert result.manifest["clip_id"].n_unique() == 1


def test_a_re_encode_of_a_vault_member_is_purged_whole():
    catalog = Catalog()
    catalog.add_asset("leak", hashes="sealed", clips=((0.0, 4.0), (4.0, 8.0)))
    add_vault(catalog, "sealed")  # frames 0..4 alone: the second clip has but one of them
    result = cut(catalog)
    assert result.manifest.is_empty()
    assert set(result.hits["method"]) == {"fingerprint", "asset"}


def test_the_next_best_stands_in_for_an_excluded_representative():
    catalog = Catalog()
    same = vector("same")
    for name, quality, opt_out in (("a", 0.9, True), ("b", 0.8, False), ("c", 0.7, False)):
        catalog.add_asset(name, quality=quality, opt_out=opt_out, vectors=[same])
    clips = {n: make_clip_id(asset_id(n), track=0, start_ms=0, end_ms=5000) for n in "abc"}
    for name in "bc":
        catalog.add(
            "semantic_duplicates", "range-0", clip_id=clips[name], asset_id=asset_id(name),
            cluster=0, kept_clip_id=clips["a"], similarity=1.0,
        )  # fmt: skip
    result = cut(catalog)
    assert set(result.manifest["clip_id"]) == {clips["b"]}
    assert reasons(result)[key("c")] == "semantic_duplicate"


def test_generated_material_enters_through_its_own_stream_alone():
    catalog = Catalog()
    catalog.add_asset("made", drop=SYNTHETIC, record_json='{"is_generated":true}')
    catalog.add_asset("drawn", drop=SYNTHETIC)
    result = cut(catalog)
    assert reasons(result) == {key("made"): "no_stream"}
    recipe = make_recipe(
        streams={"video": {}, "generated": {"generated": True}},
        phases=[{"name": "p", "steps": 1, "rungs": ["256p"], "tiers": ["T0"],
                 "weights": {"video": 0.98, "generated": 0.02}}],
    )  # fmt: skip
    streams = dict(cut(catalog, recipe).manifest["asset_id", "stream"].unique().rows())
    assert streams == {asset_id("made"): "generated", asset_id("drawn"): "video"}


def test_a_clip_is_sampled_only_at_rungs_of_phases_that_admit_it():
    catalog = Catalog()
    catalog.add_asset("fine", quality=0.9, rungs=("256p", "512p"))
    catalog.add_asset("plain", quality=0.4, rungs=("256p", "512p"))
    phases = [
        {"name": "low", "steps": 1, "rungs": ["256p"], "tiers": ["T0", "T1", "T2"],
         "weights": {"video": 1.0}},
        {"name": "high", "steps": 1, "rungs": ["512p"], "tiers": ["T0"],
         "weights": {"video": 1.0}},
    ]  # fmt: skip
    result = cut(catalog, make_recipe(phases=phases))
    rungs = result.manifest.group_by("asset_id").agg(pl.col("rung").unique().sort())
    assert dict(rungs.rows()) == {asset_id("fine"): ["256p", "512p"], asset_id("plain"): ["256p"]}


def test_samples_that_a_live_shard_holds_are_not_assigned_again():
    catalog = Catalog()
    for index in range(30):
        catalog.add_asset(f"clip {index}")
    recipe = make_recipe(shards={"samples_per_group": 20})
    manifest = cut(catalog, recipe).manifest
    placed = manifest.head(10).select(
        "sample_id", "bucket", "transcode_sha256", "columns_digest",
        pl.lit("fp8").alias("latent_dtype"), pl.lit("tok-1").alias("tokenizer_version"),
    )  # fmt: skip
    fresh = assign_shards(manifest, placed, recipe, version="v2", tokenizer_version="tok-1")
    assert set(fresh["sample_id"]) == set(manifest["sample_id"][10:])
    assert set(fresh["shard_group"]) <= {f"v2.{i:04d}" for i in range(5)}
    for changed in ("transcode_sha256", "columns_digest"):
        for other in ("another", None):  # null: of before samples had columns
            anew = placed.with_columns(pl.lit(other, pl.String).alias(changed))
            assert assign_shards(
                manifest, anew, recipe, version="v2", tokenizer_version="tok-1"
            ).height == manifest.height  # fmt: skip
    all_of = assign_shards(manifest, placed, recipe, version="v2", tokenizer_version="tok-2")
    assert all_of.height == manifest.height
    int8 = dataclasses.replace(
        recipe, tokenizer=dataclasses.replace(recipe.tokenizer, dtype="int8")
    )
    assert assign_shards(
        manifest, placed, int8, version="v2", tokenizer_version=None
    ).height == manifest.height  # fmt: skip


@pytest.mark.parametrize("as_of_date", [None, "", "November", "2026-13-01"])
def test_a_cut_without_an_as_of_date_is_refused(as_of_date):
    with pytest.raises(RecipeError, match="as_of_date"):
        cut(Catalog(), as_of_date=as_of_date)


@pytest.mark.parametrize("missing", ["streams", "phases"])
def test_a_recipe_that_cannot_be_cut_says_so(missing):
    changes = {"streams": {}, "phases": []} if missing == "streams" else {"phases": []}
    with pytest.raises(RecipeError, match=f"declares no {missing}"):
        cut(Catalog(), make_recipe(**changes))


def test_an_empty_catalog_gives_an_empty_manifest():
    assert cut(Catalog()).manifest.is_empty()
