import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.ingest.print_index import PrintIndex, near_pairs

RADIUS = 31


def _hashes(rng, count):
    return rng.integers(0, 256, (count, 32), dtype=np.uint8)


def _flipped(rng, hashes, most):
    """Each hash with 0 to `most` bits turned."""
    bits = np.unpackbits(hashes, axis=1)
    for row in bits:
        row[rng.choice(256, rng.integers(0, most + 1), replace=False)] ^= 1
    return np.packbits(bits, axis=1)


def _by_counting(left, right, radius):
    """Oracle: unpack all bits and count where they differ."""
    a, b = (np.unpackbits(side, axis=1).astype(np.int32) for side in (left, right))
    apart = a.sum(1)[:, None] + b.sum(1)[None, :] - 2 * a @ b.T
    rows, columns = np.nonzero(apart <= radius)
    return np.stack([rows, columns, apart[rows, columns]])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_left=st.integers(0, 80),
    num_right=st.integers(0, 300),
    radius=st.sampled_from([0, 1, 8, RADIUS, 64, 120]),
)
def test_the_pairs_are_those_that_counting_bits_finds(seed, num_left, num_right, radius):
    rng = np.random.default_rng(seed)
    left = _hashes(rng, num_left)
    kin = _flipped(rng, left[rng.integers(0, num_left, 40)], radius + 2) if num_left else left
    right = np.concatenate([_hashes(rng, num_right), kin])
    expected = _by_counting(left, right, radius)
    assert np.array_equal(np.stack(near_pairs(left, right, radius=radius)), expected)
    index = PrintIndex(right, radius=radius, num_queries=len(left))
    assert np.array_equal(np.stack(index.near(left)), expected)


@pytest.mark.parametrize("num_queries", [1, 1 << 10, 1 << 24])
def test_every_pair_at_the_radius_is_found_among_many(num_queries):
    rng = np.random.default_rng(5)
    index_of = _hashes(rng, 20_000)
    asked = np.unpackbits(index_of[:500], axis=1)
    for row in asked:
        row[rng.choice(256, RADIUS, replace=False)] ^= 1
    found = PrintIndex(index_of, radius=RADIUS, num_queries=num_queries).near(
        np.packbits(asked, axis=1)
    )
    assert found.left.tolist() == found.right.tolist() == list(range(500))
    assert set(found.distance) == {RADIUS}


def test_no_order_of_insertion_changes_the_pairs():
    rng = np.random.default_rng(6)
    index_of = _hashes(rng, 3000)
    asked = _flipped(rng, index_of[rng.integers(0, 3000, 200)], RADIUS + 1)
    order = rng.permutation(3000)
    straight = PrintIndex(index_of, radius=RADIUS).near(asked)
    shuffled = PrintIndex(index_of[order], radius=RADIUS).near(asked)
    there = sorted(zip(straight.left, straight.right, straight.distance, strict=True))
    back = sorted(zip(shuffled.left, order[shuffled.right], shuffled.distance, strict=True))
    assert there == back


def test_a_bucket_larger_than_a_block_is_compared_whole():
    same = np.zeros((70_000, 32), np.uint8)
    found = PrintIndex(same, radius=0).near(same[:2])
    assert len(found.left) == 140_000
    assert found.distance.max() == 0


def test_a_radius_beyond_all_bits_is_refused():
    with pytest.raises(ValueError, match="radius 256"):
        PrintIndex(np.zeros((1, 32), np.uint8), radius=256)
