"""The sandbox where it counts: in workers that the production launchers start, here and in pods.

A file that takes its decoder over is let loose in each; the worker holds a secret meanwhile.
"""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
from moto.server import ThreadedMotoServer

from resources.compute_pool import POOLS
from resources.kubernetes_launcher import KubernetesLauncher
from resources.local_launcher import LocalLauncher
from resources.workers import WorkerJob
from wsdata.deployment import Kubernetes
from wsdata.media.sandbox import reachable_level
from wsdata.records import Order
from wsdata.store import open_store
from wsdata.tables import from_parquet
from wsdata_tests.cluster.hostile_steps import SECRET, STEP
from wsdata_tests.cluster.kube.double import running_kube
from wsdata_tests.graph.graph_support import ROOT

KEYS = {"AWS_ACCESS_KEY_ID": "tester", SECRET: "secret", "AWS_DEFAULT_REGION": "us-east-1"}
MODULE = "wsdata_tests.cluster.hostile_steps"
POOL = replace(
    POOLS["nvdec"], cpu_count=1, memory_gib=2, scratch_gib=1, runtime_class_name="", gpu_count=0,
    max_attempts=1,
)  # fmt: skip
REFUSED = (
    "socket", "unix_socket", "kill_parent", "new_session", "namespace", "fork", "exec",
    "signal_parent", "disarm_parent", "parent_memory", "own_signal", "shared_memory",
)  # fmt: skip


@pytest.fixture(autouse=True)
def reached():
    """A level that is not reached proves nothing, and is no reason to pass."""
    assert reachable_level() == "bubblewrap", "install bubblewrap, and allow user namespaces"


@pytest.fixture
def local(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return SimpleNamespace(
        launcher=LocalLauncher(command=(sys.executable, "-m", MODULE)),
        store=str(tmp_path / "store"),
    )


@pytest.fixture(scope="module")
def pods(tmp_path_factory):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch, running_kube(tmp_path_factory.mktemp("k")) as kube:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        import boto3

        boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="store")
        kube.apply([
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "wsdata-decode"}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wsdata-decode-s3"},
             "stringData": KEYS},
        ])  # fmt: skip
        yield SimpleNamespace(
            launcher=KubernetesLauncher(
                cluster=Kubernetes(kubeconfig=str(kube.kubeconfig), poll_s=0.1, start_grace_s=30),
                command=("python", "-m", MODULE),
            ),
            store=f"s3://store/?endpoint=http://{host}:{port}",
        )
    server.stop()


def work(site, name, **params):
    """Order hostile files' work: what was found, what was said, and why it failed if it did."""
    order = Order(
        stage=STEP.stage, step=STEP.name, partition=f"crawl.{name}.20261101.001",
        code_version=STEP.code_version, params=params, inputs={}, tables=STEP.tables,
        settings={"sandbox_minimum": "bubblewrap"},
    )  # fmt: skip
    job = WorkerJob(stage=STEP.stage, step=STEP.name, order=order, store=site.store)
    reports = []

    @dg.asset(name="decode_status")
    def decode_status(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        reports.append(site.launcher.launch(context, POOL, job))
        return dg.MaterializeResult()

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([decode_status], instance=instance, raise_on_error=False)
        said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    failures = [e.step_failure_data for e in result.all_events if e.is_step_failure]
    why = [str(f.user_failure_data.description) for f in failures if f.user_failure_data]
    found = []
    for report in reports:
        key = report.objects["decode_status"].key
        rows = from_parquet("decode_status", open_store(site.store).get(key))
        found = [json.loads(reason) for reason in rows.sort("asset_id")["reason"]]
    return found, said, why


@pytest.mark.parametrize("launcher", ["local", "pods"])
def test_nothing_gets_out_of_a_launched_worker_s_sandbox(request, launcher):
    found, said, why = work(request.getfixturevalue(launcher), "hostile")
    assert not why
    assert any("worker holds its secret: True" in line for line in said)
    assert len(found) == 3, "a sandbox of one file, and a warm one twice"
    for each in found:
        tried = each["tried"]
        assert each["level"] == "bubblewrap"
        assert {name: tried[name] for name in REFUSED} == dict.fromkeys(REFUSED, "PermissionError")
        assert tried["rewrite_source"] in ("OSError", "PermissionError")
        assert "done" not in tried["write"] + tried["read"]
        assert not {"AWS", "PASSWORD", "TOKEN"} & {n.split("_")[0] for n in tried["environment"]}
        assert SECRET not in tried["environment"]
        assert each["memory"] == "memory"
        assert each["forks"] == {"forks": 0}
        assert (each["source"], each["beside"]) == ("source bytes", "beside")
        assert each["left"] == ["beside", "out", "source"]


@pytest.mark.parametrize("launcher", ["local", "pods"])
def test_a_level_that_is_not_reached_fails_the_step(request, launcher):
    found, _, why = work(request.getfixturevalue(launcher), "closed", is_closed=True)
    assert not found
    assert "was reached, the deployment demands 'bubblewrap'" in " ".join(why)
