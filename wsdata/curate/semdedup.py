"""Semantic dedup: capped representatives of tight groups of like meaning.

Three steps: ``centroids`` fits the clusters of a corpus, ``cluster_assignments`` places the
clips of a drop, ``semantic_duplicates`` compares the clips of a range of clusters. Fitting and
naming belong to `centroids`; whether a duplicate is left out is said at the cut, which promotes
the next best where a representative is itself excluded (`settle_groups`).
"""

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from wsdata import tables
from wsdata.curate.centroids import READS, assign, fit_centroids, fit_params
from wsdata.curate.corpus import unify_rows
from wsdata.curate.decontam import cosines, unit_vectors
from wsdata.errors import NotReady
from wsdata.ingest.neardup import canonical_copies
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe, SemanticDedup

NUM_RANGES = 4
CLUSTER_RANGES = tuple(f"range-{index}" for index in range(NUM_RANGES))
GROUP_BLOCK = 1024  # clips compared with the representatives at a time; bounds memory


def passing_clips(run: StepRun) -> pl.DataFrame:
    """Embeddings, each clip once, of clips that passed the gates and are of canonical assets.

    Returns:
        Columns of ``clip_embeddings`` and ``quality_value``, sorted by clip; of one model, the
        one most clips have.
    """
    embeddings = unify_rows("clip_embeddings", run.read_by_partition("clip_embeddings"))
    gates = unify_rows("gates", run.read_by_partition("gates"))
    groups = canonical_copies(
        unify_rows("match_pairs", run.read_by_partition("match_pairs")),
        unify_rows("asset_quality", run.read_by_partition("asset_quality")),
        gates["asset_id"],
        unify_rows("decode_status", run.read_by_partition("decode_status")),
    )
    copies = groups.filter(pl.col("asset_id") != pl.col("canonical_id"))
    rows = (
        embeddings.filter(pl.col("vector").is_not_null())
        .join(
            gates.filter(pl.col("passed")).select("clip_id", "quality_value"),
            on="clip_id",
            how="inner",
        )
        .join(copies, on="asset_id", how="anti")
        .sort("clip_id")
    )
    return _one_model(rows)


def _one_model(rows: pl.DataFrame) -> pl.DataFrame:
    counts = rows.group_by("model_version").len().sort("len", "model_version", descending=True)
    if counts.is_empty():
        return rows
    return rows.filter(pl.col("model_version") == counts["model_version"][0])


def find_duplicates(
    members: pl.DataFrame, settings: SemanticDedup
) -> list[tuple[str, str, str, float]]:
    """Find the clips of one cluster that are redundant.

    Clips are taken best first (quality, then clip id). One that lies within `min_cosine` of
    `keep_per_group` clips already kept is a duplicate of the nearest of them; any other is kept.

    Args:
        members: Columns ``clip_id, asset_id, vector, quality_value``, in any order.
        settings: How close, and how many are kept.

    Returns:
        (clip, raw asset, kept clip, cosine) of every duplicate.
    """
    if members.is_empty():
        return []
    ordered = members.sort(
        pl.col("quality_value").fill_null(0.0), "clip_id", descending=[True, False]
    )
    vectors = unit_vectors(ordered["vector"])
    clips, assets = ordered["clip_id"].to_list(), ordered["asset_id"].to_list()
    kept: list[int] = []
    found: list[tuple[str, str, str, float]] = []
    for start in range(0, len(clips), GROUP_BLOCK):
        stop = min(start + GROUP_BLOCK, len(clips))
        earlier = list(kept)
        to_earlier = cosines(vectors[start:stop], vectors[earlier])
        inside = cosines(vectors[start:stop], vectors[start:stop])
        for index in range(start, stop):
            fresh = kept[len(earlier) :]
            similarity = np.concatenate(
                [to_earlier[index - start], inside[index - start, [i - start for i in fresh]]]
            )
            if (similarity >= settings.min_cosine).sum() < settings.keep_per_group:
                kept.append(index)
                continue
            best = int(similarity.argmax())
            keeper = (earlier + fresh)[best]
            found.append((clips[index], assets[index], clips[keeper], float(similarity[best])))
    return found


def settle_groups(duplicates: pl.DataFrame, alive: pl.DataFrame) -> pl.DataFrame:
    """Say which duplicates go, given what else was left out.

    Where a representative is itself excluded, the best of its duplicates that is left takes its
    place, and the others become its duplicates.

    Args:
        duplicates: Rows of ``semantic_duplicates``.
        alive: Clips still in: ``clip_id, quality_value``.

    Returns:
        ``clip_id, kept_clip_id, similarity`` of every duplicate that goes; sorted.
    """
    left = duplicates.join(alive.select("clip_id", "quality_value"), on="clip_id", how="inner")
    keepers = alive.select(pl.col("clip_id").alias("kept_clip_id"))
    settled = left.join(keepers, on="kept_clip_id", how="semi")
    orphans = left.join(keepers, on="kept_clip_id", how="anti").sort(
        "kept_clip_id",
        pl.col("quality_value").fill_null(0.0),
        "clip_id",
        descending=[False, True, False],
    )
    promoted = orphans.group_by("kept_clip_id", maintain_order=True).agg(
        pl.col("clip_id").first().alias("heir")
    )
    adopted = (
        orphans.join(promoted, on="kept_clip_id")
        .filter(pl.col("clip_id") != pl.col("heir"))
        .with_columns(pl.col("heir").alias("kept_clip_id"))
    )
    columns = ["clip_id", "kept_clip_id", "similarity"]
    return pl.concat([settled.select(columns), adopted.select(columns)]).sort("clip_id")


def fit(run: StepRun) -> StepResult:
    """Fit the centroids of a corpus; table ``centroids``."""
    rows = passing_clips(run)
    settings = SemanticDedup(clusters=run.params["clusters"], sample_size=run.params["sample_size"])
    centroids = fit_centroids(rows, settings, seed=run.params["seed"])
    lines = ["| cluster | domain | clips fitted on |", "|---|---|---|"]
    lines += [
        f"| {c} | {d} | {n} |" for c, d, n in centroids["cluster", "domain", "num_fitted"].rows()
    ]
    return StepResult(
        tables={"centroids": centroids},
        metrics={"num_clips": float(rows.height), "num_clusters": float(centroids.height)},
        display={
            "centroids": {
                "clips fitted on": {"type": "int", "raw_value": rows.height},
                "clusters": {"type": "int", "raw_value": centroids.height},
                "domains": {"type": "md", "raw_value": "\n".join(lines[:42])},
            }
        },
    )


def assign_drop(run: StepRun) -> StepResult:
    """Place the clips of one drop; table ``cluster_assignments``."""
    centroids = run.read("centroids").sort("cluster")
    embeddings = run.read("clip_embeddings").filter(pl.col("vector").is_not_null()).sort("clip_id")
    if embeddings.is_empty() or centroids.is_empty():
        rows = tables.empty("cluster_assignments")
    else:
        width = len(centroids["vector"][0])
        embeddings = embeddings.filter(pl.col("vector").list.len() == width)
        rows = _assignments(embeddings, centroids)
    counts = (
        rows.group_by("cluster")
        .len()
        .sort("cluster")
        .join(centroids.select("cluster", "domain"), on="cluster", how="left")
    )
    lines = ["| cluster | domain | clips |", "|---|---|---|"]
    lines += [f"| {c} | {d} | {n} |" for c, d, n in counts["cluster", "domain", "len"].rows()]
    return StepResult(
        tables={"cluster_assignments": rows},
        metrics={"num_clips": float(rows.height)},
        display={
            "cluster_assignments": {
                "clips": {"type": "int", "raw_value": rows.height},
                "clusters": {"type": "md", "raw_value": "\n".join(lines[:42])},
            }
        },
    )


def _assignments(embeddings: pl.DataFrame, centroids: pl.DataFrame) -> pl.DataFrame:
    if embeddings.is_empty():
        return tables.empty("cluster_assignments")
    nearest, similarity = assign(
        unit_vectors(embeddings["vector"]),
        unit_vectors(centroids["vector"]),
    )
    return embeddings.select("clip_id", "asset_id").with_columns(
        centroids["cluster"].gather(nearest).alias("cluster"), pl.Series("similarity", similarity)
    )


def compare_range(run: StepRun) -> StepResult:
    """Find the redundant clips of a range of clusters; table ``semantic_duplicates``.

    Raises:
        NotReady: The partition is no cluster range.
    """
    if run.order.partition not in CLUSTER_RANGES:
        raise NotReady(
            f"cluster range {run.order.partition!r}: expected one of {', '.join(CLUSTER_RANGES)}"
        )
    wanted = CLUSTER_RANGES.index(run.order.partition)
    settings = SemanticDedup(
        min_cosine=run.params["min_cosine"], keep_per_group=run.params["keep_per_group"]
    )
    placed = unify_rows("cluster_assignments", run.read_by_partition("cluster_assignments"))
    members = (
        passing_clips(run)
        .join(placed.select("clip_id", "cluster"), on="clip_id", how="inner")
        .filter(pl.col("cluster") % NUM_RANGES == wanted)
    )
    clusters = sorted(members["cluster"].unique())
    records: list[dict[str, Any]] = []
    for done, cluster in enumerate(clusters, start=1):
        found = find_duplicates(members.filter(pl.col("cluster") == cluster), settings)
        records += [
            {
                "clip_id": clip,
                "asset_id": asset,
                "cluster": cluster,
                "kept_clip_id": kept,
                "similarity": similarity,
            }
            for clip, asset, kept, similarity in found
        ]
        run.progress(done, len(clusters), f"cluster {cluster}: {len(found)} redundant")
    rows = tables.rows_of("semantic_duplicates", records)
    lines = ["| clip | kept instead | cosine |", "|---|---|---|"]
    lines += [
        f"| {a} | {b} | {s:.3f} |"
        for a, b, s in rows["clip_id", "kept_clip_id", "similarity"].head(20).rows()
    ]
    return StepResult(
        tables={"semantic_duplicates": rows},
        metrics={"num_clips": float(members.height), "num_redundant": float(rows.height)},
        display={
            "semantic_duplicates": {
                "clips compared": {"type": "int", "raw_value": members.height},
                "clusters": {"type": "int", "raw_value": len(clusters)},
                "redundant": {"type": "int", "raw_value": rows.height},
                "first": {"type": "md", "raw_value": "\n".join(lines)},
            }
        },
    )


def _fit_params(recipe: Recipe) -> dict[str, Any]:
    return fit_params(recipe.semantic_dedup, recipe.seed)


def _compare_params(recipe: Recipe) -> dict[str, Any]:
    wanted = asdict(recipe.semantic_dedup)
    return {name: wanted[name] for name in ("min_cosine", "keep_per_group")}


_CORPUS = tuple(Input(table=table, scope="all") for table in READS)

CENTROIDS = Step(
    stage="curate",
    name="centroids",
    function="wsdata.curate.semdedup:fit",
    code_version="centroids-2",
    partition="centroids_version",
    assets={"centroids": ("centroids",)},
    inputs=_CORPUS,
    pool="encode",
    params_of=_fit_params,
    description="Centroids of like meaning, fitted on clips chosen by their hash, and the domain "
    "that each cluster shows.",
)
ASSIGNMENTS = Step(
    stage="curate",
    name="cluster_assignments",
    function="wsdata.curate.semdedup:assign_drop",
    code_version="cluster-assignments-1",
    partition="drop",
    assets={"cluster_assignments": ("cluster_assignments",)},
    inputs=(Input(table="clip_embeddings"), Input(table="centroids", scope="latest")),
    pool="encode",
    description="The cluster that each clip of a drop lies in.",
)
DUPLICATES = Step(
    stage="curate",
    name="semantic_duplicates",
    function="wsdata.curate.semdedup:compare_range",
    code_version="semantic-duplicates-2",
    partition="cluster_range",
    assets={"semantic_duplicates": ("semantic_duplicates",)},
    inputs=(Input(table="cluster_assignments", scope="all"), *_CORPUS),
    params_of=_compare_params,
    description="Clips that mean the same as a better one beside them, within each cluster of "
    "the range.",
)
