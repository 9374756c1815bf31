"""Workers as Jobs, on the Kubernetes double and an S3 server: every end of a pod, and joining."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from moto.server import ThreadedMotoServer

from resources.compute_pool import POOLS, with_attempts
from resources.fan_out import work_in_parts
from resources.kubernetes_launcher import KubernetesLauncher
from resources.worker_pods import job_name
from resources.workers import WorkerJob, WorkerLeft
from wsdata.deployment import Kubernetes
from wsdata.records import Order, Report
from wsdata.store import open_store
from wsdata.units import Part
from wsdata_tests.cluster.kube.double import running_kube
from wsdata_tests.cluster.pod_steps import STEP

KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
ROOT = Path(__file__).parents[2]
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wsdata-decode-s3"},
          "stringData": KEYS}  # fmt: skip
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "wsdata-decode"}}
POOL = replace(
    POOLS["nvdec"], cpu_count=1, memory_gib=1, scratch_gib=1, runtime_class_name="", gpu_count=0
)


@pytest.fixture(scope="module")
def store_address():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        import boto3

        boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="store")
        yield f"s3://store/?endpoint=http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def kube(tmp_path_factory):
    with running_kube(tmp_path_factory.mktemp("kube")) as kube:
        kube.apply([ACCOUNT, SECRET])
        yield kube


class Desk:
    """Orders work as a Dagster step does, and keeps what it was told."""

    def __init__(self, kube, store_address) -> None:
        self.kube, self.store_address = kube, store_address
        self.launcher = KubernetesLauncher(
            cluster=Kubernetes(kubeconfig=str(kube.kubeconfig), poll_s=0.1, start_grace_s=3),
            command=("python", "-m", "wsdata_tests.cluster.pod_steps"),
        )

    def job(self, name: str, mood: str = "") -> WorkerJob:
        order = Order(
            stage=STEP.stage, step=STEP.name, partition=f"crawl.{name}.20261101.001",
            code_version=STEP.code_version, params={"mood": mood}, inputs={}, tables=STEP.tables,
        )  # fmt: skip
        return WorkerJob(stage=STEP.stage, step=STEP.name, order=order, store=self.store_address)

    def work(self, job: WorkerJob, *, instance=None, **changes):
        """Work a job in a run of its own: its reports, and the run."""
        reports: list[Report] = []
        pool = replace(POOL, **changes)

        @dg.asset(name="decode_status")
        def decode_status(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            launch = lambda: self.launcher.launch(context, pool, job)  # noqa: E731
            reports.append(with_attempts(launch, pool, job, context.log))
            return dg.MaterializeResult()

        with instance or dg.DagsterInstance.ephemeral() as instance:
            result = dg.materialize([decode_status], instance=instance, raise_on_error=False)
            said = [entry.user_message for entry in instance.all_logs(result.run_id)]
        return reports, result, said

    def start(self, job: WorkerJob, **changes):
        """Work a job beside the test: a thread, and where its outcome will be."""
        outcome: list = []
        thread = threading.Thread(target=lambda: outcome.append(self.work(job, **changes)))
        thread.start()
        return thread, outcome

    def pods(self, job: WorkerJob) -> list[dict]:
        return self.kube.pods(f"job-name={job_name(job)}")

    def made(self, job: WorkerJob) -> int:
        """How many pods were ever made for a job, those of deleted Jobs too."""
        said = self.kube.request("GET", "/api/v1/namespaces/default/events")["items"]
        return sum(
            event["reason"] == "SuccessfulCreate"
            and event["involvedObject"]["name"] == job_name(job)
            for event in said
        )

    def wait_until_working(self, job: WorkerJob) -> str:
        def working() -> str:
            for pod in self.pods(job):
                name = pod["metadata"]["name"]
                if pod["status"]["phase"] == "Running" and "unit 0 done" in self.kube.logs(name):
                    return name
            return ""

        return self.kube.wait_for(working, f"{job} at work", timeout_s=60)


@pytest.fixture
def desk(kube, store_address):
    return Desk(kube, store_address)


def failure(result) -> str:
    (event,) = [e for e in result.all_events if e.is_step_failure]
    return event.step_failure_data.user_failure_data.description


def test_an_order_is_worked_in_a_pod_and_reported(desk):
    job = desk.job("plain")
    (report,), result, said = desk.work(job)
    assert result.success
    assert report.order_digest == job.order.digest
    assert open_store(desk.store_address).size(report.objects["decode_status"].key)
    assert any("unit 2 done" in line for line in said)  # over Pipes, from the pod's log
    (pod,) = desk.pods(job)
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_a_failure_of_the_step_is_told_and_not_tried_again(desk):
    job = desk.job("failing", "fail")
    reports, result, _ = desk.work(job)
    assert not reports
    assert "third box is cut off at byte 48" in failure(result)
    assert desk.made(job) == 1


def test_a_store_that_was_away_is_tried_again(desk):
    job = desk.job("away", "away")
    reports, result, said = desk.work(job)
    assert result.success
    assert len(reports) == 1
    assert any("the bucket does not answer" in line and "attempt 1 of 3" in line for line in said)


def test_a_killed_pod_is_tried_again_and_goes_on_where_it_was(desk):
    job = desk.job("killed", "slow-once")
    thread, outcome = desk.start(job)
    desk.kube.kill_pod(desk.wait_until_working(job))
    thread.join(90)
    ((reports, result, said),) = outcome
    assert result.success
    assert reports[0].objects["decode_status"].num_rows == 3
    assert any("killed by signal 9" in line and "attempt 1 of 3" in line for line in said)


def test_a_preempted_pod_uses_up_no_attempt(desk):
    job = desk.job("preempted", "slow-once")
    thread, outcome = desk.start(job, max_attempts=1)
    desk.kube.preempt(desk.wait_until_working(job), grace_s=0)
    thread.join(90)
    ((reports, result, _),) = outcome
    assert result.success
    assert len(reports) == 1
    assert desk.made(job) == 2


@pytest.mark.slow
def test_memory_that_never_suffices_is_told_as_such(desk):
    job = desk.job("hungry", "slow")
    thread, outcome = desk.start(job, max_attempts=1)
    desk.kube.oom_kill(desk.wait_until_working(job))
    thread.join(90)
    ((reports, result, _),) = outcome
    assert not reports
    assert "ran out of memory, 1 times in pool nvdec" in failure(result)


@pytest.mark.slow
def test_a_lost_node_uses_up_no_attempt(desk):
    job = desk.job("homeless", "slow-once")
    thread, outcome = desk.start(job, max_attempts=1)
    pod = desk.wait_until_working(job)
    (node,) = [p["spec"]["nodeName"] for p in desk.pods(job) if p["metadata"]["name"] == pod]
    desk.kube.lose_node(node)
    desk.kube.restore_node(node)
    thread.join(90)
    ((_, result, _),) = outcome
    assert result.success


@pytest.mark.slow
def test_an_order_that_takes_too_long_is_ended(desk):
    job = desk.job("long", "slow")
    _, result, _ = desk.work(job, active_deadline_seconds=6)
    assert "activeDeadlineSeconds" in failure(result)


def test_a_run_joins_the_job_that_another_left(desk):
    job = desk.job("joined", "slow-once")
    first, outcome = desk.start(job)
    pod = desk.wait_until_working(job)
    second, other = desk.start(job)
    time.sleep(1)
    assert desk.made(job) == 1
    desk.kube.kill_pod(pod)
    first.join(90)
    second.join(90)
    digests = [reports[0].objects["decode_status"].sha256 for ((reports, *_),) in (outcome, other)]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_a_complete_job_whose_rows_are_lost_is_worked_again(desk):
    job = desk.job("mended")
    (report,), *_ = desk.work(job)
    (again,), _, said = desk.work(job)
    assert any("joining Job" in line for line in said)
    assert (again.to_json(), desk.made(job)) == (report.to_json(), 1)
    store = open_store(desk.store_address)
    store.delete(report.objects["decode_status"].key)
    (mended,), *_ = desk.work(job)
    assert desk.made(job) == 2
    assert store.size(mended.objects["decode_status"].key)


INTERRUPTED = """
import sys
from pathlib import Path
from types import SimpleNamespace
import dagster as dg
from wsdata_tests.cluster.test_kubernetes_launcher import Desk
desk = Desk(SimpleNamespace(kubeconfig=Path(sys.argv[1])), sys.argv[2])
desk.work(desk.job(sys.argv[3], "slow"), instance=dg.DagsterInstance.get())
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_only_a_cancelled_run_takes_its_job_along(desk, tmp_path, is_cancelled):
    job = desk.job(f"interrupted{is_cancelled}".lower(), "slow")
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", INTERRUPTED, str(desk.kube.kubeconfig), desk.store_address,
         job.order.partition.split(".")[1]],
        cwd=ROOT, env={**os.environ, "DAGSTER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        desk.wait_until_working(job)
        with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
            (run,) = instance.get_runs()
            if is_cancelled:
                instance.report_run_canceling(run)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        pods = [pod["metadata"]["name"] for pod in desk.pods(job)]
        if is_cancelled:
            desk.kube.wait_for(lambda: not desk.pods(job), "the Job's pods gone", timeout_s=60)
        else:
            assert pods  # the next run joins it
    finally:
        process.kill()
        process.wait()
        for pod in desk.pods(job):
            desk.kube.kill_pod(pod["metadata"]["name"])


@pytest.mark.slow
def test_pods_share_an_order_and_one_more_tells_its_rows(desk):
    job = desk.job("shared")
    reports: list[Report] = []

    @dg.asset(name="decode_status")
    def decode_status(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        launch = lambda part: desk.launcher.launch(context, POOL, part)  # noqa: E731
        reports.append(work_in_parts(job, 2, launch, desk.launcher.stop))
        return dg.MaterializeResult()

    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize([decode_status], instance=instance).success
    parts = [replace(job, part=Part(index=index, of=2)) for index in range(2)]
    assert [desk.made(each) for each in (*parts, job)] == [1, 1, 1]
    (report,) = reports
    assert report.objects["decode_status"].num_rows == 3
    assert report.metrics["num_units_kept"] == 3


@pytest.mark.slow
def test_an_interrupt_reaches_every_waiting_part(desk):
    job, stop = desk.job("stopped", "slow"), desk.launcher.stop
    ends: list[BaseException] = []

    @dg.asset(name="decode_status")
    def decode_status(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        try:
            desk.launcher.launch(context, POOL, job)
        except WorkerLeft as left:
            ends.append(left)
        return dg.MaterializeResult()

    thread = threading.Thread(target=lambda: dg.materialize([decode_status]))
    thread.start()
    desk.wait_until_working(job)
    stop.set()
    thread.join(30)
    assert len(ends) == 1
    assert desk.pods(job), "the run was not cancelled: the next one joins"
    desk.kube.kill_pod(desk.pods(job)[0]["metadata"]["name"])


@pytest.mark.slow
def test_a_job_that_the_cluster_refuses_says_why(desk):
    _, result, _ = desk.work(desk.job("refused"), service_account_name="nobody", max_attempts=1)
    assert "nobody" in failure(result)


def test_an_order_holds_neither_ledger_nor_secret(desk):
    job = desk.job("plain")
    told = json.dumps(job.to_json())
    assert "postgresql" not in told
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in told
