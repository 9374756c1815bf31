from dataclasses import asdict
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata import tables
from wsdata.preprocess import funnel
from wsdata.recipe import Gates, Tiers
from wsdata_tests.preprocess.score_support import asset_id, clip, score, step_run

GATES, TIERS = Gates(), Tiers()

SOUND = {
    ("safety_list", "asset_hits"): 0.0,
    ("technical", "is_decodable"): 1.0,
    ("technical", "rung_px"): 256.0,
    ("technical", "duration_s"): 5.0,
    ("technical", "error_share"): 0.0,
    ("safety", "nsfw"): 0.1,
    ("motion", "magnitude"): 0.004,
    ("motion", "jitter"): 0.002,
    ("overlay", "text_share"): 0.0,
    ("quality", "quality"): 0.9,
}


def frames(
    clip_rows: list[dict[str, Any]], scores: list[dict[str, Any]]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    return tables.rows_of("motion_scores", scores), tables.rows_of("clips", clip_rows)


def decide(changed: dict, *, gates: Gates = GATES, tiers: Tiers = TIERS, **clip_changed: Any):
    """What becomes of a sound clip with changed scores: a value, None, or extra columns."""
    row = clip(**clip_changed)
    scores = []
    for (filter_name, name), value in (SOUND | changed).items():
        if isinstance(value, dict):
            scores.append(score(row, filter_name, name, None, **value))
        elif value != "absent":
            scores.append(score(row, filter_name, name, value))
    (decided,) = funnel.evaluate_gates(*frames([row], scores), gates, tiers).to_dicts()
    return decided


def test_a_sound_clip_passes_on_top():
    decided = decide({})
    assert decided["passed"]
    assert decided["stopped_by"] is None
    assert (decided["tier"], decided["quality_value"]) == ("T0", 0.9)


@pytest.mark.parametrize(
    ("changed", "stopped_by", "words"),
    [
        ({("technical", "duration_s"): 1.999}, "technical", "too short: 1.999 s of 2.0"),
        ({("technical", "rung_px"): 0.0}, "technical", "too small: 640x360 is below every rung"),
        ({("technical", "error_share"): 0.06}, "technical", "decoding errors: 0.06"),
        ({("technical", "is_decodable"): 0.0}, "technical", "broken: undecodable"),
        ({("safety", "nsfw"): 0.8}, "safety", "unsafe: 0.8"),
        (
            {
                ("safety_list", "asset_hits"): {
                    "score": 2.0,
                    "status": "ok",
                    "detail_json": '{"why":"list police entry 7 at 12 of 256 bits and 1 more"}',
                }
            },
            "safety_list",
            "listed: list police entry 7 at 12 of 256 bits and 1 more",
        ),
    ],
)
def test_technical_faults_and_unsafe_content_stop_a_clip(changed, stopped_by, words):
    decided = decide(changed)
    assert not decided["passed"]
    assert decided["stopped_by"] == stopped_by
    assert decided["reason"].startswith(words)
    assert decided["tier"] is None
    assert decided["quality_value"] is None


def test_a_broken_clip_says_why():
    why = {"score": 0.0, "status": "ok", "detail_json": '{"why":"no transcode at 256p"}'}
    assert decide({("technical", "is_decodable"): why})["reason"] == "broken: no transcode at 256p"


def test_thresholds_are_the_recipes():
    assert decide({("safety", "nsfw"): 0.5}, gates=Gates(safety_max=0.5))["stopped_by"] == "safety"
    assert (
        decide({("technical", "duration_s"): 3.0}, gates=Gates(min_duration_s=4.0))["passed"]
        is False
    )
    assert decide({("quality", "quality"): 0.7}, tiers=Tiers(t0_min=0.7))["tier"] == "T0"


@pytest.mark.parametrize("score_key", [key for key in SOUND if key[0] in ("technical", "safety")])
def test_without_a_score_that_gates_a_clip_stays_out_but_not_as_stopped_by_the_filter(score_key):
    absent = decide({score_key: "absent"})
    unscored = decide({score_key: {"status": "unscored", "reason": "gated by technical: x"}})
    failed = decide({score_key: {"status": "error", "reason": "ValueError: x"}})
    assert [each["stopped_by"] for each in (absent, unscored, failed)] == [
        "unscored", "unscored", "error",
    ]  # fmt: skip
    assert absent["reason"] == f"{'.'.join(score_key)}: never measured"
    assert failed["reason"] == f"{'.'.join(score_key)}: ValueError: x"


@pytest.mark.parametrize(
    ("score_key", "tier", "value"),
    [
        (("quality", "quality"), "T2", None),
        (("overlay", "text_share"), "T1", 0.9),
        (("motion", "magnitude"), "T1", 0.9),
    ],
)
@pytest.mark.parametrize("status", ["error", "unscored"])
def test_an_unknown_score_is_not_a_low_one_and_earns_no_top_tier(score_key, tier, value, status):
    decided = decide({score_key: {"status": status, "reason": "x"}})
    assert decided["passed"]
    assert (decided["tier"], decided["quality_value"]) == (tier, value)


def test_motion_and_text_and_jitter_tier_and_never_drop():
    for changed in (
        {("motion", "magnitude"): 0.0},
        {("motion", "magnitude"): 0.9},
        {("motion", "jitter"): 0.1},
        {("overlay", "text_share"): 0.3},
        {("quality", "quality"): 0.0},
    ):
        decided = decide(changed)
        assert decided["passed"]
        assert decided["tier"] in ("T2", "T3")


def test_a_still_needs_neither_length_nor_motion():
    still = {"status": "unscored", "reason": "still"}
    decided = decide(
        {
            ("technical", "duration_s"): still,
            ("motion", "magnitude"): still,
            ("motion", "jitter"): still,
        },
        media_kind="image",
    )
    assert decided["passed"]
    assert decided["tier"] == "T0"


def test_two_rows_of_one_score_count_once_and_the_measured_one_wins():
    row = clip()
    scores = [score(row, *key, value) for key, value in SOUND.items()]
    gated = [
        score(row, *key, None, model_version="test-2", reason="gated by technical: too short")
        for key in SOUND
    ]
    clips = tables.rows_of("clips", [row])
    both = [
        pl.concat([tables.rows_of("motion_scores", part) for part in parts])
        for parts in ([scores, gated], [gated, scores])
    ]
    alone = funnel.evaluate_gates(tables.rows_of("motion_scores", scores), clips, GATES, TIERS)
    assert all(funnel.evaluate_gates(rows, clips, GATES, TIERS).equals(alone) for rows in both)


def test_no_clips_give_no_rows():
    empty = funnel.evaluate_gates(
        tables.empty("motion_scores"), tables.empty("clips"), GATES, TIERS
    )
    assert empty.height == 0
    assert (
        funnel.stops_so_far(tables.empty("motion_scores"), tables.empty("clips"), GATES).height == 0
    )


# an independent, slow reading of the rules ---------------------------------------------------


def slow_gate(found: dict, *, is_video: bool) -> str | None:
    def value(key):
        return found.get(key, (None, None))[0]

    def is_unknown(key):
        return value(key) is None

    if (value(("safety_list", "asset_hits")) or 0) > 0:
        return "safety_list"
    technical = [("technical", name) for name in ("is_decodable", "rung_px", "error_share")]
    if is_video:
        technical.append(("technical", "duration_s"))
    limits = {
        "is_decodable": lambda v: v < 1,
        "rung_px": lambda v: v < 1,
        "error_share": lambda v: v > GATES.max_error_share,
        "duration_s": lambda v: v < GATES.min_duration_s,
    }
    if any(not is_unknown(key) and limits[key[1]](value(key)) for key in technical):
        return "technical"
    for key in technical:
        if is_unknown(key):
            return "error" if found.get(key, (None, ""))[1] == "error" else "unscored"
    nsfw = ("safety", "nsfw")
    if is_unknown(nsfw):
        return "error" if found.get(nsfw, (None, ""))[1] == "error" else "unscored"
    return "safety" if value(nsfw) >= GATES.safety_max else None


def slow_tier(found: dict, *, is_video: bool) -> tuple[str, float | None]:
    def value(key):
        return found.get(key, (None, None))[0]

    quality = value(("quality", "quality"))
    if quality is None:
        return "T2", None
    magnitude, jitter = value(("motion", "magnitude")), value(("motion", "jitter"))
    text = value(("overlay", "text_share"))
    if magnitude is not None and magnitude < TIERS.motion_low:
        quality *= 0.5 + 0.5 * magnitude / TIERS.motion_low
    if magnitude is not None and magnitude > TIERS.motion_high:
        quality *= max(0.5, TIERS.motion_high / magnitude)
    if jitter is not None and jitter > TIERS.jitter_max:
        quality *= max(0.5, TIERS.jitter_max / jitter)
    if text is not None:
        quality *= 1 - 0.5 * min(1.0, text / TIERS.overlay_max_share)
    quality = round(quality, 6)
    floors = (TIERS.t0_min, TIERS.t1_min, TIERS.t2_min)
    rank = next((rank for rank, floor in enumerate(floors) if quality >= floor), 3)
    if text is None or (is_video and magnitude is None):
        rank = max(rank, 1)
    return f"T{rank}", quality


VALUES = {
    "asset_hits": [0.0, 0.0, 2.0],
    "is_decodable": [1.0, 0.0],
    "rung_px": [256.0, 0.0],
    "duration_s": [5.0, 1.0],
    "error_share": [0.0, 0.5],
    "nsfw": [0.1, 0.8],
    "magnitude": [0.0, 0.0002, 0.004, 0.07, 0.9],
    "jitter": [0.0, 0.012, 0.2],
    "text_share": [0.0, 0.01, 0.5],
    "quality": [0.2, 0.6, 0.8, 1.0],
}


@st.composite
def clips_with_scores(draw):
    made = []
    for index in range(draw(st.integers(1, 4))):
        row = clip(index, media_kind=draw(st.sampled_from(["video", "image"])))
        found = {}
        for key in SOUND:
            kind = draw(st.sampled_from(["ok", "ok", "ok", "ok", "absent", "unscored", "error"]))
            if kind == "ok":
                found[key] = (draw(st.sampled_from(VALUES[key[1]])), "ok")
            elif kind != "absent":
                found[key] = (None, kind)
        made.append((row, found))
    return made


@settings(max_examples=60, deadline=None)
@given(made=clips_with_scores(), shuffled=st.randoms(use_true_random=False))
def test_the_frame_form_agrees_with_the_rules_read_one_clip_at_a_time(made, shuffled):
    scores = [
        score(row, *key, value, status=status)
        for row, found in made
        for key, (value, status) in found.items()
    ]
    rows, clips = frames([row for row, _ in made], scores)
    rows = (
        rows.sample(fraction=1.0, shuffle=True, seed=shuffled.randint(0, 99))
        if rows.height
        else rows
    )
    decided = funnel.evaluate_gates(rows, clips, GATES, TIERS)
    stops = dict(
        funnel.stops_so_far(rows, clips, GATES).select("clip_id", "stopped_by").iter_rows()
    )
    assert decided["clip_id"].to_list() == sorted(row["clip_id"] for row, _ in made)
    by_id = {row["clip_id"]: row for row in decided.to_dicts()}
    for row, found in made:
        is_video, got = row["media_kind"] == "video", by_id[row["clip_id"]]
        assert got["stopped_by"] == slow_gate(found, is_video=is_video)
        is_known = got["stopped_by"] in funnel.GATING
        assert stops.get(row["clip_id"]) == (got["stopped_by"] if is_known else None)
        if got["passed"]:
            tier, value = slow_tier(found, is_video=is_video)
            assert got["tier"] == tier
            assert got["quality_value"] == (
                value if value is None else pytest.approx(value, abs=2e-6)
            )


# copies and the step -------------------------------------------------------------------------


def test_a_copy_is_stopped_and_its_better_twin_is_not():
    rows = [clip(0), clip(1), clip(2)]
    scores = [score(row, *key, value) for row in rows for key, value in SOUND.items()]
    scores = [each for each in scores if each["clip_id"] != rows[2]["clip_id"]]
    table, clips = frames(rows, scores)
    decided = funnel.evaluate_gates(table, clips, GATES, TIERS)
    canonical = dict.fromkeys((asset_id(0), asset_id(1), asset_id(2)), asset_id(1))
    after = funnel.stop_copies(decided, clips, canonical).to_dicts()
    assert [row["stopped_by"] for row in after] == ["near_duplicate", None, "unscored"]
    assert [row["tier"] for row in after] == [None, "T0", None]
    assert after[0]["reason"] == f"a better copy is {asset_id(1)}"
    assert funnel.stop_copies(decided, clips, {}).equals(decided)


def pair(a: int, b: int) -> dict[str, Any]:
    return {
        "asset_a": asset_id(a), "asset_b": asset_id(b), "kind": "whole", "coverage_a": 1.0,
        "coverage_b": 1.0, "mean_distance": 2.0, "is_mirrored": False, "a_start_s": 0.0,
        "a_end_s": 5.0, "b_start_s": 0.0, "b_end_s": 5.0, "num_matched": 5,
    }  # fmt: skip


def run_gates(root, clip_rows, scores, **context):
    by_table: dict[str, list] = {}
    for row in scores:
        by_table.setdefault(f"{row['filter']}_scores", []).append(row)
    run = step_run(
        root,
        funnel.STEP,
        {"clips": clip_rows, **by_table},
        context=context,
        params={"gates": asdict(GATES), "tiers": asdict(TIERS)},
    )
    return funnel.run(run)


def test_the_step_writes_the_last_word_and_shows_it(tmp_path):
    rows = [clip(0), clip(1), clip(2)]
    scores = [score(row, *key, value) for row in rows for key, value in SOUND.items()]
    scores[list(SOUND).index(("safety", "nsfw"))]["score"] = 0.95
    quality = [
        {"asset_id": asset_id(index), "rank_value": float(index), "bit_rate": index + 1,
         "width_px": 640, "height_px": 360}
        for index in range(3)
    ]  # fmt: skip
    result = run_gates(tmp_path, rows, scores, match_pairs=[pair(1, 2)], asset_quality=quality)
    made = tables.conform("gates", result.tables["gates"])
    assert made["stopped_by"].to_list() == ["safety", "near_duplicate", None]
    assert made["provisional_tier"].to_list() == [None, None, "T0"]
    assert made["asset_id"].to_list() == [asset_id(index) for index in range(3)]
    shown = result.display["gates"]
    assert "| test | video | stopped by safety | 1 |" in shown["funnel"]["raw_value"]
    assert shown["passed"]["raw_value"] == 1


def test_stopped_failed_and_unknown_are_shown_apart(tmp_path):
    rows = [clip(index) for index in range(4)]
    scores = [score(row, *key, value) for row in rows for key, value in SOUND.items()]
    by_clip = {
        (each["clip_id"], each["filter"], each["score_name"]): each for each in scores
    }  # fmt: skip
    for row, changed in zip(
        rows,
        ({"score": 0.95}, {"score": None, "status": "error", "reason": "ValueError: x"},
         {"score": None, "status": "unscored", "reason": "no frame pack"}, {}),
        strict=True,
    ):  # fmt: skip
        by_clip[row["clip_id"], "safety", "nsfw"].update(changed)
    result = run_gates(tmp_path, rows, scores)
    made = tables.conform("gates", result.tables["gates"])
    assert made["stopped_by"].to_list() == ["safety", "error", "unscored", None]
    shown = {name: told["raw_value"] for name, told in result.display["gates"].items()}
    names = ("clips", "passed", "stopped", "out_as_error", "out_as_unscored")
    assert [shown[name] for name in names] == [4, 1, 1, 1, 1]


def test_an_undecodable_copy_stands_for_nobody(tmp_path):
    rows = [clip(1)]
    scores = [score(row, *key, value) for row in rows for key, value in SOUND.items()]
    quality = [{"asset_id": asset_id(index), "rank_value": float(index)} for index in (1, 2)]
    lost = [{"asset_id": asset_id(2), "status": "quarantined"}]
    result = run_gates(
        tmp_path,
        rows,
        scores,
        match_pairs=[pair(1, 2)],
        asset_quality=quality,
        decode_status=lost,
    )
    assert result.tables["gates"]["passed"].to_list() == [True]


def test_an_empty_drop_gives_no_rows(tmp_path):
    result = run_gates(tmp_path, [], [])
    assert tables.conform("gates", result.tables["gates"]).is_empty()
