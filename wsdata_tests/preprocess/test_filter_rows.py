"""What all filters share, tried on a filter whose score is the brightness of its frames."""

import json

import numpy as np
import polars as pl
import pytest

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, ObjectMissing, StepFailed
from wsdata.preprocess.filters import motion, rows
from wsdata.preprocess.framepack import FramePack, PackedFrame, write_framepack
from wsdata_tests.preprocess.score_support import clip, score, step_run

SPEC = rows.Filter(name="motion", model_version="bright-1", score_names=("bright", "dark"))
STEP = rows.pack_step(SPEC, "brightness")


def grey_pack(level: int) -> bytes:
    frame = PackedFrame(0.5, np.full((24, 32, 3), level, np.uint8))
    return write_framepack(FramePack(colors=[frame], luma_pairs=[]))


def bright(pack, _clip):
    level = pack.colors[0].pixels.mean() / 255
    if level > 0.9:
        raise RuntimeError(f"too bright at {id(pack):#x}")
    return {
        "bright": rows.scored(level, {"level": int(level * 255)}),
        "dark": rows.scored(1 - level),
    }


def brightness_run(root, levels, *, technical=(), settings=None):
    """A run over clips whose packs are of one grey each; the packs lie in the store."""
    clips = [clip(index) for index in range(len(levels))]
    packs = []
    for row, level in zip(clips, levels, strict=True):
        data = grey_pack(level)
        packs.append(
            {
                "clip_id": row["clip_id"],
                "asset_id": row["asset_id"],
                "key": f"packs/{row['clip_id']}",
                "sha256": sha256_bytes(data),
                "size_bytes": len(data),
            }
        )
    run = step_run(
        root,
        STEP,
        {"clips": clips, "frame_packs": packs},
        context={"technical_scores": list(technical)},
        settings=settings,
    )
    for pack, level in zip(packs, levels, strict=True):
        run.store.put(pack["key"], grey_pack(level))
    return run


def scores_of(result) -> list[tuple]:
    table = tables.conform("motion_scores", result.tables["motion_scores"])
    return table.filter(pl.col("score_name") == "bright").select("status", "score").rows()


def test_every_clip_has_one_row_per_score(tmp_path):
    result = rows.score_packs(brightness_run(tmp_path, [51, 102]), SPEC, bright)
    table = tables.conform("motion_scores", result.tables["motion_scores"])
    assert table.select("clip_id", "score_name", "score", "status", "filter", "source").rows() == [
        (clip(0)["clip_id"], "bright", 0.2, "ok", "motion", "test"),
        (clip(0)["clip_id"], "dark", 0.8, "ok", "motion", "test"),
        (clip(1)["clip_id"], "bright", 0.4, "ok", "motion", "test"),
        (clip(1)["clip_id"], "dark", 0.6, "ok", "motion", "test"),
    ]
    assert table["model_version"].unique().to_list() == ["bright-1"]
    assert json.loads(table["detail_json"][0]) == {"level": 51}
    assert result.display["motion_scores"]["scored"]["raw_value"] == 2
    assert "**bright** (2 clips)" in result.display["motion_scores"]["histograms"]["raw_value"]


def test_one_failure_is_that_clips_alone_and_counted_apart(tmp_path):
    run = brightness_run(tmp_path, [51, 250, 102])
    result = rows.score_packs(run, SPEC, bright)
    assert scores_of(result) == [("ok", 0.2), ("error", None), ("ok", 0.4)]
    assert result.metrics["num_errors"] == 1
    assert result.metrics["num_unscored"] == 0
    again = rows.score_packs(run, SPEC, bright)
    # The message held an address; rows must not.
    assert again.tables["motion_scores"].equals(result.tables["motion_scores"])


def test_a_filter_that_raises_on_every_clip_fails_the_step(tmp_path):
    run = brightness_run(tmp_path, [250] * 4)
    with pytest.raises(StepFailed, match=r"4 of 4 clips failed(.|\n)*RuntimeError: too bright"):
        rows.score_packs(run, SPEC, bright)


@pytest.mark.parametrize("levels", [[250] * 3, [250] * 4 + [51] * 4])
def test_at_the_bound_the_step_still_stands(tmp_path, levels):
    result = rows.score_packs(brightness_run(tmp_path, levels), SPEC, bright)
    assert result.metrics["num_errors"] == levels.count(250)


def test_a_pack_that_does_not_decode_is_that_clips_failure(tmp_path):
    broken = b"not a pack"
    row = {"clip_id": clip(0)["clip_id"], "key": "packs/0", "sha256": sha256_bytes(broken)}
    run = step_run(tmp_path, STEP, {"clips": [clip(0)], "frame_packs": [row]})
    run.store.put("packs/0", broken)
    result = rows.score_packs(run, SPEC, bright)
    assert scores_of(result) == [("error", None)]
    assert result.tables["motion_scores"]["reason"][0].startswith("DecodeFailed: frame pack of 10")


def test_a_falsified_pack_ends_the_step(tmp_path):
    run = brightness_run(tmp_path, [51, 102])
    run.store.delete(f"packs/{clip(0)['clip_id']}")
    run.store.put(f"packs/{clip(0)['clip_id']}", b"not a pack")
    with pytest.raises(IntegrityError, match="delete the object and run again"):
        rows.score_packs(run, SPEC, bright)


def test_a_lost_pack_ends_the_step_rather_than_unscoring_the_clip(tmp_path):
    run = brightness_run(tmp_path, [51, 102])
    run.store.delete(f"packs/{clip(1)['clip_id']}")
    with pytest.raises(ObjectMissing):
        rows.score_packs(run, SPEC, bright)


def test_a_clip_without_a_pack_is_unscored(tmp_path):
    run = step_run(tmp_path, STEP, {"clips": [clip(0)]})
    result = rows.score_packs(run, SPEC, bright)
    assert scores_of(result) == [("unscored", None)]
    assert result.tables["motion_scores"]["reason"].unique().to_list() == ["no frame pack"]


def test_what_the_technical_gate_stops_costs_nothing(tmp_path):
    short = [
        score(clip(0), "technical", name, value)
        for name, value in (("is_decodable", 1.0), ("rung_px", 256.0), ("duration_s", 3.0))
    ]
    seen = []

    def watched(pack, row):
        seen.append(row["clip_id"])
        return bright(pack, row)

    gates = {"min_duration_s": 4.0, "max_error_share": 0.05, "safety_max": 0.8}
    run = brightness_run(tmp_path, [51, 102], technical=short, settings={"gates": gates})
    result = rows.score_packs(run, SPEC, watched)
    assert scores_of(result) == [("unscored", None), ("ok", 0.4)]
    assert result.tables["motion_scores"]["reason"][0] == (
        "gated by technical: too short: 3.0 s of 4.0"
    )
    assert seen == [clip(1)["clip_id"]]
    # A recipe that lets it pass has it scored: nothing was remembered of the gate's word.
    run = brightness_run(tmp_path, [51, 102], technical=short)
    assert scores_of(rows.score_packs(run, SPEC, watched)) == [("ok", 0.2), ("ok", 0.4)]
    assert seen == [clip(1)["clip_id"], clip(0)["clip_id"]]


def test_a_killed_step_resumes_and_ends_with_the_same_rows(tmp_path):
    class KilledError(BaseException):
        pass

    calls = []

    def dies_at_third(pack, row):
        calls.append(row["clip_id"])
        if len(calls) == 3:
            raise KilledError
        return bright(pack, row)

    with pytest.raises(KilledError):
        rows.score_packs(brightness_run(tmp_path / "a", [10, 20, 30, 40]), SPEC, dies_at_third)
    resumed = rows.score_packs(
        brightness_run(tmp_path / "a", [10, 20, 30, 40]), SPEC, dies_at_third
    )
    assert len(calls) == 3 + 2
    undisturbed = rows.score_packs(brightness_run(tmp_path / "b", [10, 20, 30, 40]), SPEC, bright)
    name = "motion_scores"
    assert tables.to_parquet(resumed.tables[name]) == tables.to_parquet(undisturbed.tables[name])


def test_a_model_that_does_not_load_is_the_steps_failure(tmp_path):
    def load():
        raise ImportError("no module named rapidocr")

    run = brightness_run(tmp_path, [51])
    with pytest.raises(StepFailed, match="model of bright-1 does not load"):
        rows.score_packs(run, SPEC, bright, load=load)
    # Without a clip to score there is no need of it.
    empty = step_run(tmp_path, STEP, {})
    assert rows.score_packs(empty, SPEC, bright, load=load).metrics["num_clips"] == 0


def test_a_score_that_is_not_finite_is_refused(tmp_path):
    run = brightness_run(tmp_path, [51])
    nan = lambda pack, row: dict.fromkeys(SPEC.score_names, rows.scored(float("nan")))  # noqa: E731
    result = rows.score_packs(run, SPEC, nan)
    assert scores_of(result) == [("error", None)]


def test_an_empty_drop_gives_no_rows_and_something_to_show(tmp_path):
    result = motion.run(step_run(tmp_path, motion.STEP, {}))
    assert tables.conform("motion_scores", result.tables["motion_scores"]).is_empty()
    assert result.display["motion_scores"]["clips"]["raw_value"] == 0
