"""Decontamination: which clips show eval material, by fingerprint and by embedding.

Step ``eval_matches`` answers for one drop, as an alarm; a cut asks `eval_hits` again over
everything it would admit and trusts no stored answer. Only prints ever leave the vault; making
them belongs to `ingest.vault_prints`.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata import tables
from wsdata.curate.corpus import unify_rows
from wsdata.ingest.neardup import MIN_QUALITY
from wsdata.ingest.print_index import near_pairs
from wsdata.media.phash import unpack_hashes
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Decontamination

WHOLE_ASSET_SHARE = 0.5  # of an asset's clips that match, from which on all of them go
EMBEDDING_BLOCK = 8192  # clips compared with the vault at a time; bounds memory


def eval_hits(
    clips: pl.DataFrame,
    prints: pl.DataFrame,
    embeddings: pl.DataFrame,
    vault_prints: pl.DataFrame,
    settings: Decontamination,
) -> pl.DataFrame:
    """Match clips against everything the vault has let out.

    A clip is hit by fingerprint when enough of its frames (one, for a still or a clip with a
    single frame that has a vote) lie within `max_hash_distance` bits of frames of one eval
    asset, mirrored or not; by embedding when its vector lies within `min_cosine` of an eval
    asset's vector of the same model. Where half of a raw asset's clips are hit by one eval
    asset it is a re-encode, and its other clips are hit as ``asset``.

    Args:
        clips: Columns ``clip_id, asset_id, media_kind, start_s, end_s``; each clip once.
        prints: Rows of ``fingerprints`` and ``pass_fingerprints``, in any order.
        embeddings: Rows of ``clip_embeddings``; each clip at most once.
        vault_prints: Rows of ``vault_prints``.
        settings: When a clip counts as a copy.

    Returns:
        Rows of table ``eval_matches``, sorted. Free of the order of all inputs.
    """
    known = clips.select("clip_id", "asset_id", "media_kind", "start_s", "end_s")
    hits = pl.concat(
        [
            fingerprint_hits(known, prints, vault_prints, settings),
            _embedding_hits(known, embeddings, vault_prints, settings),
        ]
    )
    return tables.conform("eval_matches", pl.concat([hits, asset_hits(known, hits)]))


def _no_hits() -> pl.DataFrame:
    return tables.empty("eval_matches")


def _voting(prints: pl.DataFrame) -> pl.DataFrame:
    has_vote = pl.col("quality").fill_null(MIN_QUALITY) >= MIN_QUALITY
    return prints.filter(pl.col("hash").is_not_null() & has_vote)


def fingerprint_hits(
    clips: pl.DataFrame,
    prints: pl.DataFrame,
    references: pl.DataFrame,
    settings: Decontamination,
) -> pl.DataFrame:
    """Match clips against frames of reference material, whole or in their inner parts.

    Args:
        clips: As for `eval_hits`.
        prints: As for `eval_hits`.
        references: ``asset_id, level, hash, mirror_hash, core_hash, core_mirror_hash, quality``;
            rows of level ``frame`` count.
        settings: When a clip counts as a copy.

    Returns:
        Rows of ``eval_matches``, of method ``fingerprint``; ``eval_asset_id`` is the reference's.
    """
    votes = (
        _voting(prints)
        .unique(subset=["asset_id", "method", "frame_index"], keep="first", maintain_order=True)
        .join(clips, on="asset_id", how="inner")
        .filter(
            (pl.col("media_kind") == "image")
            | ((pl.col("time_s") >= pl.col("start_s")) & (pl.col("time_s") < pl.col("end_s")))
        )
    )
    vault = _voting(references.filter(pl.col("level") == "frame"))
    if votes.is_empty() or vault.is_empty():
        return _no_hits()
    pairs = pl.concat(
        _near_frames(votes, vault, part, mirror, settings.max_hash_distance)
        for part, mirror in (("hash", "mirror_hash"), ("core_hash", "core_mirror_hash"))
    )
    matched = votes.with_row_index("query").join(pairs, on="query", how="inner")
    num_votes = votes.group_by("clip_id", "method").agg(pl.len().alias("num_votes"))
    enough = pl.min_horizontal(pl.lit(settings.min_matched_frames), pl.col("num_votes"))
    return (
        matched.group_by("clip_id", "asset_id", "media_kind", "eval_asset_id", "method")
        .agg(
            pl.col("frame_index").n_unique().alias("num_matched"),
            pl.col("distance").min().cast(pl.Float64).alias("value"),
        )
        .join(num_votes, on=["clip_id", "method"])
        .filter(
            pl.col("num_matched")
            >= pl.when(pl.col("media_kind") == "image").then(1).otherwise(enough)
        )
        .group_by("clip_id", "asset_id", "eval_asset_id")
        .agg(pl.col("value").min(), pl.col("num_matched").max())
        .with_columns(pl.lit("fingerprint").alias("method"))
        .select(list(tables.TABLES["eval_matches"].columns))
        .cast({"num_matched": pl.Int64})
    )


def _near_frames(
    votes: pl.DataFrame, vault: pl.DataFrame, part: str, mirror: str, max_distance: int
) -> pl.DataFrame:
    """Pairs (query, eval_asset_id, distance in bits) within a distance, mirrored or not.

    A query is the row of a vote.
    """
    asked = votes.select(pl.col(part).alias("hash")).with_row_index("query").drop_nulls()
    known = pl.concat(
        vault.select("asset_id", pl.col(one).alias("hash")).drop_nulls() for one in (part, mirror)
    )
    near = near_pairs(
        unpack_hashes(asked["hash"].to_list()),
        unpack_hashes(known["hash"].to_list()),
        radius=max_distance,
    )
    return pl.DataFrame(
        {
            "query": asked["query"].gather(near.left),
            "eval_asset_id": known["asset_id"].gather(near.right),
            "distance": near.distance,
        }
    )


def _embedding_hits(
    clips: pl.DataFrame,
    embeddings: pl.DataFrame,
    vault_prints: pl.DataFrame,
    settings: Decontamination,
) -> pl.DataFrame:
    wanted = embeddings.filter(pl.col("vector").is_not_null()).join(
        clips.select("clip_id", "media_kind"), on="clip_id", how="semi"
    )
    vault = vault_prints.filter(
        (pl.col("level") == "asset") & pl.col("vector").is_not_null()
    ).rename({"embedding_version": "model_version"})
    found = [_no_hits()]
    for version in sorted(set(wanted["model_version"]) & set(vault["model_version"])):
        ours = wanted.filter(pl.col("model_version") == version).sort("clip_id")
        theirs = vault.filter(pl.col("model_version") == version).sort("asset_id")
        found += [
            _near_vectors(block, theirs, settings.min_cosine)
            for block in ours.iter_slices(EMBEDDING_BLOCK)
        ]
    return pl.concat(found)


def unit_vectors(vectors: pl.Series) -> NDArray[np.float32]:
    """Vectors of one length as unit rows (n, d); a zero vector stays zero."""
    if vectors.is_empty():
        return np.empty((0, 0), np.float32)
    rows = vectors.list.to_array(len(vectors[0])).to_numpy().astype(np.float32)
    for start in range(0, len(rows), EMBEDDING_BLOCK):
        block = rows[start : start + EMBEDDING_BLOCK].astype(np.float64)
        norms = np.linalg.norm(block, axis=1, keepdims=True)
        rows[start : start + EMBEDDING_BLOCK] = block / np.where(norms > 0, norms, 1.0)
    return rows


def cosines(left: NDArray[np.floating], right: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cosines of unit rows, (n, m), rounded to 6 decimals.

    Rounding makes comparisons free of the order in which a matrix product adds, so of its
    number of threads.
    """
    return np.round(left.astype(np.float64) @ right.astype(np.float64).T, 6)


def _near_vectors(ours: pl.DataFrame, theirs: pl.DataFrame, min_cosine: float) -> pl.DataFrame:
    similarity = cosines(unit_vectors(ours["vector"]), unit_vectors(theirs["vector"]))
    row, column = np.nonzero(similarity >= min_cosine)
    return (
        pl.DataFrame(
            {
                "clip_id": ours["clip_id"].gather(row),
                "asset_id": ours["asset_id"].gather(row),
                "eval_asset_id": theirs["asset_id"].gather(column),
                "method": ["embedding"] * len(row),
                "value": similarity[row, column],
                "num_matched": np.ones(len(row), np.int64),
            },
            schema=tables.TABLES["eval_matches"].columns,
        )
        .sort("value", descending=True, maintain_order=True)
        .unique(subset=["clip_id", "eval_asset_id"], keep="first", maintain_order=True)
    )


def asset_hits(clips: pl.DataFrame, hits: pl.DataFrame) -> pl.DataFrame:
    """The other clips of raw assets of which at least half the clips were hit."""
    num_clips = clips.group_by("asset_id").agg(pl.len().alias("num_clips"))
    whole = (
        hits.group_by("asset_id", "eval_asset_id")
        .agg(pl.col("clip_id").n_unique().alias("num_matched"))
        .join(num_clips, on="asset_id")
        .with_columns((pl.col("num_matched") / pl.col("num_clips")).alias("value"))
        .filter(pl.col("value") >= WHOLE_ASSET_SHARE)
    )
    return (
        clips.join(whole, on="asset_id", how="inner")
        .join(hits, on=["clip_id", "eval_asset_id"], how="anti")
        .with_columns(pl.lit("asset").alias("method"))
        .select(list(tables.TABLES["eval_matches"].columns))
        .cast({"num_matched": pl.Int64})
    )


def run(run: StepRun) -> StepResult:
    """Match the clips of one drop against the vault's prints; table ``eval_matches``."""
    clips = run.read("clips")
    prints = pl.concat([run.read("fingerprints"), run.read("pass_fingerprints")])
    vault_prints = unify_rows("vault_prints", run.read_by_partition("vault_prints"))
    hits = eval_hits(
        clips,
        prints,
        run.read("clip_embeddings"),
        vault_prints,
        Decontamination(**run.params["decontamination"]),
    )
    num_hit = hits["clip_id"].n_unique()
    unchecked = clips.join(prints.select("asset_id").unique(), on="asset_id", how="anti").height
    return StepResult(
        tables={"eval_matches": hits},
        metrics={"num_clips": float(clips.height), "num_hit": float(num_hit)},
        display={
            "eval_matches": {
                "clips": {"type": "int", "raw_value": clips.height},
                "clips hit": {"type": "int", "raw_value": num_hit},
                "clips without fingerprints": {"type": "int", "raw_value": unchecked},
                "eval assets": {"type": "int", "raw_value": vault_prints["asset_id"].n_unique()},
                "hits": {"type": "md", "raw_value": hits_markdown(hits)},
            }
        },
    )


def hits_markdown(hits: pl.DataFrame, limit: int = 20) -> str:
    """The first hits as a Markdown table, for people."""
    lines = ["| clip | eval asset | how | value | frames |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['clip_id']} | {row['eval_asset_id'][:12]} | {row['method']} | {row['value']:.3g} "
        f"| {row['num_matched']} |"
        for row in hits.head(limit).iter_rows(named=True)
    ]
    return "\n".join(lines) if hits.height else "no clip shows eval material"


def _params(recipe: Any) -> dict[str, Any]:
    return {"decontamination": asdict(recipe.decontamination)}


STEP = Step(
    stage="curate",
    name="eval_matches",
    function="wsdata.curate.decontam:run",
    code_version="eval-matches-2",
    partition="drop",
    assets={"eval_matches": ("eval_matches",)},
    inputs=(
        Input(table="clips"),
        Input(table="fingerprints"),
        Input(table="pass_fingerprints"),
        Input(table="clip_embeddings", is_optional=True),
        Input(table="vault_prints", scope="all", is_optional=True),
    ),
    params_of=_params,
    description="Clips that show eval material, by fingerprint and by embedding: an alarm. "
    "A cut asks again over everything and trusts none of these rows.",
)
