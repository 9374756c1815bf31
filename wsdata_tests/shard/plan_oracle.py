"""A step plan the slow, obvious way: plain Python integers, one slot after the other."""

import functools
import hashlib
import math
from fractions import Fraction

from wsdata.shard.plan_words import balanced_word

MASK = 2**64 - 1


def _mix(value):
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def _key(*parts):
    text = "".join(f"{len(str(part))}:{part}," for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permuted(position, length, key):
    """Where a position of a permutation of `length` items lands."""
    rows = next(side for side in range(length + 1) if side * side >= length)
    columns = -(-length // rows)
    while True:
        left, right = divmod(position, columns)
        for number in range(8):
            half, size = (right, rows) if number % 2 == 0 else (left, columns)
            salt = (number + 1) * 0xD1342543DE82EF95
            noise = (_mix((half * 0x9E3779B97F4A7C15 + key + salt) & MASK) >> 32) * size >> 32
            if number % 2 == 0:
                left = (left + noise) % rows
            else:
                right = (right + noise) % columns
        position = left * columns + right
        if position < length:
            return position


def epoch_key(pool_key, epoch):
    """Key of a pool's permutation in one epoch."""
    inner = _mix(((epoch * 0x9E3779B97F4A7C15) + pool_key) & MASK)
    return _mix((inner + pool_key) & MASK)


def largest_remainder(shares, period):
    """Share out `period` places."""
    total = sum(shares)
    counts = [int(share * period / total) for share in shares]
    while sum(counts) < period:
        rest = [share * period / total - count for share, count in zip(shares, counts, strict=True)]
        counts[rest.index(max(rest))] += 1
    return counts


def walk(rows, *, seed, phases, streams, samples, num_steps):
    """Yield (bucket, [(sample_id, stream, epoch), ...]) of each step.

    Knows no epoch caps. `rows` are dicts as in the dataset index.
    """
    rows = sorted(rows, key=lambda row: (row["tier"], row["sample_id"]))
    drawn = {}
    step = 0
    for number, phase in enumerate(phases):
        pools = _pools(rows, phase, streams)
        buckets = sorted({bucket for _, bucket, _ in pools})
        rate = {name: _rate(name, pools, phase, streams) for name in pools}
        turns = [
            sum(rate[name] for name in pools if name[1] == bucket) / _batch(bucket, samples)
            for bucket in buckets
        ]
        word = _word(turns, 16384)
        inner = {}
        places = dict.fromkeys(buckets, 0)
        local = 0
        is_last = number == len(phases) - 1
        while step < num_steps and (is_last or local < phase["steps"]):
            bucket = buckets[word[local % len(word)]]
            if bucket not in inner:
                names = sorted(name for name in pools if name[1] == bucket)
                inner[bucket] = names, _word([rate[name] for name in names], 16384)
            names, letters = inner[bucket]
            batch = []
            for _ in range(_batch(bucket, samples)):
                name = names[letters[places[bucket] % len(letters)]]
                places[bucket] += 1
                members = pools[name]
                epoch, position = divmod(drawn.get(name, 0), len(members))
                drawn[name] = drawn.get(name, 0) + 1
                key = _key("pool", seed, f"{name[0]}|{bucket}|{'+'.join(name[2])}")
                place = permuted(position, len(members), epoch_key(key, epoch))
                batch.append((members[place]["sample_id"], name[0], epoch))
            yield bucket, batch
            step, local = step + 1, local + 1


def _pools(rows, phase, streams):
    admitted = [
        row
        for row in rows
        if row["tier"] in phase["tiers"]
        and row["bucket"].split("/")[0] in phase["rungs"]
        and phase["weights"].get(row["stream"], 0) > 0
        and row["stream"] in streams
    ]
    pools = {}
    for row in admitted:
        pools.setdefault((row["stream"], row["bucket"]), []).append(row)
    return {
        (*name, tuple(sorted({row["tier"] for row in members}))): members
        for name, members in pools.items()
    }


def _rate(name, pools, phase, streams):
    """Draws of a pool: every sample of a stream alike, streams by weight over their tokens."""
    tokens = sum(
        row["num_tokens"] for other, members in pools.items() if other[0] == name[0]
        for row in members
    )  # fmt: skip
    weight = Fraction(str(phase["weights"][name[0]]))
    multiplier = Fraction(str(streams[name[0]].get("multiplier", 1.0)))
    return weight * multiplier * len(pools[name]) / tokens


def _batch(bucket, samples):
    return samples.get("batch_of_bucket", {}).get(bucket, samples["global_batch"])


def _word(shares, limit):
    total = sum(shares)
    exact = math.lcm(*((share / total).denominator for share in shares))
    return _spread(tuple(largest_remainder(shares, min(exact, limit))))


@functools.lru_cache(maxsize=64)  # mixtures that a search makes smaller have words in common
def _spread(counts):
    return balanced_word(counts)
