import statistics

import polars as pl
import pytest

from wsdata import tables
from wsdata.observability.drift import SLICE_SHARE, STEP, drift_rows, in_reference_slice
from wsdata_tests.lifecycle.fabricated import A

FROZEN = [0, 6, 13]


def _scores(shift=0.0, model="m1", clips=range(400)):
    return tables.rows_of(
        "quality_scores",
        [
            {"clip_id": f"clip {n}", "filter": "quality", "score_name": "quality",
             "model_version": model, "status": "ok", "score": n / 400 + shift}
            for n in clips
        ],
    )  # fmt: skip


def test_the_slice_is_frozen():
    """These very clips belong to it, whatever else there is: a changed rule is a new slice."""
    assert [n for n in range(24) if in_reference_slice(f"clip {n}")] == FROZEN
    share = sum(in_reference_slice(f"clip {n}") for n in range(4000)) / 4000
    assert share == pytest.approx(SLICE_SHARE, abs=0.03)


def test_the_rows_are_those_of_a_slow_summary():
    rows = drift_rows(pl.concat([_scores(), _scores(0.25, "m2")])).to_dicts()
    kept = [n / 400 for n in range(400) if in_reference_slice(f"clip {n}")]
    assert [(r["model_version"], r["num_clips"]) for r in rows] == [
        ("m1", len(kept)), ("m2", len(kept))
    ]  # fmt: skip
    assert rows[0]["mean"] == pytest.approx(statistics.fmean(kept))
    assert {rows[0][name] for name in ("p10", "p50", "p90")} <= set(kept)
    assert rows[0]["p10"] < rows[0]["p50"] < rows[0]["p90"]
    assert (rows[0]["shift"], rows[1]["shift"]) == (0.0, pytest.approx(0.25))


def test_neither_order_nor_the_same_clip_in_two_drops_changes_anything():
    once = drift_rows(_scores())
    twice = pl.concat([_scores(), _scores()]).sample(fraction=1, shuffle=True, seed=1)
    assert drift_rows(twice).equals(once)


def test_new_material_moves_no_clip_in_or_out():
    few = drift_rows(_scores(clips=range(100)))["num_clips"][0]
    rest = drift_rows(_scores(clips=range(100, 400)))["num_clips"][0]
    assert few + rest == drift_rows(_scores())["num_clips"][0]


def test_the_step_sees_every_live_version(home):
    newer = home.rows("quality_scores", A).to_dicts()
    newer = [{**row, "model_version": "quality-2", "score": 0.9} for row in newer]
    home.commit(A, {"quality_scores": newer}, version="2")
    report = home.run_step(STEP, "all")
    quality = home.rows("drift").filter(pl.col("filter") == "quality")
    counts = dict(quality.select("model_version", "num_clips").iter_rows())
    all_clips, of_a = set(home.rows("clips")["clip_id"]), set(home.rows("clips", A)["clip_id"])
    wanted = {"quality-1": all_clips, "quality-2": of_a}
    sizes = {k: sum(map(in_reference_slice, clips)) for k, clips in wanted.items()}
    assert counts == {k: size for k, size in sizes.items() if size}
    assert counts
    assert report.display["drift"]["reference_slice"]["raw_value"].startswith("| filter |")
