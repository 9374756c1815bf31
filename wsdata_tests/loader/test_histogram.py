"""Times in classes: percentiles near the true ones, and sums over ranks that are exact."""

import random

import pytest

from wsdata.loader.histogram import Histogram, upper_s


def drawn(seed, count=3000):
    rng = random.Random(seed)  # noqa: S311
    return [rng.lognormvariate(-5, 1.5) for _ in range(count)]


def filled(times):
    made = Histogram()
    for seconds in times:
        made.add(seconds)
    return made


def test_several_at_once_count_as_one_by_one():
    times = [0.0, 1e-9, 1e-6, 2e-6, 1e9, *drawn(4)]
    at_once = Histogram()
    at_once.add_all([])
    at_once.add_all(times[:7])
    at_once.add_all(times[7:])
    one_by_one = filled(times)
    assert at_once.counts == one_by_one.counts
    assert at_once.num == len(times)
    assert at_once.sum_s == pytest.approx(one_by_one.sum_s)


@pytest.mark.parametrize("share", [0.5, 0.99, 0.999, 1.0])
def test_percentiles_are_at_most_a_class_above_the_true_ones(share):
    times = sorted(drawn(1))
    true = times[max(0, -(-int(share * 1_000_000 * len(times)) // 1_000_000) - 1)]
    found = filled(times).quantile_s(share)
    assert true <= found <= true * 2**0.125 * (1 + 1e-9)


def test_ranks_add_up_to_what_one_would_have_counted():
    parts = [drawn(seed, 500) for seed in range(8)]
    merged = Histogram()
    for part in parts:
        merged.merge(Histogram.from_json(filled(part).to_json()))
    whole = filled([seconds for part in parts for seconds in part])
    assert merged.counts == whole.counts
    assert merged.num == whole.num == 4000
    assert merged.sum_s == pytest.approx(whole.sum_s)


def test_the_ends_of_the_scale_and_nothing_at_all():
    assert Histogram().quantile_s(0.5) is None
    ends = filled([0.0, 1e-9, 1e9])
    assert ends.quantile_s(0.5) == pytest.approx(1e-6)
    assert ends.quantile_s(1.0) == pytest.approx(upper_s(240)) == pytest.approx(2**30 / 1e6)
    with pytest.raises(ValueError, match="expected"):
        Histogram.from_json({**ends.to_json(), "classes": "others"})
