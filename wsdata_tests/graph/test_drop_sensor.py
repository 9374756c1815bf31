"""The drop sensor: takes good folders in, refuses broken ones whole, looks at repaired ones."""

import json
import os

import dagster as dg
import pytest

from assets import partitions
from assets.ingest import none_refused, none_waiting
from resources import deployments
from sensors.drops import MAX_DROPS_PER_TICK, ready_drops_sensor
from wsdata_tests.graph.graph_support import DROP, ROOT, make_drop_folder

BROKEN = "crawl.web.20261101.001"


@pytest.fixture
def site(tmp_path):
    home = tmp_path / "home"
    make_drop_folder(home / "landing", DROP)
    resources = deployments.bundle(ROOT, home)
    with dg.DagsterInstance.ephemeral() as instance:
        yield home / "landing", resources, instance


def tick(resources, instance, cursor=None):
    context = dg.build_sensor_context(
        instance=instance,
        cursor=cursor,
        resources={"deployment": resources["deployment"]},
        definitions=None,
    )
    found = ready_drops_sensor(context)
    if isinstance(found, dg.SensorResult):
        for request in found.dynamic_partitions_requests:  # as the daemon does
            instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
    return found


def added(found, definition):
    return [
        key
        for request in found.dynamic_partitions_requests
        if request.partitions_def_name == definition.name
        for key in request.partition_keys
    ]


def check_of(found):
    (check,) = [e for e in found.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
    return check


def test_a_ready_folder_becomes_a_partition_and_a_run(site):
    _, resources, instance = site
    found = tick(resources, instance)
    assert [r.partition_key for r in found.run_requests] == [DROP]
    assert added(found, partitions.drops) == added(found, partitions.deliveries) == [DROP]
    assert check_of(found).passed
    assert isinstance(tick(resources, instance, found.cursor), dg.SkipReason)


def test_a_folder_without_marker_waits(site):
    landing, resources, instance = site
    (landing / DROP / "_READY").unlink()
    assert isinstance(tick(resources, instance), dg.SkipReason)


def test_a_broken_drop_is_refused_with_every_fault(site):
    landing, resources, instance = site
    folder = make_drop_folder(landing, BROKEN)
    (folder / "drop.toml").write_text('source_tier = "licensed"\nsource = "web"\n')
    (folder / "notes.docx").write_bytes(b"x")
    found = tick(resources, instance)
    assert [r.partition_key for r in found.run_requests] == [DROP]
    assert added(found, partitions.drops) == [DROP]
    (seen,) = [
        e
        for e in found.asset_events
        if isinstance(e, dg.AssetObservation) and e.partition == BROKEN
    ]
    told = seen.metadata["faults"].value
    assert seen.metadata["accepted"].value is False
    assert "no license_id" in told
    assert "notes.docx" in told
    assert seen.metadata["num_faults"].value == told.count("\n") + 1
    check = check_of(found)
    assert not check.passed
    assert check.metadata["refused"].value == [BROKEN]
    assert check.partition is None  # a partitioned one outside a run stops every later tick


def test_a_refused_drop_is_looked_at_again_when_its_marker_changes(site):
    landing, resources, instance = site
    folder = make_drop_folder(landing, BROKEN.replace("crawl", "licensed"))
    good = (folder / "drop.toml").read_text()
    (folder / "drop.toml").write_text("")
    first = tick(resources, instance)
    assert folder.name in json.loads(first.cursor)["refused"]
    waiting = tick(resources, instance, first.cursor)
    assert isinstance(waiting, dg.SkipReason)
    assert folder.name in waiting.skip_message
    (folder / "drop.toml").write_text(good)
    assert isinstance(tick(resources, instance, first.cursor), dg.SkipReason)
    os.utime(folder / "_READY", ns=(1, 1))
    repaired = tick(resources, instance, first.cursor)
    assert [r.partition_key for r in repaired.run_requests] == [folder.name]
    assert check_of(repaired).passed
    assert json.loads(repaired.cursor)["refused"] == {}


def test_a_refused_drop_that_goes_away_is_forgotten(site):
    landing, resources, instance = site
    folder = make_drop_folder(landing, BROKEN)
    first = tick(resources, instance)
    (folder / "_READY").unlink()
    second = tick(resources, instance, first.cursor)
    assert check_of(second).passed
    assert json.loads(second.cursor)["refused"] == {}


def test_a_tick_is_bounded(site):
    landing, resources, instance = site
    for at in range(2, MAX_DROPS_PER_TICK + 5):
        make_drop_folder(landing, f"licensed.films.20261101.{at:03d}", num_files=0)
    first = tick(resources, instance)
    assert len(first.run_requests) == MAX_DROPS_PER_TICK
    second = tick(resources, instance, first.cursor)
    assert len(second.run_requests) == 4
    keys = [r.partition_key for found in (first, second) for r in found.run_requests]
    assert keys == sorted(set(keys))


def test_the_checks_of_deliveries_name_what_is_wrong(site):
    landing, resources, _ = site
    make_drop_folder(landing, BROKEN)
    refused = none_refused(deployment=resources["deployment"])
    assert not refused.passed
    assert BROKEN in refused.description
    waiting = none_waiting(deployment=resources["deployment"], catalog=resources["catalog"])
    assert not waiting.passed
    assert DROP in waiting.description
