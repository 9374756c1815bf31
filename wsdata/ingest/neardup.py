"""Near duplicates: which raw assets show the same thing, and which copy of them stays.

Pairs of assets are matched by their prints and stored; groups are derived from the union of all
pairs, so that arrival order cannot change them. The cut drops what is not canonical; nothing is
dropped here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata import tables
from wsdata.media.phash import distances, unpack_hashes
from wsdata.orders import Input, Step, StepResult, StepRun

MATCH_VERSION = "match-1"
MAX_DISTANCE = 31  # of 256 bits: what PDQ's authors call a match; unrelated frames lie above 70
MIN_QUALITY = 50  # below, a frame has too little in it to vote
MIN_COVERAGE = 0.5  # of the voting frames of both, for a whole match
MIN_BEST_COVERAGE = 0.7  # of the voting frames of one of them
MIN_VOTING_SHARE = 0.5  # of an asset's frames, for a whole match
# a logo or a drawn border moves every frame alike, so frames at the same time are held to less
ALIGNED_DISTANCE = 64.0
MIN_ALIGNED = 5
_ALIGNED_S = 0.25
MIN_SPAN_FRAMES = 3
MIN_SPAN_S = 3.0
_DIAGONAL_S = 2.0  # width of the band in which matches of one span lie
_MAX_SPANS = 4
_BLOCK = 1 << 22  # distances in memory at once

STEP = Step(
    stage="ingest",
    name="near_duplicates",
    function="wsdata.ingest.neardup:run",
    code_version=MATCH_VERSION,
    partition="drop",
    assets={"near_duplicates": ("match_pairs", "asset_quality")},
    inputs=(
        Input(table="fingerprints"),
        Input(table="probes"),
        Input(table="fingerprints", scope="all", is_context=True),
        Input(table="probes", scope="all", is_context=True),
    ),
    params_of=lambda _: {
        "max_distance": MAX_DISTANCE,
        "min_quality": MIN_QUALITY,
        "min_coverage": [MIN_COVERAGE, MIN_BEST_COVERAGE, MIN_VOTING_SHARE],
    },
    description="Pairs of raw assets that show the same, whole or in part, over all drops.",
)


@dataclass(frozen=True, slots=True)
class _Asset:
    """The voting frames of one asset, in order of time."""

    asset_id: str
    is_image: bool
    duration_s: float
    num_frames: int
    time_s: NDArray[np.float64]
    hashes: NDArray[np.uint8]
    mirrors: NDArray[np.uint8]


def _assets_of(prints: pl.DataFrame, probes: pl.DataFrame) -> list[_Asset]:
    columns = probes.unique("asset_id").select("asset_id", "media_kind", "duration_s")
    facts = {row["asset_id"]: row for row in columns.to_dicts()}
    found: list[_Asset] = []
    ordered = prints.unique(["asset_id", "frame_index"]).sort("asset_id", "frame_index")
    for (asset_id,), frames in ordered.group_by("asset_id", maintain_order=True):
        voting = frames.filter(pl.col("quality") >= MIN_QUALITY)
        if voting.is_empty():
            continue
        fact = facts.get(str(asset_id), {})
        found.append(
            _Asset(
                asset_id=str(asset_id),
                is_image=fact.get("media_kind") == "image",
                duration_s=fact.get("duration_s") or 0.0,
                num_frames=frames.height,
                time_s=voting["time_s"].to_numpy(),
                hashes=unpack_hashes(voting["hash"].to_list()),
                mirrors=unpack_hashes(voting["mirror_hash"].to_list()),
            )
        )
    return found


def _candidates(mine: list[_Asset], known: list[_Asset]) -> list[tuple[int, int]]:
    """Pairs (index of mine, index of known) with a frame within reach, plain or mirrored."""
    if not mine or not known:
        return []
    owners = np.repeat(np.arange(len(known)), [len(asset.hashes) for asset in known])
    hashes = np.concatenate([asset.hashes for asset in known])
    pairs: set[tuple[int, int]] = set()
    for index, asset in enumerate(mine):
        wanted = np.concatenate([asset.hashes, asset.mirrors])
        step = max(1, _BLOCK // len(wanted))
        for start in range(0, len(hashes), step):
            near = distances(wanted, hashes[start : start + step]).min(axis=0) <= MAX_DISTANCE
            pairs |= {(index, int(one)) for one in np.unique(owners[start : start + step][near])}
    return sorted(pairs)


def _spans(a: _Asset, b: _Asset, is_near: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Runs of matched frames that keep one time offset, longest first: rows of (a, b) indices."""
    rows, columns = np.nonzero(is_near)
    spans: list[NDArray[np.intp]] = []
    while len(rows) >= MIN_SPAN_FRAMES and len(spans) < _MAX_SPANS:
        offsets = b.time_s[columns] - a.time_s[rows]
        order = np.argsort(offsets, kind="stable")
        ends = np.searchsorted(offsets[order], offsets[order] + _DIAGONAL_S, side="right")
        counts = [len(set(rows[order[i:end]].tolist())) for i, end in enumerate(ends)]
        best = int(np.argmax(counts))
        inside = np.sort(order[best : ends[best]])
        frames = rows[inside]
        long_s = min(np.ptp(a.time_s[frames]), np.ptp(b.time_s[columns[inside]]))
        if counts[best] < MIN_SPAN_FRAMES or long_s < MIN_SPAN_S:
            break
        spans.append(np.stack([frames, columns[inside]], axis=1))
        is_left = ~np.isin(rows, frames)
        rows, columns = rows[is_left], columns[is_left]
    return spans


def _is_aligned_copy(a: _Asset, b: _Asset, apart: NDArray[np.uint16]) -> bool:
    """Whether two videos of one length differ in every frame by no more than a logo does."""
    if abs(a.duration_s - b.duration_s) > 0.5 + 0.01 * max(a.duration_s, b.duration_s):
        return False
    nearest = np.abs(b.time_s[None, :] - a.time_s[:, None])
    columns = nearest.argmin(axis=1)
    rows = np.flatnonzero(nearest.min(axis=1) <= _ALIGNED_S)
    if len(rows) < max(MIN_ALIGNED, MIN_COVERAGE * len(a.time_s)):
        return False
    return float(np.median(apart[rows, columns[rows]])) <= ALIGNED_DISTANCE


def _is_whole(
    a: _Asset, b: _Asset, apart: NDArray[np.uint16], coverage_a: float, coverage_b: float
) -> bool:
    votes_a, votes_b = len(a.hashes), len(b.hashes)
    if a.is_image != b.is_image:
        return False
    if min(votes_a / a.num_frames, votes_b / b.num_frames) < MIN_VOTING_SHARE:
        return False
    lowest, highest = sorted((coverage_a, coverage_b))
    if lowest >= MIN_COVERAGE and highest >= MIN_BEST_COVERAGE:
        # one matched frame is a whole match of stills, and of clips that have no more
        return min(coverage_a * votes_a, coverage_b * votes_b) >= min(2, votes_a, votes_b)
    return _is_aligned_copy(a, b, apart) or _is_aligned_copy(b, a, apart.T)


def match_assets(a: _Asset, b: _Asset) -> list[dict[str, Any]]:
    """Match two assets, `a.asset_id` the smaller: rows of ``match_pairs``, none for strangers."""
    plain, mirrored = distances(a.hashes, b.hashes), distances(a.hashes, b.mirrors)
    is_mirrored = bool((mirrored <= MAX_DISTANCE).sum() > (plain <= MAX_DISTANCE).sum())
    apart = mirrored if is_mirrored else plain
    is_near = apart <= MAX_DISTANCE
    hit_a, hit_b = is_near.any(axis=1), is_near.any(axis=0)
    if not hit_a.any():
        return []
    base = {
        "asset_a": a.asset_id,
        "asset_b": b.asset_id,
        "coverage_a": round(float(hit_a.mean()), 6),
        "coverage_b": round(float(hit_b.mean()), 6),
        "is_mirrored": is_mirrored,
    }
    if _is_whole(a, b, apart, float(hit_a.mean()), float(hit_b.mean())):
        return [
            {
                **base,
                "kind": "whole",
                "mean_distance": round(float(apart.min(axis=1)[hit_a].mean()), 6),
                "a_start_s": float(a.time_s[hit_a].min()),
                "a_end_s": float(a.time_s[hit_a].max()),
                "b_start_s": float(b.time_s[hit_b].min()),
                "b_end_s": float(b.time_s[hit_b].max()),
                "num_matched": int(hit_a.sum()),
            }
        ]
    if a.is_image or b.is_image:
        return []
    return [
        {
            **base,
            "kind": "span",
            "mean_distance": round(float(apart[span[:, 0], span[:, 1]].mean()), 6),
            "a_start_s": float(a.time_s[span[:, 0]].min()),
            "a_end_s": float(a.time_s[span[:, 0]].max()),
            "b_start_s": float(b.time_s[span[:, 1]].min()),
            "b_end_s": float(b.time_s[span[:, 1]].max()),
            "num_matched": len(np.unique(span[:, 0])),
        }
        for span in _spans(a, b, is_near)
    ]


def match_prints(
    prints: pl.DataFrame, probes: pl.DataFrame, known_prints: pl.DataFrame, known: pl.DataFrame
) -> pl.DataFrame:
    """Match a drop's assets with each other and with all known ones.

    Args:
        prints: Rows of ``fingerprints`` of the drop.
        probes: Rows of ``probes`` of the drop.
        known_prints: Rows of ``fingerprints`` of all drops, with or without this one.
        known: Rows of ``probes`` of the same.

    Returns:
        Rows of ``match_pairs``: ``whole`` where two assets show the same body, else ``span``
        for each stretch that they share.
    """
    mine = _assets_of(prints, probes)
    others = _assets_of(pl.concat([known_prints, prints]), pl.concat([known, probes]))
    seen: set[tuple[str, str]] = set()
    rows: list[dict[str, Any]] = []
    for i, j in _candidates(mine, others):
        a, b = sorted((mine[i], others[j]), key=lambda asset: asset.asset_id)
        if a.asset_id == b.asset_id or (a.asset_id, b.asset_id) in seen:
            continue
        seen.add((a.asset_id, b.asset_id))
        rows += match_assets(a, b)
    return tables.rows_of("match_pairs", rows)


def quality_rows(probes: pl.DataFrame) -> pl.DataFrame:
    """Rank the copies of a picture: bit rate times resolution. Rows of ``asset_quality``."""
    seen = probes.filter(pl.col("width_px").is_not_null())
    rank = (
        pl.col("bit_rate").fill_null(0).cast(pl.Float64) * pl.col("width_px") * pl.col("height_px")
    )
    return tables.conform(
        "asset_quality",
        seen.select("asset_id", "bit_rate", "width_px", "height_px", rank.alias("rank_value")),
    )


def group_near_duplicates(match_pairs: pl.DataFrame, asset_quality: pl.DataFrame) -> pl.DataFrame:
    """Group assets that show the same body, and name the copy of each group that stays.

    Args:
        match_pairs: Rows of ``match_pairs`` of any drops, in any order, repeats allowed.
        asset_quality: Rows of ``asset_quality`` of the same, repeats allowed.

    Returns:
        One row for every asset that is named in either, sorted: ``asset_id`` and
        ``canonical_id``, its own where it stands alone. The canonical copy has the highest
        ``rank_value``; ties go to the smallest id. The order of the rows given changes nothing.
    """
    ranks = dict(asset_quality.group_by("asset_id").agg(pl.col("rank_value").max()).iter_rows())
    whole = match_pairs.filter(pl.col("kind") == "whole").select("asset_a", "asset_b").unique()
    parent = {asset_id: asset_id for asset_id in ranks}
    parent |= {
        asset_id: asset_id
        for row in match_pairs.select("asset_a", "asset_b").iter_rows()
        for asset_id in row
    }

    def root(asset_id: str) -> str:
        while parent[asset_id] != asset_id:
            parent[asset_id] = parent[parent[asset_id]]
            asset_id = parent[asset_id]
        return asset_id

    for a, b in whole.iter_rows():
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    best: dict[str, tuple[float, str]] = {}
    for asset_id in sorted(parent):
        rank = (-(ranks.get(asset_id) or 0.0), asset_id)
        best[root(asset_id)] = min(rank, best.get(root(asset_id), rank))
    return pl.DataFrame(
        [(asset_id, best[root(asset_id)][1]) for asset_id in sorted(parent)],
        schema={"asset_id": pl.String, "canonical_id": pl.String},
        orient="row",
    )


def canonical_copies(
    match_pairs: pl.DataFrame, asset_quality: pl.DataFrame, decoded: Iterable[str]
) -> pl.DataFrame:
    """As `group_near_duplicates`, where a copy that did not decode never stands for one that did.

    Gates, cut, funnel and takedowns all ask this, so that they mean the same groups.

    Args:
        match_pairs: Rows of ``match_pairs`` of any drops.
        asset_quality: Rows of ``asset_quality`` of the same.
        decoded: Raw assets that gave clips; any other ranks last.
    """
    ranks = asset_quality.select("asset_id", "rank_value")
    named = {*ranks["asset_id"], *match_pairs["asset_a"], *match_pairs["asset_b"]}
    last = pl.DataFrame(
        {"asset_id": sorted(named - set(decoded))}, schema={"asset_id": pl.String}
    ).with_columns(rank_value=pl.lit(-1.0))
    ranked = pl.concat([ranks.join(last, on="asset_id", how="anti"), last])
    return group_near_duplicates(match_pairs, ranked)


def run(run: StepRun) -> StepResult:
    """Match a drop's assets with all live ones, and rank the copies."""
    probes = run.read("probes")
    pairs = match_prints(
        run.read("fingerprints"),
        probes,
        run.read_context("fingerprints"),
        run.read_context("probes"),
    )
    num_whole = pairs.filter(pl.col("kind") == "whole").height
    return StepResult(
        tables={"match_pairs": pairs, "asset_quality": quality_rows(probes)},
        metrics={"num_whole": num_whole, "num_spans": pairs.height - num_whole},
        display={"near_duplicates": _display(pairs, num_whole)},
    )


def _display(pairs: pl.DataFrame, num_whole: int) -> dict[str, Any]:
    lines = ["| a | b | kind | covered a | covered b | bits | mirrored |", "|" + "---|" * 7]
    lines += [
        f"| {row['asset_a'][:12]} | {row['asset_b'][:12]} | {row['kind']} "
        f"| {row['coverage_a']:.0%} | {row['coverage_b']:.0%} | {row['mean_distance']:.1f} "
        f"| {'yes' if row['is_mirrored'] else ''} |"
        for row in pairs.head(50).to_dicts()
    ]
    return {
        "whole matches": {"type": "int", "raw_value": num_whole},
        "shared spans": {"type": "int", "raw_value": pairs.height - num_whole},
        "pairs": {"type": "md", "raw_value": "\n".join(lines)},
    }
