"""The launcher of workers on a control plane whose pods no node takes: see test_conformance.py."""

import json
import threading
from dataclasses import replace

import dagster as dg
import pytest
from kubernetes.client.exceptions import ApiException

from resources.compute_pool import POOLS
from resources.kubernetes_launcher import KubernetesLauncher
from resources.worker_pods import job_name
from wsdata.deployment import Kubernetes
from wsdata.records import Report
from wsdata.store import open_store
from wsdata_tests.cluster.conformance_jobs import (
    NOWHERE,
    ended,
    failed_with,
    held,
    hold,
    let_go,
    work,
)

pytestmark = pytest.mark.timeout(300)


class Desk:
    """Orders work as a Dagster step does, on a control plane whose pods no node takes."""

    def __init__(self, cluster, store: str) -> None:
        self.store = store
        self.launcher = KubernetesLauncher(
            cluster=Kubernetes(
                kubeconfig=str(cluster.kubeconfig), namespace=cluster.namespace, poll_s=0.2,
                start_grace_s=1,
            )
        )  # fmt: skip

    def launch(self, name: str, **changes) -> tuple[list[Report], str]:
        """Work one order: its reports, and how the step failed."""
        reports = []
        pool = replace(POOLS["encode"], node_selector=NOWHERE, **changes)

        @dg.asset(name="worked")
        def worked(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            reports.append(self.launcher.launch(context, pool, work(name, self.store)))
            return dg.MaterializeResult()

        with dg.DagsterInstance.ephemeral() as instance:
            done = dg.materialize([worked], instance=instance, raise_on_error=False)
        failures = [each.step_failure_data for each in done.all_events if each.is_step_failure]
        said = [
            str(getattr(each.user_failure_data, "description", each.error)) for each in failures
        ]
        return reports, "".join(said)

    def report(self, name: str) -> Report:
        """Put the report that a worker of `held` would have put."""
        report = Report(
            order_digest=work(name, self.store).order.digest, version_digest="1", objects={}
        )
        open_store(self.store).put("reports/a/b.json", json.dumps(report.to_json()).encode())
        return report


@pytest.fixture
def desk(cluster, tmp_path):
    return Desk(cluster, str(tmp_path))


def test_the_launcher_tells_why_no_pod_was_made(cluster, desk):
    reports, said = desk.launch("unmade", service_account_name="no-such-account")
    assert not reports
    assert 'serviceaccount "no-such-account" not found' in said
    assert cluster.job(job_name(work("unmade"))) is None


def test_the_launcher_tells_of_a_deadline(desk):
    reports, said = desk.launch("overdue", active_deadline_seconds=1)
    assert not reports
    assert "longer activeDeadlineSeconds" in said


def test_the_launcher_joins_a_job_that_is_done(cluster, desk):
    report = desk.report("joined")
    name = held(cluster, "joined")
    cluster.set_pod_status(cluster.pod_of(name), {"phase": "Succeeded"})
    ended(cluster, name)
    assert desk.launch("joined") == ([report], "")


def test_the_launcher_joins_a_job_that_took_the_name_of_the_one_it_deletes(cluster, desk):
    """Two runs that saw one Job fail both delete it, and one is quicker to make the next."""
    name = held(cluster, "taken")
    first = cluster.pod_of(name)["metadata"]["name"]
    hold(cluster, first)
    cluster.set_pod_status(cluster.pod_of(name), failed_with(3))
    ended(cluster, name)
    outcome: list = []
    launch = threading.Thread(target=lambda: outcome.append(desk.launch("taken")), daemon=True)
    launch.start()
    cluster.wait_for(lambda: "deletionTimestamp" in cluster.job(name)["metadata"], "the deletion")
    let_go(cluster, first)
    cluster.wait_for(lambda: _is_made(cluster, "taken"), "the next Job of the name")
    desk.report("taken")
    cluster.set_pod_status(cluster.pod_of(name), {"phase": "Succeeded"})
    launch.join(60)
    ((reports, said),) = outcome
    assert (len(reports), said) == (1, "")


def _is_made(cluster, name: str) -> bool:
    try:
        held(cluster, name)
    except ApiException as error:
        if error.status == 409:
            return False
        raise
    return True
