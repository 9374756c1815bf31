"""What a step plan is made of: pools, and for each phase how often buckets and streams come.

Weights are shares of latent tokens. Inside a stream every sample is as likely as any other, so
pool (stream, bucket) is drawn at weight * samples / tokens of the stream, and how often a
bucket's steps come follows from its draws and its batch size. Everything is an exact rational
until it is apportioned into the integer counts of a periodic word. Which step gets which sample
belongs to `plan`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from wsdata.errors import PlanError
from wsdata.shard.plan_words import apportion, choose_period

MAX_BUCKET_PERIOD = 16384  # the smallest share of steps that a bucket can have is about 1 / this
MAX_STREAM_PERIOD = 16384  # ... and that a stream can have of the draws of one bucket


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Samples of one stream, bucket and set of tiers, served once each per epoch."""

    stream: str
    bucket: str
    tiers: tuple[str, ...]
    num_samples: int
    num_tokens: int

    @property
    def name(self) -> str:
        """What keys the pool's permutation, and what errors call it."""
        return f"{self.stream}|{self.bucket}|{'+'.join(self.tiers)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketMix:
    """One bucket within a phase: `num_turns` steps of each period of the phase's bucket word.

    `draws[i]` is how often `pools[i]` comes in each period of the bucket's stream word; `pools`
    go by stream name, one for each stream.
    """

    bucket: str
    batch_size: int
    num_turns: int
    pools: tuple[int, ...]
    draws: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseMix:
    """One phase: its steps, its buckets, and the share of tokens due to each stream.

    `due` holds exact fractions as text. `absent` streams have a weight but no admitted sample;
    `capped` streams got less than their weight, because of `max_epochs`; `short` buckets lost so
    many samples in encoding that they cannot fill a global batch, and are left out.
    """

    name: str
    num_steps: int
    buckets: tuple[BucketMix, ...]
    due: dict[str, str]
    absent: tuple[str, ...]
    capped: tuple[str, ...]
    short: tuple[str, ...]


def pool_from_json(data: Mapping[str, Any]) -> Pool:
    """Read a pool that `dataclasses.asdict` and JSON wrote."""
    body = dict(data)
    body["tiers"] = tuple(body["tiers"])
    return Pool(**body)


def mix_to_json(phase: PhaseMix) -> dict[str, Any]:
    """Return a JSON-able form that `mix_from_json` reads."""
    return asdict(phase)


def mix_from_json(data: Mapping[str, Any]) -> PhaseMix:
    """Read what `mix_to_json` wrote."""
    body = dict(data)
    body["buckets"] = tuple(_bucket_from_json(item) for item in body["buckets"])
    for name in ("absent", "capped", "short"):
        body[name] = tuple(body[name])
    return PhaseMix(**body)


def _bucket_from_json(data: Mapping[str, Any]) -> BucketMix:
    body = dict(data)
    body["pools"], body["draws"] = tuple(body["pools"]), tuple(body["draws"])
    return BucketMix(**body)


def exact(value: float | str) -> Fraction:
    """Read a number of a recipe as the decimal that was written, not as its nearest double."""
    return Fraction(str(value))


def batch_size_of(bucket: str, samples: Mapping[str, Any]) -> int:
    """Global batch of a bucket: its own of the recipe's ``samples`` section, or the common one."""
    return int(samples.get("batch_of_bucket", {}).get(bucket, samples["global_batch"]))


def mix_phase(
    phase: Mapping[str, Any],
    pools: Mapping[int, Pool],
    *,
    streams: Mapping[str, Mapping[str, Any]],
    samples: Mapping[str, Any],
    epochs_left: Mapping[str, Fraction],
    lost: Mapping[str, int],
) -> tuple[PhaseMix, dict[str, Fraction]]:
    """Turn a phase's weights into integer counts.

    Args:
        phase: A phase of the recipe, as a plain dict.
        pools: The pools that this phase admits, by index in the plan.
        streams: The recipe's streams, as plain dicts.
        samples: The recipe's ``samples`` section, as a plain dict.
        epochs_left: For each stream with a cap, what earlier phases have left of it.
        lost: Samples of each bucket that the manifest has and the index lost.

    Returns:
        The phase's mix, and how many epochs of each stream's admitted samples it takes.

    Raises:
        PlanError: No sample is admitted, a bucket cannot fill a global batch, a share is too
            small to be drawn, or the caps leave too little to fill the phase.
    """
    name = str(phase["name"])
    weights = _weights(phase, streams)
    short = _short_buckets(name, pools.values(), samples, lost)
    by_stream = {
        stream: {
            i: pool
            for i, pool in pools.items()
            if pool.stream == stream and pool.bucket not in short
        }
        for stream in weights
    }
    absent = tuple(sorted(stream for stream, found in by_stream.items() if not found))
    by_stream = {stream: found for stream, found in by_stream.items() if found}
    if not by_stream:
        left_out = f" (left out after losses: {', '.join(short)})" if short else ""
        raise PlanError(
            f"phase {name!r} is empty: no sample of streams {sorted(weights)} is in rungs "
            f"{sorted(phase['rungs'])} and tiers {sorted(phase['tiers'])}{left_out}: admit more "
            "rungs or tiers, weigh other streams, or remove the phase from the recipe"
        )
    rates, capped, epochs = _stream_rates(
        name, int(phase["steps"]), by_stream, weights, samples, epochs_left
    )
    due = {
        stream: rate * sum(pool.num_tokens for pool in by_stream[stream].values())
        for stream, rate in rates.items()
    }
    total = sum(due.values(), Fraction(0))
    mix = PhaseMix(
        name=name,
        num_steps=int(phase["steps"]),
        buckets=_mix_buckets(name, by_stream, rates, samples),
        due={stream: str(share / total) for stream, share in sorted(due.items())},
        absent=absent,
        capped=capped,
        short=short,
    )
    return mix, epochs


def _weights(
    phase: Mapping[str, Any], streams: Mapping[str, Mapping[str, Any]]
) -> dict[str, Fraction]:
    if unknown := sorted(set(phase["weights"]) - set(streams)):
        raise PlanError(
            f"phase {phase['name']!r} weighs unknown streams {unknown}; declared are "
            f"{sorted(streams)}: declare them or remove their weights"
        )
    weights = {
        str(stream): exact(weight) * exact(streams[stream].get("multiplier", 1.0))
        for stream, weight in phase["weights"].items()
    }
    return {stream: weight for stream, weight in sorted(weights.items()) if weight > 0}


def _short_buckets(
    name: str, pools: Iterable[Pool], samples: Mapping[str, Any], lost: Mapping[str, int]
) -> tuple[str, ...]:
    """Buckets that losses left too small; one that never could fill a batch is refused."""
    held: dict[str, int] = {}
    for pool in pools:
        held[pool.bucket] = held.get(pool.bucket, 0) + pool.num_samples
    short = {
        bucket: (count, batch_size_of(bucket, samples))
        for bucket, count in sorted(held.items())
        if count < batch_size_of(bucket, samples)
    }
    refused = [
        f"bucket {bucket} has {count} samples, fewer than one global batch of {batch}"
        for bucket, (count, batch) in short.items()
        if count + lost.get(bucket, 0) < batch
    ]
    if refused:
        raise PlanError(
            f"phase {name!r}: {'; '.join(refused)}: let the cut hand them down "
            "(samples.hand_down, samples.min_bucket_samples), lower samples.batch_of_bucket for "
            "them, or admit more tiers in this phase"
        )
    return tuple(short)


def _stream_rates(
    name: str,
    num_steps: int,
    by_stream: Mapping[str, Mapping[int, Pool]],
    weights: Mapping[str, Fraction],
    samples: Mapping[str, Any],
    epochs_left: Mapping[str, Fraction],
) -> tuple[dict[str, Fraction], tuple[str, ...], dict[str, Fraction]]:
    """Draws of each sample of a stream per unit of the mixture, after caps.

    One unit takes sum(rate_s * steps_s) steps, where steps_s is the steps that one epoch of
    stream s fills; so a sample of s is drawn rate_s * num_steps / unit times in the phase. A
    stream past its cap is set to exactly that cap, which makes the unit a linear equation.
    """
    steps_of = {
        stream: sum(
            (
                Fraction(pool.num_samples, batch_size_of(pool.bucket, samples))
                for pool in found.values()
            ),
            Fraction(0),
        )
        for stream, found in by_stream.items()
    }
    rates = {
        stream: weights[stream] / sum(pool.num_tokens for pool in found.values())
        for stream, found in by_stream.items()
    }
    capped: set[str] = set()
    while True:
        fixed_steps = sum((epochs_left[s] * steps_of[s] for s in capped), Fraction(0))
        free = sum((rates[s] * steps_of[s] for s in rates if s not in capped), Fraction(0))
        if fixed_steps < num_steps and not free:
            wanted = ", ".join(
                f"{s}: {float(epochs_left[s]):g} epochs left" for s in sorted(capped)
            )
            raise PlanError(
                f"phase {name!r} has {num_steps} steps, but max_epochs lets its streams fill only "
                f"{float(fixed_steps):g} ({wanted}): shorten the phase, raise max_epochs, or weigh "
                "a stream without a cap"
            )
        scale = (num_steps - fixed_steps) / free if free else Fraction(0)
        epochs = {s: epochs_left[s] if s in capped else rates[s] * scale for s in rates}
        over = {s for s in rates if s in epochs_left and epochs[s] > epochs_left[s]} - capped
        if not over:
            break
        capped |= over
    drawn = {stream: value for stream, value in epochs.items() if value > 0}
    return drawn, tuple(sorted(capped)), drawn


def _mix_buckets(
    name: str,
    by_stream: Mapping[str, Mapping[int, Pool]],
    rates: Mapping[str, Fraction],
    samples: Mapping[str, Any],
) -> tuple[BucketMix, ...]:
    draws: dict[str, dict[str, tuple[int, Fraction]]] = {}
    for stream, rate in rates.items():
        for index, pool in by_stream[stream].items():
            draws.setdefault(pool.bucket, {})[stream] = (index, rate * pool.num_samples)
    buckets = sorted(draws)
    steps = [
        sum((share for _, share in draws[bucket].values()), Fraction(0))
        / batch_size_of(bucket, samples)
        for bucket in buckets
    ]
    turns = _counts(steps, MAX_BUCKET_PERIOD, buckets, f"phase {name!r}: bucket")
    mixes: list[BucketMix] = []
    for bucket, num_turns in zip(buckets, turns, strict=True):
        # Words break ties by letter. Pools are numbered as phases first admit them, so letters go
        # by stream name: a phase's rhythm is then its own, whatever phases come before it.
        names = sorted(draws[bucket])
        pools, shares = zip(*(draws[bucket][stream] for stream in names), strict=True)
        counts = _counts(
            shares, MAX_STREAM_PERIOD, names, f"phase {name!r}, bucket {bucket}: stream"
        )
        mixes.append(
            BucketMix(
                bucket=bucket,
                batch_size=batch_size_of(bucket, samples),
                num_turns=num_turns,
                pools=pools,
                draws=tuple(counts),
            )
        )
    return tuple(mixes)


def _counts(shares: Sequence[Fraction], limit: int, names: Sequence[str], where: str) -> list[int]:
    counts = apportion(shares, choose_period(shares, limit))
    for label, share, count in zip(names, shares, counts, strict=True):
        if not count:
            part = float(share / sum(shares, Fraction(0)))
            raise PlanError(
                f"{where} {label} has a share of {part:.2e}, too small to be drawn (the least is "
                f"about {1 / limit:.1e}): raise its weight, merge it into a neighbour, or take it "
                "out of the phase"
            )
    return counts
