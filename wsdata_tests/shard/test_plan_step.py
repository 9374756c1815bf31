"""The step that publishes a plan: what it writes, proves and refuses."""

import json

import polars as pl
import pytest

from wsdata.errors import CatalogError, PlanError
from wsdata.loader.version import open_version
from wsdata.recipe import recipe_from
from wsdata.shard.placement import placement_of
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_step import STEP
from wsdata.shard.publish import read_dataset
from wsdata.store import FolderStore
from wsdata.tables import TABLES
from wsdata_tests.loader.published import PARAMS, publish
from wsdata_tests.orders_support import rows_made


def test_step_publishes_pointer_index_and_plan_under_training(tmp_path):
    store = FolderStore(tmp_path)
    index, report = publish(store)
    row = rows_made(store, report, "step_plans").row(0, named=True)
    pointer = read_dataset(store, "v1")
    assert pointer["plan_id"] == row["plan_id"]
    assert {row[name] for name in TABLES["step_plans"].blobs} <= {
        key for key, _ in store.list("training/")
    }
    plan = StepPlan.from_json(
        json.loads(store.get(pointer["plan_key"])), pl.DataFrame(list(index.values()))
    )
    assert plan.plan_id == row["plan_id"]
    proof = json.loads(row["proof_json"])
    assert all(check["passed"] for check in proof["checks"].values())
    (phase,) = proof["phases"]
    assert phase["streams"]["video"]["due_share"] == 0.8
    assert phase["streams"]["video"]["period_share"] == pytest.approx(0.8, abs=0.01)
    assert (row["num_samples"], row["num_steps"]) == (len(index), 60)


def test_what_lies_under_training_is_enough_to_place_every_sample(tmp_path):
    store, trainer = FolderStore(tmp_path / "all"), FolderStore(tmp_path / "training alone")
    rows, report = publish(store)
    parts = rows_made(store, report, "training_index_parts")
    for key, size in store.list("training/"):
        trainer.put(key, store.get(key))
        assert size == dict(parts.select("key", "size_bytes").rows()).get(key, size)
    opened = open_version(trainer, "v1")
    assert opened.index.num_rows == len(rows)
    planned = opened.plan.samples(7)
    placements = opened.placements([sample.row for sample in planned])
    assert placements == [placement_of(rows[sample.sample_id]) for sample in planned]
    shard = placements[0].shard
    steps = [
        step
        for step in range(5, 60)
        if any(rows[sample.sample_id]["shard"] == shard for sample in opened.plan.samples(step))
    ]
    assert opened.steps_of_shard(shard, 5, 4) == steps[:4]
    assert opened.steps_of_rows([planned[0].row], 7, 1) == [7]


def test_a_plan_of_an_older_format_is_refused(tmp_path):
    store = FolderStore(tmp_path)
    publish(store)
    key = read_dataset(store, "v1")["plan_key"]
    old = store.get(key).replace(b'"format_version":2', b'"format_version":1')
    store.path_of(key).write_bytes(old)
    with pytest.raises(PlanError, match="format 1, this code reads 2: use the release"):
        open_version(store, "v1")


def test_step_run_again_changes_nothing(tmp_path):
    store = FolderStore(tmp_path)
    first = publish(store)[1]
    before = list(store.list(""))
    assert publish(store)[1].objects == first.objects
    assert list(store.list("")) == before


def test_another_plan_for_a_published_version_is_refused(tmp_path):
    store = FolderStore(tmp_path)
    publish(store)
    with pytest.raises(CatalogError, match="already published with another plan_id"):
        publish(store, params={**PARAMS, "seed": 12})


def test_mixture_that_cannot_be_planned_publishes_nothing(tmp_path):
    store = FolderStore(tmp_path)
    samples = {"global_batch": 4096, "batch_of_bucket": {}}
    with pytest.raises(PlanError, match="fewer than one global batch of 4096"):
        publish(store, params={**PARAMS, "samples": samples})
    assert not list(store.list("training/datasets/"))
    assert not list(store.list("training/plans/"))


def test_params_are_the_recipe_sections_that_decide_the_plan(tmp_path):
    recipe = recipe_from(
        {
            "name": "r",
            "seed": 11,
            "samples": {"global_batch": 4},
            "streams": {"video": {}, "image": {"modality": "image"}},
            "phases": PARAMS["phases"],
        }
    )
    params = STEP.params_of(recipe)
    store = FolderStore(tmp_path)
    report = publish(store)[1]
    same = publish(FolderStore(tmp_path / "other"), params=params)[1]
    assert same.objects["step_plans"].sha256 == report.objects["step_plans"].sha256


def test_samples_lost_in_encoding_do_not_stop_the_plan(tmp_path):
    store = FolderStore(tmp_path)
    index, _ = publish(store, lost=6)  # of 8 images
    pointer = read_dataset(store, "v1")
    plan = StepPlan.from_json(
        json.loads(store.get(pointer["plan_key"])), pl.DataFrame(list(index.values()))
    )
    (phase,) = plan.phases
    assert phase.short == ("256p/64x32/1",)
    assert phase.absent == ("image",)
