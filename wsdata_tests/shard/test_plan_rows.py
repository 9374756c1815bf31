"""Rows sorted on disk against rows sorted in memory: the same, however few are read at a time."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata.curate.manifest import manifest_digest
from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, PlanError
from wsdata.shard.plan_atoms import atoms_of, sort_rows
from wsdata.shard.plan_rows import AtomsAlone, sort_tables
from wsdata.shard.shard_entries import FIELDS, EntrySorter
from wsdata.shard.training_index_write import INDEXED, SOURCED, widths_of, write_training_index
from wsdata.store import FolderStore
from wsdata.tables import TABLES, to_parquet
from wsdata_tests.orders_support import put_rows
from wsdata_tests.shard.test_training_index import index_rows


def _put(store, rows, num_lost):
    """Store an index of all but some rows, and a manifest of all; return both as written."""
    tables = {"dataset_index": rows[num_lost:], "manifests": rows}
    named = {
        table: [{k: v for k, v in row.items() if k in TABLES[table].columns} for row in mine]
        for table, mine in tables.items()
    }
    return [put_rows(store, table, named[table], "v1") for table in tables]


@settings(max_examples=5, deadline=None)
@given(
    num=st.integers(1, 80),
    lost_share=st.floats(0, 1),
    rows_at_once=st.sampled_from([1, 2, 7, 64, 1000]),
    seed=st.integers(0, 99),
)
def test_rows_come_as_if_sorted_in_memory(tmp_path_factory, num, lost_share, rows_at_once, seed):
    rows, num_lost = index_rows(num, seed), int(lost_share * (num - 1))
    folder = tmp_path_factory.mktemp("rows")
    store, scratch = FolderStore(folder / "store"), folder / "scratch"
    scratch.mkdir()
    refs = _put(store, rows, num_lost)
    found = sort_tables(store, *refs, scratch, rows_at_once=rows_at_once)
    index, manifest = (
        pl.read_parquet(store.path_of(ref.key), columns=list(columns))
        for ref, columns in zip(refs, (INDEXED, TABLES["manifests"].columns), strict=True)
    )
    expected = sort_rows(index.join(manifest.select("sample_id", *SOURCED), on="sample_id"))
    assert pl.concat(found.chunks()).equals(expected)
    assert found.atoms == atoms_of([expected])
    assert found.widths == widths_of(expected["sample_id"], manifest["transcode_key"])
    lost = manifest.join(index, on="sample_id", how="anti")["bucket"].value_counts()
    assert found.lost == dict(lost.rows())
    assert found.manifest_digest == manifest_digest(manifest)
    assert found.index_path.read_bytes() == store.get(refs[0].key)
    written = [
        write_training_index(FolderStore(folder / name), chunks, found.widths)
        for name, chunks in (("sorted", found.chunks()), ("memory", [expected]))
    ]
    assert written[0] == written[1]


def _put_as_it_is(store, like, frame):
    """Store rows that no step would write."""
    data = to_parquet(frame)
    ref = dataclasses.replace(like, sha256=sha256_bytes(data))
    store.put(ref.key, data)
    return ref


@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
@pytest.mark.parametrize("order", [[0, 1, 1, 2], [0, 2, 1]], ids=["twice", "out of order"])
def test_a_table_that_lists_a_sample_twice_or_unsorted_is_refused(tmp_path, order, rows_at_once):
    store = FolderStore(tmp_path / "store")
    index, manifest = _put(store, index_rows(3), 0)
    frame = pl.read_parquet(store.path_of(index.key))
    bad = _put_as_it_is(store, index, frame[order])
    (tmp_path / "scratch").mkdir()
    with pytest.raises(PlanError, match=rf"dataset_index of v1 .* such as {frame[1, 'sample_id']}"):
        sort_tables(store, bad, manifest, tmp_path / "scratch", rows_at_once=rows_at_once)


def test_a_damaged_table_is_named(tmp_path):
    store = FolderStore(tmp_path / "store")
    index, manifest = _put(store, index_rows(3), 0)
    path = store.path_of(manifest.key)
    path.write_bytes(path.read_bytes()[::-1])
    (tmp_path / "scratch").mkdir()
    with pytest.raises(IntegrityError, match=rf"manifests of v1 \({manifest.key}\).*run again"):
        sort_tables(store, index, manifest, tmp_path / "scratch")


def test_an_index_of_atoms_alone_knows_no_sample():
    alone = AtomsAlone(())
    for ask in (
        lambda: alone.names(np.zeros(2, np.int64)),
        lambda: alone.rows_of_clip("c"),
        lambda: alone.rows_of_samples(["s"]),
    ):
        with pytest.raises(LookupError, match="only"):
            ask()


@settings(max_examples=20, deadline=None)
@given(
    shards=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=60),
    max_kept=st.integers(0, 70),
    step=st.integers(1, 20),
)
def test_entries_sort_alike_in_memory_and_on_disk(shards, max_kept, step):
    entries = np.zeros(len(shards), np.dtype(list(FIELDS)))
    entries["shard"], entries["row"] = shards, np.arange(len(shards))
    with EntrySorter(max_kept) as sorter:
        for low in range(0, len(entries), step):
            sorter.add(entries[low : low + step])
        found = [each for part in sorter.sorted() for each in part.tolist()]
    assert found == sorted(zip(shards, range(len(shards)), strict=True))
