"""Spans in source time stamps against how each file was made: every rate, start and edit."""

import json
from fractions import Fraction

import numpy as np
import pytest

from wsdata.errors import RecipeError
from wsdata.preprocess.decode_step import STEP
from wsdata.preprocess.onepass import decode_job
from wsdata.preprocess.windows import window_params
from wsdata.recipe import recipe_from
from wsdata_tests import synthetic

SIZE = (128, 72)  # below every rung: spans alone are made
NTSC = Fraction(30000, 1001)
FILM = Fraction(24000, 1001)


def _decode(file, out_dir, **changed):
    """Run the pass over a file of this module; what every one of them must hold is checked here."""
    out_dir.mkdir(exist_ok=True)
    with file.open("rb") as source:
        told = decode_job({"path": "plain", **window_params(), **changed}, source, out_dir)
    _check_spans(told, _shown_s(file))
    return json.loads(json.dumps(told, allow_nan=False))


def _shown_s(file):
    """How long a file's frames are shown, by the container's own stamps, none of our code."""
    import av

    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        shown = [(frame.pts, frame.duration) for frame in container.decode(stream)]
        (first, _), (before, _), (last, stated) = shown[0], shown[-2], shown[-1]
        return (last + (stated or last - before) - first) * stream.time_base


def _check_spans(told, shown_s):
    """H13: start < end <= duration, one after another, in ticks and in seconds."""
    assert told["clips"]
    origin_s, before_s = None, None
    for clip, (start_s, end_s) in zip(told["clips"], _spans_s(told), strict=True):
        origin_s = start_s - Fraction(clip["start_s"]) if origin_s is None else origin_s
        assert 0 <= clip["start_s"] < clip["end_s"] <= told["decoded_s"] + 1e-9, clip
        assert start_s < end_s <= float(origin_s + shown_s) + 1e-6, clip
        assert clip["duration_s"] == pytest.approx(float(end_s - start_s), abs=1e-6), clip
        assert clip["end_s"] - clip["start_s"] == pytest.approx(clip["duration_s"], abs=1e-6)
        assert before_s is None or before_s <= start_s, clip
        before_s = end_s


def _spans_s(told):
    """Spans as exact seconds, from time stamps; the first frame's stamp is the origin."""
    made = []
    for clip in told["clips"]:
        tick = Fraction(*map(int, clip["time_base"].split("/")))
        made.append((clip["start_pts"] * tick, clip["end_pts"] * tick))
    return made


def _ends(told, origin_s=0):
    return [(float(start - origin_s), float(end - origin_s)) for start, end in _spans_s(told)]


@pytest.mark.parametrize(
    ("fps", "frames"),
    [(FILM, (1001, 60)), (NTSC, (1001, 75)), (24, (107, 96)), (60, (121, 150))],
)
def test_a_cut_is_at_its_frame_at_any_rate(tmp_path, fps, frames):
    seconds = [Fraction(count) / Fraction(fps) for count in frames]
    segments = tuple(zip(("bars", "rings"), seconds, strict=True))
    told = _decode(
        synthetic.make_video(tmp_path / "a.mp4", segments, fps=fps, size=SIZE), tmp_path / "out"
    )
    cut_s = seconds[0]
    spans = _spans_s(told)
    assert cut_s in [start for start, _ in spans]
    assert cut_s in [end for _, end in spans]
    assert spans[0][0] == 0
    assert spans[-1][1] == sum(seconds)
    assert told["num_shots"] == 2


def test_a_variable_rate_moves_no_cut(tmp_path):
    segments = (("bars", 5, 30), ("rings", 5, 10), ("checker", 5, 10))
    path = synthetic.make_video(tmp_path / "h9.mp4", segments, size=SIZE)
    told = _decode(path, tmp_path / "out")
    assert _spans_s(told) == [(0, 5), (5, 10), (10, 15)]


def test_cuts_within_a_second_leave_no_clip_below_the_minimum(tmp_path):
    short = Fraction(1, 4)
    segments = (
        ("bars", 3), ("rings", short), ("checker", short), ("gradient", short), ("bars", 3),
    )  # fmt: skip
    told = _decode(
        synthetic.make_video(tmp_path / "h12.mp4", segments, size=SIZE), tmp_path / "out"
    )
    assert _spans_s(told) == [(0, 3), (Fraction(15, 4), Fraction(27, 4))]
    assert told["num_shots"] == 5


def test_a_stream_that_starts_late_keeps_its_own_stamps(tmp_path):
    segments = (("bars", 3), ("rings", 3))
    path = synthetic.make_video(
        tmp_path / "late.ts", segments, size=SIZE, container_format="mpegts"
    )
    told = _decode(path, tmp_path / "out")
    origin_s = _spans_s(told)[0][0]
    assert origin_s > 0
    assert _ends(told, origin_s) == [(0, 3), (3, 6)]
    assert [(clip["start_s"], clip["end_s"]) for clip in told["clips"]] == [(0, 3), (3, 6)]


def test_what_an_edit_list_hides_is_in_no_clip(tmp_path):
    import av

    whole = synthetic.make_video(tmp_path / "w.mp4", (("bars", 4), ("rings", 4)), size=SIZE)
    edited = tmp_path / "edited.mp4"
    options = {"avoid_negative_ts": "disabled"}
    with av.open(str(whole)) as source, av.open(str(edited), "w", options=options) as target:
        stream = source.streams.video[0]
        out = target.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is None:
                continue
            shift = round(1 / stream.time_base)
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            packet.stream = out
            target.mux(packet)
    told = _decode(edited, tmp_path / "out")
    assert _ends(told, _spans_s(told)[0][0]) == [(0, 3), (3, 7)]


def _mixed(path, num_mixed, *, to_black):
    """24 fps: 3 s, then so many mixed frames, then 3 s."""
    import av

    count = 72
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for index in range(2 * count + num_mixed):
            share = min(1.0, max(0.0, (index - count + 1) / (num_mixed + 1)))
            first = synthetic.picture("bars", SIZE, index / 24).astype(float)
            second = synthetic.picture("rings", SIZE, index / 24).astype(float)
            if to_black:
                shown = first * max(0.0, 1 - 2 * share) + second * max(0.0, 2 * share - 1)
            else:
                shown = first * (1 - share) + second * share
            frame = av.VideoFrame.from_ndarray(np.rint(shown).astype(np.uint8), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("num_mixed", "to_black", "kind"),
    [(6, False, "dissolve"), (24, False, "dissolve"), (24, True, "fade"), (40, True, "fade")],
)
def test_no_frame_of_a_transition_is_in_a_clip(tmp_path, num_mixed, to_black, kind):
    path = _mixed(tmp_path / "mixed.mp4", num_mixed, to_black=to_black)
    told = _decode(path, tmp_path / "out")
    (_, end_s), (start_s, last_s) = _spans_s(told)
    length = 24 * (start_s - end_s)
    assert 72 - 4 <= 24 * end_s <= 72 + 1  # a first frame of less than 5 % is not to be seen
    assert 72 + num_mixed - 1 <= 24 * start_s <= 72 + num_mixed + 4
    assert length >= num_mixed - 2
    assert last_s == Fraction(144 + num_mixed, 24)
    assert [clip["end_kind"] for clip in told["clips"]] == [kind, "file"]
    assert [clip["start_kind"] for clip in told["clips"]] == ["file", kind]
    assert (told["num_shots"], told["num_transitions"]) == (2, 1)


def test_a_continuous_source_gives_one_long_clip(tmp_path):
    path = synthetic.make_video(tmp_path / "drive.mp4", (("gradient", 34),), fps=8, size=SIZE)
    told = _decode(path, tmp_path / "out", is_continuous=True)
    assert _spans_s(told) == [(0, 34)]


def test_a_recipe_trims_what_is_near_a_cut(tmp_path):
    path = synthetic.make_video(
        tmp_path / "trim.mp4", (("bars", 4), ("rings", 4), ("checker", 4)), size=SIZE
    )
    params = STEP.params_of(recipe_from({"name": "trimmed", "shots": {"trim_s": 0.25}}))
    told = _decode(path, tmp_path / "out", **params)
    near = Fraction(1, 4)
    assert _spans_s(told) == [(0, 4 - near), (4 + near, 8 - near), (8 + near, 12)]
    assert [clip["start_kind"] for clip in told["clips"]] == ["file", "cut", "cut"]
    assert [clip["end_kind"] for clip in told["clips"]] == ["cut", "cut", "file"]
    assert told["num_shots"] == 3


@pytest.mark.parametrize("trim_s", [-0.1, 0.6, float("nan")])
def test_a_trim_that_cannot_be_is_refused(trim_s):
    with pytest.raises(RecipeError, match="trim_s"):
        recipe_from({"name": "trimmed", "shots": {"trim_s": trim_s}})
