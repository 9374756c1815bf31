"""Balanced words: exact counts, even spread, and places asked both ways."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.shard.plan_words import Word, apportion, balanced_word, choose_period
from wsdata_tests.shard.plan_oracle import largest_remainder

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any)


@given(COUNTS)
def test_every_prefix_is_within_one_letter_of_its_share(counts):
    word = np.array(balanced_word(counts))
    assert [int((word == letter).sum()) for letter in range(len(counts))] == counts
    lengths = np.arange(1, len(word) + 1)
    for letter, count in enumerate(counts):
        seen = np.cumsum(word == letter)
        # In integers: |seen * L - length * count| < L.
        assert (np.abs(seen * len(word) - lengths * count) < len(word)).all()


@given(COUNTS, st.integers(0, 500))
def test_places_and_running_indices_are_inverse(counts, length):
    word = Word(counts)
    places = np.arange(length)
    letters, indices = word.at(places)
    for letter in range(len(counts)):
        mine = letters == letter
        assert indices[mine].tolist() == list(range(int(mine.sum())))
        assert word.count(letter, length) == int(mine.sum())
        if counts[letter]:
            assert word.find(letter, indices[mine]).tolist() == places[mine].tolist()
        else:
            with pytest.raises(ValueError, match="never comes"):
                word.find(letter, np.array([0]))


@settings(deadline=None)
@given(
    st.lists(st.fractions(0, 5, max_denominator=50), min_size=1, max_size=8).filter(any),
    st.integers(1, 300),
)
def test_apportioning_is_by_largest_remainder(shares, period):
    counts = apportion(shares, period)
    assert counts == largest_remainder(shares, period)
    total = sum(shares)
    for share, count in zip(shares, counts, strict=True):
        assert abs(count - share * period / total) < 1


def test_short_periods_are_exact():
    shares = [Fraction(3, 10), Fraction(1, 10), Fraction(6, 10)]
    assert choose_period(shares, 4096) == 10
    assert apportion(shares, 10) == [3, 1, 6]
    assert choose_period([Fraction(1, 5000), Fraction(4999, 5000)], 4096) == 4096


def test_shares_without_a_sum_are_refused():
    with pytest.raises(ValueError, match="no positive sum"):
        apportion([Fraction(0)], 5)
    with pytest.raises(ValueError, match="no positive sum"):
        apportion([Fraction(2), Fraction(-1)], 5)
