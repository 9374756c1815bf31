"""Keyed permutations of [0, n), forward and inverse, in integer arithmetic alone.

A generalised Feistel network over a x b >= n cells with cycle walking: any position is computed
by itself, so nothing is stored and nothing is shuffled. Only 64-bit modular arithmetic is used:
the outcome is the same on every machine and with every numpy version. What is permuted, and
when, belongs to `plan`.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

NUM_ROUNDS = 4
MAX_LENGTH = 2**48  # both halves then stay under 2**25, far from any overflow

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_TURN = np.uint64(0xD6E8FEB86659FD93)
_S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 30, 31, 32))


def make_key(*parts: str | int) -> int:
    """Digest a name into a 64-bit key; parts are kept apart, so ("a", "bc") is not ("ab", "c")."""
    text = "".join(f"{len(str(part))}:{part}," for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def hash_values(values: I64, key: int | U64) -> U64:
    """Hash integers >= 0, under one key or one each, to 64 bits (splitmix64's finaliser, twice)."""
    own = np.uint64(key) if isinstance(key, int) else key
    return _mix(_mix(values.astype(np.uint64) * _GOLDEN + own) + own)


def permute(positions: I64, length: int | I64, keys: U64) -> I64:
    """Map positions in [0, length) onto [0, length), one to one under any one key.

    Args:
        positions: Integers in [0, length), shape (n,).
        length: Size of the permuted range, in [1, MAX_LENGTH]; or of each position's, shape (n,).
        keys: A 64-bit key for each position, shape (n,); another key is another permutation.

    Raises:
        ValueError: A length or a position out of range.
    """
    return _walk(positions, length, keys, inverse=False)


def unpermute(places: I64, length: int | I64, keys: U64) -> I64:
    """Invert `permute`: the position that lands on each place under each key."""
    return _walk(places, length, keys, inverse=True)


def permute_near(positions: I64, length: int, keys: U64, *, block: int, window: int) -> I64:
    """As `permute`, but positions that are near each other come from few blocks of places.

    Whole blocks of `block` places are permuted, and then the places of each `window` in a row
    among themselves: a window of positions is served from window / block blocks. The places
    that fill no block stay together; where in the order they come is another for each key.

    Args:
        positions: Integers in [0, length), shape (n,).
        length: Size of the permuted range, in [1, MAX_LENGTH].
        keys: A 64-bit key for each position, shape (n,).
        block: Places that stay together, at least 1.
        window: A multiple of `block`.

    Raises:
        ValueError: A length, a position or a window out of range.
    """
    _check_window(block, window)
    _check_range(positions, length)
    turned = (positions + _turn(keys, length)) % length
    slots = _within_windows(turned, length, keys, window, inverse=False)
    return _blocks(slots, length, keys, block, inverse=False)


def unpermute_near(places: I64, length: int, keys: U64, *, block: int, window: int) -> I64:
    """Invert `permute_near`."""
    _check_window(block, window)
    _check_range(places, length)
    slots = _blocks(places, length, keys, block, inverse=True)
    turned = _within_windows(slots, length, keys, window, inverse=True)
    return (turned - _turn(keys, length)) % length


def _check_window(block: int, window: int) -> None:
    if block < 1 or window < block or window % block:
        raise ValueError(f"window {window}: expected a multiple of the block, {block}")


def _turn(keys: U64, length: int) -> I64:
    return (_mix(keys + _TURN) % np.uint64(length)).astype(np.int64)


def _within_windows(values: I64, length: int, keys: U64, window: int, *, inverse: bool) -> I64:
    numbers, inner = np.divmod(values, window)
    own = _mix(keys + (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    out = numbers * window
    is_whole = (numbers + 1) * window <= length
    out[is_whole] += _walk(inner[is_whole], window, own[is_whole], inverse=inverse)
    if rest := length % window:
        cut = ~is_whole
        out[cut] += _walk(inner[cut], rest, own[cut], inverse=inverse)
    return out


def _blocks(values: I64, length: int, keys: U64, block: int, *, inverse: bool) -> I64:
    numbers, inner = np.divmod(values, block)
    out = values.copy()
    if num_blocks := length // block:
        is_whole = numbers < num_blocks
        moved = _walk(numbers[is_whole], num_blocks, keys[is_whole], inverse=inverse)
        out[is_whole] = moved * block + inner[is_whole]
    return out


def _check_range(values: I64, length: int | I64) -> None:
    if np.any(length < 1) or np.any(length > MAX_LENGTH):
        raise ValueError(f"permutation of {length} items: expected 1 to {MAX_LENGTH}")
    if values.size and (int(values.min()) < 0 or np.any(values >= length)):
        raise ValueError(
            f"permutation of {length} items: asked for {int(values.min())}..{int(values.max())}"
        )


def _walk(values: I64, length: int | I64, keys: U64, *, inverse: bool) -> I64:
    _check_range(values, length)
    rows, columns = _sides(length)
    network = _network_inverse if inverse else _network
    out = values.astype(np.uint64)
    limit = np.asarray(length).astype(np.uint64)
    todo = np.arange(len(out))
    while todo.size:  # a cell past the end is walked on until it falls inside: still one to one
        at = todo if limit.ndim else ()
        moved = network(out[todo], rows[at], columns[at], keys[todo])
        out[todo] = moved
        todo = todo[moved >= limit[at]]
    return out.astype(np.int64)


def _sides(length: int | I64) -> tuple[U64, U64]:
    """Sides of the least near-square of cells that holds each length."""
    lengths = np.asarray(length, dtype=np.int64)
    roots = np.sqrt(lengths - 1).astype(np.int64)  # as good as the machine's, then made exact
    roots += (roots + 1) ** 2 < lengths
    roots -= roots**2 >= lengths
    rows = roots + 1
    return rows.astype(np.uint64), (-(-lengths // rows)).astype(np.uint64)


def _network(cells: U64, rows: U64, columns: U64, keys: U64) -> U64:
    left, right = cells // columns, cells % columns
    for index in range(NUM_ROUNDS):
        left = (left + _round(right, keys, 2 * index, rows)) % rows
        right = (right + _round(left, keys, 2 * index + 1, columns)) % columns
    return left * columns + right


def _network_inverse(cells: U64, rows: U64, columns: U64, keys: U64) -> U64:
    left, right = cells // columns, cells % columns
    for index in reversed(range(NUM_ROUNDS)):
        right = (right + columns - _round(left, keys, 2 * index + 1, columns)) % columns
        left = (left + rows - _round(right, keys, 2 * index, rows)) % rows
    return left * columns + right


def _round(half: U64, keys: U64, index: int, size: U64) -> U64:
    salt = np.uint64((index + 1) * 0xD1342543DE82EF95 % 2**64)
    return ((_mix(half * _GOLDEN + keys + salt) >> _S32) * size) >> _S32


def _mix(values: U64) -> U64:
    values = (values ^ (values >> _S30)) * _MIX_A
    values = (values ^ (values >> _S27)) * _MIX_B
    return values ^ (values >> _S31)
