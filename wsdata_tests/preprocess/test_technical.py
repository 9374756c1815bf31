import pytest

from wsdata import tables
from wsdata.preprocess.filters import technical
from wsdata_tests.preprocess.score_support import clip, step_run

OK = {
    "status": "ok",
    "reason": None,
    "num_errors": 0,
    "frames_promised": 125,
    "frames_decoded": 125,
}
PROBE = {"bit_rate": 576_000}
RUNG = {"rung": "256p", "num_frames": 120, "fps": 24.0}


def scores(clip_row, *, status=OK, probe=PROBE, transcodes=(RUNG,)):
    return technical.technical_scores(
        clip_row, status=status, probe=probe, transcodes=list(transcodes)
    )


def test_a_sound_clip():
    found = scores(clip())
    assert {name: entry["score"] for name, entry in found.items()} == {
        "is_decodable": 1.0,
        "duration_s": 5.0,
        "rung_px": 256.0,
        "error_share": 0.0,
        "missing_share": 0.0,
        "bits_per_pixel": 0.1,  # 576,000 bits over 640 x 360 x 25 pixels
    }


def test_length_is_that_of_the_shortest_produced_file():
    short = {"rung": "512p", "num_frames": 47, "fps": 24.0}
    found = scores(clip(top_rung="512p"), transcodes=[RUNG, short])
    assert found["duration_s"]["score"] == pytest.approx(47 / 24, abs=1e-6)
    assert scores(clip(duration_s=1.5))["duration_s"]["score"] == 1.5


def test_damage_is_counted_in_errors_and_missing_frames():
    salvaged = OK | {
        "status": "salvaged",
        "num_errors": 3,
        "frames_promised": 360,
        "frames_decoded": 161,
    }
    found = scores(clip(), status=salvaged)
    assert found["is_decodable"]["score"] == 1.0
    assert found["error_share"]["score"] == round(3 / 161, 6)
    assert found["missing_share"]["score"] == round(1 - 161 / 360, 6)
    worst = scores(clip(), status=OK | {"num_errors": 9, "frames_decoded": 0})
    assert worst["error_share"]["score"] == 1.0


@pytest.mark.parametrize(
    ("status", "transcodes", "why"),
    [
        (OK | {"status": "quarantined", "reason": "no frames"}, [RUNG], "quarantined: no frames"),
        (OK, [], "no transcode at 256p"),
        (OK, [RUNG | {"num_frames": 0}], "no frame in the transcode at 256p"),
    ],
)
def test_a_broken_clip_says_why(status, transcodes, why):
    entry = scores(clip(), status=status, transcodes=transcodes)["is_decodable"]
    assert (entry["score"], entry["detail"]) == (0.0, {"why": why})


def test_below_every_rung_there_is_nothing_to_transcode():
    found = scores(clip(top_rung=None), transcodes=[])
    assert found["rung_px"]["score"] == 0.0
    assert found["is_decodable"]["score"] == 1.0
    assert found["duration_s"]["score"] == 5.0


def test_what_was_not_told_is_unscored_and_never_zero():
    found = scores(clip(), status=None, probe=None)
    for name in ("is_decodable", "error_share", "missing_share", "bits_per_pixel"):
        assert (found[name]["score"], found[name]["status"]) == (None, "unscored")
    promised_nothing = scores(clip(), status=OK | {"frames_promised": 0})["missing_share"]
    assert promised_nothing["reason"] == "the container promises no number of frames"


def test_a_still_has_no_length():
    found = scores(
        clip(media_kind="image", duration_s=0.001), transcodes=[RUNG | {"num_frames": 1}]
    )
    assert found["duration_s"]["reason"] == "still"
    assert found["is_decodable"]["score"] == 1.0


def test_the_step_joins_clips_with_their_assets_rows(tmp_path):
    clips = [clip(0), clip(1)]
    run = step_run(
        tmp_path,
        technical.STEP,
        {
            "clips": clips,
            "decode_status": [OK | {"asset_id": row["asset_id"]} for row in clips],
            "probes": [{"asset_id": clips[1]["asset_id"], "bit_rate": 1_152_000}],
            "transcodes_256p": [RUNG | {"clip_id": clips[1]["clip_id"]}],
        },
    )
    result = technical.run(run)
    table = tables.conform("technical_scores", result.tables["technical_scores"])
    found = {(row["clip_id"], row["score_name"]): row["score"] for row in table.to_dicts()}
    assert found[clips[0]["clip_id"], "is_decodable"] == 0.0
    assert found[clips[1]["clip_id"], "is_decodable"] == 1.0
    assert found[clips[0]["clip_id"], "bits_per_pixel"] is None
    assert found[clips[1]["clip_id"], "bits_per_pixel"] == 0.2
