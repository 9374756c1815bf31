"""Mirror images in a cut: which samples are mirrored, and which never are."""

import polars as pl
import pytest

from wsdata import tables
from wsdata.curate.cut import make_cut
from wsdata.curate.diff import diff_manifests
from wsdata.curate.flips import MIRRORED, names_a_side
from wsdata.curate.summary import flips_markdown
from wsdata.errors import RecipeError
from wsdata.ids import parse_sample_id
from wsdata_tests.curate.catalog_support import CRAWL, DROP, Catalog, asset_id, make_recipe

OTHER = ["variant", "sample_id"]


def cut(catalog, flips, *, recipe=None, **stream):
    streams = {"video": {"flips": flips, **stream}, "image": {"modality": "image"}}
    recipe = recipe or make_recipe(streams=streams)
    return make_cut(catalog.read, recipe, as_of_date="2026-11-01", tombstones={})


def films(count, *, drop=DROP, start=0):
    catalog = Catalog()
    for number in range(start, start + count):
        catalog.add_asset(f"film {number}", drop=drop, clips=((0.0, 10.0), (10.0, 20.0)))
    catalog.add_asset("still", drop=drop, kind="image")
    return catalog


def plain_name(sample_id):
    return f"{sample_id.removesuffix(parse_sample_id(sample_id).variant)}plain"


def test_a_stream_that_asks_for_none_gives_plain_samples_alone():
    result = cut(films(3), "none")
    assert result.manifest["variant"].unique().to_list() == ["plain"]
    assert not result.flips
    assert flips_markdown(result) == "no stream asks for mirror images"


def test_both_keeps_every_plain_row_as_it_was_and_adds_its_mirror_image():
    catalog = films(6)
    none, both = cut(catalog, "none").manifest, cut(catalog, "both")
    is_plain = pl.col("variant") == "plain"
    assert tables.to_parquet(both.manifest.filter(is_plain)) == tables.to_parquet(none)
    copies = both.manifest.filter(~is_plain)
    assert set(copies["stream"]) == {"video"}, "the other stream asks for none"
    assert set(map(plain_name, copies["sample_id"])) == set(
        none.filter(pl.col("stream") == "video")["sample_id"]
    )
    beside = copies.with_columns(pl.Series("sample_id", map(plain_name, copies["sample_id"])))
    videos = none.filter(pl.col("stream") == "video")
    assert beside.drop("variant").sort("sample_id").equals(videos.drop("variant"))
    assert both.flips == {("video", MIRRORED): copies.height}


def test_half_replaces_about_half_whatever_else_there_is():
    few, many = cut(films(10), "half"), cut(films(40), "half")
    none = cut(films(40), "none").manifest
    rows = many.manifest
    assert sorted(map(plain_name, rows["sample_id"])) == none["sample_id"].to_list()
    videos = rows.filter(pl.col("stream") == "video")
    mirrored = videos.filter(pl.col("variant") == "flip")
    assert videos.height == 240
    assert 90 < mirrored.height < 150  # 120 expected; 3.9 standard deviations of a fair coin
    assert many.flips == {("video", MIRRORED): mirrored.height}
    assert set(few.manifest["sample_id"]) <= set(rows["sample_id"]), "others have no part in it"
    streams = {"video": {"flips": "half"}, "image": {"modality": "image"}}
    seeded = make_recipe(seed=9, streams=streams)
    assert cut(films(40), "half", recipe=seeded).manifest.equals(rows)
    elsewhere = Catalog()
    for number in reversed(range(10)):
        drop = (DROP, CRAWL)[number % 2]
        elsewhere.add_asset(f"film {number}", drop=drop, clips=((0.0, 10.0), (10.0, 20.0)))
    again = cut(elsewhere, "half").manifest
    assert set(again["sample_id"]) <= set(few.manifest["sample_id"])


def told_between(old, new):
    told = diff_manifests(old.manifest, old.exclusions, new.manifest, new.exclusions)
    is_flip = told["sample_id"].str.ends_with(".flip")
    return {
        (change, "flip" if flip else "plain"): set(rows["why"])
        for (change, flip), rows in told.group_by("change", is_flip.alias("is_flip"))
    }


def test_a_diff_says_that_the_recipe_asks_for_mirror_images_or_no_longer_does():
    catalog = films(6)  # clips of 10 s, of which every one leaves a remainder
    none, half, both = (cut(catalog, flips) for flips in ("none", "half", "both"))
    assert set(none.exclusions["reason"]) == {"remainder"}
    asked = {"its stream now asks for mirror images (flips of the recipe)"}
    not_asked = {"its stream no longer asks for mirror images (flips of the recipe)"}
    instead = {"its mirror image stands in for it (flips of the recipe: half)"}
    back = {"its mirror image no longer stands in for it"}
    more = {
        "its stream now asks for more mirror images (flips of the recipe), or its clip may now "
        "have one"
    }
    assert told_between(none, both) == {("came", "flip"): asked}
    assert told_between(both, none) == {("went", "flip"): not_asked}
    assert told_between(none, half) == {("came", "flip"): asked, ("went", "plain"): instead}
    assert told_between(half, none) == {("went", "flip"): not_asked, ("came", "plain"): back}
    assert told_between(half, both) == {("came", "flip"): more, ("came", "plain"): back}


def test_a_mirror_image_that_became_untrue_is_not_said_to_be_asked_for_no_longer():
    catalog = films(2)
    before = cut(catalog, "both")
    clip = before.manifest.filter(pl.col("variant") == "flip")["clip_id"][0]
    told = diff_manifests(
        before.manifest, before.exclusions,
        before.manifest.filter((pl.col("clip_id") != clip) | (pl.col("variant") == "plain")),
        before.exclusions,
    )  # fmt: skip
    assert set(told["clip_id"]) == {clip}
    assert set(told["why"]) == {
        "its stream asks for fewer mirror images (flips of the recipe), or its clip may no longer "
        "have one"
    }


def test_a_diff_with_new_material_says_so_of_its_mirror_images_too():
    told = told_between(cut(films(2), "both"), cut(films(4), "both"))
    assert told == {("came", "flip"): {"new material"}, ("came", "plain"): {"new material"}}


def test_what_a_patch_left_out_of_two_variants_is_told_as_patched():
    both = cut(films(2), "both")
    gone = both.manifest.filter(pl.col("variant") == "flip")[0]
    patched = tables.rows_of(
        "exclusions",
        [{"subject": gone["sample_id"][0], "asset_id": gone["asset_id"][0], "reason": "patched",
          "detail": "v1.1"}],
    )  # fmt: skip
    left = both.manifest.join(gone, on="sample_id", how="anti")
    exclusions = pl.concat([both.exclusions, patched])
    told = diff_manifests(both.manifest, both.exclusions, left, exclusions)
    assert told["why"].to_list() == ["patched: v1.1"]


def unfit_catalog():
    """One film of each kind that no mirror image may be made of, beside one that is fit."""
    catalog = Catalog()
    clip_of = {}
    for name in ("fit", "titled", "unread", "old", "steered", "sided", "elsewhere"):
        catalog.add_asset(name, quality=0.9)
        found = catalog.read["clips"][DROP].filter(pl.col("asset_id") == asset_id(name))
        (clip_of[name],) = found["clip_id"]
    scores, captions = catalog._rows["overlay_scores"][DROP], catalog._rows["captions"][DROP]
    by_clip = {row["clip_id"]: row for row in scores if row["score_name"] == "text_seen"}
    by_clip[clip_of["titled"]]["score"] = 0.0001
    by_clip[clip_of["unread"]] |= {"score": None, "status": "unscored"}
    scores.remove(by_clip[clip_of["old"]])  # what gates ask, which misses titles, is still there
    catalog.add(
        "action_tracks", DROP, clip_id=clip_of["steered"], status="kept", key="actions/x",
        sha256="a" * 64, channels_json="[]",
    )  # fmt: skip
    for row in captions:
        if row["clip_id"] == clip_of["sided"]:
            row["text"] = "A boat drifts to the LEFT-hand shore."
    # Another drop brought the same bytes, and its captioner saw which way the boat goes.
    catalog.add(
        "captions", CRAWL, clip_id=clip_of["elsewhere"], variant="dense", captioner_version="c9",
        text="It turns clockwise.", status="ok",
    )  # fmt: skip
    return catalog, clip_of


def test_what_would_be_untrue_of_a_mirror_image_is_not_mirrored_and_counted():
    catalog, clip_of = unfit_catalog()
    result = cut(catalog, "both", actions=True)
    copies = result.manifest.filter(pl.col("variant") == "flip")
    assert set(copies["clip_id"]) == {clip_of["fit"]}
    per_clip = dict.fromkeys(clip_of, 0)
    plain = result.manifest.filter(pl.col("variant") == "plain")
    for name, clip in clip_of.items():
        per_clip[name] = plain.filter(pl.col("clip_id") == clip).height
    assert min(per_clip.values()) > 0
    assert dict(result.flips) == {
        ("video", MIRRORED): per_clip["fit"],
        ("video", "text on screen"): per_clip["titled"],
        ("video", "text never looked for"): per_clip["unread"] + per_clip["old"],
        ("video", "actions"): per_clip["steered"],
        ("video", "caption names a side"): per_clip["sided"] + per_clip["elsewhere"],
    }
    shown = flips_markdown(result)
    assert "| video | not: text on screen | 2 |" in shown
    assert f"| video | mirrored | {per_clip['fit']} |" in shown


def test_actions_that_a_stream_does_not_carry_bar_nothing():
    catalog, clip_of = unfit_catalog()
    copies = cut(catalog, "both").manifest.filter(pl.col("variant") == "flip")
    assert set(copies["clip_id"]) == {clip_of["fit"], clip_of["steered"]}
    assert copies["actions_key"].null_count() == copies.height


def test_mirror_images_fill_no_batch_of_their_own():
    """Two clips of 121 frames and their images are still two different things to see."""
    catalog = Catalog()
    for number in range(2):
        catalog.add_asset(f"film {number}", clips=((0.0, 6.0),))
    streams = {"video": {"flips": "both"}, "image": {"modality": "image"}}
    recipe = make_recipe(streams=streams, samples={"global_batch": 4})
    result = cut(catalog, "both", recipe=recipe)
    assert result.manifest["num_frames"].unique().to_list() == [65]
    assert result.manifest.height == 2 * 2 * (144 // 65)


@pytest.mark.parametrize(
    ("text", "is_sided"),
    [
        ("A man walks to the left.", True),
        ("Rightmost of three doors", True),
        ("the upper-right corner", True),
        ("a left-handed player", True),
        ("wheels turn counterclockwise", True),
        ("wheels turn anti-clockwise", True),
        ("moves leftwards", True),
        ("all right", True),
        ("a lefty pitcher, two righties", True),
        ("the topleft corner", True),
        ("a leftwing banner", True),
        ("LEFT_side view", True),
        ("an arrowright sign", True),
        ("bottomRight of the frame", True),
        ("turns CCW", True),
        ("rot_cw90", True),
        ("a bright light over copyright law", False),
        ("leftover soup, righteous anger, rightful heirs", False),
        ("brightness, copyrighted, frightened, aright, uprights, outright, downright", False),
        ("a playwright by a wheelwright's cleft log; theft", False),
        ("cwt, a cwm", False),
        ("", False),
    ],
)
def test_words_that_name_a_side(text, is_sided):
    assert names_a_side(text) == is_sided


def test_an_unknown_way_to_mirror_is_refused():
    with pytest.raises(RecipeError, match="flips 'some': expected one of none, half, both"):
        make_recipe(streams={"video": {"flips": "some"}, "image": {"modality": "image"}})
