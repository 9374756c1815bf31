import random

import polars as pl
import pytest

from wsdata import tables
from wsdata.observability.killrates import NUM_BINS, STEP, kill_rates, score_histograms
from wsdata_tests.lifecycle.fabricated import B

SOURCES, STATUSES = ("acme", "web"), ("ok", "ok", "ok", "error", "unscored")
REASONS = ("no frame pack", "gated by technical: too short", "gated by safety: 0.9", None)
RANGES = {"audio": (-90.0, 0.0), "faces": (0.0, 7.0)}


def _made_up(seed):
    rng = random.Random(seed)  # noqa: S311
    clips = [
        {"clip_id": f"c{n:03d}", "source": rng.choice(SOURCES), "duration_s": float(n)}
        for n in range(60)
    ]
    scores, gates = [], []
    for clip in clips:
        of_clip = {name: clip[name] for name in ("clip_id", "source")}
        for name in tables.FILTERS:
            status = rng.choice(STATUSES)
            score = rng.uniform(*RANGES.get(name, (0.0, 1.0)))
            scores.append(
                {**of_clip, "filter": name, "score_name": "value", "model_version": "1",
                 "status": status, "score": score if status == "ok" else None,
                 "reason": rng.choice(REASONS) if status == "unscored" else None}
            )  # fmt: skip
        by = rng.choice(("technical", "safety", "near_duplicate", None, None))
        gates.append({"clip_id": clip["clip_id"], "passed": by is None, "stopped_by": by})
    frames = [
        tables.rows_of(f"{name}_scores", [s for s in scores if s["filter"] == name])
        for name in tables.FILTERS
    ]
    return tables.rows_of("clips", clips), tables.rows_of("gates", gates), pl.concat(frames)


def _slow_rates(clips, gates, scores):
    source_of = {row["clip_id"]: row["source"] for row in clips.to_dicts()}
    counts = {}
    for source in set(source_of.values()):
        for name in tables.FILTERS:
            mine = [s for s in scores.to_dicts() if (s["filter"], s["source"]) == (name, source)]
            stopped = [
                g for g in gates.to_dicts()
                if g["stopped_by"] == name and source_of[g["clip_id"]] == source
            ]  # fmt: skip
            seen = {s["clip_id"] for s in mine if s["status"] == "ok"}
            failed = {s["clip_id"] for s in mine if s["status"] == "error"}
            spared = {s["clip_id"] for s in mine if (s["reason"] or "").startswith("gated by ")}
            saved = {
                (s["clip_id"], s["filter"]) for s in scores.to_dicts()
                if s["source"] == source and (s["reason"] or "").startswith(f"gated by {name}:")
            }  # fmt: skip
            rest = {s["clip_id"] for s in mine} - seen - failed - spared
            counts[name, source] = (
                len(seen), len(stopped), len(failed), len(rest), len(spared),
                sum(float(clip_id[1:]) for clip_id in spared), len(saved),
            )  # fmt: skip
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_kill_rates_count_as_a_slow_count_does(seed):
    clips, gates, scores = _made_up(seed)
    rates = kill_rates(clips, gates, scores.sample(fraction=1, shuffle=True, seed=seed), drop=B)
    found = {
        (r["filter"], r["source"]): (
            r["num_in"],
            r["num_stopped"],
            r["num_errors"],
            r["num_unscored"],
            r["num_spared"],
            r["spared_media_s"],
            r["saved_scorings"],
        )
        for r in rates.to_dicts()
    }
    assert found == _slow_rates(clips, gates, scores)
    for row in rates.to_dicts():
        assert row["kill_share"] == row["num_stopped"] / max(row["num_in"], 1)
        assert row["drop"] == B


@pytest.mark.parametrize("seed", range(3))
def test_histograms_put_every_score_in_the_bin_that_spans_it(seed):
    scores = _made_up(seed)[2]
    rows = score_histograms(scores.sample(fraction=1, shuffle=True, seed=seed)).to_dicts()
    known = scores.filter(pl.col("status") == "ok")
    assert sum(row["num_clips"] for row in rows) == known.height
    for row in rows:
        assert 0 <= row["bin"] < NUM_BINS
        mine = known.filter(
            (pl.col("filter") == row["filter"]) & (pl.col("source") == row["source"])
        )["score"].to_list()
        is_last = row["bin"] == NUM_BINS - 1
        inside = [s for s in mine if row["low"] <= s and (s < row["high"] or is_last)]
        assert len(inside) == row["num_clips"]
    assert min(row["low"] for row in rows if row["filter"] == "audio") < -60


def test_a_histogram_reads_a_threshold_off(home):
    rows = score_histograms(home.rows("quality_scores", B))
    assert rows["low"].min() == 0.0
    above = home.rows("quality_scores", B).filter(pl.col("score") >= 0.55).height
    assert rows.filter(pl.col("low") >= 0.549)["num_clips"].sum() == above > 0


def test_the_step_counts_one_drop(home):
    report = home.run_step(STEP, B)
    rates = {row["filter"]: row for row in home.rows("kill_rates", B).to_dicts()}
    assert (rates["safety"]["num_in"], rates["safety"]["num_stopped"]) == (12, 1)
    assert (rates["audio"]["num_in"], rates["audio"]["num_errors"]) == (11, 1)
    assert rates["faces"]["num_in"] == 6
    shown = report.display["kill_rates"]["rates"]["raw_value"]
    assert "| safety | web | 12 | 1 | 0 | 8.3% | 0 | 0 | 0 |" in shown
    assert home.rows("score_histograms", B).height > 0


def test_no_clips_no_rates():
    nothing = kill_rates(*(tables.empty(t) for t in ("clips", "gates", "motion_scores")), drop=B)
    assert nothing.is_empty()
    assert score_histograms(tables.empty("motion_scores")).is_empty()
