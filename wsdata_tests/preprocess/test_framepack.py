"""Frame packs: what is sampled when, and back again."""

from fractions import Fraction

import numpy as np
import pytest

from wsdata.errors import DecodeFailed
from wsdata.preprocess.framepack import (
    FramePack,
    PackBuilder,
    PackedFrame,
    PairTimes,
    read_framepack,
    spread,
    wants_color,
    write_framepack,
    write_loose_pack,
)
from wsdata_tests import synthetic


def _read(builder):
    return read_framepack(write_loose_pack(*builder.finish()))


def _build(times_ms, end_ms, time_base=Fraction(1, 1000)):
    builder = PackBuilder(times_ms[0], time_base)
    for pts, end in zip(times_ms, [*times_ms[1:], end_ms], strict=True):
        shade = np.full((18, 32), pts % 251, np.uint8)
        is_color = wants_color(pts, end, 0, time_base)
        color = np.stack([shade] * 3, -1) if is_color else None
        builder.add(pts, end, color, lambda shade=shade: shade)
    return _read(builder)


@pytest.mark.parametrize(("fps", "seconds"), [(24, 2), (30, 5), (60, 8), (25, 10), (10, 4)])
def test_colours_and_pairs_are_spread_over_the_clip(fps, seconds):
    times = [5000 + round(1000 * i / fps) for i in range(fps * seconds)]
    pack = _build(times, 5000 + 1000 * seconds)
    assert len(pack.colors) == min(8, seconds)
    assert len(pack.luma_pairs) == min(16, 2 * seconds)
    for frame in pack.colors:
        assert frame.pixels[0, 0, 0] == (5000 + round(1000 * frame.time_s)) % 251
    for first, second in pack.luma_pairs:
        apart = second.time_s - first.time_s
        assert apart >= 1 / 24 - 0.0011
        assert apart <= max(1 / 12, 1 / fps) + 0.0011
    halves = [sum(frame.time_s < seconds / 2 for frame in pack.colors), len(pack.colors) / 2]
    assert abs(halves[0] - halves[1]) <= 1


def test_a_held_frame_stands_for_the_times_it_is_shown():
    tb = Fraction(1, 1000)
    assert [wants_color(pts, pts + 100, 0, tb) for pts in (400, 500, 600, 1500)] == [
        False, True, False, True,
    ]  # fmt: skip
    assert wants_color(600, 1700, 0, tb)


def test_pairs_by_the_track_are_whole_in_the_clip_that_they_are_in():
    tb, frames = Fraction(1, 24), range(240)
    times, builders = PairTimes(0, tb), {}
    for pts in frames:
        due = times.see(pts, pts + 1)
        builder = builders.setdefault(pts >= 103, PackBuilder(103 if pts >= 103 else 0, tb))
        shade = np.full((2, 2), pts, np.uint8)
        builder.add(pts, pts + 1, None, (lambda s=shade: s) if any(due) else None, due)
    shown = [
        [(int(one.pixels[0, 0]), int(two.pixels[0, 0])) for one, two in pack.luma_pairs]
        for pack in map(_read, builders.values())
    ]
    # the pair of 102 and 103 would lie in both
    assert shown[0] == [(pts, pts + 1) for pts in range(6, 102, 12)]
    assert shown[1] == [(pts, pts + 1) for pts in range(114, 240, 12)]


@pytest.mark.parametrize(("count", "wanted"), [(0, 8), (3, 8), (8, 8), (9, 8), (20, 8), (33, 16)])
def test_spread_is_even_and_symmetric(count, wanted):
    chosen = spread(count, wanted)
    assert len(chosen) == min(count, wanted)
    assert chosen == sorted(set(chosen))
    if count > wanted:
        gaps = np.diff([-1, *chosen, count])
        assert max(gaps[1:-1]) - min(gaps[1:-1]) <= 1


def test_a_pack_comes_back_and_has_the_same_bytes():
    colors = [PackedFrame(i + 0.5, synthetic.picture("gradient", (64, 36), i)) for i in range(3)]
    luma = [synthetic.picture("rings", (32, 18), i / 20)[..., 0] for i in range(2)]
    pairs = [(PackedFrame(0.25, luma[0]), PackedFrame(0.3, luma[1]))]
    data = write_framepack(FramePack(colors=colors, luma_pairs=pairs))
    assert data == write_framepack(FramePack(colors=colors, luma_pairs=pairs))
    back = read_framepack(data)
    assert [frame.time_s for frame in back.colors] == [0.5, 1.5, 2.5]
    for made, read in zip(colors, back.colors, strict=True):
        assert np.abs(made.pixels.astype(int) - read.pixels).mean() < 6
    ((first, second),) = back.luma_pairs
    assert (first.time_s, second.time_s) == (0.25, 0.3)
    assert first.pixels.shape == (18, 32)
    assert np.abs(first.pixels.astype(int) - luma[0]).mean() < 3


def test_a_pack_of_nothing_is_a_pack():
    assert read_framepack(write_framepack(FramePack(colors=[], luma_pairs=[]))).colors == []


def test_other_bytes_are_refused():
    with pytest.raises(DecodeFailed, match="frame pack of 7 bytes"):
        read_framepack(b"nothing")


def test_pictures_that_are_not_those_of_the_bytes_are_refused():
    with pytest.raises(DecodeFailed, match="1 pictures of a frame pack are not its 3 bytes"):
        write_loose_pack([["color", 0, 0.5, 4, 2, 2]], b"abc")
