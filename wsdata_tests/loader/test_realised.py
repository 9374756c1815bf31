"""Autocorrelation of what was served, against a plain sum over indicators; windows of long runs."""

import numpy as np
import pytest

from wsdata.loader.realised import (
    WINDOW,
    choose_lags,
    choose_windows,
    off_lags,
    trait_autocorrelation,
)


def plainly(pools, traits, lag, windows):
    """Indicators of every trait less their share in the pool, multiplied pair by pair."""
    rest = {}
    for trait in np.unique(traits):
        has = (traits == trait).astype(float)
        expected = np.array([has[pools == pool].mean() for pool in pools])
        rest[trait] = has - expected
    energy = sum(float(each @ each) for each in rest.values()) / len(pools)
    pairs = [
        sum(each[i] * each[i + lag] for each in rest.values())
        for i in range(len(pools) - lag)
        if windows[i] == windows[i + lag]
    ]
    return sum(pairs) / len(pairs) / energy, len(pairs)


@pytest.mark.parametrize("num_traits", [2, 9])
def test_closed_form_is_the_plain_sum_over_indicators(num_traits):
    rng = np.random.default_rng(num_traits)
    pools, traits = rng.integers(3, size=120), rng.integers(num_traits, size=120)
    windows = np.repeat(np.arange(4), 30)
    found = trait_autocorrelation(pools, traits, (1, 5, 29, 30, 119, 120, 0), windows)
    assert sorted(found) == [1, 5, 29]
    for lag, each in found.items():
        assert each == pytest.approx(plainly(pools, traits, lag, windows))
    whole = trait_autocorrelation(pools, traits, (7,))
    assert whole[7] == pytest.approx(plainly(pools, traits, 7, np.zeros(120)))


def test_a_shuffled_stream_is_flat_and_runs_of_one_source_are_not():
    rng = np.random.default_rng(0)
    pools = rng.integers(4, size=20_000)
    mixed = rng.integers(50, size=20_000) + 50 * pools  # each pool has sources of its own
    lags = choose_lags(16, 20_000)
    assert off_lags(trait_autocorrelation(pools, mixed, lags), beyond=16) == []
    in_runs = np.repeat(rng.integers(50, size=200), 100)
    assert set(off_lags(trait_autocorrelation(pools, in_runs, lags), beyond=16)) >= {17, 33, 65}


def test_the_planned_rhythm_of_pools_alone_is_no_correlation():
    pools = np.tile([0, 0, 0, 1], 500)
    assert trait_autocorrelation(pools, pools, (1, 4, 40)) == {
        1: (0.0, 1999), 4: (0.0, 1996), 40: (0.0, 1960)
    }  # fmt: skip


def test_a_short_run_is_looked_at_whole_and_a_long_one_in_bounded_windows():
    assert choose_windows([(0, 100), (150, 900)], key="r", batch=64) == [(0, 100), (150, 900)]
    spans = [(0, 600_000), (700_000, 1_100_000)]
    chosen = choose_windows(spans, key="r", batch=64)
    assert choose_windows(spans, key="r", batch=64) == chosen
    assert choose_windows(spans, key="other", batch=64) != chosen
    assert sum(end - first for first, end in chosen) == 2048
    assert chosen == sorted(chosen)
    assert all(
        any(a <= first < end <= b for a, b in spans) and end - first <= WINDOW
        for first, end in chosen
    )
    thirds = [sum(first // 400_000 == n for first, _ in chosen) for n in range(3)]
    assert min(thirds) > 10
    assert sum(e - f for f, e in choose_windows(spans, key="r", batch=1 << 15)) == WINDOW
