"""What the chart relies on from a Kubernetes API: its objects are taken, its roles hold, pods run.

See test_conformance.py for what is asked when.
"""

import json
import re
from dataclasses import replace

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from resources.compute_pool import POOLS
from resources.worker_pods import how_it_ended, worker_job
from resources.workers import WorkerJob
from wsdata.deployment import Kubernetes
from wsdata.records import Order
from wsdata_tests.cluster.control_plane import SINCE, refusal
from wsdata_tests.deploy.chart import CHART, RENDERS, ROOT, over, render

PIPELINE = "wsdata-pipeline"
WITHOUT_ROLES = ("wsdata-decode", "wsdata-vault", "wsdata-trainer")
# Kinds of operators, whose definitions come with the operators.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
OTHERS = sorted(RENDERS.keys() - {"all_on"})
NEWER = {"CronJob": "CronJob.spec.timeZone", "PodDisruptionBudget": "policy/v1"}

pytestmark = pytest.mark.timeout(300)


# -- The chart's objects are taken


def _another(each):
    """The same object by another name: accounts and roles of its own name are there already."""
    return over(each, {"metadata": {"name": f"a-{each['metadata']['name']}"}})


@pytest.mark.parametrize(
    "name", ["all_on", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_every_object_of_the_chart_is_taken(cluster, name):
    refused = []
    # the schemas that the double would read for it have judged the chart in test_helm_chart.py
    is_strict = not cluster.is_double
    for each in render(name):
        is_older = each["kind"] in NEWER and cluster.version < SINCE[NEWER[each["kind"]]]
        if each["kind"] in FOREIGN or is_older:
            continue  # the newer kinds have a test of their own
        try:
            cluster.create(_another(each), is_dry=True, is_strict=is_strict)
        except (ApiException, KeyError) as error:
            refused.append(f"{each['kind']} {each['metadata']['name']}: {error}")
    assert refused == []


@pytest.mark.parametrize("kind", NEWER)
def test_objects_of_newer_kinds_are_taken(cluster, kind):
    cluster.needs(NEWER[kind])
    (*found,) = [each for each in render("all_on") if each["kind"] == kind]
    assert found
    for each in found:
        assert cluster.create(each, is_dry=True)["spec"].keys() >= each["spec"].keys()


def test_network_policies_keep_what_they_say(cluster):
    found = [each for each in render("all_on") if each["kind"] == "NetworkPolicy"]
    assert len(found) > 5
    for each in found:
        kept = cluster.create(each, is_dry=True)["spec"]
        assert kept["podSelector"] == each["spec"]["podSelector"]
        assert kept["policyTypes"] == each["spec"]["policyTypes"]
        for way in ("ingress", "egress"):
            assert len(kept.get(way) or []) == len(each["spec"].get(way) or [])


def test_kubectl_applies_the_chart_dry(cluster):
    if cluster.is_double:
        pytest.skip("the double serves no OpenAPI document, which kubectl validates with")
    objects = [
        each
        for each in render("all_on")
        if each["kind"] not in FOREIGN
        and cluster.version >= SINCE.get(NEWER.get(each["kind"], ""), (1, 0))
    ]
    done = cluster.kubectl(
        "apply", "--dry-run=server", "--server-side", "-f", "-",
        stdin={"apiVersion": "v1", "kind": "List", "items": objects},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


def test_the_chart_asks_for_all_that_is_newer():
    stated = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    found = re.match(r">=(\d+)\.(\d+)\.", stated)
    assert found, stated
    assert (int(found[1]), int(found[2])) >= max(SINCE.values())
    told = (ROOT / "docs" / "conformance.md").read_text()
    assert [what for what in SINCE if f"`{what}`" not in told] == []


# -- Roles hold: who may ask is told from who asks for what is not there


@pytest.fixture(scope="module")
def bound(cluster):
    """The cluster with the chart's role, bound to the accounts of the suite's own namespace."""
    for each in render("all_on"):
        if each["kind"] == "Role":
            cluster.create(each)
        if each["kind"] == "RoleBinding":
            subjects = [one | {"namespace": cluster.namespace} for one in each["subjects"]]
            cluster.create(each | {"subjects": subjects})
    return cluster


JOBS, CORE = "/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/"
ALLOWED = {
    "create jobs": ("POST", JOBS + "?dryRun=All"),
    "get jobs": ("GET", JOBS + "/x"),
    "list jobs": ("GET", JOBS),
    "watch jobs": ("GET", JOBS + "?watch=true&timeoutSeconds=1"),
    "delete jobs": ("DELETE", JOBS + "/x"),
    "get jobs/status": ("GET", JOBS + "/x/status"),
    "get pods": ("GET", CORE + "pods/x"),
    "list pods": ("GET", CORE + "pods"),
    "delete pods": ("DELETE", CORE + "pods/x"),
    "get pods/log": ("GET", CORE + "pods/x/log"),
    "list events": ("GET", CORE + "events"),
}
FORBIDDEN = {
    "create pods": ("POST", CORE + "pods?dryRun=All"),
    "create pods/exec": ("POST", CORE + "pods/x/exec?command=sh"),
    "create pods/eviction": ("POST", CORE + "pods/x/eviction"),
    "patch jobs": ("PATCH", JOBS + "/x"),
    "delete all jobs": ("DELETE", JOBS),
    "delete all pods": ("DELETE", CORE + "pods"),
    "get secrets": ("GET", CORE + "secrets/wsdata-decode-s3"),
    "list secrets": ("GET", CORE + "secrets"),
    "list configmaps": ("GET", CORE + "configmaps"),
    "create rolebindings": (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings?dryRun=All",
    ),
    "create deployments": ("POST", "/apis/apps/v1/namespaces/{}/deployments?dryRun=All"),
    "list pods elsewhere": ("GET", "/api/v1/namespaces/kube-system/pods"),
    "list pods everywhere": ("GET", "/api/v1/pods"),
    "list jobs everywhere": ("GET", "/apis/batch/v1/jobs"),
    "list nodes": ("GET", "/api/v1/nodes"),
    "list namespaces": ("GET", "/api/v1/namespaces"),
}


def answer_to(cluster, method: str, path: str) -> int:
    """The status that a request is answered with, whatever it is."""
    path, _, query = path.format(cluster.namespace).partition("?")
    asked = dict(each.split("=") for each in query.split("&") if each)
    body = worker("asked") if method in ("POST", "PATCH") else None
    try:
        cluster.request(method, path, body, **asked)
    except ApiException as error:
        return error.status
    except json.JSONDecodeError:  # a watch answers with a line for each change
        pass
    return 200


@pytest.mark.parametrize("asked", ALLOWED)
def test_the_pipeline_may(bound, asked):
    """It gets an answer about the object, if only that there is none."""
    assert answer_to(bound.acting_as(PIPELINE), *ALLOWED[asked]) in (200, 201, 404)


@pytest.mark.parametrize("asked", FORBIDDEN)
def test_the_pipeline_may_not(bound, asked):
    assert answer_to(bound.acting_as(PIPELINE), *FORBIDDEN[asked]) == 403


@pytest.mark.parametrize("account", WITHOUT_ROLES)
def test_workers_may_nothing(bound, account):
    seen = bound.acting_as(account)
    said = {asked: answer_to(seen, *how) for asked, how in (ALLOWED | FORBIDDEN).items()}
    assert {asked for asked, code in said.items() if code != 403} == set()


def test_the_pipeline_starts_and_ends_a_worker(bound):
    seen = bound.acting_as(PIPELINE)
    name = seen.create(worker("as-pipeline", node_selector={"no": "node"}))["metadata"]["name"]
    assert seen.wait_for(lambda: seen.pods(name), "its pod")
    assert isinstance(seen.events(name, "SuccessfulCreate"), list)
    seen.batch.delete_namespaced_job(name, seen.namespace, propagation_policy="Foreground")
    seen.wait_for(lambda: seen.job(name) is None, "the Job's end")


# -- Pods run: only where there is a node


def worker(name: str, script: str = "true", *, image: str = "wsdata-gpu:1", **changes):
    """The Job of a small worker."""
    order = Order(
        stage="preprocess", step="onepass", partition=f"crawl.{name}.20261101.001",
        code_version="1", params={}, inputs={}, tables=(),
    )  # fmt: skip
    job = WorkerJob(stage=order.stage, step=order.step, order=order, store="s3://store")
    repository, _, tag = image.rpartition(":")
    small = {"cpu_count": 0.1, "memory_gib": 1 / 16, "scratch_gib": 1 / 16, "gpu_count": 0}
    pool = replace(
        POOLS["encode"], image=repository, tolerations=(), **small,
        **({"node_selector": {}} | changes),
    )  # fmt: skip
    made = worker_job(
        pool, job, Kubernetes(image_tag=tag), command=["sh", "-c", script],
        report_key="reports/a/b.json", environment={},
    )  # fmt: skip
    return over(made, {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}})


def run(cluster, name: str, script: str) -> str:
    cluster.needs_nodes()
    return cluster.create(worker(name, script, image=cluster.image))["metadata"]["name"]


def log_of(cluster, name: str) -> str:
    pod = cluster.pods(name)[0]["metadata"]["name"]
    answer = cluster.core.read_namespaced_pod_log(
        pod, cluster.namespace, tail_lines=100, _preload_content=False
    )
    return answer.data.decode()


def ended(cluster, name: str):
    cluster.wait_for(lambda: cluster.condition(name), f"the end of Job {name}", timeout_s=180)
    return how_it_ended(cluster.job(name), cluster.pods(name))


CONFINED = """
echo told $TOLD; echo user $(id -u)
echo > /tmp/mine && echo scratch is written
{ echo > /mine; } 2>/dev/null || echo root is read-only
test -e /var/run/secrets/kubernetes.io || echo no token
"""


def test_a_worker_is_confined_as_its_job_says(cluster):
    name = run(cluster, "confined", CONFINED)
    assert ended(cluster, name).kind == "done"
    assert log_of(cluster, name).splitlines() == [
        "told by-a-secret", "user 10001", "scratch is written", "root is read-only", "no token",
    ]  # fmt: skip


def test_a_workers_exit_code_is_told(cluster):
    end = ended(cluster, run(cluster, "exits", "exit 3"))
    assert (end.kind, end.exit_code) == ("failed", 3)


def test_an_evicted_worker_is_begun_again(cluster):
    cluster.needs_nodes()
    cluster.needs("policy/v1")
    cluster.needs("DisruptionTarget")
    name = run(cluster, "evicted", "echo began; exec sleep 30")
    cluster.wait_for(
        lambda: cluster.pods(name) and cluster.pods(name)[0]["status"]["phase"] == "Running",
        "the first pod", timeout_s=180,
    )  # fmt: skip
    first = cluster.pods(name)[0]["metadata"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": first["name"]}}
    cluster.core.create_namespaced_pod_eviction(first["name"], cluster.namespace, body)
    cluster.wait_for(
        lambda: {pod["metadata"]["uid"] for pod in cluster.pods(name)} - {first["uid"]},
        "the second pod", timeout_s=180,
    )  # fmt: skip
    assert cluster.condition(name) is None


def test_a_cordoned_choice_of_nodes_is_respected(cluster):
    """What keeps a pool's work on its own nodes."""
    cluster.needs_nodes()
    name = cluster.create(worker("picky", node_selector={"no": "node"}))["metadata"]["name"]
    pod = cluster.pod_of(name)
    said = cluster.wait_for(
        lambda: (
            cluster.core.read_namespaced_pod(
                pod["metadata"]["name"], cluster.namespace
            ).status.conditions
        ),
        "the scheduler's word",
    )
    assert [(each.type, each.status) for each in said] == [("PodScheduled", "False")]
    assert refusal(lambda: log_of(cluster, name))[0] == 400
