"""Clusters of like meaning: fitting centroids, naming domains, and the version of both.

Which clips of a cluster are redundant belongs to `semdedup`. Vectors are unit length; closeness
is the cosine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from wsdata.curate.decontam import cosines, unit_vectors
from wsdata.digest import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wsdata.catalog.ledger import Ledger
    from wsdata.recipe import Recipe, SemanticDedup

# What centroids follow from.
READS = ("clip_embeddings", "gates", "match_pairs", "asset_quality", "decode_status")
ITERATIONS = 15
MEMBERS_PER_CLUSTER = 100  # aimed at where the recipe leaves the number of clusters open
MAX_CLUSTERS = 65_536
NAMING_TAGS = 2  # tags that name a domain
ASSIGN_BLOCK = 4096  # clips assigned at a time; bounds memory


def centroids_version_for(ledger: Ledger, recipe: Recipe) -> str:
    """Name the centroids that a recipe would fit on what is live now, or those it pins.

    Returns:
        ``c`` and 12 hex digits: the same live rows and parameters give the same name, whatever
        the order in which they arrived.
    """
    if recipe.semantic_dedup.centroids_version:
        return recipe.semantic_dedup.centroids_version
    read = {
        table: sorted(
            [ref.partition, ref.version, ref.sha256]
            for ref in ledger.live(table, version=recipe.versions.get(table))
        )
        for table in READS
    }
    return f"c{digest([read, fit_params(recipe.semantic_dedup, recipe.seed)])[:12]}"


def fit_params(settings: SemanticDedup, seed: int) -> dict[str, int]:
    """What of a recipe changes the centroids."""
    return {"clusters": settings.clusters, "sample_size": settings.sample_size, "seed": seed}


def hash_rank(clip_id: str, seed: int) -> int:
    """A clip's place in a seeded order that no other clip has a part in, in [0, 2**64)."""
    return int.from_bytes(hashlib.blake2b(f"{seed}|{clip_id}".encode(), digest_size=8).digest())


def choose_sample(embeddings: pl.DataFrame, *, size: int, seed: int) -> pl.DataFrame:
    """Choose clips to fit on by their hash alone, and return them sorted by clip id."""
    ranks = pl.Series("rank", [hash_rank(c, seed) for c in embeddings["clip_id"]], dtype=pl.UInt64)
    return (
        embeddings.with_columns(ranks)
        .sort("rank", "clip_id")
        .head(size)
        .drop("rank")
        .sort("clip_id")
    )


def count_clusters(num_clips: int, wanted: int) -> int:
    """Number of clusters for a number of clips: as wanted, or about one per hundred.

    Never more than there are clips. So many follow from n that a cluster stays small enough to
    be compared within itself, whatever the size of the corpus.
    """
    if wanted:
        return max(1, min(wanted, num_clips))
    by_size = -(-num_clips // MEMBERS_PER_CLUSTER)
    few = int(np.sqrt(num_clips))  # a small corpus still gets several domains
    return max(1, min(max(by_size, few), MAX_CLUSTERS, num_clips))


def fit_centroids(embeddings: pl.DataFrame, settings: SemanticDedup, *, seed: int) -> pl.DataFrame:
    """Fit and name clusters.

    Args:
        embeddings: Rows of ``clip_embeddings``, one per clip, of one model, in any order.
        settings: How many clusters, and on how many clips.
        seed: Chooses the sample and the start.

    Returns:
        Rows ``cluster, vector, num_fitted, domain``. The same for a seed whatever the number of
        threads: the fit runs on one.
    """
    sample = choose_sample(embeddings, size=settings.sample_size, seed=seed)
    if sample.is_empty():
        return pl.DataFrame(
            schema={
                "cluster": pl.Int64,
                "vector": pl.List(pl.Float32),
                "num_fitted": pl.Int64,
                "domain": pl.String,
            }
        )
    vectors = unit_vectors(sample["vector"])
    centroids = _kmeans(vectors, count_clusters(sample.height, settings.clusters), seed)
    nearest, _ = assign(vectors, centroids)
    tags = sample["tags_json"].to_list()
    members = np.split(
        np.argsort(nearest, kind="stable"),
        np.bincount(nearest, minlength=len(centroids)).cumsum()[:-1],
    )
    return pl.DataFrame(
        {
            "cluster": range(len(centroids)),
            "vector": list(centroids),
            "num_fitted": np.bincount(nearest, minlength=len(centroids)).astype(np.int64),
            "domain": [name_domain([tags[i] for i in rows]) for rows in members],
        },
        schema_overrides={"vector": pl.List(pl.Float32), "cluster": pl.Int64},
    )


def _kmeans(vectors: NDArray[np.float32], num_clusters: int, seed: int) -> NDArray[np.float32]:
    """Unit centroids (k, d), in the order of their first members."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        kmeans = faiss.Kmeans(
            vectors.shape[1],
            num_clusters,
            niter=ITERATIONS,
            seed=seed,
            spherical=True,
            min_points_per_centroid=1,
            max_points_per_centroid=len(vectors),
        )
        kmeans.train(np.ascontiguousarray(vectors))
    finally:
        faiss.omp_set_num_threads(threads)
    centroids = np.asarray(kmeans.centroids, np.float64)
    norms = np.linalg.norm(centroids, axis=1, keepdims=True)
    centroids = centroids / np.where(norms > 0, norms, 1.0)
    return centroids.astype(np.float32)


def assign(
    vectors: NDArray[np.float32], centroids: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Nearest centroid of each unit vector, ties to the lowest cluster, and its cosine."""
    clusters, values = [np.empty(0, np.int64)], [np.empty(0)]
    for start in range(0, len(vectors), ASSIGN_BLOCK):
        similarity = cosines(vectors[start : start + ASSIGN_BLOCK], centroids)
        best = similarity.argmax(axis=1)
        clusters.append(best.astype(np.int64))
        values.append(similarity[np.arange(len(best)), best])
    return np.concatenate(clusters), np.concatenate(values)


def name_domain(tags_of_members: list[str | None]) -> str:
    """Name a cluster by the tags that weigh most among its members.

    Args:
        tags_of_members: For each member, canonical JSON ``[[tag, share], ...]`` or null.

    Returns:
        Up to two tags joined by ``+``, in falling weight, ties by name; ``untagged`` without any.
    """
    weight: Counter[str] = Counter()
    for text in tags_of_members:
        for tag, share in json.loads(text) if text else []:
            weight[str(tag)] += round(float(share) * 1_000_000)
    names = sorted(weight, key=lambda tag: (-weight[tag], tag))[:NAMING_TAGS]
    return "+".join(name.replace(" ", "_") for name in names) or "untagged"
