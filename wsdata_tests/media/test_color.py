"""What pixels mean: decisions, light against published values, and mapping against its formula."""

import io
import json
from fractions import Fraction

import numpy as np
import pytest

from wsdata.media.color import (
    MAPPING_VERSION,
    WHITE_NITS,
    decide_color,
    hlg_to_nits,
    nits_to_pq,
    pq_to_nits,
    to_bt709,
    tone_curve,
)
from wsdata.preprocess.ladder import make_geometry
from wsdata.preprocess.scaling import Scaler

PQ, HLG = 16, 18
KR = {9: (0.2627, 0.0593), 1: (0.2126, 0.0722)}


def _frame(patches_rgb, *, transfer, primaries=9, matrix=9, full=False):
    """A 10-bit frame of 32 px wide patches of full-range RGB in [0, 1]."""
    import av

    kr, kb = KR[matrix]
    frame = av.VideoFrame(32 * len(patches_rgb), 32, "yuv420p10le")
    rgb = np.asarray(patches_rgb, float)
    luma = rgb @ [kr, 1 - kr - kb, kb]
    cb, cr = (rgb[:, 2] - luma) / (2 - 2 * kb), (rgb[:, 0] - luma) / (2 - 2 * kr)
    scale = (1023, 1023, 0) if full else (876, 896, 64)
    values = [scale[2] + scale[0] * luma, 512 + scale[1] * cb, 512 + scale[1] * cr]
    for plane, one in zip(frame.planes, values, strict=True):
        row = np.repeat(np.rint(one).astype("<u2"), 32 if plane.width == frame.width else 16)
        lines = np.zeros((plane.height, plane.line_size // 2), "<u2")
        lines[:, : plane.width] = row
        plane.update(lines.tobytes())
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    frame.color_primaries, frame.color_trc = primaries, transfer
    return frame


def _seen(frame):
    """RGB of the middle of each patch after the scaler, in [0, 1]."""
    geometry = make_geometry(frame.width, frame.height, Fraction(1), 0).uncropped
    made = Scaler(frame, geometry, (frame.width, frame.height), "rgb24").scale(frame).to_ndarray()
    return made[16, 16::32].astype(float) / 255


@pytest.mark.parametrize(
    ("nits", "value"), [(0.0, 0), (100, 0.5081), (203, 0.5807), (1000, 0.7518)]
)
def test_pq_has_the_values_of_bt2100_and_bt2408(nits, value):
    assert float(nits_to_pq(np.array(float(nits)))) == pytest.approx(value, abs=1e-4)
    assert float(pq_to_nits(np.array(value))) == pytest.approx(nits, rel=2e-3, abs=1e-3)


def test_hlg_white_stands_where_bt2408_puts_it():
    assert hlg_to_nits(np.full(3, 0.75))[0] == pytest.approx(203, rel=0.01)
    assert hlg_to_nits(np.full(3, 1.0))[0] == pytest.approx(1000, rel=1e-3)
    assert hlg_to_nits(np.full(3, 0.0))[0] == 0


@pytest.mark.parametrize("peak", [400.0, 1000.0, 4000.0])
def test_the_tone_curve_keeps_shadows_bends_once_and_ends_at_white(peak):
    nits = np.linspace(0, peak, 500)
    mapped = tone_curve(nits, peak)
    assert mapped[-1] == pytest.approx(WHITE_NITS, rel=1e-3)
    assert (np.diff(mapped) > 0).all()
    assert np.allclose(mapped[nits < 20], nits[nits < 20], rtol=1e-3, atol=1e-3)
    assert (mapped <= nits + 0.2).all()


@pytest.mark.parametrize("transfer", [PQ, HLG])
def test_h15_pictures_of_high_range_are_mapped_as_the_formula_says(transfer):
    greys = [(v, v, v) for v in (0.0, 0.2, 0.4, 0.5, 0.58, 0.7, 0.75, 0.9)]
    colors = [(0.5, 0.45, 0.45), (0.42, 0.5, 0.42), (0.42, 0.44, 0.52)]
    frame = _frame(greys + colors, transfer=transfer)
    decision = decide_color(frame)
    assert decision.mapping == MAPPING_VERSION
    expected = to_bt709(np.asarray(greys + colors), decision)
    assert ((expected > 0.05) | (expected == 0)).all(), "inside the smaller gamut"
    assert np.abs(_seen(frame) - expected).max() < 4 / 255
    # what is brighter stays brighter: nothing above reference white is cut to one value
    shown = _seen(frame)[3:6, 1]  # up to 0.7, or 636 cd/m2 in PQ
    assert (np.diff(shown) > 0).all()


def test_wide_primaries_of_usual_range_are_mapped_and_narrow_ones_left_alone():
    wide = _frame([(0.6, 0.4, 0.4), (0.5, 0.5, 0.5)], transfer=14)
    decision = decide_color(wide)
    assert (decision.mapping, decision.peak_nits) == (MAPPING_VERSION, None)
    seen = _seen(wide)
    assert seen[0, 0] - seen[0, 1] > 0.2 + 0.02, "the same red is more of the smaller gamut"
    assert np.abs(seen[1] - 0.5).max() < 2 / 255
    narrow = _frame([(0.6, 0.4, 0.4)], transfer=1, primaries=1, matrix=1)
    assert decide_color(narrow).mapping == "none"
    assert np.abs(_seen(narrow) - [0.6, 0.4, 0.4]).max() < 3 / 255


def test_full_range_is_read_as_such():
    greys = [(v, v, v) for v in (0.0, 0.25, 0.5, 1.0)]
    frame = _frame(greys, transfer=1, primaries=1, matrix=1, full=True)
    assert decide_color(frame).is_full_range
    assert np.abs(_seen(frame) - np.asarray(greys)).max() < 2 / 255


def test_the_decision_says_what_was_stated_and_what_was_assumed():
    import av

    told = json.loads(decide_color(av.VideoFrame(1920, 1080, "yuv420p")).to_json())
    assert (told["matrix"], told["is_full_range"]) == (1, False)
    assert told["assumed"] == ["matrix", "range", "primaries", "transfer"]
    small = json.loads(decide_color(av.VideoFrame(640, 480, "yuv420p")).to_json())
    assert (small["matrix"], small["mapping"]) == (6, "matrix")


@pytest.mark.parametrize(
    ("light", "found"),
    [("max-cll=600,200", (600.0, "content")), ("", (1000.0, "default"))],
)
def test_the_peak_is_the_contents_where_the_file_tells_it(light, found):
    import av

    # no B-frames: of a single frame libx265 then leaves the decoding time stamp as it finds it
    color = "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"
    params = f"log-level=none:bframes=0:{color}:{light}".rstrip(":")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx265", rate=24, options={"x265-params": params})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p10le"
        frame = _frame([(0.5, 0.5, 0.5)] * 2, transfer=PQ).reformat(64, 64)
        frame.pts, frame.time_base = 0, Fraction(1, 24)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    buffer.seek(0)
    with av.open(buffer) as container:
        decision = decide_color(next(container.decode(video=0)))
    assert (decision.peak_nits, decision.peak_from) == found
