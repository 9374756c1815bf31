"""Reports of trainers through Dagster: the sensor sees them, a run takes them in, checks tell."""

import json

import dagster as dg
import pytest

from assets import loader, observability
from resources import deployments
from sensors.inbox import inbox_sensor
from wsdata.loader.served import FORMAT, PREFIX
from wsdata.loader.telemetry import Telemetry, export
from wsdata_tests.graph.graph_support import ROOT

ABOUT_RUNS = {"runs_served", "rank_telemetry", "realised_order"}


@pytest.fixture
def resources(tmp_path):
    return deployments.bundle(ROOT, tmp_path / "home")


def report(store, first, end):
    body = {
        "format": FORMAT, "run": "r1", "attempt": f"a{first}", "run_id": "id", "world_size": 1,
        "resumed_step": None, "version": "v1", "plan_id": "p" * 64, "seed": 1, "segment_step": 0,
        "first_step": first, "end_step": end, "plan_step": first,
    }  # fmt: skip
    store.put(f"{PREFIX}r1/a{first}.json", json.dumps(body).encode())


def tick(resources):
    context = dg.build_sensor_context(resources={"blob_store": resources["blob_store"]})
    return inbox_sensor(context)


def follow(resources, instance):
    """Materialise what the job does; return its checks."""
    assets = [
        made
        for made in (*loader.assets, *observability.assets)
        if isinstance(made, dg.AssetsDefinition) and {k.path[-1] for k in made.keys} & ABOUT_RUNS
    ]
    checks = [
        made
        for made in (*loader.checks, *observability.checks)
        if {key.asset_key.path[-1] for key in made.check_keys} & ABOUT_RUNS
    ]
    done = dg.materialize([*assets, *checks], instance=instance, resources=resources)
    assert done.success
    return {each.check_name: each for each in done.get_asset_check_evaluations()}


def test_reports_are_seen_taken_in_and_judged(resources):
    store = resources["blob_store"].open()
    assert isinstance(tick(resources), dg.SkipReason)
    report(store, 0, 10)
    report(store, 20, 30)
    slow = Telemetry()
    slow.fetched(5.0, 10)
    export(store, slow.report(ring_depth=2, step_s=1.0), run="r1", rank=3, session="s", step=30)
    store.put(f"{PREFIX}r1/junk.json", b"junk")
    wanted = tick(resources)
    assert isinstance(wanted, dg.RunRequest)
    assert tick(resources).run_key == wanted.run_key  # Dagster starts no second run of it
    with dg.DagsterInstance.ephemeral() as instance:
        checks = follow(resources, instance)
    assert isinstance(tick(resources), dg.SkipReason)
    assert {name: check.passed for name, check in checks.items()} == dict.fromkeys(
        ("all_known", "none_refused", "loader_keeps_up", "order_realised"), False
    )
    said = {name: check.metadata["faults"].value for name, check in checks.items()}
    assert "nobody told what steps 10..20 served" in said["all_known"]
    assert "rank 3: p99.9 of fetches is 5" in said["loader_keeps_up"]
    assert "only 0.0% of its steps" in said["order_realised"]
    assert {check.severity for check in checks.values()} == {dg.AssetCheckSeverity.WARN}
