import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata import tables
from wsdata.curate import semdedup
from wsdata.curate.centroids import (
    READS,
    centroids_version_for,
    count_clusters,
    fit_centroids,
    name_domain,
)
from wsdata.errors import NotReady
from wsdata.recipe import SemanticDedup
from wsdata_tests.curate.catalog_support import CRAWL, DROP, Catalog, asset_id, make_recipe, vector
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step


def embeddings(vectors: dict[str, list[float]], tags='[["lake",0.9]]') -> pl.DataFrame:
    return tables.rows_of(
        "clip_embeddings",
        [
            {"clip_id": name, "asset_id": asset_id(name), "vector": row, "model_version": "net-1",
             "tags_json": tags}
            for name, row in vectors.items()
        ],
    )  # fmt: skip


def blobs(num_groups: int, per_group: int, noise: float = 0.05, dims: int = 32):
    rng = np.random.RandomState(1)
    centers = rng.randn(num_groups, dims)
    return {
        f"{group}-{member:03d}": [float(x) for x in row / np.linalg.norm(row)]
        for group in range(num_groups)
        for member in range(per_group)
        for row in [centers[group] / np.linalg.norm(centers[group]) + noise * rng.randn(dims)]
    }


def test_a_fit_is_free_of_row_order_and_thread_count():
    import faiss

    rows = embeddings(blobs(5, 20))
    wanted = SemanticDedup(clusters=5)
    first = fit_centroids(rows, wanted, seed=7)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        again = fit_centroids(rows.sample(fraction=1.0, shuffle=True, seed=3), wanted, seed=7)
        assert faiss.omp_get_max_threads() == 2  # left as it was
    finally:
        faiss.omp_set_num_threads(threads)
    assert tables.to_parquet(tables.conform("centroids", first)) == tables.to_parquet(
        tables.conform("centroids", again)
    )
    assert not fit_centroids(rows, wanted, seed=8).equals(first)


def test_well_apart_groups_become_the_clusters():
    rows = embeddings(blobs(4, 25))
    centroids = fit_centroids(rows, SemanticDedup(clusters=4), seed=0)
    assert centroids["num_fitted"].sum() == 100
    norms = [np.linalg.norm(v) for v in centroids["vector"].to_list()]
    np.testing.assert_allclose(norms, 1.0, atol=1e-6)


def test_the_sample_is_chosen_by_hash_so_others_do_not_move_it():
    rows = embeddings(blobs(3, 30))
    small = SemanticDedup(clusters=3, sample_size=40)
    assert fit_centroids(rows, small, seed=0)["num_fitted"].sum() == 40


@pytest.mark.parametrize(
    ("num_clips", "wanted", "expected"),
    [(1, 0, 1), (10, 0, 3), (10_000, 0, 100), (200_000, 0, 2_000), (10**9, 0, 65_536), (5, 9, 5)],
)
def test_the_number_of_clusters_follows_from_the_number_of_clips(num_clips, wanted, expected):
    assert count_clusters(num_clips, wanted) == expected


def test_a_domain_is_named_by_what_weighs_most():
    assert name_domain(['[["lake",0.6],["grey owl",0.5]]', '[["lake",0.1]]']) == "lake+grey_owl"
    assert name_domain([None]) == "untagged"


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    keep=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
    size=st.integers(0, 30),
)
def test_duplicates_are_near_enough_kept_clips_whatever_the_order(seed, keep, order, size):
    rng = np.random.RandomState(seed)
    rows = [
        {"clip_id": f"c{n:02d}", "asset_id": "a", "quality_value": round(float(rng.rand()), 1),
         "vector": [float(x) for x in np.round(rng.randn(2), 2)]}
        for n in range(size)
    ]  # fmt: skip
    schema = {"clip_id": pl.String, "asset_id": pl.String, "quality_value": pl.Float64,
              "vector": pl.List(pl.Float32)}  # fmt: skip
    wanted = SemanticDedup(min_cosine=0.95, keep_per_group=keep)
    found = semdedup.find_duplicates(pl.DataFrame(rows, schema=schema), wanted)
    order.shuffle(rows)
    again = semdedup.find_duplicates(pl.DataFrame(rows, schema=schema), wanted)
    assert sorted(again) == sorted(found)

    unit = {
        r["clip_id"]: np.float32(r["vector"]).astype(float)
        / max(np.linalg.norm(np.float32(r["vector"]).astype(float)), 1e-12)
        for r in rows
    }
    quality = {r["clip_id"]: r["quality_value"] for r in rows}
    gone = {clip for clip, *_ in found}
    kept = set(unit) - gone
    for clip, _, keeper, cosine in found:
        assert keeper in kept
        assert cosine >= 0.95
        assert cosine == pytest.approx(unit[clip] @ unit[keeper], abs=1e-5)
        assert (-quality[keeper], keeper) < (-quality[clip], clip)
    for clip in kept:  # no kept clip has too many better kept ones near it
        better = [
            other
            for other in kept - {clip}
            if (-quality[other], other) < (-quality[clip], clip)
            and round(float(unit[clip] @ unit[other]), 6) >= 0.95
        ]
        assert len(better) < keep


def catalog_of_three() -> Catalog:
    catalog = Catalog()
    same = vector("same")
    catalog.add_asset("a", drop=DROP, vectors=[same], quality=0.9)
    catalog.add_asset("b", drop=CRAWL, vectors=[same], quality=0.8)
    catalog.add_asset("c", drop=CRAWL, vectors=[vector("other")], quality=0.7)
    return catalog


def put_all(store, read, names):
    return {
        table: [put_rows(store, table, rows, partition) for partition, rows in read[table].items()]
        for table in names
    }


def test_the_three_steps_find_a_duplicate_across_drops(tmp_path):
    store, read = new_store(tmp_path), catalog_of_three().read
    corpus = put_all(store, read, READS)
    params = {"clusters": 1, "sample_size": 100, "seed": 0}
    fitted = run_step(
        semdedup.CENTROIDS, order_of(semdedup.CENTROIDS, "c1", corpus, params=params), store
    )
    assert rows_made(store, fitted, "centroids")["domain"].to_list() == ["lake+tree"]
    assignments = []
    for drop in (DROP, CRAWL):
        inputs = {
            "clip_embeddings": [put_rows(store, "clip_embeddings", read["clip_embeddings"][drop])],
            "centroids": [fitted.objects["centroids"]],
        }
        made = run_step(semdedup.ASSIGNMENTS, order_of(semdedup.ASSIGNMENTS, drop, inputs), store)
        assignments.append(made.objects["cluster_assignments"])
    found: list[dict] = []
    for name in semdedup.CLUSTER_RANGES:
        order = order_of(
            semdedup.DUPLICATES,
            name,
            {**corpus, "cluster_assignments": assignments},
            params={"min_cosine": 0.9, "keep_per_group": 1},
        )
        report = run_step(semdedup.DUPLICATES, order, store)
        found += rows_made(store, report, "semantic_duplicates").to_dicts()
    assert [row["asset_id"] for row in found] == [asset_id("b")]
    assert found[0]["similarity"] == 1.0


def test_an_unknown_range_is_refused(tmp_path):
    order = order_of(
        semdedup.DUPLICATES, "range-9", {}, params={"min_cosine": 0.9, "keep_per_group": 1}
    )
    with pytest.raises(NotReady, match="range-0"):
        run_step(semdedup.DUPLICATES, order, new_store(tmp_path))


class _Live:
    """Stands in for a ledger: what is live, by table."""

    def __init__(self, refs):
        self.refs = refs

    def live(self, table, partition=None, *, version=None):
        return self.refs[table]


def test_the_version_of_centroids_follows_from_what_is_live(tmp_path):
    refs = put_all(new_store(tmp_path), catalog_of_three().read, READS)
    version = centroids_version_for(_Live(refs), make_recipe())  # pyright: ignore[reportArgumentType]
    assert len(version) == 13
    turned = {table: list(reversed(found)) for table, found in refs.items()}
    assert centroids_version_for(_Live(turned), make_recipe()) == version  # pyright: ignore[reportArgumentType]
    assert centroids_version_for(_Live(refs), make_recipe(seed=1)) != version  # pyright: ignore[reportArgumentType]
    fewer = {**refs, "gates": refs["gates"][:1]}
    assert centroids_version_for(_Live(fewer), make_recipe()) != version  # pyright: ignore[reportArgumentType]
    pinned = make_recipe(semantic_dedup={"centroids_version": "c-2026"})
    assert centroids_version_for(_Live(refs), pinned) == "c-2026"  # pyright: ignore[reportArgumentType]
