"""Near duplicates: which raw assets show the same thing, and which copy of them stays.

Pairs of assets are matched by their prints and stored; groups are derived from the union of all
pairs, so that arrival order cannot change them. The cut drops what is not canonical; nothing is
dropped here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_object
from wsdata.ingest import print_match
from wsdata.ingest.print_candidates import candidate_pairs
from wsdata.ingest.print_match import PrintedAsset, match_assets, printed_assets
from wsdata.orders import Input, Step, StepResult, StepRun

MATCH_VERSION = "match-2"
MIN_QUALITY = print_match.MIN_QUALITY
MAX_DISTANCE = print_match.MAX_DISTANCE
_READ = ("fingerprints", "probes", "audio_prints")

STEP = Step(
    stage="ingest",
    name="near_duplicates",
    function="wsdata.ingest.neardup:run",
    code_version=MATCH_VERSION,
    partition="drop",
    assets={"near_duplicates": ("match_pairs", "asset_quality")},
    inputs=(
        *(Input(table=table) for table in _READ),
        *(Input(table=table, scope="all", is_context=True) for table in _READ),
    ),
    params_of=lambda _: {
        "max_distance": MAX_DISTANCE,
        "min_quality": MIN_QUALITY,
        "min_coverage": [
            print_match.MIN_COVERAGE,
            print_match.MIN_BEST_COVERAGE,
            print_match.MIN_VOTING_SHARE,
        ],
        "max_sound_error": print_match.MAX_SOUND_ERROR,
    },
    description="Pairs of raw assets that show the same, whole or in part, over all drops.",
)


@dataclass(frozen=True, slots=True)
class Printed:
    """Rows of ``fingerprints``, ``probes`` and ``audio_prints`` about the same assets."""

    prints: pl.DataFrame
    probes: pl.DataFrame
    sounds: pl.DataFrame


def match_prints(drop: Printed, known: Iterable[Printed]) -> pl.DataFrame:
    """Match a drop's assets with each other and with all known ones.

    Args:
        drop: What the drop's assets look and sound like.
        known: The same of other drops, one after another, with or without this one; only one is
            held at a time.

    Returns:
        Rows of ``match_pairs``: ``whole`` where two assets show the same body, else ``span``
        for each stretch that they share.
    """
    mine = printed_assets(drop.prints, drop.probes, drop.sounds)
    seen: set[tuple[str, str]] = set()
    rows: list[dict[str, Any]] = []
    for others in _assets_of_each(mine, known):
        for i, j in candidate_pairs(mine, others):
            a, b = sorted((mine[i], others[j]), key=lambda asset: asset.asset_id)
            if a.asset_id == b.asset_id or (a.asset_id, b.asset_id) in seen:
                continue
            seen.add((a.asset_id, b.asset_id))
            rows += match_assets(a, b)
    return tables.rows_of("match_pairs", rows)


def _assets_of_each(
    mine: list[PrintedAsset], known: Iterable[Printed]
) -> Iterator[list[PrintedAsset]]:
    yield mine
    for one in known:
        yield printed_assets(one.prints, one.probes, one.sounds)


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
    match_pairs: pl.DataFrame,
    asset_quality: pl.DataFrame,
    decoded: Iterable[str],
    decode_status: pl.DataFrame,
) -> pl.DataFrame:
    """As `group_near_duplicates`, where a copy never stands for one that decoded better.

    Whole ones rank before those of which a clean start was salvaged, and these before what did
    not decode. Gates, cut, funnel and takedowns all ask this, so that they mean the same groups.

    Args:
        match_pairs: Rows of ``match_pairs`` of any drops.
        asset_quality: Rows of ``asset_quality`` of the same.
        decoded: Raw assets that gave clips; any other ranks last.
        decode_status: Rows of ``decode_status`` of the same drops.
    """
    ranks = asset_quality.select("asset_id", "rank_value")
    named = {*ranks["asset_id"], *match_pairs["asset_a"], *match_pairs["asset_b"]}
    last = pl.DataFrame(
        {"asset_id": sorted(named - set(decoded))}, schema={"asset_id": pl.String}
    ).with_columns(rank_value=pl.lit(-2.0))
    salvaged = decode_status.filter(pl.col("status") == "salvaged")["asset_id"].unique()
    below_whole = -1 / (1 + pl.col("rank_value").fill_null(0.0))  # in [-1, 0), in the same order
    ranks = ranks.join(last, on="asset_id", how="anti").with_columns(
        pl.when(pl.col("asset_id").is_in(salvaged.to_list()))
        .then(below_whole)
        .otherwise("rank_value")
        .alias("rank_value")
    )
    return group_near_duplicates(match_pairs, pl.concat([ranks, last]))


def _known(run: StepRun) -> Iterator[Printed]:
    """What the other drops' objects hold, one by one, so that memory follows the largest."""
    refs = {
        table: {ref.partition: ref for ref in run.order.context.get(table, [])} for table in _READ
    }
    for drop in sorted(set(refs["fingerprints"]) - {run.order.partition}):
        yield Printed(
            *(
                read_object(run.store, refs[table][drop])
                if drop in refs[table]
                else tables.empty(table)
                for table in _READ
            )
        )


def run(run: StepRun) -> StepResult:
    """Match a drop's assets with all live ones, and rank the copies."""
    drop = Printed(*(run.read(table) for table in _READ))
    pairs = match_prints(drop, _known(run))
    num_whole = pairs.filter(pl.col("kind") == "whole").height
    return StepResult(
        tables={"match_pairs": pairs, "asset_quality": quality_rows(drop.probes)},
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
