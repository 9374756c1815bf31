"""How two printed assets compare: which frames agree, whole or in spans, and what sound adds.

A pure function of two assets: which of them arrived first, and what else is known, has no part
in it. Finding the pairs worth comparing is `print_candidates`, what follows from a match
`neardup`.

Frames with little in them, and drawn cards, carry no vote; a picture that stands still has one,
however long. Sound never makes a match of other pictures: it tells at which offset to look, and
lets pictures agree that a logo or a crop has changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.media.phash import HASH_BITS, HASH_BYTES, distances
from wsdata.media.sound_print import CODE_S, shared_sound, unpack_codes

MAX_DISTANCE = 31  # of 256 bits: what PDQ's authors call a match; unrelated frames lie above 70
MIN_QUALITY = 50  # below, a frame has too little in it to vote
STILL_DISTANCE = 8  # of the first of a run; coding alone moves a still by up to 6
MIN_COVERAGE = 0.5  # of the voting frames of both, for a whole match
MIN_BEST_COVERAGE = 0.7  # of the voting frames of one of them
MIN_VOTING_SHARE = 0.5  # of an asset's frames that are not blank, for a whole match by votes
BLANK_QUALITY = 5  # below, a frame is black or of one colour: it hides no other body
MIN_SUPPORTED = 4  # matched votes, where frames without a vote (cards, darkness) have to agree too
# a logo or a drawn border moves every frame alike, so frames at the same time are held to less
ALIGNED_DISTANCE = 64.0
MIN_ALIGNED = 5
# a crop by a tenth moves every frame by 54 to 94; under the same sound that tells enough
SOUND_DISTANCE = 90.0
MIN_SOUND_ALIGNED = 3
MAX_SOUND_ERROR = 0.2  # of bits: copies lie below .06, the best offset of strangers above .35
MIN_SPAN_FRAMES = 3
MIN_SPAN_S = 3.0
_ALIGNED_S = 0.25
_SOUND_ALIGNED_S = 0.55  # prints lie a second apart
_DIAGONAL_S = 2.0  # width of the band in which matches of one span lie
_MAX_SPANS = 4
_FAR = HASH_BITS  # of a frame without a core from all others


@dataclass(frozen=True, slots=True)
class Frames:
    """Some printed frames in order of time; each stands from `time_s` until `until_s`."""

    time_s: NDArray[np.float64]
    until_s: NDArray[np.float64]
    plain: NDArray[np.uint8]
    mirror: NDArray[np.uint8]
    core: NDArray[np.uint8]
    core_mirror: NDArray[np.uint8]
    has_core: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.time_s)

    def take(self, rows: NDArray[np.integer], until_s: NDArray[np.float64]) -> "Frames":
        """Return some of them, with other ends."""
        return Frames(
            self.time_s[rows],
            until_s,
            self.plain[rows],
            self.mirror[rows],
            self.core[rows],
            self.core_mirror[rows],
            self.has_core[rows],
        )


@dataclass(frozen=True, slots=True)
class PrintedAsset:
    """One asset's prints.

    Attributes:
        asset_id: The asset.
        is_image: Whether it is one picture.
        duration_s: As probed.
        votes: Frames that vote: each unlike the voting one before it.
        others: Frames that have no vote and are not blank.
        voting_share: Of all frames that are not blank, in [0, 1]; repeats of a still count.
        codes: The sound's print; empty where there is none.
        sound_s: When its first code begins, in seconds after the first picture.
    """

    asset_id: str
    is_image: bool
    duration_s: float
    votes: Frames
    others: Frames
    voting_share: float
    codes: NDArray[np.uint32]
    sound_s: float

    @property
    def is_still(self) -> bool:
        """Whether it is a video whose picture never changes."""
        return not self.is_image and len(self.votes) == 1 and self.duration_s > MIN_SPAN_S


def printed_assets(
    prints: pl.DataFrame, probes: pl.DataFrame, sounds: pl.DataFrame
) -> list[PrintedAsset]:
    """Assets with at least one voting frame, sorted.

    Args:
        prints: Rows of ``fingerprints``, in any order, repeats allowed.
        probes: Rows of ``probes`` of the same assets.
        sounds: Rows of ``audio_prints`` of the same assets.
    """
    facts = {
        row["asset_id"]: row
        for row in probes.select("asset_id", "media_kind", "duration_s").iter_rows(named=True)
    }
    heard = {row["asset_id"]: row for row in sounds.iter_rows(named=True)}
    ordered = prints.unique(["asset_id", "frame_index"]).sort("asset_id", "frame_index")
    found = [
        _printed(str(asset_id), frames, facts.get(asset_id, {}), heard.get(asset_id))
        for (asset_id,), frames in ordered.group_by("asset_id", maintain_order=True)
    ]
    return [asset for asset in found if len(asset.votes)]


def _printed(
    asset_id: str, rows: pl.DataFrame, fact: dict[str, Any], sound: dict[str, Any] | None
) -> PrintedAsset:
    frames = frames_of(rows)
    quality = rows["quality"].to_numpy()
    voting = np.flatnonzero(quality >= MIN_QUALITY)
    silent = np.flatnonzero((quality >= BLANK_QUALITY) & (quality < MIN_QUALITY))
    firsts, lasts = _runs(frames.plain[voting])
    return PrintedAsset(
        asset_id=asset_id,
        is_image=fact.get("media_kind") == "image",
        duration_s=fact.get("duration_s") or 0.0,
        votes=frames.take(voting[firsts], frames.time_s[voting[lasts]]),
        others=frames.take(silent, frames.time_s[silent]),
        voting_share=len(voting) / max(1, len(voting) + len(silent)),
        codes=unpack_codes(sound["codes"]) if sound else np.zeros(0, np.uint32),
        sound_s=sound["start_s"] if sound else 0.0,
    )


def frames_of(rows: pl.DataFrame) -> Frames:
    """Read frames of one asset, in the order of the rows."""
    times = rows["time_s"].to_numpy()
    core, has_core = _packed(rows["core_hash"])
    return Frames(
        times,
        times,
        _packed(rows["hash"])[0],
        _packed(rows["mirror_hash"])[0],
        core,
        _packed(rows["core_mirror_hash"])[0],
        has_core,
    )


def _packed(hashes: pl.Series) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Hashes as (n, 32), zeros where there is none; and where there is one."""
    data = b"".join(hashes.fill_null(b"\0" * HASH_BYTES).to_list())
    packed = np.frombuffer(data, np.uint8).reshape(-1, HASH_BYTES)
    return packed, hashes.is_not_null().to_numpy()


def _runs(hashes: NDArray[np.uint8]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First and last rows of runs that stay near their first."""
    firsts: list[int] = []
    start = 0
    while start < len(hashes):
        firsts.append(start)
        moved = distances(hashes[start : start + 1], hashes[start:])[0] > STILL_DISTANCE
        start += int(moved.argmax()) if moved.any() else len(hashes)
    lasts = [*(first - 1 for first in firsts[1:]), len(hashes) - 1][: len(firsts)]
    return np.array(firsts, np.intp), np.array(lasts, np.intp)


def apart(a: Frames, b: Frames, *, is_mirrored: bool) -> NDArray[np.uint16]:
    """Bits in which frames differ, whole or in their inner parts, whichever is less; (n, m)."""
    whole = distances(a.plain, b.mirror if is_mirrored else b.plain)
    core = distances(a.core, b.core_mirror if is_mirrored else b.core)
    core[~a.has_core] = _FAR
    core[:, ~b.has_core] = _FAR
    return np.minimum(whole, core)


def _spans(a: Frames, b: Frames, is_near: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    """Runs of matched frames that keep one time offset, longest first: rows of (a, b) indices."""
    rows, columns = np.nonzero(is_near)
    for _ in range(_MAX_SPANS):
        if len(rows) < MIN_SPAN_FRAMES:
            return
        offsets = b.time_s[columns] - a.time_s[rows]
        order = np.argsort(offsets, kind="stable")
        ends = np.searchsorted(offsets[order], offsets[order] + _DIAGONAL_S, side="right")
        counts = [len(set(rows[order[i:end]].tolist())) for i, end in enumerate(ends)]
        best = int(np.argmax(counts))
        inside = np.sort(order[best : ends[best]])
        frames = rows[inside]
        long_s = min(np.ptp(a.time_s[frames]), np.ptp(b.time_s[columns[inside]]))
        if counts[best] < MIN_SPAN_FRAMES or long_s < MIN_SPAN_S:
            return
        yield np.stack([frames, columns[inside]], axis=1)
        is_left = ~np.isin(rows, frames)
        rows, columns = rows[is_left], columns[is_left]


def _late_s(a: Frames, b: Frames, offset_s: float) -> NDArray[np.float64]:
    """Seconds by which each frame of `a`, moved by an offset, misses each of `b`; (n, m)."""
    at = a.time_s[:, None] + offset_s
    return np.maximum(np.maximum(b.time_s[None, :] - at, at - b.until_s[None, :]), 0.0)


def _is_as_long(a: PrintedAsset, b: PrintedAsset) -> bool:
    longest = max(a.duration_s, b.duration_s)
    return abs(a.duration_s - b.duration_s) <= 0.5 + 0.01 * longest


def _is_aligned_copy(a: Frames, b: Frames, bits: NDArray[np.uint16], least: float) -> bool:
    """Whether frames at the same time differ by no more than a logo makes them."""
    late_s = _late_s(a, b, 0.0)
    columns = late_s.argmin(axis=1)
    rows = np.flatnonzero(late_s.min(axis=1) <= _ALIGNED_S)
    if not len(rows) or len(rows) < least:
        return False
    return float(np.median(bits[rows, columns[rows]])) <= ALIGNED_DISTANCE


def _is_supported(a: PrintedAsset, b: PrintedAsset, *, is_mirrored: bool) -> bool:
    """Whether what has no vote agrees as well, in videos of one length."""
    if not _is_as_long(a, b) or not len(a.others) or not len(b.others):
        return False
    bits = apart(a.others, b.others, is_mirrored=is_mirrored)
    return _is_aligned_copy(
        a.others, b.others, bits, MIN_BEST_COVERAGE * len(a.others)
    ) and _is_aligned_copy(b.others, a.others, bits.T, MIN_BEST_COVERAGE * len(b.others))


def _sound_offset_s(a: PrintedAsset, b: PrintedAsset) -> float | None:
    """Seconds by which the same sound comes later in `b`; None where it is not the same."""
    shared = shared_sound(a.codes, b.codes)
    if shared is None or shared.error > MAX_SOUND_ERROR:
        return None
    return b.sound_s - a.sound_s + shared.offset * CODE_S


def _near_under_sound(
    a: Frames, b: Frames, bits: NDArray[np.uint16], offset_s: float
) -> NDArray[np.bool_]:
    """Frames that the same sound puts at one time, where those are alike on the whole."""
    late_s = _late_s(a, b, offset_s)
    columns = late_s.argmin(axis=1)
    rows = np.flatnonzero(late_s.min(axis=1) <= _SOUND_ALIGNED_S)
    found = np.zeros(bits.shape, np.bool_)
    if len(rows) < MIN_SOUND_ALIGNED:
        return found
    values = bits[rows, columns[rows]]
    if float(np.median(values)) <= SOUND_DISTANCE:
        is_alike = values <= SOUND_DISTANCE
        found[rows[is_alike], columns[rows[is_alike]]] = True
    return found


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two assets in one orientation: bits apart of their votes, and which of those are near."""

    a: PrintedAsset
    b: PrintedAsset
    is_mirrored: bool
    bits: NDArray[np.uint16]
    is_near: NDArray[np.bool_]

    @property
    def coverage(self) -> tuple[float, float]:
        return float(self.is_near.any(axis=1).mean()), float(self.is_near.any(axis=0).mean())

    def is_whole(self, *, is_heard: bool) -> bool:
        """Whether both show the same body."""
        a, b = self.a, self.b
        if a.is_image != b.is_image or ((a.is_still or b.is_still) and not is_heard):
            return False
        if not self.is_near.any():
            return False
        if min(a.voting_share, b.voting_share) < MIN_VOTING_SHARE:
            return self._is_covered(MIN_SUPPORTED) and _is_supported(
                a, b, is_mirrored=self.is_mirrored
            )
        # one matched frame is a whole match of stills, and of clips that have no more
        least = min(2, len(a.votes), len(b.votes))
        return self._is_covered(least) or (_is_as_long(a, b) and self._is_aligned())

    def _is_aligned(self) -> bool:
        votes_a, votes_b = self.a.votes, self.b.votes
        least_a = max(MIN_ALIGNED, MIN_COVERAGE * len(votes_a))
        least_b = max(MIN_ALIGNED, MIN_COVERAGE * len(votes_b))
        return _is_aligned_copy(votes_a, votes_b, self.bits, least_a) or _is_aligned_copy(
            votes_b, votes_a, self.bits.T, least_b
        )

    def _is_covered(self, least: int) -> bool:
        lowest, highest = sorted(self.coverage)
        matched = min(self.is_near.any(axis=1).sum(), self.is_near.any(axis=0).sum())
        return lowest >= MIN_COVERAGE and highest >= MIN_BEST_COVERAGE and int(matched) >= least

    def row(self, kind: str, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> dict[str, Any]:
        """One row of ``match_pairs`` over pairs of frames."""
        a, b = self.a.votes, self.b.votes
        coverage_a, coverage_b = self.coverage
        return {
            "asset_a": self.a.asset_id,
            "asset_b": self.b.asset_id,
            "kind": kind,
            "coverage_a": round(coverage_a, 6),
            "coverage_b": round(coverage_b, 6),
            "is_mirrored": self.is_mirrored,
            "a_start_s": float(a.time_s[rows].min()),
            "a_end_s": float(a.until_s[rows].max()),
            "b_start_s": float(b.time_s[columns].min()),
            "b_end_s": float(b.until_s[columns].max()),
            "num_matched": len(np.unique(rows)),
        }


def _compare(a: PrintedAsset, b: PrintedAsset) -> _Compared:
    """Compare as they are or mirrored, whichever makes more frames near, or else nearer."""

    def look(*, is_mirrored: bool) -> _Compared:
        bits = apart(a.votes, b.votes, is_mirrored=is_mirrored)
        return _Compared(a, b, is_mirrored, bits, bits <= MAX_DISTANCE)

    def rank(seen: _Compared) -> tuple[int, float]:
        return -int(seen.is_near.sum()), float(np.median(seen.bits.min(axis=1)))

    return min(look(is_mirrored=False), look(is_mirrored=True), key=rank)


def match_assets(a: PrintedAsset, b: PrintedAsset) -> list[dict[str, Any]]:
    """Match two assets, `a.asset_id` the smaller.

    Returns:
        Rows of ``match_pairs``: one ``whole``, else a ``span`` for each stretch that they share;
        none for strangers.
    """
    seen = _compare(a, b)
    needs_sound = not seen.is_whole(is_heard=False) and len(a.codes) and len(b.codes)
    offset_s = _sound_offset_s(a, b) if needs_sound else None
    if offset_s is not None:
        heard = _near_under_sound(a.votes, b.votes, seen.bits, offset_s)
        seen = _Compared(a, b, seen.is_mirrored, seen.bits, seen.is_near | heard)
    if not seen.is_near.any():
        return []
    if seen.is_whole(is_heard=offset_s is not None):
        rows, columns = (np.flatnonzero(seen.is_near.any(axis=axis)) for axis in (1, 0))
        nearest = seen.bits.min(axis=1)[rows]
        mean = round(float(nearest.mean()), 6)
        return [{**seen.row("whole", rows, columns), "mean_distance": mean}]
    if a.is_image or b.is_image:
        return []
    return [
        {
            **seen.row("span", span[:, 0], span[:, 1]),
            "mean_distance": round(float(seen.bits[span[:, 0], span[:, 1]].mean()), 6),
        }
        for span in _spans(a.votes, b.votes, seen.is_near)
    ]
