"""Windows against invariants, and against a plain offline reading of the rule."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.preprocess.shots import Word
from wsdata.preprocess.windows import (
    GAP,
    Closed,
    Dropped,
    Kept,
    Opened,
    Windower,
    WindowRule,
    rule_of,
    window_params,
)

TB = Fraction(1, 1000)
RULE = WindowRule()


def _stream(frames):
    """Feed (pts, end, is_cut) frames; return the events and the most frames held back."""
    windower = Windower(time_base=TB, rule=RULE)
    events, most_held, held = [], 0, 0
    for pts, end, is_cut in frames:
        told = windower.push(pts, end, Word.CUT if is_cut else Word.SAME)
        held += 1 - sum(isinstance(event, Kept | Dropped) for event in told)
        most_held = max(most_held, held)
        events += told
    return events + windower.finish(frames[-1][1]), most_held


def _windows(events):
    """[start, end, frames] of every window."""
    made, current = [], None
    for event in events:
        if isinstance(event, Opened):
            assert current is None
            current = [event.start_pts, None, []]
        elif isinstance(event, Kept):
            assert current is not None
            current[2].append(event.pts)
        elif isinstance(event, Closed):
            assert current is not None
            current[1] = event.end_pts
            made.append(tuple(current))
            current = None
    assert current is None
    return made


def _oracle(frames):
    """Windows of whole shots, each known from start to end."""
    shots, made = [], []
    for pts, end, is_cut in frames:
        if is_cut or not shots:
            shots.append([])
        shots[-1].append((pts, end))
    for shot in shots:
        end = shot[-1][1]
        start = shot[0][0]
        while end - start >= 1000 * RULE.min_s:
            due = [pts for pts, _ in shot if pts - start >= 1000 * RULE.target_s]
            stop = due[0] if due and end - due[0] >= 1000 * RULE.min_s else end
            made.append((start, stop, [pts for pts, _ in shot if start <= pts < stop]))
            start = stop
    return made


lengths = st.lists(st.tuples(st.integers(10, 900), st.integers(0, 30)), min_size=1, max_size=120)


@given(lengths)
@settings(max_examples=150, deadline=None)
def test_streamed_windows_are_those_of_the_rule(steps):
    frames, pts = [], 0
    for length, dice in steps:
        frames.append((pts, pts + length, dice == 0))
        pts += length
    events, _ = _stream(frames)
    made = _windows(events)
    assert made == _oracle(frames)
    cuts = {pts for pts, _, is_cut in frames if is_cut}
    for start, end, _ in made:
        assert not any(start < cut < end for cut in cuts)
        assert 1000 * RULE.min_s <= end - start <= 1000 * RULE.max_s
    order = [event.pts for event in events if isinstance(event, Kept | Dropped)]
    assert order == [pts for pts, _, _ in frames]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.9, []),
        (2.0, [2.0]),
        (7.5, [7.5]),
        (9.9, [9.9]),
        (10.0, [8.0, 2.0]),
        (17.0, [8.0, 9.0]),
        (25.0, [8.0, 8.0, 9.0]),
        (26.0, [8.0, 8.0, 8.0, 2.0]),
    ],
)
def test_lengths_of_one_shot(seconds, expected):
    frames = [(ms, ms + 20, False) for ms in range(0, round(seconds * 1000), 20)]
    events, _ = _stream(frames)
    assert [(end - start) / 1000 for start, end, _ in _windows(events)] == expected


def test_no_more_than_the_minimum_length_is_held_back():
    frames = [(ms, ms + 10, ms % 31000 == 30000) for ms in range(0, 120000, 10)]
    _, most_held = _stream(frames)
    assert most_held <= 1000 * RULE.min_s / 10


def test_strobing_cuts_give_no_clip():
    frames = [(ms, ms + 40, ms % 320 == 0) for ms in range(0, 20000, 40)]
    assert _windows(_stream(frames)[0]) == []


def test_shots_and_windows_are_numbered():
    frames = [(ms, ms + 40, ms == 16000) for ms in range(0, 20000, 40)]
    opened = [event for event in _stream(frames)[0] if isinstance(event, Opened)]
    assert [(o.shot_index, o.window_index) for o in opened] == [(0, 0), (0, 1), (1, 0)]


def test_an_impossible_rule_is_refused():
    with pytest.raises(ValueError, match="cannot have a target"):
        WindowRule(min_s=4.0, target_s=16.0, max_s=20.0)


def test_frames_between_shots_belong_to_no_window_and_say_what_stood_there():
    windower = Windower(time_base=TB, rule=RULE)
    words = [Word.SAME] * 100 + [Word.DISSOLVE] * 10 + [Word.SAME] * 100 + [Word.FADE] * 10
    words += [Word.SAME] * 60 + [Word.CUT] + [Word.SAME] * 99
    events = []
    for index, word in enumerate(words):
        events += windower.push(40 * index, 40 * index + 40, word)
    events += windower.finish(40 * len(words), GAP)
    opened = [event.start_kind for event in events if isinstance(event, Opened)]
    closed = [event.end_kind for event in events if isinstance(event, Closed)]
    assert opened == ["file", "dissolve", "fade", "cut"]
    assert closed == ["dissolve", "fade", "cut", "gap"]
    assert [(start, end) for start, end, _ in _windows(events)] == [
        (0, 4000), (4400, 8400), (8800, 11200), (11200, 15200),
    ]  # fmt: skip
    assert windower.num_transitions == 2
    dropped = [event.pts for event in events if isinstance(event, Dropped)]
    assert dropped == [40 * i for i, word in enumerate(words) if word.is_between]


@given(st.lists(st.tuples(st.integers(10, 900), st.sampled_from(list(Word))), min_size=1))
@settings(max_examples=150, deadline=None)
def test_no_window_holds_a_frame_that_is_between_shots(steps):
    windower, events, frames, pts = Windower(time_base=TB, rule=RULE), [], {}, 0
    for length, word in steps:
        events += windower.push(pts, pts + length, word)
        frames[pts] = pts + length, word
        pts += length
    events += windower.finish(pts)
    told = [event.pts for event in events if isinstance(event, Kept | Dropped)]
    assert told == list(frames)
    for start, end, kept in _windows(events):
        assert 1000 * RULE.min_s <= end - start <= 1000 * RULE.max_s
        assert kept == [at for at in frames if start <= at < end]
        assert not any(frames[at][1].is_between for at in kept)
        assert all(frames[at][1] is not Word.CUT for at in kept[1:])
        assert frames[kept[-1]][0] == end


@pytest.mark.parametrize(
    ("length_s", "expected"),
    [(12, [12]), (45, [45]), (60, [30, 30]), (100, [33.3] * 3), (305, [30.5] * 10)],
)
def test_an_episode_is_cut_into_equal_windows_of_thirty_seconds_and_more(length_s, expected):
    rule = rule_of({**window_params(), "is_continuous": True}, length_s * 1_000_000)
    windower = Windower(time_base=TB, rule=rule)
    events = []
    for index in range(length_s * 10):
        events += windower.push(100 * index, 100 * index + 100)
    events += windower.finish(length_s * 1000)
    lengths = [(end - start) / 1000 for start, end, _ in _windows(events)]
    assert lengths == pytest.approx(expected, abs=0.21)
    assert sum(lengths) == length_s
