"""Geometry as people see it, rungs that never enlarge, and exact timing."""

import bisect
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.media.decode import read_transcode
from wsdata.preprocess.ladder import (
    ASPECTS,
    RUNG_SIZES,
    LadderWriter,
    frame_span,
    make_geometry,
)
from wsdata.preprocess.scaling import Scaler, still_rungs
from wsdata.tables import RUNGS
from wsdata.timebase import num_output_frames
from wsdata_tests import synthetic


def test_every_rung_has_every_aspect_in_multiples_of_16():
    assert tuple(RUNG_SIZES) == RUNGS
    for rung, sizes in RUNG_SIZES.items():
        assert set(sizes) == set(ASPECTS)
        # what the world calls 1080p is 67.5 times 16 high: samples of it are cropped by 8 lines
        unit = 8 if rung == "1080p" else 16
        for aspect, (width, height) in sizes.items():
            assert width % unit == height % unit == 0
            assert Fraction(width, height) == ASPECTS[aspect]


@pytest.mark.parametrize(
    ("size", "sar", "rotation", "display", "aspect", "crop", "top_rung"),
    [
        ((640, 360), 1, 0, (640, 360), "16:9", (0, 0, 640, 360), "512p"),
        ((640, 360), 1, 90, (360, 640), "9:16", (0, 0, 360, 640), "512p"),
        ((640, 360), 1, 180, (640, 360), "16:9", (0, 0, 640, 360), "512p"),
        ((1280, 720), 1, 0, (1280, 720), "16:9", (0, 0, 1280, 720), "720p"),
        ((1278, 718), 1, 0, (1278, 718), "16:9", (1, 0, 1276, 718), "512p"),
        ((640, 480), Fraction(4, 3), 0, (853, 480), "16:9", (0, 0, 853, 480), "512p"),
        ((500, 500), 1, 0, (500, 500), "1:1", (0, 0, 500, 500), "512p"),
        ((480, 720), 1, 0, (480, 720), "9:16", (38, 0, 404, 720), "512p"),
        ((160, 90), 1, 0, (160, 90), "16:9", (0, 0, 160, 90), None),
    ],
)
def test_known_geometries(size, sar, rotation, display, aspect, crop, top_rung):
    geometry = make_geometry(*size, Fraction(sar), rotation)
    assert geometry.display == display
    assert geometry.aspect == aspect
    assert geometry.top_rung == top_rung
    assert all(abs(a - b) <= 2 for a, b in zip(geometry.crop, crop, strict=True)), geometry.crop


@given(
    st.integers(16, 4000),
    st.integers(16, 4000),
    st.fractions(Fraction(1, 2), 2, max_denominator=99),
    st.sampled_from([0, 90, 180, 270]),
)
def test_crops_lie_inside_and_rungs_never_enlarge(width, height, sar, rotation):
    geometry = make_geometry(width, height, sar, rotation)
    x, y, crop_width, crop_height = geometry.crop
    assert x >= 0
    assert y >= 0
    assert x + crop_width <= geometry.display[0] + 1
    assert y + crop_height <= geometry.display[1] + 1
    left, top, wide, high = geometry.coded_crop
    assert left + wide <= width
    assert top + high <= height
    assert left % 2 == top % 2 == wide % 2 == high % 2 == 0
    for rung in geometry.rungs:
        rung_width, rung_height = geometry.size_of(rung)
        assert rung_width <= crop_width
        assert rung_height <= crop_height
    shape = math.log(geometry.display[0] / geometry.display[1])
    near = {name: abs(math.log(ratio) - shape) for name, ratio in ASPECTS.items()}
    assert near[geometry.aspect] == min(near.values())


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=60),
    st.sampled_from([Fraction(1, 1000), Fraction(1, 90000), Fraction(1, 600)]),
    st.integers(-5000, 5000),
)
@settings(deadline=None)
def test_each_output_frame_shows_what_is_displayed_then(steps, time_base, start):
    starts = [start]
    for step in steps:
        starts.append(starts[-1] + step)
    starts, end = starts[:-1], starts[-1]
    shown = []
    for pts, end_pts in zip(starts, [*starts[1:], end], strict=True):
        first, stop = frame_span(pts, end_pts, start, time_base)
        assert first == len(shown)
        shown += [pts] * (stop - first)
    total = num_output_frames((end - start) * time_base, Fraction(24))
    assert 0 <= total - len(shown) <= 1
    for k, pts in enumerate(shown):
        at = start + Fraction(k, 24) / time_base + 1  # one tick for rounded time stamps
        assert pts == starts[max(0, bisect.bisect_right(starts, at) - 1)]


def test_24_frames_a_second_in_milliseconds_do_not_stutter():
    stamps = [round(1000 * i / 24) for i in range(240)]
    spans = [frame_span(pts, end, 0, Fraction(1, 1000)) for pts, end in itertools.pairwise(stamps)]
    assert [stop - first for first, stop in spans] == [1] * 239


def _frame(pattern, size):
    import av

    return av.VideoFrame.from_ndarray(synthetic.picture(pattern, size), format="rgb24")


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_scaled_frames_are_upright(rotation):
    upright = synthetic.picture("quadrants", (360, 640) if rotation % 180 else (640, 360))
    import av

    coded = np.ascontiguousarray(np.rot90(upright, rotation // 90))
    frame = av.VideoFrame.from_ndarray(coded, format="rgb24")
    geometry = make_geometry(frame.width, frame.height, Fraction(1), rotation)
    width, height = geometry.size_of("256p")
    seen = Scaler(frame, geometry, (width, height), "rgb24").scale(frame).to_ndarray()
    assert seen.shape == (height, width, 3)
    expected = synthetic.picture("quadrants", (width, height))
    assert np.abs(seen.astype(int) - expected).mean() < 4


def test_rungs_have_the_clips_frames_and_the_same_bytes_twice():
    geometry = make_geometry(640, 360, Fraction(1), 0)

    def write():
        import av

        writer = LadderWriter(geometry)
        for index in range(6):
            pixels = synthetic.picture("gradient", (512, 288), index / 6)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            writer.write(frame, 4 * (index + 1))
        return writer.finish(25)

    made = write()
    assert made == write()
    assert list(made) == ["256p", "512p"]
    for rung, data in made.items():
        frames_thwc = read_transcode(data)
        assert frames_thwc.shape == (25, *geometry.size_of(rung)[::-1], 3)


def test_a_still_is_kept_to_the_last_bit_of_its_scaling():
    frame = _frame("quadrants", (512, 512))
    made = still_rungs(frame, make_geometry(512, 512, Fraction(1), 0))
    assert list(made) == ["256p", "512p"]
    pixels = read_transcode(made["512p"])
    assert pixels.shape == (1, 384, 384, 3)
    assert tuple(pixels[0, 10, 10]) == (235, 16, 16)
    assert tuple(pixels[0, -10, -10]) == (235, 235, 235)


def test_h15_hdr_is_mapped_and_its_tags_match_the_pixels():
    import av

    pixels = synthetic.picture("gradient", (512, 288))
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p10le")
    frame.colorspace, frame.color_range = 9, 1
    frame.color_primaries = 9
    geometry = make_geometry(512, 288, Fraction(1), 0)
    plain = Scaler(frame, geometry, (256, 144), "yuv420p").scale(frame)
    frame.color_trc = 16  # PQ
    mapped = Scaler(frame, geometry, (256, 144), "yuv420p").scale(frame)
    assert (mapped.colorspace, mapped.color_trc, mapped.color_primaries) == (1, 1, 1)
    assert mapped.color_range == 1
    apart = mapped.to_ndarray().astype(int) - plain.to_ndarray()
    assert np.abs(apart).mean() > 5
