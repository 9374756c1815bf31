"""Hand-down: samples of a bucket that cannot fill a global batch go to one that can.

A phase that draws a bucket needs a whole batch of samples that it admits, so a bucket is short
when, for some phase, it holds some such samples but fewer than its minimum. Rungs are settled
from the smallest up, buckets within a rung from long and large to short and small. The moves of
the recipe are tried in its order, and the first that leaves every bucket it touches full is
made; where none does, each sample goes to the full bucket that loses the fewest of its frames,
or moves on with its like towards shorter and smaller buckets. Only what fits no full bucket in
the end is excluded.

Every (bucket, phase) closes at most once and never opens again, so this ends; nothing depends on
the order of the samples.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from wsdata.curate.centroids import hash_rank
from wsdata.curate.samples import Bucket, Sample, cut_shorter
from wsdata.recipe import Samples
from wsdata.tables import SAMPLED_RUNGS

Size = tuple[int, int]


@dataclass(kw_only=True, slots=True)
class HandDown:
    """What a hand-down made of the samples.

    Attributes:
        samples: What is left, sorted by id; no bucket is short.
        lost: Samples that fit no full bucket.
        moves: How many samples left (bucket, by move).
    """

    samples: list[Sample]
    lost: list[Sample]
    moves: Counter[tuple[Bucket, str]] = field(default_factory=Counter[tuple[Bucket, str]])


def minimum_of(bucket: Bucket, settings: Samples) -> int:
    """Samples that a bucket needs: its global batch, or more where the recipe says so."""
    batch = settings.batch_of_bucket.get(bucket.name, settings.global_batch)
    return max(batch, settings.min_bucket_samples)


def hand_down(samples: Iterable[Sample], settings: Samples, *, seed: int) -> HandDown:
    """Move samples until no bucket is short. See the module docstring.

    Args:
        samples: Samples with distinct ids, in any order.
        settings: Allowed moves in their order, frame counts, minima.
        seed: Chooses among equals which sample is cropped to fill another bucket.
    """
    board = _Board(samples, settings, seed)
    for rung in SAMPLED_RUNGS:
        while short := board.first_short(rung):
            board.settle(*short)
    board.rescue()
    board.move_small_pools()
    return HandDown(
        samples=sorted(board.all_samples(), key=lambda sample: sample.sample_id),
        lost=sorted(board.lost, key=lambda sample: sample.sample_id),
        moves=board.moves,
    )


class _Board:
    """Samples by bucket while they are handed down."""

    def __init__(self, samples: Iterable[Sample], settings: Samples, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.lost: list[Sample] = []
        self.moves: Counter[tuple[Bucket, str]] = Counter()
        self._by_bucket: dict[Bucket, set[Sample]] = {}
        self._held: Counter[tuple[Bucket, str]] = Counter()
        self._closed: set[tuple[Bucket, str]] = set()
        self._put(samples)
        self._sizes = {
            rung: sorted(
                {(b.width_px, b.height_px) for b in self._by_bucket if b.rung == rung},
                key=lambda size: (-size[0] * size[1], size),
            )
            for rung in SAMPLED_RUNGS
        }

    def all_samples(self) -> list[Sample]:
        """Everything that is in a bucket."""
        return [sample for group in self._by_bucket.values() for sample in group]

    # state -----------------------------------------------------------------------------------

    def _put(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self._by_bucket.setdefault(sample.bucket, set()).add(sample)
            self._held.update((sample.bucket, phase) for phase in sample.phases)

    def _take(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self._by_bucket[sample.bucket].remove(sample)
            self._held.subtract((sample.bucket, phase) for phase in sample.phases)

    def _minimum(self, bucket: Bucket) -> int:
        return minimum_of(bucket, self.settings)

    def _is_open(self, bucket: Bucket, sample: Sample) -> bool:
        return not any((bucket, phase) in self._closed for phase in sample.phases)

    def _is_full_for(self, bucket: Bucket, sample: Sample) -> bool:
        needed = self._minimum(bucket)
        return all(self._held[bucket, phase] >= needed for phase in sample.phases)

    def _is_healthy_without(self, bucket: Bucket, gone: Iterable[Sample]) -> bool:
        going = Counter(phase for sample in gone for phase in sample.phases)
        left = {phase: self._held[bucket, phase] - n for phase, n in going.items()}
        return all(n == 0 or n >= self._minimum(bucket) for n in left.values())

    def _would_be_full(self, new: Sequence[Sample]) -> bool:
        coming = Counter((sample.bucket, phase) for sample in new for phase in sample.phases)
        return all(
            self._held[key] + n >= self._minimum(key[0]) for key, n in coming.items()
        ) and all(self._is_open(sample.bucket, sample) for sample in new)

    def first_short(self, rung: str) -> tuple[Bucket, str] | None:
        """The short (bucket, phase) of a rung to be settled next."""
        short = [
            (bucket, phase)
            for (bucket, phase), held in self._held.items()
            if bucket.rung == rung and 0 < held < self._minimum(bucket)
        ]
        return min(
            short,
            key=lambda key: (-key[0].num_frames, -key[0].width_px * key[0].height_px, key),
            default=None,
        )

    # settling one short bucket ---------------------------------------------------------------

    def settle(self, bucket: Bucket, phase: str) -> None:
        """Make one bucket full for a phase, or empty of it for good."""
        waiting = sorted(s for s in self._by_bucket[bucket] if phase in s.phases)
        if self._recut_with_shorter(waiting):
            self._closed.add((bucket, phase))
            return
        move = self._first_full(waiting)
        if move is None and "crop" in self.settings.hand_down and self._pull(bucket, phase):
            return
        self._take(waiting)
        self._closed.add((bucket, phase))
        if move is not None:
            name, placed = move
            self._put(placed)
            self.moves[bucket, name] += len(waiting)
            return
        for sample in waiting:
            self._settle_alone(sample)

    def _recut_with_shorter(self, waiting: Sequence[Sample]) -> bool:
        """Where fewer frames come first: cut whole clips anew, not only their long samples.

        The shorter samples of the same clips take part where they wait in short buckets too,
        which leaves fewer frames over than moving one bucket after the other.
        """
        if self.settings.hand_down[:1] != ("fewer_frames",):
            return False
        clips = {sample.clip_id for sample in waiting}
        shape = waiting[0].bucket
        others = [
            sample
            for count in self._lengths_below(shape.num_frames)
            for sample in self._by_bucket.get(shape._replace(num_frames=count), ())
            if sample.clip_id in clips and not self._is_full_for(sample.bucket, sample)
        ]
        if not others:
            return False
        self._take(others)
        new = self._fewer_frames([*waiting, *others], below=shape.num_frames)
        if new is None:
            self._put(others)
            return False
        self._take(waiting)
        self._put(new)
        self.moves[shape, "fewer_frames"] += len(waiting)
        return True

    def _first_full(self, samples: Sequence[Sample]) -> tuple[str, list[Sample]] | None:
        """The first move that leaves everything it touches full, and what it makes."""
        tries: dict[str, Callable[[Sequence[Sample]], list[Sample] | None]] = {
            "fewer_frames": self._fewer_frames,
            "smaller_rung": self._smaller_rung,
            "crop": self._crop,
        }
        for name in self.settings.hand_down:
            placed = tries[name](samples)
            if placed is not None:
                return name, placed
        return None

    def _lengths_below(self, count: int) -> list[int]:
        return sorted((n for n in self.settings.frame_counts if 1 < n < count), reverse=True)

    def _fewer_frames(
        self, samples: Sequence[Sample], below: int | None = None
    ) -> list[Sample] | None:
        lengths = self._lengths_below(below or samples[0].bucket.num_frames)
        for first in range(len(lengths)):
            new = cut_shorter(samples, lengths[first:])
            if self._would_be_full(new):
                return new
        return None

    def _smaller_rung(self, samples: Sequence[Sample]) -> list[Sample] | None:
        below = SAMPLED_RUNGS[: SAMPLED_RUNGS.index(samples[0].bucket.rung)]
        wanted = {sample.clip_id for sample in samples}
        for bucket, group in self._by_bucket.items():
            if bucket.rung in below:
                wanted -= {sample.clip_id for sample in group}
        return None if wanted else []

    def _sizes_for(self, sample: Sample) -> list[Size]:
        return [
            size
            for size in self._sizes[sample.bucket.rung]
            if size != (sample.bucket.width_px, sample.bucket.height_px)
            and size[0] <= sample.full_width_px
            and size[1] <= sample.full_height_px
        ]

    def _crop(self, samples: Sequence[Sample]) -> list[Sample] | None:
        for size in self._sizes[samples[0].bucket.rung]:
            if all(size in self._sizes_for(sample) for sample in samples):
                new = [_resize(sample, size) for sample in samples]
                if self._would_be_full(new):
                    return new
        return None

    def _pull(self, bucket: Bucket, phase: str) -> bool:
        """Fill a bucket with crops from larger ones: with their surplus, or with all they have."""
        size = (bucket.width_px, bucket.height_px)
        needed = self._minimum(bucket) - self._held[bucket, phase]
        donors = [
            other
            for other in sorted(self._by_bucket)
            if other != bucket
            and (other.rung, other.num_frames) == (bucket.rung, bucket.num_frames)
        ]
        for takes_all in (False, True):
            for donor in donors:
                able = [
                    sample
                    for sample in self._by_bucket[donor]
                    if phase in sample.phases
                    and size in self._sizes_for(sample)
                    and self._is_open(bucket, sample)
                ]
                able.sort(key=lambda s: (hash_rank(s.sample_id, self.seed), s.sample_id))
                pulled = able if takes_all else able[:needed]
                new = [_resize(sample, size) for sample in pulled]
                if (
                    len(pulled) >= needed
                    and self._is_healthy_without(donor, pulled)
                    and self._would_be_full(new)
                ):
                    self._take(pulled)
                    self._put(new)
                    self.moves[donor, "crop"] += len(pulled)
                    return True
        return False

    def _settle_alone(self, sample: Sample) -> None:
        """Place one sample where it fits a full bucket, or pass it on, or lose it."""
        best = self._best_full(sample)
        if best is not None:
            self._put(best[1])
            self.moves[sample.bucket, best[0]] += 1
            return
        for name in self.settings.hand_down:
            new = self._pass_on(sample, name)
            if new is not None:
                self._put(new)
                self.moves[sample.bucket, name] += 1
                return
        self.lost.append(sample)

    def _best_full(self, sample: Sample) -> tuple[str, list[Sample]] | None:
        """The way into full buckets that keeps most frames, then most pixels."""
        moves = self.settings.hand_down
        own = (sample.bucket.width_px, sample.bucket.height_px)
        sizes = [own, *(self._sizes_for(sample) if "crop" in moves else ())]
        ways: list[tuple[int, int, str, list[Sample]]] = []
        for size in sizes:
            sized = _resize(sample, size)
            same = [sample.bucket.num_frames] if size != own else []
            shorter = (
                self._lengths_below(sample.bucket.num_frames) if "fewer_frames" in moves else []
            )
            full = [
                count
                for count in same + shorter
                if self._is_open(sized.bucket._replace(num_frames=count), sample)
                and self._is_full_for(sized.bucket._replace(num_frames=count), sample)
            ]
            new = cut_shorter([sized], full)
            if new:
                kept = sum(piece.bucket.num_frames for piece in new)
                name = "fewer_frames" if size == own else "crop"
                ways.append((kept, size[0] * size[1], name, new))
        if not ways:
            return None
        best = max(ways, key=lambda way: (way[0], way[1], way[2]))
        return best[2], best[3]

    def _pass_on(self, sample: Sample, move: str) -> list[Sample] | None:
        """Make a move although its target is not full yet: others may follow."""
        if move == "smaller_rung":
            return self._smaller_rung([sample])
        if move == "fewer_frames":
            lengths = [
                count
                for count in self._lengths_below(sample.bucket.num_frames)
                if self._is_open(sample.bucket._replace(num_frames=count), sample)
            ]
            return cut_shorter([sample], lengths) or None
        area = sample.bucket.width_px * sample.bucket.height_px
        for size in self._sizes_for(sample):
            new = _resize(sample, size)
            if size[0] * size[1] < area and self._is_open(new.bucket, sample):
                return [new]
        return None

    # after all rungs -------------------------------------------------------------------------

    def rescue(self) -> None:
        """Give lost samples another chance, now that all full buckets are known."""
        lost, self.lost = self.lost, []
        for sample in sorted(lost):
            best = self._best_full(sample)
            if best is None:
                self.lost.append(sample)
            else:
                self._put(best[1])
                self.moves[sample.bucket, best[0]] += 1

    def move_small_pools(self) -> None:
        """Move a stream's few samples out of a bucket that others fill, to where it has more.

        A pool smaller than the batch would be drawn several times in a step. Only moves that
        give the stream a full pool and leave every bucket full are made.
        """
        for bucket in sorted(
            self._by_bucket, key=lambda b: (SAMPLED_RUNGS.index(b.rung), -b.num_frames, b)
        ):
            group = sorted(self._by_bucket[bucket], key=lambda sample: (sample.stream, sample))
            for stream, members in groupby(group, key=attrgetter("stream")):
                pool = list(members)
                if len(pool) < self._minimum(bucket) and self._is_healthy_without(bucket, pool):
                    self._move_pool(bucket, stream, pool)

    def _move_pool(self, bucket: Bucket, stream: str, pool: list[Sample]) -> None:
        for name in self.settings.hand_down:
            if name == "smaller_rung":
                continue
            new = self._fewer_frames(pool) if name == "fewer_frames" else self._crop(pool)
            if new is not None and self._fills_pools(stream, new):
                self._take(pool)
                self._put(new)
                self.moves[bucket, name] += len(pool)
                return

    def _fills_pools(self, stream: str, new: Sequence[Sample]) -> bool:
        coming = Counter(sample.bucket for sample in new)
        return all(
            n + sum(sample.stream == stream for sample in self._by_bucket.get(bucket, ()))
            >= self._minimum(bucket)
            for bucket, n in coming.items()
        )


def _resize(sample: Sample, size: Size) -> Sample:
    return sample._replace(bucket=sample.bucket._replace(width_px=size[0], height_px=size[1]))
