import sys
import types

import pytest

from wsdata import tables
from wsdata.catalog.presence import finished
from wsdata.deployment import load_deployment
from wsdata.errors import CatalogError, NotReady
from wsdata.orders import Input, Step, StepResult, build_order, execute
from wsdata.recipe import Recipe
from wsdata.records import Fact, Order, Report

DROP = "licensed.acme.20261101.001"
OTHER = "licensed.acme.20261101.002"
RECIPE = Recipe(name="test")
CALLS: list[str] = []


def _source(run):
    CALLS.append(run.order.partition)
    rows = [{"clip_id": f"{run.order.partition}-{n}", "variant": "dense"} for n in range(3)]
    return StepResult(tables={"label_qc": tables.rows_of("label_qc", rows)})


def _units(run):
    done = [
        run.unit(row, lambda row=row: _unit(run, row), blobs=("blob.key",))
        for row in run.read("label_qc")["clip_id"]
    ]
    rows = [{"clip_id": each["clip_id"], **each["blob"]} for each in done]
    return StepResult(tables={"frame_packs": tables.rows_of("frame_packs", rows)})


def _unit(run, clip_id):
    CALLS.append(clip_id)
    key = run.blob_key("frame_packs", clip_id, ".bin")
    return {"clip_id": clip_id, "blob": run.put_blob(key, clip_id.encode())}


@pytest.fixture(autouse=True)
def module():
    CALLS.clear()
    made = types.ModuleType("made_up_steps")
    made.source, made.units = _source, _units
    sys.modules["made_up_steps"] = made
    yield
    del sys.modules["made_up_steps"]


SOURCE = Step(
    stage="label", name="source", function="made_up_steps:source", code_version="1",
    partition="drop", assets={"label_qc": ("label_qc",)},
)  # fmt: skip
UNITS = Step(
    stage="label", name="units", function="made_up_steps:units", code_version="1",
    partition="drop", assets={"frame_packs": ("frame_packs",)}, inputs=(Input(table="label_qc"),),
)  # fmt: skip


@pytest.fixture
def deployment(tmp_path):
    return load_deployment(tmp_path / "home")


def _order(step, deployment, partition=DROP):
    return build_order(
        step, partition, ledger=deployment.open_ledger(), deployment=deployment, recipe=RECIPE
    )


def _do(step, deployment, partition=DROP):
    ledger, store = deployment.open_ledger(), deployment.open_store()
    order = _order(step, deployment, partition)
    if finished(order, ledger, store):
        return False
    ledger.commit(order, execute(order, step.function, store))
    return True


def test_a_step_waits_for_its_inputs(deployment):
    with pytest.raises(NotReady, match="run its step first"):
        _order(UNITS, deployment)


def test_done_is_decided_by_ledger_and_store(deployment):
    assert _do(SOURCE, deployment)
    assert _do(UNITS, deployment)
    assert not _do(SOURCE, deployment)
    assert not _do(UNITS, deployment)


def test_a_lost_blob_is_made_again_alone(deployment):
    _do(SOURCE, deployment)
    _do(UNITS, deployment)
    store = deployment.open_store()
    keys = [key for key, _ in store.list("derived/")]
    before = {key: store.get(key) for key in keys}
    store.delete(keys[1])
    CALLS.clear()
    assert not _do(SOURCE, deployment)
    assert _do(UNITS, deployment)
    assert len(CALLS) == 1
    assert {key: store.get(key) for key, _ in store.list("derived/")} == before


def test_a_lost_object_of_rows_is_made_again(deployment):
    _do(SOURCE, deployment)
    store, ledger = deployment.open_store(), deployment.open_ledger()
    (ref,) = ledger.live("label_qc")
    store.delete(ref.key)
    assert _do(SOURCE, deployment)
    assert store.size(ref.key) is not None
    assert ledger.live("label_qc") == [ref]


def test_a_killed_step_resumes_at_its_next_unit(deployment):
    _do(SOURCE, deployment)
    order, store = _order(UNITS, deployment), deployment.open_store()

    class Killed(BaseException):
        pass

    def kill_after_two(run):
        real = run.put_blob

        def put_blob(key, data):
            if len(CALLS) == 3:
                raise Killed
            return real(key, data)

        run.put_blob = put_blob
        return _units(run)

    sys.modules["made_up_steps"].killed = kill_after_two
    with pytest.raises(Killed):
        execute(order, "made_up_steps:killed", store)
    assert deployment.open_ledger().live("frame_packs") == []
    CALLS.clear()
    assert _do(UNITS, deployment)
    assert len(CALLS) == 2  # its own partition's first unit was kept, the other two were not


def test_changed_code_or_input_is_not_done(deployment):
    import dataclasses

    _do(SOURCE, deployment)
    _do(UNITS, deployment)
    newer = dataclasses.replace(SOURCE, code_version="2")
    assert _do(newer, deployment)
    assert not _do(UNITS, deployment), "same rows under a new version: nothing downstream changes"
    assert _do(dataclasses.replace(UNITS, code_version="2"), deployment)


def test_orders_and_reports_survive_json(deployment):
    import json

    order = _order(SOURCE, deployment)
    report = execute(order, SOURCE.function, deployment.open_store())
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_two_workers_on_one_order_leave_one_result(deployment):
    ledger, store = deployment.open_ledger(), deployment.open_store()
    order = _order(SOURCE, deployment)
    report = execute(order, SOURCE.function, store)
    assert ledger.commit(order, report) == {"label_qc": True}
    seq = ledger.seq
    assert ledger.commit(order, report) == {"label_qc": False}
    assert ledger.seq == seq


def test_rows_as_of_a_commit(deployment):
    import dataclasses

    ledger = deployment.open_ledger()
    _do(SOURCE, deployment)
    first = ledger.seq
    _do(SOURCE, deployment, OTHER)
    _do(dataclasses.replace(SOURCE, code_version="2"), deployment)
    assert [ref.partition for ref in ledger.live("label_qc", as_of=first)] == [DROP]
    assert [ref.version for ref in ledger.live("label_qc")] == ["2", "1"]
    assert [ref.version for ref in ledger.live("label_qc", version="1")] == ["1", "1"]


def test_the_chain_of_commits_shows_tampering(deployment):
    import sqlalchemy as sa

    ledger = deployment.open_ledger()
    _do(SOURCE, deployment)
    ledger.state([Fact(kind="pin", subject="v1", body={})], step="test")
    assert ledger.verify_chain() is None
    engine = sa.create_engine(ledger.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE commits SET partition = 'x' WHERE seq = 1")
    assert ledger.verify_chain() == 1


def test_a_report_of_another_order_is_refused(deployment):
    ledger, store = deployment.open_ledger(), deployment.open_store()
    report = execute(_order(SOURCE, deployment), SOURCE.function, store)
    with pytest.raises(CatalogError, match="answers order"):
        ledger.commit(_order(SOURCE, deployment, OTHER), report)


def test_facts_have_a_present_view(deployment):
    ledger = deployment.open_ledger()
    ledger.state([Fact(kind="pin", subject="v1", body={"a": 1})], step="t")
    seq = ledger.state([Fact(kind="pin", subject="v1", body={"a": 2})], step="t")
    ledger.state([Fact(kind="pin", subject="v1", body={"withdrawn": True})], step="t")
    assert ledger.present("pin") == {}
    assert ledger.present("pin", as_of=seq) == {"v1": {"a": 2}}


def test_a_second_engine_appends_its_rows(deployment):
    import dataclasses

    ledger, store = deployment.open_ledger(), deployment.open_store()
    versioned = dataclasses.replace(SOURCE, version_of=lambda recipe: recipe.name)
    for name in ("one", "two"):
        order = build_order(
            versioned, DROP, ledger=ledger, deployment=deployment, recipe=Recipe(name=name)
        )
        ledger.commit(order, execute(order, versioned.function, store))
        assert finished(order, ledger, store)
    assert [ref.version for ref in ledger.versions("label_qc", DROP)] == ["1.one", "1.two"]
    assert [ref.version for ref in ledger.live("label_qc", DROP)] == ["1.two"]
    pinned = ledger.live("label_qc", DROP, version="1.one")
    assert len(pinned) == 1


def test_what_was_lost_may_come_back_as_other_bytes(deployment):
    ledger, store = deployment.open_ledger(), deployment.open_store()
    order = _order(SOURCE, deployment)
    ledger.commit(order, execute(order, SOURCE.function, store))

    def other(run):
        rows = [{"clip_id": "other", "variant": "dense"}]
        return StepResult(tables={"label_qc": tables.rows_of("label_qc", rows)})

    sys.modules["made_up_steps"].other = other
    again = execute(order, "made_up_steps:other", store)
    assert ledger.commit(order, again) == {"label_qc": False}, "the first result stays"
    assert ledger.commit(order, again, replaces_lost=True) == {"label_qc": True}
    assert ledger.live("label_qc") == [again.objects["label_qc"]]
