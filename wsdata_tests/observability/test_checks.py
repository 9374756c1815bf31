"""Promises: kept ones say nothing, broken ones name what broke them."""

import polars as pl
import pytest

from wsdata import tables
from wsdata.observability import checks

A, B, C = (f"{i:064x}" for i in range(3))


def rows(table: str, *records: dict) -> pl.DataFrame:
    return tables.rows_of(table, list(records))


def raw(asset: str, *, in_vault: bool = False) -> dict:
    return {"asset_id": asset, "in_vault": in_vault}


def score(clip: str, **columns) -> dict:
    return {"clip_id": clip, "score_name": "s", "status": "ok", "score": 0.5, **columns}


CLIPS = rows(
    "clips",
    {"clip_id": "c1", "asset_id": A, "top_rung": "512p"},
    {"clip_id": "c2", "asset_id": B, "top_rung": "256p"},
    {"clip_id": "c3", "asset_id": B},
)
GATES = rows(
    "gates",
    {"clip_id": "c1", "asset_id": A, "passed": True, "provisional_tier": "T0"},
    {"clip_id": "c2", "asset_id": B, "passed": False, "stopped_by": "safety"},
    {"clip_id": "c3", "asset_id": B, "passed": False, "stopped_by": "technical"},
)


def test_an_asset_without_a_status_is_named():
    assets = rows("raw_assets", raw(A), raw(B), raw(C, in_vault=True))
    kept = rows("decode_status", {"asset_id": A}, {"asset_id": B})
    assert checks.lost_asset_faults(assets, kept) == []
    (fault,) = checks.lost_asset_faults(assets, kept.filter(pl.col("asset_id") == A))
    assert B in fault


def test_a_decoded_vault_member_is_a_fault():
    assets = rows("raw_assets", raw(A), raw(C, in_vault=True))
    found = checks.lost_asset_faults(
        assets, rows("decode_status", {"asset_id": A}, {"asset_id": C})
    )
    assert found == [f"1 vault members were decoded: {C}"]


@pytest.mark.parametrize(("broken", "faulty"), [(2, False), (3, True)])
def test_a_source_of_broken_files_is_named(broken, faulty):
    ids = [f"{i:064x}" for i in range(20)]
    status = rows(
        "decode_status",
        *({"asset_id": a, "status": "quarantined" if i < broken else "ok"}
          for i, a in enumerate(ids)),
    )  # fmt: skip
    provenance = rows("provenance", *({"asset_id": a, "path": a, "source": "films"} for a in ids))
    assert bool(checks.quarantine_faults(status, provenance)) is faulty
    few = status.head(10)
    assert checks.quarantine_faults(few, provenance) == []


def test_rungs_follow_the_top_rung():
    low = rows("transcodes_256p", {"clip_id": "c1"}, {"clip_id": "c2"})
    assert checks.rung_faults(CLIPS, low, "256p", tables.RUNGS) == []
    (missing,) = checks.rung_faults(CLIPS, low.head(1), "256p", tables.RUNGS)
    assert "c2" in missing
    (scaled,) = checks.rung_faults(CLIPS, low, "512p", tables.RUNGS)
    assert scaled == "1 clips were scaled up to 512p: c2"


def test_frames_at_48_a_second_are_those_of_sources_that_have_them():
    clips = rows(
        "clips",
        {"clip_id": "fast", "source_fps": 59.94, "top_rung": "1080p", "num_frames": 48},
        {"clip_id": "film", "source_fps": 24.0, "top_rung": "720p", "num_frames": 48},
        {"clip_id": "tiny", "source_fps": 60.0, "num_frames": 48},
    )
    made = {"clip_id": "fast", "rung": "720p48", "num_frames": 96}
    assert checks.fast_rung_faults(clips, rows("transcodes_48fps", made)) == []
    (missing,) = checks.fast_rung_faults(clips, rows("transcodes_48fps"))
    assert "fast" in missing
    invented = rows("transcodes_48fps", made, made | {"clip_id": "film"})
    (told,) = checks.fast_rung_faults(clips, invented)
    assert told == "1 clips have frames at 48 fps that their source has not: film"
    (told,) = checks.fast_rung_faults(clips, rows("transcodes_48fps", made | {"num_frames": 90}))
    assert told == "1 clips have other than twice their frames at 48 fps: fast"


def test_a_clip_without_score_or_reason_is_a_fault():
    good = rows(
        "motion_scores", score("c1"), score("c2"),
        score("c3", status="unscored", score=None, reason="gated by technical"),
    )  # fmt: skip
    assert checks.score_faults(CLIPS, good) == []
    assert "c3" in checks.score_faults(CLIPS, good.head(2))[0]
    blank = good.with_columns(score=pl.lit(None, pl.Float64))
    assert "2 rows are ok without a score" in checks.score_faults(CLIPS, blank)[0]


def test_undecided_and_unclear_clips_are_faults():
    assert checks.gate_faults(CLIPS, GATES) == []
    assert "c3" in checks.gate_faults(CLIPS, GATES.head(2))[0]
    unclear = GATES.with_columns(stopped_by=pl.lit(None, pl.String))
    assert checks.gate_faults(CLIPS, unclear) == ["2 clips have neither tier nor reason: c2, c3"]


def test_only_clips_that_passed_need_labels():
    captions = rows("captions", {"clip_id": "c1", "variant": "short"})
    assert checks.coverage_faults(GATES, captions, "caption") == []
    assert "c1" in checks.coverage_faults(GATES, captions.clear(), "caption")[0]


def test_vectors_have_unit_length():
    good = rows("clip_embeddings", {"clip_id": "c1", "asset_id": A, "vector": [0.6, 0.8]})
    assert checks.vector_faults(good) == []
    bad = rows("clip_embeddings", {"clip_id": "c1", "asset_id": A, "vector": [0.6, 0.9]})
    assert checks.vector_faults(bad)


def test_a_clip_that_cannot_be_compared_is_a_fault():
    vectors = rows("clip_embeddings", {"clip_id": "c1", "asset_id": A})
    prints = rows("pass_fingerprints", {"asset_id": A, "frame_index": 0})
    assert checks.compared_faults(GATES, vectors, prints) == []
    assert len(checks.compared_faults(GATES, vectors.clear(), prints.clear())) == 2


def test_every_clip_is_listed_or_excluded():
    manifest = rows("manifests", {"sample_id": "s", "clip_id": "c1"})
    excluded = rows("exclusions", {"subject": "c2", "reason": "purged"})
    (fault,) = checks.manifest_faults(CLIPS, manifest, excluded)
    assert "c3" in fault
    whole = rows("exclusions", {"subject": B, "reason": "tombstoned"})
    assert checks.manifest_faults(CLIPS, manifest, whole) == []
    assert "empty" in checks.manifest_faults(CLIPS, manifest.clear(), whole)[0]


def test_every_sample_of_a_group_is_placed_or_lost():
    assigned = rows(
        "shard_assignments",
        {"sample_id": "s1", "shard_group": "v1.0000"},
        {"sample_id": "s2", "shard_group": "v1.0000"},
        {"sample_id": "s3", "shard_group": "v1.0001"},
    )
    placed = rows("placements", {"sample_id": "s1", "shard": "x"})
    lost = rows("latent_losses", {"sample_id": "s2", "reason": "flat"})
    assert checks.placement_faults(assigned, placed, lost, "v1.0000") == []
    assert "s2" in checks.placement_faults(assigned, placed, lost.clear(), "v1.0000")[0]
    assert checks.index_faults(
        rows("manifests", {"sample_id": "s1"}, {"sample_id": "s2"}),
        rows("dataset_index", {"sample_id": "s1"}),
        rows("index_losses", {"sample_id": "s2"}),
    ) == []  # fmt: skip


def test_packs_are_aligned_with_shards():
    placed = rows(
        "placements", {"sample_id": "s1", "shard": "x"}, {"sample_id": "s2", "shard": "x"}
    )
    pack = {"shard": "x", "caption_version": "1", "num_samples": 2}
    assert checks.pack_faults(placed, rows("caption_packs", pack)) == []
    uneven = rows("caption_packs", {**pack, "num_samples": 1})
    assert checks.pack_faults(placed, uneven) == ["packs not aligned with their shards: x"]
    assert "no caption pack" in checks.pack_faults(placed, uneven.clear())[0]


def test_proofs_must_be_there_and_hold():
    good = {"check": "order", "passed": True, "detail_json": "{}"}
    assert checks.proof_faults(rows("loader_proofs", good)) == []
    assert checks.proof_faults(rows("loader_proofs", {**good, "passed": False})) == ["order: {}"]
    assert checks.proof_faults(tables.empty("loader_proofs")) == ["nothing was proved"]


def test_a_plan_names_what_does_not_hold():
    plan = {"plan_id": "p" * 64, "proof_json": '{"checks":{"inverse":{"passed":false}}}'}
    assert "inverse" in checks.plan_faults(rows("step_plans", plan))[0]
    kept = {**plan, "proof_json": '{"checks":{"inverse":{"passed":true}}}'}
    assert checks.plan_faults(rows("step_plans", kept)) == []


def test_captions_are_judged_with_their_control():
    caption = {
        "clip_id": "c1", "variant": "short", "captioner_version": "m1", "status": "failed",
        "reason": "timeout",
    }  # fmt: skip
    qc = {"clip_id": "c1", "variant": "short", "captioner_version": "m1", "agreement": 1.0}
    (fault,) = checks.caption_faults(rows("captions", caption), rows("label_qc", qc))
    assert "1 of 1 captions failed" in fault


def test_what_is_loose_and_what_stops_everything_is_told():
    loose = {"key": "x", "size_bytes": 2_000_000, "verdict": "collectable"}
    assert "1 objects of 2.0 MB" in checks.collectable_faults(rows("retention", loose))[0]
    assert checks.collectable_faults(rows("retention", {**loose, "verdict": "live"})) == []
    rate = {"filter": "safety", "source": "web", "num_in": 20, "num_stopped": 19,
            "kill_share": 0.95}  # fmt: skip
    assert "safety stopped 19 of 20" in checks.kill_faults(rows("kill_rates", rate))[0]
    assert checks.kill_faults(rows("kill_rates", {**rate, "num_in": 19})) == []


def test_pairs_are_ordered_and_their_shares_are_shares():
    good = {"asset_a": A, "asset_b": B, "kind": "whole", "coverage_a": 1.0, "coverage_b": 0.5,
            "a_start_s": 0.0, "b_start_s": 0.0}  # fmt: skip
    assert checks.pair_faults(rows("match_pairs", good)) == []
    assert checks.pair_faults(rows("match_pairs", {**good, "asset_a": B, "asset_b": A}))
    assert checks.pair_faults(rows("match_pairs", {**good, "coverage_a": 1.2}))


def test_a_vault_member_without_prints_is_told():
    assets = rows("raw_assets", {"asset_id": A, "in_vault": True})
    printed = {"asset_id": A, "level": "frame", "frame_index": 0, "hash": b"x" * 32}
    assert checks.vault_faults(assets, rows("vault_prints", printed)) == []
    assert checks.vault_faults(assets, rows("vault_prints", {**printed, "hash": None}))


def test_spans_lie_within_their_source():
    probe = rows("probes", {"asset_id": A, "duration_s": 5.0})
    clip = {"clip_id": "c", "asset_id": A, "media_kind": "video", "start_s": 0.0, "end_s": 5.0,
            "start_pts": 0, "end_pts": 5, "source_fps": 24.0}  # fmt: skip
    assert checks.span_faults(rows("clips", clip), probe) == []
    for bad in ({"end_s": 0.0}, {"end_s": 9.0}, {"start_s": -1.0}, {"start_pts": 7}):
        assert checks.span_faults(rows("clips", {**clip, **bad}), probe)


def test_centroids_are_of_unit_length():
    assert checks.centroid_faults(tables.empty("centroids"))
    unit = {"cluster": 0, "vector": [0.6, 0.8]}
    assert checks.centroid_faults(rows("centroids", unit)) == []
    assert checks.centroid_faults(rows("centroids", {**unit, "vector": [1.0, 1.0]}))


def test_what_a_clip_is_redundant_to_stays():
    one = {"clip_id": "a", "kept_clip_id": "b"}
    assert checks.redundant_faults(rows("semantic_duplicates", one)) == []
    both = rows("semantic_duplicates", one, {"clip_id": "b", "kept_clip_id": "c"})
    assert checks.redundant_faults(both)


def test_a_shifted_score_is_told_once_enough_clips_say_so():
    row = {"filter": "motion", "score_name": "m", "model_version": "2", "num_clips": 50,
           "mean": 0.5, "p10": 0.1, "p50": 0.5, "p90": 0.9, "shift": 0.3}  # fmt: skip
    assert checks.drift_faults(rows("drift", row))
    assert checks.drift_faults(rows("drift", {**row, "shift": 0.1})) == []
    assert checks.drift_faults(rows("drift", {**row, "num_clips": 3})) == []


def test_storage_out_of_bounds_is_told_on_a_large_corpus():
    def cost(raw, derived):
        return rows(
            "costs",
            {"item": "storage: raw", "amount": raw},
            {"item": "storage: transcodes", "amount": derived},
        )

    assert checks.cost_faults(cost(1e13, 3e12)) == []
    assert checks.cost_faults(cost(1e13, 2e13))
    assert checks.cost_faults(cost(1e6, 9e6)) == []


def test_takedowns_and_mirrors_hold_something():
    named = {"request_id": "t1", "asset_id": A, "role": "named"}
    assert checks.takedown_faults(rows("takedowns", named)) == []
    assert checks.takedown_faults(rows("takedowns", {**named, "role": "twin"}))
    table = {"table": "clips", "num_objects": 1}
    assert checks.mirror_faults(rows("engine_mirror", table)) == []
    assert checks.mirror_faults(tables.empty("engine_mirror"))
    assert checks.mirror_faults(rows("engine_mirror", {**table, "num_objects": 0}))


def test_what_is_listed_is_told_as_a_number():
    hit = {"score_name": "asset_hits", "asset_id": A, "score": 2.0}
    clean = {"score_name": "asset_hits", "asset_id": B, "score": 0.0}
    clips = [score("c1", **hit), score("c2", **hit), score("c3", **clean)]
    (fault,) = checks.listed_faults(rows("safety_list_scores", *clips))
    assert fault.startswith("1 raw assets match a safety list")
    assert A not in fault
    assert checks.listed_faults(rows("safety_list_scores", score("c3", **clean))) == []
