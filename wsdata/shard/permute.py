"""Keyed permutations of [0, n), forward and inverse, in integer arithmetic alone.

A generalised Feistel network over a x b >= n cells with cycle walking: any position is computed
by itself, so nothing is stored and nothing is shuffled. Only 64-bit modular arithmetic is used:
the outcome is the same on every machine and with every numpy version. What is permuted, and
when, belongs to `plan`.
"""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

NUM_ROUNDS = 4
MAX_LENGTH = 2**48  # both halves then stay under 2**25, far from any overflow

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 30, 31, 32))


def make_key(*parts: str | int) -> int:
    """Digest a name into a 64-bit key; parts are kept apart, so ("a", "bc") is not ("ab", "c")."""
    text = "".join(f"{len(str(part))}:{part}," for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def hash_values(values: I64, key: int) -> U64:
    """Hash integers >= 0 under a key to 64 bits each (splitmix64's finaliser, twice)."""
    return _mix(_mix(values.astype(np.uint64) * _GOLDEN + np.uint64(key)) + np.uint64(key))


def permute(positions: I64, length: int, keys: U64) -> I64:
    """Map positions in [0, length) onto [0, length), one to one under any one key.

    Args:
        positions: Integers in [0, length), shape (n,).
        length: Size of the permuted range, in [1, MAX_LENGTH].
        keys: A 64-bit key for each position, shape (n,); another key is another permutation.

    Raises:
        ValueError: A length or a position out of range.
    """
    return _walk(positions, length, keys, inverse=False)


def unpermute(places: I64, length: int, keys: U64) -> I64:
    """Invert `permute`: the position that lands on each place under each key."""
    return _walk(places, length, keys, inverse=True)


def _walk(values: I64, length: int, keys: U64, *, inverse: bool) -> I64:
    if not 1 <= length <= MAX_LENGTH:
        raise ValueError(f"permutation of {length} items: expected 1 to {MAX_LENGTH}")
    if values.size and (int(values.min()) < 0 or int(values.max()) >= length):
        raise ValueError(
            f"permutation of {length} items: asked for {int(values.min())}..{int(values.max())}"
        )
    rows = math.isqrt(length - 1) + 1
    columns = -(-length // rows)
    network = _network_inverse if inverse else _network
    out = values.astype(np.uint64)
    todo = np.arange(len(out))
    limit = np.uint64(length)
    while todo.size:  # a cell past the end is walked on until it falls inside: still one to one
        moved = network(out[todo], np.uint64(rows), np.uint64(columns), keys[todo])
        out[todo] = moved
        todo = todo[moved >= limit]
    return out.astype(np.int64)


def _network(cells: U64, rows: np.uint64, columns: np.uint64, keys: U64) -> U64:
    left, right = cells // columns, cells % columns
    for index in range(NUM_ROUNDS):
        left = (left + _round(right, keys, 2 * index, rows)) % rows
        right = (right + _round(left, keys, 2 * index + 1, columns)) % columns
    return left * columns + right


def _network_inverse(cells: U64, rows: np.uint64, columns: np.uint64, keys: U64) -> U64:
    left, right = cells // columns, cells % columns
    for index in reversed(range(NUM_ROUNDS)):
        right = (right + columns - _round(left, keys, 2 * index + 1, columns)) % columns
        left = (left + rows - _round(right, keys, 2 * index, rows)) % rows
    return left * columns + right


def _round(half: U64, keys: U64, index: int, size: np.uint64) -> U64:
    salt = np.uint64((index + 1) * 0xD1342543DE82EF95 % 2**64)
    return ((_mix(half * _GOLDEN + keys + salt) >> _S32) * size) >> _S32


def _mix(values: U64) -> U64:
    values = (values ^ (values >> _S30)) * _MIX_A
    values = (values ^ (values >> _S27)) * _MIX_B
    return values ^ (values >> _S31)
