"""What the UI tells of a decoded drop: every file, the worst first."""

import polars as pl
import pytest

from wsdata import tables
from wsdata.preprocess.decode_display import MAX_FILES, decode_display
from wsdata.preprocess.decode_step import STEP

REASONS = {"quarantined": "cannot be opened", "salvaged": "cut | off\nat 2 s", "empty": "no bytes"}


def shown(statuses):
    """The files' table, of a drop whose files are named by their number."""
    rows = [
        {"asset_id": f"{index:064x}", "status": status, "reason": REASONS.get(status),
         "num_clips": int(status == "ok"), "attempts": 1}
        for index, status in enumerate(statuses)
    ]  # fmt: skip
    made = {name: tables.empty(name) for name in STEP.tables}
    made["decode_status"] = tables.rows_of("decode_status", rows)
    paths = {row["asset_id"]: f"{index:05d}.mp4" for index, row in enumerate(rows)}
    return decode_display(made, paths)["decode_status"]["files"]["raw_value"]


def cells(text):
    lines = [line for line in text.splitlines()[2:] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_file_is_told_with_its_reason_the_worst_first():
    rows = cells(shown(["ok", "empty", "quarantined", "ok", "salvaged"]))
    assert [row[:2] for row in rows] == [
        ["00002.mp4", "quarantined"], ["00004.mp4", "salvaged"], ["00001.mp4", "empty"],
        ["00000.mp4", "ok"], ["00003.mp4", "ok"],
    ]  # fmt: skip
    assert [row[-1] for row in rows] == ["cannot be opened", "cut / off at 2 s", "no bytes", "", ""]


@pytest.mark.parametrize("extra", [0, 1])
def test_of_a_large_drop_the_worst_are_told_and_where_the_rest_is(extra):
    text = shown(["ok"] * (MAX_FILES + extra - 3) + ["quarantined"] * 3)
    rows = cells(text)
    assert len(rows) == MAX_FILES
    assert pl.Series([row[1] for row in rows]).value_counts().height == 2
    assert [row[1] for row in rows[:3]] == ["quarantined"] * 3
    assert ("wsdata funnel" in text) == bool(extra)
    assert (f"of {MAX_FILES + 1} files" in text) == bool(extra)
