"""The step that publishes a plan: what it writes, proves and refuses."""

import json

import polars as pl
import pytest

from wsdata.digest import canonical_json
from wsdata.errors import CatalogError, IntegrityError, PlanError
from wsdata.loader.version import open_version
from wsdata.recipe import recipe_from
from wsdata.shard.placement import placement_of
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_step import STEP
from wsdata.shard.publish import dataset_key, read_dataset
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


def _flips(good):
    """Bytes with one byte changed, at places all over, and cut short."""
    for at in range(0, len(good), max(len(good) // 60, 1)):
        yield good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    yield from (b"", good[: len(good) // 2], b"[]", b"{}", b"\xff" + good)


@pytest.mark.parametrize("name", ["plan", "pointer"])
def test_a_damaged_plan_or_pointer_is_named_whatever_byte_is_wrong(tmp_path, name):
    store = FolderStore(tmp_path)
    publish(store)
    pointer = read_dataset(store, "v1")
    key = pointer["plan_key"] if name == "plan" else dataset_key("v1")
    path = store.path_of(key)
    good = path.read_bytes()
    for bad in _flips(good):
        if name == "pointer" and _is_told_elsewhere(bad, pointer):
            continue
        path.write_bytes(bad)
        with pytest.raises(IntegrityError, match=rf"{name} of dataset version v1 \({key}\)") as it:
            open_version(store, "v1")
        assert "delete it and run `wsdata run`" in str(it.value)


def _is_told_elsewhere(bad, pointer):
    """Whether a pointer's format is another, or no loader asks what is wrong in it."""
    try:
        body = json.loads(bad)
    except ValueError:
        return False
    if not isinstance(body, dict):
        return False
    if body.get("format_version", 2) != 2:
        return True
    kept = {name: value for name, value in pointer.items() if name != "manifest_digest"}
    return kept.items() <= body.items() and "manifest_digest" in body


@pytest.mark.parametrize("name", ["plan_id", "plan_key", "training_index_sha256", "index_sha256"])
@pytest.mark.parametrize("at", [0, 12, 63])
def test_a_pointer_that_contradicts_itself_is_at_fault_and_not_the_plan(tmp_path, name, at):
    store = FolderStore(tmp_path)
    publish(store)
    pointer = read_dataset(store, "v1")
    at += len("training/plans/") if name == "plan_key" else 0
    other = "1" if pointer[name][at] != "1" else "2"
    bad = {**pointer, name: pointer[name][:at] + other + pointer[name][at + 1 :]}
    store.path_of(dataset_key("v1")).write_text(canonical_json(bad))
    with pytest.raises(IntegrityError, match="does not fit its") as told:
        open_version(store, "v1")
    assert str(told.value).startswith("pointer of dataset version v1 (training/datasets/v1.json)")
    assert bad[name] in str(told.value)


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
