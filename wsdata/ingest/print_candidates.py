"""Which assets are worth comparing: those with a near frame, or with sound in common.

Symmetric: whether a pair is named depends on the two assets alone, not on which came first, nor
on what else is known. Nothing that `print_match` would match by near frames is left out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wsdata.ingest.print_index import near_pairs
from wsdata.ingest.print_match import MAX_DISTANCE, PrintedAsset
from wsdata.media.sound_print import voting_codes

MIN_SHARED_CODES = 4  # of the sampled ones: two strangers of 10 minutes share .1 by chance
_SAMPLED = 4  # one of so many codes, the same ones in every asset
_MIX = np.uint32(2_654_435_761)  # Knuth's multiplicative hash

Pairs = set[tuple[int, int]]


def candidate_pairs(
    mine: Sequence[PrintedAsset], known: Sequence[PrintedAsset]
) -> list[tuple[int, int]]:
    """Name pairs (index of mine, index of known) that may match, sorted.

    A pair is named where a voting frame of one lies within `MAX_DISTANCE` of one of the other,
    whole or in their inner parts, mirrored or not; or where both sounds share enough codes.
    """
    if not mine or not known:
        return []
    pairs = _by_sound(mine, known)
    for part, mirror in (("plain", "mirror"), ("core", "core_mirror")):
        ours, our_owner = _hashes(mine, part)
        ours_mirrored, _ = _hashes(mine, mirror)
        theirs, their_owner = _hashes(known, part)
        theirs_mirrored, _ = _hashes(known, mirror)
        either = np.concatenate([ours, ours_mirrored])
        pairs |= _by_frames(either, np.concatenate([our_owner] * 2), theirs, their_owner)
        pairs |= _by_frames(ours, our_owner, theirs_mirrored, their_owner)
    return sorted(pairs)


def _hashes(
    assets: Sequence[PrintedAsset], part: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Hashes of all votes, and the index of the asset of each."""
    is_core = part.startswith("core")
    kept = [one.votes.has_core if is_core else np.ones(len(one.votes), np.bool_) for one in assets]
    hashes = [getattr(one.votes, part)[keep] for one, keep in zip(assets, kept, strict=True)]
    return np.concatenate(hashes), np.repeat(np.arange(len(assets)), [len(one) for one in hashes])


def _by_frames(
    ours: NDArray[np.uint8],
    our_owner: NDArray[np.int64],
    theirs: NDArray[np.uint8],
    their_owner: NDArray[np.int64],
) -> Pairs:
    near = near_pairs(ours, theirs, radius=MAX_DISTANCE)
    owners = np.stack([our_owner[near.left], their_owner[near.right]], axis=1)
    return {(int(i), int(j)) for i, j in np.unique(owners, axis=0)}


def _sampled_codes(assets: Sequence[PrintedAsset]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Some distinct voting codes of every asset, sorted by code, and the asset of each."""
    codes: list[NDArray[np.uint32]] = []
    for asset in assets:
        heard = np.unique(asset.codes[voting_codes(asset.codes)])
        mixed = (heard * _MIX) >> np.uint32(16)
        codes.append(heard[mixed % np.uint32(_SAMPLED) == 0])
    owner = np.repeat(np.arange(len(assets)), [len(one) for one in codes])
    joined = np.concatenate(codes)
    order = np.argsort(joined, kind="stable")
    return joined[order], owner[order]


def _by_sound(mine: Sequence[PrintedAsset], known: Sequence[PrintedAsset]) -> Pairs:
    ours, our_owner = _sampled_codes(mine)
    theirs, their_owner = _sampled_codes(known)
    start = np.searchsorted(theirs, ours, side="left")
    counts = np.searchsorted(theirs, ours, side="right") - start
    hit = np.flatnonzero(counts)
    if not len(hit):
        return set()
    ends = np.cumsum(counts[hit])
    rows = np.arange(ends[-1]) + np.repeat(start[hit] - (ends - counts[hit]), counts[hit])
    label = np.repeat(our_owner[hit], counts[hit]) * len(known) + their_owner[rows]
    pairs, shared = np.unique(label, return_counts=True)
    enough = pairs[shared >= MIN_SHARED_CODES]
    return {(int(one) // len(known), int(one) % len(known)) for one in enough}
