"""Several workers share an order: each unit is worked once, and the rows are a single worker's."""

import sys
import types
from dataclasses import replace
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.fan_out import num_parts, work_in_parts
from resources.workers import WorkerJob
from wsdata import tables
from wsdata.errors import StoreError
from wsdata.orders import Input, Step, StepResult, execute
from wsdata.units import Part
from wsdata_tests.orders_support import new_store, order_of, put_rows

STEP = Step(
    stage="preprocess", name="shared", function="made_up_parts:run", code_version="1",
    partition="drop", assets={"decode_status": ("decode_status",)},
    inputs=(Input(table="raw_assets"),), pool="nvdec", units_of="raw_assets",
)  # fmt: skip
ASSETS = [f"{number:064x}" for number in range(60)]


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path)


@pytest.fixture
def worked(monkeypatch):
    """The step's function, and a list of the assets that it was worked for."""
    worked: list[str] = []

    def make(asset_id):
        worked.append(asset_id)
        return {"asset_id": asset_id, "status": "ok", "attempts": len(asset_id)}

    def run(run):
        mine = run.mine(run.read("raw_assets"), "asset_id")["asset_id"]
        rows = [run.unit(each, lambda each=each: make(each)) for each in mine]
        return StepResult(tables={"decode_status": tables.rows_of("decode_status", rows)})

    module = types.ModuleType("made_up_parts")
    module.run = run
    monkeypatch.setitem(sys.modules, "made_up_parts", module)
    return worked


def job_in(store, assets=ASSETS):
    ref = put_rows(store, "raw_assets", [{"asset_id": each} for each in assets])
    order = order_of(STEP, "crawl.x.20261101.001", {"raw_assets": [ref]})
    return WorkerJob(stage=STEP.stage, step=STEP.name, order=order, store=store.address)


def worker(store):
    def work(job):
        body = job.to_json()
        part = Part(**body["part"]) if "part" in body else None
        asks = not body.get("follows_parts", False)
        return execute(job.order, STEP.function, store, part=part, asks_blobs=asks)

    return work


def test_parts_and_then_the_whole_give_the_rows_of_one_worker(store, worked, tmp_path):
    report = work_in_parts(job_in(store), 4, worker(store), Event())
    assert sorted(worked) == ASSETS
    alone = new_store(tmp_path / "alone")
    whole = worker(alone)(job_in(alone))
    assert report.objects == whole.objects
    assert report.metrics["num_units_kept"] == len(ASSETS)


def test_a_part_that_fails_is_told_when_the_others_have_ended(store, worked):
    work = worker(store)

    def failing(job):
        if job.part and job.part.index == 1:
            raise StoreError("the bucket does not answer")
        return work(job)

    job = job_in(store)
    with pytest.raises(StoreError, match="does not answer"):
        work_in_parts(job, 3, failing, Event())
    lost = [each for each in ASSETS if Part(index=1, of=3).holds(each)]
    assert sorted(worked) == sorted(set(ASSETS) - set(lost))
    work_in_parts(job, 3, work, Event())
    assert sorted(worked) == ASSETS, "no finished unit is worked again"


def test_jobs_of_parts_have_names_of_their_own(store):
    from resources.worker_pods import job_name

    job = job_in(store)
    names = [job_name(replace(job, part=Part(index=index, of=2))) for index in range(2)]
    assert len({job_name(job), *names}) == 3
    assert max(map(len, names)) <= 63
    assert job_name(replace(job, follows_parts=True)) == job_name(job)
    assert str(replace(job, part=Part(index=0, of=2))).startswith("part 1 of 2 of preprocess/")


def test_an_order_is_worth_as_many_workers_as_it_has_units_for(store):
    order = job_in(store).order
    assert num_parts(STEP, order, units_per_worker=20, max_workers=32) == 3
    assert num_parts(STEP, order, units_per_worker=20, max_workers=2) == 2
    assert num_parts(STEP, order, units_per_worker=1000, max_workers=32) == 1
    assert num_parts(replace(STEP, units_of=""), order, units_per_worker=1, max_workers=32) == 1
    empty = job_in(store, assets=[]).order
    assert num_parts(STEP, empty, units_per_worker=20, max_workers=32) == 1


@given(st.lists(st.text(), unique=True), st.integers(1, 9))
def test_every_unit_is_in_one_part(subjects, num):
    parts = [Part(index=index, of=num) for index in range(num)]
    assert all(sum(part.holds(subject) for part in parts) == 1 for subject in subjects)


@pytest.mark.parametrize(("index", "of"), [(-1, 2), (2, 2), (0, 0)])
def test_a_part_that_cannot_be_is_refused(index, of):
    with pytest.raises(ValueError, match=f"part {index} of {of}"):
        Part(index=index, of=of)
