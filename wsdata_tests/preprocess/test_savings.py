"""What the order of the filters saves, from rows and from what workers said of their pace."""

import datetime as dt
import json

import polars as pl
import pytest

from wsdata import tables
from wsdata.preprocess.filters import faces, motion, overlay, safety
from wsdata.preprocess.filters.rows import gate_inputs
from wsdata.preprocess.funnel import GATING
from wsdata.preprocess.savings import clip_cost_s, show_spared, spared
from wsdata.store import FolderStore
from wsdata.units import SPEEDS_FORMAT, speeds_of
from wsdata_tests.preprocess.score_support import clip, score

TODAY = dt.datetime.now(dt.UTC).date()


def told(store, name, days_ago, made_s, num_made, *, version=SPEEDS_FORMAT):
    day = TODAY - dt.timedelta(days=days_ago)
    key = f"{speeds_of('preprocess', f'{name}_scores')}{day:%Y%m%d}T000000.{num_made:06d}Z-x.json"
    pace = {"num_made": num_made, "num_kept": 0, "made_s": made_s, "amounts": {}}
    body = {"format_version": version, "kinds": {"unit": pace}}
    store.put(key, json.dumps(body).encode())


@pytest.fixture
def rows():
    """Three clips; one stopped as too short before all networks, one as unsafe after the first."""
    clips = [clip(index) for index in range(3)]
    scores = [
        score(clips[0], "safety", "nsfw", None, reason="gated by technical: too short: 1 s of 2"),
        *(
            score(clips[at], name, part, None, reason=f"gated by {by}: words")
            for at, by in ((0, "technical"), (1, "safety"))
            for name in ("motion", "overlay")
            for part in ("one", "two")
        ),
        score(clips[2], "motion", "one", None, reason="no frame pair"),
    ]
    frames = [
        tables.rows_of(f"{name}_scores", [row for row in scores if row["filter"] == name])
        for name in ("safety", "motion", "overlay")
    ]
    return pl.concat(frames), tables.rows_of("clips", clips)


def test_filters_that_stop_come_before_those_that_do_not():
    asked = [each.table.removesuffix("_scores") for each in gate_inputs("overlay")]
    assert asked == list(GATING)
    assert [each.table for each in gate_inputs("safety")] == [
        "safety_list_scores", "technical_scores",
    ]  # fmt: skip
    for module in (motion, overlay, faces):
        read = [each.table for each in module.STEP.inputs if each.is_context]
        assert read == [f"{name}_scores" for name in GATING]
    assert {each.table for each in safety.STEP.inputs if each.is_context} == {
        "safety_list_scores", "technical_scores",
    }  # fmt: skip


def test_a_clip_is_spared_once_by_the_gate_that_stopped_it(rows):
    assert spared(*rows).rows() == [
        ("motion", "test", "safety", 1, 5.0),
        ("motion", "test", "technical", 1, 5.0),
        ("overlay", "test", "safety", 1, 5.0),
        ("overlay", "test", "technical", 1, 5.0),
        ("safety", "test", "technical", 1, 5.0),
    ]


def test_what_was_saved_is_priced_by_the_newest_workers(rows, tmp_path):
    store = FolderStore(tmp_path)
    assert clip_cost_s(store, "motion", today=TODAY) is None
    told(store, "motion", 3, 90.0, 1)
    told(store, "motion", 1, 4.0, 8)
    told(store, "motion", 1, 2.0, 4, version=SPEEDS_FORMAT + 1)
    assert clip_cost_s(store, "motion", today=TODAY) == 0.5
    scores, clips = rows
    lines = show_spared(scores, clips, store).splitlines()
    assert lines[2] == "| motion | safety | 1 | 5.0 | 0.5 | 0.5 |"
    assert lines[4] == "| overlay | safety | 1 | 5.0 |  |  |"
