"""Pointers of dataset versions: written once, read without a ledger."""

import pytest

from wsdata.errors import CatalogError, ObjectMissing
from wsdata.shard.publish import (
    index_key,
    publish_dataset,
    published_versions,
    read_dataset,
)
from wsdata.store import FolderStore

BODY = {"index_key": index_key("ab" * 32), "index_sha256": "ab" * 32, "manifest_digest": "m"}


@pytest.fixture
def store(tmp_path):
    store = FolderStore(tmp_path)
    store.put(BODY["index_key"], b"rows")
    return store


def test_pointer_reads_back_and_a_second_publication_of_the_same_is_no_change(store):
    assert publish_dataset(store, "v3", BODY)
    assert not publish_dataset(store, "v3", dict(BODY))
    assert read_dataset(store, "v3") == {**BODY, "version": "v3", "format_version": 2}


def test_another_body_for_a_published_version_is_refused_and_the_first_stays(store):
    publish_dataset(store, "v3", BODY)
    with pytest.raises(CatalogError, match="another manifest_digest"):
        publish_dataset(store, "v3", {**BODY, "manifest_digest": "other"})
    assert read_dataset(store, "v3")["manifest_digest"] == "m"


def test_a_pointer_to_objects_that_are_not_there_is_refused(store):
    with pytest.raises(ObjectMissing, match="training_index_key training/index/x"):
        publish_dataset(store, "v3", {**BODY, "training_index_key": "training/index/x"})
    with pytest.raises(ObjectMissing, match="plan_key training/plans/x"):
        publish_dataset(store, "v3", {**BODY, "plan_key": "training/plans/x"})
    assert published_versions(store) == []


def test_an_unpublished_version_names_those_that_are(store):
    for version in ("v10", "v2", "v2.1"):
        publish_dataset(store, version, BODY)
    assert published_versions(store) == ["v2", "v2.1", "v10"]
    with pytest.raises(CatalogError, match=r"published are v2, v2\.1, v10\. Newer ones are there"):
        read_dataset(store, "v4")


def test_a_pointer_of_an_older_format_says_what_to_do(store):
    store.put("training/datasets/v3.json", b'{"format_version": 1, "version": "v3"}')
    with pytest.raises(CatalogError, match="has format 1; this code reads 2: train it with the"):
        read_dataset(store, "v3")


def test_malformed_versions_and_bodies_are_bad_arguments(store):
    with pytest.raises(ValueError, match="expected v3"):
        read_dataset(store, "latest")
    with pytest.raises(ValueError, match="index_key"):
        publish_dataset(store, "v3", {"manifest_digest": "m"})
