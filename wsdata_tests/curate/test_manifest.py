import polars as pl
import pytest

from wsdata import tables
from wsdata.curate.manifest import READS, STEP, manifest_digest
from wsdata.errors import NotReady, RecipeError
from wsdata.ids import parse_sample_id, parse_shard_group
from wsdata.recipe import load_recipe
from wsdata.shard.plan import StepPlan
from wsdata_tests.curate.catalog_support import CRAWL, DROP, SYNTHETIC, Catalog, make_recipe
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step
from wsdata_tests.test_recipe import RECIPES

AS_OF = "2026-11-01"


def small_corpus(drops=(DROP, CRAWL, SYNTHETIC)) -> Catalog:
    """Some twenty clips and a handful of stills of several shapes, as in the sample drops."""
    catalog = Catalog()
    for drop in drops:
        tier = drop.split(".")[0]
        catalog.add_asset(
            f"film {tier}", drop=drop, clips=((0.0, 9.5), (9.5, 17.0), (17.0, 22.3)),
            rungs=("256p", "512p"),
        )  # fmt: skip
        catalog.add_asset(f"tall {tier}", drop=drop, aspect="9:16", clips=((0.0, 7.1),))
        catalog.add_asset(f"old {tier}", drop=drop, aspect="4:3", quality=0.5)
        for number, aspect in enumerate(("1:1", "4:3")):
            catalog.add_asset(
                f"still {tier} {number}", drop=drop, kind="image", aspect=aspect,
                rungs=("256p", "512p") if number == 0 else ("256p",),
            )  # fmt: skip
    return catalog


def cut_through_the_step(tmp_path, catalog, recipe, *, as_of_date=AS_OF, facts=None):
    store = new_store(tmp_path)
    inputs = {
        table: [put_rows(store, table, rows, drop) for drop, rows in parts.items()]
        for table, parts in catalog.read.items()
        if table in (*READS, "centroids")
    }
    params = {"recipe": recipe.to_json(), "as_of_date": as_of_date}
    order = order_of(STEP, "v1", inputs, params=params, facts=facts)
    report = run_step(STEP, order, store)
    return report, {table: rows_made(store, report, table) for table in STEP.tables}


def test_the_sample_recipe_makes_a_manifest_that_a_plan_can_be_compiled_from(tmp_path):
    recipe = load_recipe(RECIPES / "v1.toml")
    report, made = cut_through_the_step(tmp_path, small_corpus(), recipe)
    manifest = made["manifests"]
    assert {"video-real", "video-synthetic", "image"} <= set(manifest["stream"])
    assert manifest.filter(pl.col("bucket") != "").group_by("bucket").len()["len"].min() >= 4
    assert set(made["shard_assignments"]["sample_id"]) == set(manifest["sample_id"])
    groups = {parse_shard_group(group) for group in made["shard_assignments"]["shard_group"]}
    assert {version for version, _ in groups} == {"v1"}

    index = tables.conform(
        "dataset_index",
        pl.DataFrame(
            {
                name: manifest[name] if name in manifest.columns else [None] * manifest.height
                for name in tables.TABLES["dataset_index"].columns
            }
        ),
    )
    stated = recipe.to_json()
    plan = StepPlan.compile(
        index,
        seed=recipe.seed,
        phases=stated["phases"],
        streams=stated["streams"],
        samples=stated["samples"],
    )
    assert plan.num_steps == sum(phase.steps for phase in recipe.phases)

    shown = report.display["manifest"]
    assert shown["digest"]["raw_value"] == manifest_digest(manifest)
    for label in ("funnel", "streams", "buckets"):
        assert shown[label]["raw_value"].startswith("| ")
    assert "| raw assets | | 15 |" in shown["funnel"]["raw_value"]


def test_every_sample_row_says_where_its_pixels_are(tmp_path):
    _, made = cut_through_the_step(tmp_path, small_corpus(), make_recipe())
    for row in made["manifests"].iter_rows(named=True):
        name = parse_sample_id(row["sample_id"])
        assert (name.clip_id, name.rung, name.start_frame, name.num_frames) == (
            row["clip_id"], row["rung"], row["start_frame"], row["num_frames"],
        )  # fmt: skip
        assert row["bucket"] == (
            f"{row['rung']}/{row['width_px']}x{row['height_px']}/{row['num_frames']}"
        )
        assert row["transcode_key"] == f"derived/{row['rung']}/{row['clip_id']}"
        assert row["width_px"] % 16 == row["height_px"] % 16 == 0
        assert row["crop_x"] >= 0 <= row["crop_y"]


def test_the_order_in_which_drops_came_changes_no_byte(tmp_path):
    recipe = load_recipe(RECIPES / "v1.toml")
    drops = (DROP, CRAWL, SYNTHETIC)
    one, _ = cut_through_the_step(tmp_path / "a", small_corpus(drops), recipe)
    other, _ = cut_through_the_step(tmp_path / "b", small_corpus(drops[::-1]), recipe)
    assert {t: ref.sha256 for t, ref in one.objects.items()} == {
        t: ref.sha256 for t, ref in other.objects.items()
    }


def test_tracks_are_given_to_streams_that_ask_for_them(tmp_path):
    catalog = small_corpus((DROP,))
    clips = catalog.read["clips"][DROP].filter(pl.col("media_kind") == "video")["clip_id"]
    for clip in clips[:3]:
        told = {"clip_id": clip, "key": f"audio/{clip}", "sha256": clip[:24] * 2}
        catalog.add("audio_tracks", DROP, status="kept", **told)
    catalog.add("audio_tracks", DROP, clip_id=clips[3], status="unsynced", key="audio/late")
    for clip in clips[2:4]:
        told = {"clip_id": clip, "key": f"actions/{clip}", "sha256": clip[:24] * 2}
        catalog.add("action_tracks", DROP, status="kept", channels_json='[{"name":"x"}]', **told)
    phases = [{"name": "p", "steps": 1, "rungs": ["256p"], "tiers": ["T0", "T1", "T2", "T3"],
               "weights": {"acted": 0.4, "joint": 0.3, "video": 0.3}}]  # fmt: skip
    streams = {
        "acted": {"audio": True, "actions": True, "needs_actions": True},
        "joint": {"audio": True, "needs_audio": True},
        "video": {},
    }
    recipe = make_recipe(streams=streams, phases=phases)
    _, made = cut_through_the_step(tmp_path, catalog, recipe)
    of_stream = {name: made["manifests"].filter(pl.col("stream") == name) for name in streams}
    assert set(of_stream["acted"]["clip_id"]) == set(clips[2:4])
    assert set(of_stream["joint"]["clip_id"]) == set(clips[:2])
    for row in [*of_stream["acted"].to_dicts(), *of_stream["joint"].to_dicts()]:
        clip, is_acted = row["clip_id"], row["stream"] == "acted"
        has_sound = clip != clips[3]
        assert row["audio_key"] == (f"audio/{clip}" if has_sound else None)
        assert row["actions_key"] == (f"actions/{clip}" if is_acted else None)
        assert row["channels_json"] == ('[{"name":"x"}]' if is_acted else None)
        digests = (clip[:16] if has_sound else "-", clip[:16] if is_acted else "-")
        assert row["columns_digest"] == f"2:{digests[0]}:{digests[1]}"
    plain = of_stream["video"].select("audio_key", "actions_key", "columns_digest").unique()
    assert plain.rows() == [(None, None, "2:-:-")]


def test_a_cap_of_samples_per_raw_asset_is_kept_and_told(tmp_path):
    recipe = make_recipe(samples={"global_batch": 1, "max_samples_per_asset": 3})
    _, made = cut_through_the_step(tmp_path, small_corpus(), recipe)
    per_asset = made["manifests"].group_by("asset_id").len()
    assert per_asset["len"].max() == 3
    assert "sample_cap" in set(made["exclusions"]["reason"])


def test_a_small_bucket_that_nothing_helps_is_told_with_a_fix(tmp_path):
    catalog = small_corpus()
    catalog.add_asset("odd", aspect="1:1", clips=((0.0, 2.0),))
    recipe = make_recipe(samples={"global_batch": 4, "hand_down": ["fewer_frames"]})
    _, made = cut_through_the_step(tmp_path, catalog, recipe)
    small = made["exclusions"].filter(pl.col("reason") == "bucket_too_small")
    assert any("256p/192x192/33" in detail for detail in small["detail"])
    assert all("samples.batch_of_bucket" in detail for detail in small["detail"])
    assert all("crop and smaller_rung" in detail for detail in small["detail"])


def test_a_cut_needs_a_date_and_material(tmp_path):
    with pytest.raises(RecipeError, match="as_of_date"):
        cut_through_the_step(tmp_path, small_corpus(), make_recipe(), as_of_date=None)
    with pytest.raises(NotReady, match="no drop has clips"):
        cut_through_the_step(tmp_path, Catalog(), make_recipe())


def test_everything_that_the_recipe_says_counts_in_the_order():
    params = STEP.params_of(make_recipe())  # pyright: ignore[reportOptionalCall]
    other = STEP.params_of(make_recipe(seed=5))  # pyright: ignore[reportOptionalCall]
    assert params != other
