"""Tracks of actions and sensors: parsed, refused, and cut along clips."""

import io
import json

import numpy as np
import polars as pl
import pytest

from wsdata.errors import DecodeFailed
from wsdata.preprocess import actions
from wsdata.preprocess.action_parse import MAX_CHANNELS, cut_track, parse_track
from wsdata_tests.preprocess.score_support import asset_id, clip, step_run

CLIP = {"clip_id": "c", "start_s": 1.0, "end_s": 3.0, "num_frames": 48}


def parsed(text: str | bytes, suffix: str = ".csv"):
    data = text.encode() if isinstance(text, str) else text
    return parse_track(io.BytesIO(data), suffix)


def parquet(**columns) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "suffix"),
    [
        ("time_s,speed [m/s],gear\n0,1.5,1\n0.5,2.5,2\n", ".csv"),
        ("# a log\n\ntimestamp_ms;speed (m/s);gear\n0;1.5;1\n500;2.5;2\n", ".csv"),
        ("\ufeffT\tspeed [m/s]\tgear\n0.5\t2.5\t2\n0\t1.5\t1\n", ".csv"),
        ("time [us],speed [m/s],gear,note\n0,1.5,1,start\n500000,2.5,2,end\n", ".csv"),
        (
            parquet(
                **{"ts_ns": [0, 500_000_000], "speed [m/s]": [1.5, 2.5], "gear": [1, 2],
                   "who": ["a", "b"]}
            ),
            ".parquet",
        ),
    ],
)  # fmt: skip
def test_one_track_in_all_the_forms_that_are_known(data, suffix):
    track = parsed(data, suffix)
    assert track.times_n.tolist() == [0.0, 0.5]
    assert track.values_nc.tolist() == [[1.5, 1.0], [2.5, 2.0]]
    assert [(c.name, c.unit, c.kind) for c in track.channels] == [
        ("speed", "m/s", "continuous"),
        ("gear", None, "discrete"),
    ]


def test_rows_are_put_in_order_and_of_one_time_the_last_stands():
    track = parsed("t,x\n2,20\n0,1\nlater,5\n1,10\n0,2\n3,nan\n4,inf\n")
    assert track.times_n.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(track.values_nc[:, 0], [2, 10, 20, np.nan, np.nan])
    assert track.num_dropped == 2


def test_names_from_outside_are_kept_apart_and_clean():
    track = parsed("t,kind,größe,größe,a\x1b[31mb\n0,1,2,3,4\n".encode("latin-1"))
    assert [c.name for c in track.channels] == ["kind_2", "größe", "größe_2", "a[31mb"]


@pytest.mark.parametrize(
    ("data", "suffix", "why"),
    [
        (b"", ".csv", "no header line"),
        (b"\n\n \n", ".csv", "no header line"),
        (b"no track at all", ".csv", "no column of times"),
        (b"a,b\n1,2\n", ".csv", "no column of times"),
        (b"t\n1\n2\n", ".csv", "no column of numbers beside the time"),
        (b"t,x\n", ".csv", "0 of 0 rows"),
        (b"t,x\n0:00:01,1\n0:00:02,2\n1,2\n", ".csv", "2 of 3 rows"),
        (b"t;x\n0,5;1\n0,6;2\n", ".csv", "2 of 2 rows"),
        (b"\0\1\2\3" * 99, ".csv", "null bytes"),
        (b"t," + b"x," * MAX_CHANNELS + b"y\n0\n", ".csv", "columns"),
        (b"t" * (1 << 17), ".csv", "no column of times"),
        (b"PAR1 garbage PAR1", ".parquet", "no readable Parquet"),
        (b"t,x\n0,1\n", ".parquet", "no readable Parquet"),
        (parquet(t=["0", "1"], x=["a", "b"]), ".parquet", "no column of times"),
    ],
)
def test_what_is_no_track_is_refused_with_the_reason(data, suffix, why):
    with pytest.raises(DecodeFailed, match=why):
        parsed(data, suffix)


def _cut(text: str, span=CLIP):
    told, data = cut_track(parsed(text), span)
    return told, pl.read_parquet(io.BytesIO(data)) if data else None


def test_a_cut_holds_the_rows_as_they_came_and_a_value_for_each_frame():
    times = np.arange(0, 40) / 10
    text = "t,x,key\n" + "".join(f"{t:.1f},{3 * t:.3f},{int(t >= 2)}\n" for t in times)
    told, rows = _cut(text)
    assert (told["status"], told["num_rows"], told["rate_hz"]) == ("kept", 20, 10.0)
    raw = rows.filter(pl.col("kind") == "raw")
    np.testing.assert_allclose(raw["time_s"], times[10:30] - 1, atol=1e-9)
    np.testing.assert_allclose(raw["x"], 3 * times[10:30], atol=1e-9)
    frames = rows.filter(pl.col("kind") == "frame")
    assert frames["frame_index"].to_list() == list(range(48))
    np.testing.assert_allclose(frames["x"], 3 * (1 + np.arange(48) / 24), atol=1e-9)
    assert frames["key"].to_list() == [0.0] * 24 + [1.0] * 24


def test_nothing_is_made_up_over_a_gap():
    text = "t,x\n" + "".join(f"{t / 10},1.5\n" for t in (*range(18), *range(26, 40)))
    told, rows = _cut(text)
    frames = rows.filter(pl.col("kind") == "frame")
    times = 1 + frames["time_s"].to_numpy()
    is_null = frames["x"].is_null().to_numpy()
    inside = (times > 1.7 + 1e-9) & (times < 2.6 - 1e-9)
    assert (is_null == inside).all()
    assert told["coverage_share"] == pytest.approx(1 - inside.mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("first_s", "status"), [(0.0, "kept"), (1.4, "kept"), (2.4, "misaligned"), (1e9, "misaligned")]
)
def test_a_track_of_another_time_is_misaligned(first_s, status):
    text = "t,x\n" + "".join(f"{first_s + t / 10!r},1.5\n" for t in range(40))
    told, rows = _cut(text)
    assert told["status"] == status
    assert (rows is None) == (status == "misaligned")
    assert (told["reason"] is None) == (status == "kept")


def test_the_step_cuts_what_came_and_says_what_did_not(tmp_path):
    texts = {
        0: b"time_s,steer\n" + b"".join(b"%.2f,%.3f\n" % (i / 20, i % 7 / 10) for i in range(200)),
        1: b"time_s,steer\n0,abc\n",
        2: b"time_ms,steer\n" + b"".join(b"%d,%d\n" % (90_000 + i, i) for i in range(100)),
    }
    clips = [clip(index) for index in range(4)]
    provenance = [
        {"asset_id": asset_id(index), "path": f"{index}.mp4", "in_vault": False}
        | ({"actions_key": f"raw/{index}", "actions_suffix": ".csv"} if index in texts else {})
        for index in range(4)
    ]
    run = step_run(tmp_path, actions.STEP, {"clips": clips, "provenance": provenance})
    for index, text in texts.items():
        run.store.put(f"raw/{index}", text)
    table = actions.run(run).tables["action_tracks"]
    rows = {row["asset_id"]: row for row in table.to_dicts()}
    told = [
        (rows[asset_id(index)]["status"], rows[asset_id(index)]["reason"]) for index in range(4)
    ]
    assert [status for status, _ in told] == ["kept", "broken", "misaligned", "none"]
    assert "no column of numbers" in told[1][1]
    assert "its rows span [90.000, 90.099] s" in told[2][1]
    kept = rows[asset_id(0)]
    cut = pl.read_parquet(io.BytesIO(run.store.get(kept["key"])))
    assert cut.filter(pl.col("kind") == "frame").height == 120
    assert kept["num_rows"] == cut.filter(pl.col("kind") == "raw").height == 100
    assert json.loads(kept["channels_json"]) == [
        {"name": "steer", "unit": None, "kind": "continuous"}
    ]
    assert actions.run(run).tables["action_tracks"].equals(table)
