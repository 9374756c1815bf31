"""Is the order that is served well mixed? Autocorrelation of a trait, measured and not assumed.

Buckets and streams come in a planned rhythm, so a trait is looked at beside what its pool leads
one to expect: what is left must be flat beyond the global batch. A long run is looked at in
windows that its name chooses, so that the cost does not grow with it and asking again gives the
same answer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.shard.permute import make_key

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

SIGMAS = 5.0  # of chance, that a correlation may reach
MAX_STEPS = 2048  # looked at; more are sampled
WINDOW = 32  # steps of one window of a sample: correlations reach so many global batches far
MAX_SAMPLES = 1 << 19


class Correlation(NamedTuple):
    """Correlation in [-1, 1] over so many pairs; 0.0 where no pool has two traits."""

    value: float
    num_pairs: int

    @property
    def bound(self) -> float:
        """What chance alone would hardly exceed."""
        return SIGMAS / math.sqrt(max(self.num_pairs, 1))


def trait_autocorrelation(
    pools: I64, traits: I64, lags: Iterable[int], windows: I64 | None = None
) -> dict[int, Correlation]:
    """Correlate a trait of served samples with that of samples served some slots later.

    Every value of the trait is an indicator, less its share in the sample's pool; the products of
    all indicators are summed in closed form, so 10^5 values cost no more than two.

    Args:
        pools: Pool of each served sample, in served order.
        traits: Code of each one's trait (its source, its cluster), in the same order.
        lags: Distances in slots. One that no pair is apart is left out.
        windows: Number of the window that each sample is in, ascending; only samples of one
            window follow each other. All are of one without it.

    Returns:
        Correlation by lag.
    """
    pool_of = np.unique(pools, return_inverse=True)[1].reshape(-1)
    value_of = np.unique(traits, return_inverse=True)[1].reshape(-1)
    shares = _shares(pool_of, value_of)
    agreement = shares @ shares.T  # of two samples drawn from two pools by chance
    own = shares[pool_of, value_of]
    energy = float((1.0 - 2.0 * own + np.diag(agreement)[pool_of]).mean()) if len(pools) else 0.0
    found: dict[int, Correlation] = {}
    for lag in lags:
        if not 0 < lag < len(pools):
            continue
        one, other = np.arange(len(pools) - lag), np.arange(lag, len(pools))
        if windows is not None:
            inside = windows[one] == windows[other]
            one, other = one[inside], other[inside]
        if not len(one):
            continue
        a, b = pool_of[one], pool_of[other]
        product = (value_of[one] == value_of[other]).astype(np.float64)
        product += agreement[a, b] - shares[b, value_of[one]] - shares[a, value_of[other]]
        value = float(product.mean()) / energy if energy > 0 else 0.0
        found[lag] = Correlation(value, len(one))
    return found


def _shares(pool_of: NDArray[np.intp], value_of: NDArray[np.intp]) -> F64:
    """Share of each value in each pool, shape (pools, values)."""
    num_pools, num_values = (int(each.max(initial=-1)) + 1 for each in (pool_of, value_of))
    counts = np.bincount(pool_of * num_values + value_of, minlength=num_pools * num_values)
    table = counts.reshape(num_pools, num_values).astype(np.float64)
    return table / np.maximum(table.sum(axis=1, keepdims=True), 1)


def off_lags(correlations: Mapping[int, Correlation], *, beyond: int) -> list[int]:
    """Lags over `beyond` at which a trait correlates more than chance would."""
    return [lag for lag, each in correlations.items() if lag > beyond and each.value > each.bound]


def choose_lags(batch: int, num_samples: int) -> list[int]:
    """Lags worth looking at: neighbours, then some past one, two, four ... global batches."""
    far = [batch * 2**power + 1 for power in range(24)]
    near = [lag for lag in (1, 2, batch // 2) if 0 < lag <= batch]
    return sorted({lag for lag in (*near, *far) if lag < num_samples // 2})


def choose_windows(
    spans: Sequence[tuple[int, int]], *, key: str, batch: int, max_steps: int = MAX_STEPS
) -> list[tuple[int, int]]:
    """Choose the steps of a run that are looked at: all, or windows spread evenly over them.

    Args:
        spans: Disjoint spans [first, end) of steps, ascending.
        key: The run's name: another one is looked at elsewhere.
        batch: Largest global batch.
        max_steps: So many steps are all looked at.

    Returns:
        Spans of steps, ascending, at most `max_steps` in all and about `MAX_SAMPLES` samples.
    """
    total = sum(end - first for first, end in spans)
    most = max(WINDOW, min(max_steps, MAX_SAMPLES // max(batch, 1)))
    if total <= most:
        return list(spans)
    num_windows = max(1, most // WINDOW)
    chosen: list[tuple[int, int]] = []
    for number in range(num_windows):
        low, high = (total * each // num_windows for each in (number, number + 1))
        room = max(1, high - low - WINDOW + 1)
        first = low + make_key("realised", key, number) % room
        chosen += _at(spans, first, min(first + WINDOW, high))
    return chosen


def _at(spans: Sequence[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Steps number [low, high) of all those of the spans, counted through."""
    found: list[tuple[int, int]] = []
    passed = 0
    for first, end in spans:
        a, b = max(low, passed), min(high, passed + end - first)
        if a < b:
            found.append((first + a - passed, first + b - passed))
        passed += end - first
    return found
