"""Keyed permutations: one to one, inverse, well mixed, and the same integers everywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.shard.permute import (
    hash_values,
    make_key,
    permute,
    permute_near,
    unpermute,
    unpermute_near,
)
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


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 400), st.integers(0, 2**64 - 1), st.integers(1, 9), st.integers(1, 6), st.data()
)
def test_near_permutation_is_one_to_one_undone_and_near(length, key, block, in_window, data):
    options = {"block": block, "window": block * in_window}
    order = np.arange(length)
    places = permute_near(order, length, keys(key, length), **options)
    assert np.array_equal(np.sort(places), order)
    assert np.array_equal(unpermute_near(places, length, keys(key, length), **options), order)
    first = data.draw(st.integers(0, length - 1))
    # A window of positions lies in three windows of blocks at most, where the order is turned.
    near = np.unique(places[first : first + options["window"]] // block)
    assert len(near) <= 3 * in_window + 1
    asked = order[first:][::-1]  # by themselves and in any order, under another key each
    own = hash_values(asked, 5)
    found = permute_near(asked, length, own, **options)
    for position, own_key, place in list(zip(asked, own, found, strict=True))[:3]:
        assert permute_near(position[None], length, own_key[None], **options) == place


def test_near_permutation_is_another_in_each_epoch_and_mixes_within_its_window():
    epochs = [permute_near(np.arange(10_000), 10_000, keys(key, 10_000), block=16, window=1600)
              for key in (1, 2)]  # fmt: skip
    assert (epochs[0] == epochs[1]).mean() < 0.01
    window = epochs[0][1600:3200].astype(float)
    for lag in (1, 2, 16, 40):
        assert abs(np.corrcoef(window[:-lag], window[lag:])[0, 1]) < 0.1


def test_windows_that_are_no_multiple_of_their_block_are_bad_arguments():
    for block, window in ((0, 4), (4, 0), (4, 6)):
        with pytest.raises(ValueError, match="expected a multiple of the block"):
            permute_near(np.array([0]), 9, keys(1, 1), block=block, window=window)


def test_out_of_range_is_a_bad_argument():
    with pytest.raises(ValueError, match="expected 1 to"):
        permute(np.array([0]), 0, keys(1, 1))
    with pytest.raises(ValueError, match=r"asked for 5\.\.5"):
        permute(np.array([5]), 5, keys(1, 1))


def test_keys_keep_their_parts_apart():
    assert make_key("a", "bc") != make_key("ab", "c")
