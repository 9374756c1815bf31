"""Keyed permutations: one to one, inverse, well mixed, and the same integers everywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.shard.permute import hash_values, make_key, permute, unpermute
from wsdata_tests.shard import plan_oracle

LENGTHS = st.one_of(st.integers(1, 300), st.sampled_from([4096, 10_007, 65_537]))


def keys(key, count):
    return np.full(count, key, dtype=np.uint64)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(0, 2**64 - 1))
def test_permutation_is_one_to_one_and_undone(length, key):
    places = permute(np.arange(length), length, keys(key, length))
    assert np.array_equal(np.sort(places), np.arange(length))
    assert np.array_equal(unpermute(places, length, keys(key, length)), np.arange(length))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**12), st.integers(0, 2**64 - 1), st.data())
def test_single_positions_agree_with_plain_integers(length, key, data):
    position = data.draw(st.integers(0, min(length, 5000) - 1))
    if length <= 5000:
        place = permute(np.array([position]), length, keys(key, 1))
        assert place[0] == plan_oracle.permuted(position, length, key)
    place = permute(np.array([position]), length, keys(key, 1))
    assert 0 <= place[0] < length
    assert unpermute(place, length, keys(key, 1))[0] == position


@given(st.integers(0, 2**40), st.integers(0, 2**64 - 1))
def test_epoch_keys_agree_with_plain_integers(epoch, key):
    assert int(hash_values(np.array([epoch]), key)[0]) == plan_oracle.epoch_key(key, epoch)


def test_places_are_uniform_over_keys():
    length, num_keys = 13, 2000
    counts = np.zeros((length, length))
    for number in range(num_keys):
        places = permute(np.arange(length), length, keys(make_key("u", number), length))
        counts[np.arange(length), places] += 1
    expected = num_keys / length
    chi_square = ((counts - expected) ** 2 / expected).sum() / (length - 1) ** 2
    assert 0.8 < chi_square < 1.2


def test_neighbours_do_not_stay_neighbours():
    places = permute(np.arange(100_000), 100_000, keys(5, 100_000)).astype(float)
    for lag in (1, 2, 3, 316, 317):  # also the network's own row length
        assert abs(np.corrcoef(places[:-lag], places[lag:])[0, 1]) < 0.02


def test_out_of_range_is_a_bad_argument():
    with pytest.raises(ValueError, match="expected 1 to"):
        permute(np.array([0]), 0, keys(1, 1))
    with pytest.raises(ValueError, match=r"asked for 5\.\.5"):
        permute(np.array([5]), 5, keys(1, 1))


def test_keys_keep_their_parts_apart():
    assert make_key("a", "bc") != make_key("ab", "c")
