from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsdata import ids, timebase

ASSET = "ab" * 32


@given(st.integers(0, 9), st.integers(0, 10**8), st.integers(1, 10**8))
def test_clip_ids_read_back(track, start, length):
    clip = ids.make_clip_id(ASSET, track=track, start_ms=start, end_ms=start + length)
    parts = ids.parse_clip_id(clip)
    assert parts == (ASSET[:24], track, start, start + length)


def test_a_sample_id_reads_back():
    clip = ids.make_clip_id(ASSET, track=0, start_ms=0, end_ms=1)
    sample = ids.make_sample_id(clip, rung="256p", start_frame=33, num_frames=65, variant="flip")
    assert ids.parse_sample_id(sample) == (clip, "256p", 33, 65, "flip")


@pytest.mark.parametrize("key", ["licensed.acme.20261101.001", "synthetic.a-b_c.20260101.123456"])
def test_good_drop_keys(key):
    parts = ids.parse_drop_key(key)
    assert ".".join(key.split(".")[:3]) == f"{parts.source_tier}.{parts.source}.{parts.date}"


@pytest.mark.parametrize(
    "key", ["", "licensed.acme", "other.acme.20261101.001", "licensed.Acme.20261101.001",
            "licensed.acme.2026111.001", "licensed.acme.20261101.1", "../x"]
)  # fmt: skip
def test_bad_drop_keys_say_what_is_expected(key):
    with pytest.raises(ValueError, match="expected <tier>"):
        ids.parse_drop_key(key)


def test_an_impossible_span_is_refused():
    with pytest.raises(ValueError, match="impossible"):
        ids.make_clip_id(ASSET, track=0, start_ms=5, end_ms=5)


def test_versions_and_groups():
    assert ids.parse_version("v12") == (12, 0)
    assert ids.parse_version("v3.1") == (3, 1)
    assert ids.parse_shard_group(ids.make_shard_group("v3", 7)) == ("v3", 7)
    with pytest.raises(ValueError, match="expected v3"):
        ids.parse_version("3")


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6))
def test_rounding_halves_upward(numerator, denominator):
    value = Fraction(numerator, denominator)
    rounded = timebase.round_half_up(value)
    assert -Fraction(1, 2) < rounded - value <= Fraction(1, 2)


def test_frames_shown_within_a_span():
    fps = Fraction(24)
    assert timebase.num_output_frames(Fraction(1), fps) == 24
    assert timebase.num_output_frames(Fraction(1, 24), fps) == 1
    assert timebase.num_output_frames(Fraction(1001, 24000), fps) == 2
    assert timebase.num_output_frames(Fraction(0), fps) == 0
