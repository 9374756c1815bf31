"""Pools: what is done starts no process, workers die whole, lost ones are tried again."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from assets.building import step_keys
from resources.compute_pool import POOLS, PoolSpec
from resources.local_launcher import run_group, worker_environment
from wsdata_tests.graph.graph_steps import COSTS, DECODE, FABRICATED, HERE
from wsdata_tests.graph.graph_support import (
    DROP,
    ROOT,
    failure_text,
    instance_with_drops,
    make_site,
    materialize,
)

KEYS = dg.AssetSelection.assets(["ingest", "raw_assets"], ["preprocess", "decode_status"])


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return make_site(tmp_path / "home")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true, timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.05)
    return bool(true())


def test_a_step_in_a_pool_is_committed_and_shown(site):
    with instance_with_drops() as instance:
        result = materialize(site, instance, selection=KEYS)
    assert result.success, failure_text(result)
    (ref,) = site.ledger.live("decode_status", DROP)
    (made,) = result.asset_materializations_for_node("preprocess__decode")
    assert made.metadata["dagster/row_count"].value == ref.num_rows == 2
    assert made.tags["dagster/data_version"] == ref.sha256[:16]
    assert made.tags["dagster/code_version"] == "decode-1"
    (landed,) = result.asset_materializations_for_node("ingest__land")
    assert landed.metadata["files"].value.startswith("| a |")
    assert landed.metadata["metric/files"].value == 2.0
    assert site.ledger.commits()[-1]["run_id"] == result.run_id
    assert [e.passed for e in result.get_asset_check_evaluations()] == [True]


def test_a_finished_order_starts_no_process_and_shows_what_was_shown(site):
    with instance_with_drops() as instance:
        materialize(site, instance, selection=KEYS)
        assert site.starts() == 1
        again = materialize(site, instance, selection=KEYS)
    assert again.success
    assert site.starts() == 1
    (landed,) = again.asset_materializations_for_node("ingest__land")
    assert landed.metadata["unchanged"].value is True
    assert landed.metadata["files"].value.startswith("| a |")


def test_a_lost_object_is_made_again(site):
    with instance_with_drops() as instance:
        first = materialize(site, instance, selection=KEYS)
        (ref,) = site.ledger.live("decode_status", DROP)
        site.bench.store.delete(ref.key)
        again = materialize(site, instance, selection=KEYS)
    assert first.success
    assert again.success
    assert site.starts() == 2
    assert site.bench.store.size(ref.key) is not None
    assert site.ledger.live("decode_status", DROP) == [ref]


def test_a_worker_killed_once_is_tried_again(site):
    site.set_mood("kill-once")
    with instance_with_drops() as instance:
        result = materialize(site, instance, selection=KEYS)
    assert result.success, failure_text(result)
    assert site.starts() == 2


def test_a_worker_that_is_always_killed_fails_clearly(site):
    site.set_mood("kill")
    with instance_with_drops() as instance:
        result = materialize(site, instance, selection=KEYS)
    assert not result.success
    assert site.starts() == POOLS["nvdec"].max_attempts
    said = failure_text(result)
    assert "killed by SIGKILL" in said
    assert DROP in said
    assert "nvdec" in said
    assert site.ledger.live("decode_status", DROP) == []


def test_a_failure_of_the_step_is_told_and_not_tried_again(site):
    site.set_mood("fail")
    with instance_with_drops() as instance:
        result = materialize(site, instance, selection=KEYS)
    assert not result.success
    assert site.starts() == 1
    assert "asset 0123: the third box is cut off at byte 48" in failure_text(result)


def test_a_broken_promise_stops_what_follows_in_its_partition(site):
    steps = {
        **FABRICATED,
        "preprocess/decode": replace(DECODE, function=f"{HERE}:lose_one", pool=None),
        "observability/costs": replace(COSTS, partition="drop"),
    }
    with instance_with_drops() as instance:
        result = materialize(site, instance, steps=steps)
    assert not result.success
    (found,) = result.get_asset_check_evaluations()
    assert not found.passed
    assert "1 raw assets have no decode status" in found.metadata["faults"].value
    assert site.ledger.live("costs") == []


INTERRUPTED = """
import sys
from pathlib import Path
from wsdata_tests.graph import graph_support as support
from wsdata_tests.graph.test_compute_pools import KEYS
site = support.make_site(Path(sys.argv[1])) if not Path(sys.argv[1]).exists() else None
with support.instance_with_drops() as instance:
    site.set_mood("hang")
    support.materialize(site, instance, selection=KEYS)
"""


@pytest.fixture
def hanging(tmp_path):
    """A process whose worker hangs with a child; gives it and the ids of both."""
    home = tmp_path / "hanging"
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", INTERRUPTED, str(home)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: (home / "pids").exists(), 60), process.poll()
        time.sleep(0.2)
        yield process, [int(pid) for pid in (home / "pids").read_text().split()]
    finally:
        process.kill()
        process.wait()


def test_an_interrupt_ends_the_whole_group(hanging):
    process, pids = hanging
    assert all(is_running(pid) for pid in pids)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert wait_until(lambda: not any(is_running(pid) for pid in pids), 10)


def test_a_worker_dies_with_its_parent(hanging):
    process, (worker, grandchild) = hanging
    process.kill()
    assert wait_until(lambda: not is_running(worker), 10)
    os.kill(grandchild, signal.SIGKILL)  # a sandbox dies by its own means; this one has none


def test_a_group_leaves_nothing_behind(tmp_path):
    deaf = f"{sys.executable} -c 'import time; time.sleep(300)' & echo $! > {tmp_path}/pid"
    ended = run_group(["/bin/sh", "-c", deaf], env=dict(os.environ), grace_s=0.1)
    assert ended.code == 0
    pid = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not is_running(pid), 10)


def test_a_group_keeps_its_last_words():
    ended = run_group(
        ["/bin/sh", "-c", "echo one >&2; echo two >&2; exit 3"], env=dict(os.environ), grace_s=0.1
    )
    assert (ended.code, ended.tail) == (3, "one\ntwo\n")


def test_workers_are_told_neither_ledger_nor_dagster():
    held = worker_environment(
        {"PATH": "/bin", "WSDATA_HOME": "/x", "DAGSTER_HOME": "/y", "PGPASSWORD": "z"}
    )
    assert held == {"PATH": "/bin"}


def test_an_order_holds_no_ledger_address(site):
    with instance_with_drops() as instance:
        materialize(site, instance, selection=dg.AssetSelection.assets(["ingest", "raw_assets"]))
    order = site.bench.order(DECODE, DROP)
    assert "catalog.db" not in json.dumps(order.to_json())


def test_pools_are_those_of_the_design():
    assert set(POOLS) == {"cpu", "nvdec", "vlm", "encode", "vault"}
    assert [name for name, pool in POOLS.items() if pool.identity == "vault"] == ["vault"]
    with pytest.raises(ValueError, match="memory_gib"):
        PoolSpec(name="x", image="y", node_selector={}, memory_gib=0)


def test_steps_name_keys_of_their_stage():
    assert step_keys(DECODE) == [dg.AssetKey(["preprocess", "decode_status"])]
