"""Is the order that is served well mixed? Autocorrelation of a trait, measured and not assumed.

Buckets and streams come in a planned rhythm, so a trait is looked at beside what its pool leads
one to expect: what is left must be flat beyond the global batch.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

SIGMAS = 5.0  # of chance, that a correlation may reach


def trait_autocorrelation(pools: I64, traits: I64, lags: Iterable[int]) -> dict[int, float]:
    """Correlate a trait of served samples with that of samples served some slots later.

    Args:
        pools: Pool of each served sample, in served order.
        traits: Code of each one's trait (its source, its cluster), in the same order.
        lags: Distances in slots, each less than the number of samples.

    Returns:
        Correlation in [-1, 1] by lag; 0.0 where no pool has two traits.
    """
    lags = list(lags)
    sums = dict.fromkeys(lags, 0.0)
    energy = 0.0
    counts = np.bincount(pools)
    for trait in np.unique(traits):
        has_trait = (traits == trait).astype(np.float64)
        expected = np.bincount(pools, weights=has_trait) / np.maximum(counts, 1)
        rest = has_trait - expected[pools]
        energy += float(rest @ rest)
        for lag in lags:
            sums[lag] += float(rest[:-lag] @ rest[lag:])
    return {lag: value / energy if energy > 0 else 0.0 for lag, value in sums.items()}


def is_flat(correlations: dict[int, float], num_samples: int, *, beyond: int) -> bool:
    """Whether no lag over `beyond` correlates more than chance would in so many samples."""
    bound = SIGMAS / math.sqrt(num_samples)
    return all(value <= bound for lag, value in correlations.items() if lag > beyond)
