"""What the chart relies on from a Kubernetes API: its objects are taken, its roles hold, pods run.

See test_conformance.py for what is asked when.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from resources.compute_pool import POOLS
from wsdata_tests.cluster.conformance_jobs import NOWHERE, ended, manifest_of
from wsdata_tests.cluster.control_plane import SINCE
from wsdata_tests.deploy.chart import CHART, RELEASE, RENDERS, ROOT, SITE, over, render

PIPELINE = "wsdata-pipeline"
WITHOUT_ROLES = ("wsdata-decode", "wsdata-vault", "wsdata-trainer")
# Kinds of operators, whose definitions come with the operators.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
OTHERS = sorted(RENDERS.keys() - {"all_on"})
NEWER = {"CronJob": "CronJob.spec.timeZone", "PodDisruptionBudget": "policy/v1"}


def _charts_minimum() -> tuple[int, int]:
    stated = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    major, minor = re.match(r">=(\d+)\.(\d+)\.", stated).groups()
    return int(major), int(minor)


CHARTS_MINIMUM = _charts_minimum()

pytestmark = pytest.mark.timeout(300)


# -- The chart's objects are taken


def _another(each):
    """The same object by another name: accounts and roles of its own name are there already."""
    return over(each, {"metadata": {"name": f"a-{each['metadata']['name']}"}})


def _newest(each) -> str:
    """What is newest of all that an object needs, as SINCE names it; empty where nothing is new."""
    if each["kind"] in NEWER:
        return NEWER[each["kind"]]
    return "gRPC probes" if '"grpc": {' in json.dumps(each) else ""


def _refused(cluster, objects) -> list[str]:
    said = []
    # the schemas that the double would read for it have judged the chart in test_helm_chart.py
    is_strict = not cluster.is_double
    for each in objects:
        try:
            cluster.create(_another(each), is_dry=True, is_strict=is_strict)
        except (ApiException, KeyError) as error:
            said.append(f"{each['kind']} {each['metadata']['name']}: {error}")
    return said


def _known(cluster, name: str):
    """The objects of a render that a control plane is new enough for, operators' kinds apart."""
    return [
        each
        for each in render(name)
        if each["kind"] not in FOREIGN and cluster.version >= SINCE.get(_newest(each), (0, 0))
    ]


@pytest.mark.parametrize(
    "name", ["all_on", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_every_object_of_the_chart_is_taken(cluster, name):
    """What is newer than the control plane has a test of its own, which is skipped there."""
    assert _refused(cluster, _known(cluster, name)) == []


@pytest.mark.parametrize("what", ["gRPC probes", *NEWER.values()])
def test_what_is_newer_is_taken(cluster, what):
    cluster.needs(what)
    found = [each for each in render("all_on") if _newest(each) == what]
    assert found
    assert _refused(cluster, found) == []


def test_network_policies_keep_what_they_say(cluster):
    found = [each for each in render("all_on") if each["kind"] == "NetworkPolicy"]
    assert len(found) > 5
    for each in found:
        kept = cluster.create(each, is_dry=True)["spec"]
        assert kept["podSelector"] == each["spec"]["podSelector"]
        assert kept["policyTypes"] == each["spec"]["policyTypes"]
        for way in ("ingress", "egress"):
            assert len(kept.get(way) or []) == len(each["spec"].get(way) or [])


# kubectl and helm judge with the OpenAPI document, which the double does not claim to serve.
on_a_real_one = pytest.mark.parametrize(
    "cluster", [pytest.param("real", marks=pytest.mark.conformance)], indirect=True
)


@on_a_real_one
@pytest.mark.parametrize("how", ["client-side", "server-side"])
def test_kubectl_applies_the_chart_dry(cluster, how):
    if how == "server-side":
        cluster.needs("server-side apply")
    objects = _known(cluster, "all_on")
    done = cluster.run(
        "kubectl", "apply", "--dry-run=server", f"--server-side={how == 'server-side'}".lower(),
        "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": objects},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


@pytest.fixture
def quiet(cluster):
    """A namespace where no pod is made."""
    name = f"{cluster.namespace}-chart"
    cluster.core.create_namespace({"metadata": {"name": name}})
    quota = {"metadata": {"name": "no-pods"}, "spec": {"hard": {"pods": "0"}}}
    cluster.core.create_namespaced_resource_quota(name, quota)
    yield name
    cluster.core.delete_namespace(name)


def _chart_for(cluster, folder) -> tuple[Path, list[str]]:
    """The chart as a control plane of any age takes it, and options of helm.

    Before 1.31 Helm refuses it: there a copy says nothing of versions, code locations are off,
    whose probes came with 1.24, and Helm applies as it did before server-side apply.
    """
    if cluster.version >= CHARTS_MINIMUM:
        return CHART, []
    old = Path(shutil.copytree(CHART, folder / "helm"))
    text = (old / "Chart.yaml").read_text()
    (old / "Chart.yaml").write_text(re.sub(r"(?m)^kubeVersion:.*\n", "", text))
    return old, ["--server-side=false", "--set", "dagster-user-deployments.enabled=false"]


@on_a_real_one
def test_helm_installs_changes_and_removes_the_chart(cluster, quiet, tmp_path):
    chart, options = _chart_for(cluster, tmp_path)
    (tmp_path / "site.json").write_text(json.dumps(SITE))
    options = [str(chart), "--no-hooks", "-f", str(tmp_path / "site.json"), *options]

    def deployments() -> set[str]:
        found = cluster.run("kubectl", "get", "deployments", "-o", "name", namespace=quiet)
        return {each.removeprefix("deployment.apps/wsdata-") for each in found.stdout.split()}

    done = cluster.run("helm", "install", RELEASE, *options, namespace=quiet)
    assert done.returncode == 0, done.stderr
    before = deployments()
    assert {"webserver", "daemon", "metrics"} <= before
    done = cluster.run(
        "helm", "upgrade", RELEASE, *options, "--set", "toolbox.enabled=true", namespace=quiet
    )
    assert done.returncode == 0, done.stderr
    assert deployments() == before | {"toolbox"}
    done = cluster.run("helm", "uninstall", RELEASE, namespace=quiet)
    assert done.returncode == 0, done.stderr
    cluster.wait_for(lambda: not deployments(), "the end of the release")


def test_the_chart_asks_for_all_that_is_newer():
    assert max(SINCE.values()) <= CHARTS_MINIMUM
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
    name = seen.create(worker("as-pipeline", node_selector=NOWHERE))["metadata"]["name"]
    assert seen.wait_for(lambda: seen.pods(name), "its pod")
    assert isinstance(seen.events(name, "SuccessfulCreate"), list)
    seen.batch.delete_namespaced_job(name, seen.namespace, propagation_policy="Foreground")
    seen.wait_for(lambda: seen.job(name) is None, "the Job's end")


# -- Pods run: only where there is a node


def worker(name: str, script: str = "true", *, image: str = "wsdata-gpu:1", **changes):
    """The Job of a small worker, for any node."""
    repository, _, tag = image.rpartition(":")
    pool = replace(
        POOLS["encode"], image=repository, tolerations=(), node_selector={}, gpu_count=0,
        cpu_count=0.1, memory_gib=1 / 16, scratch_gib=1 / 16,
    )  # fmt: skip
    return manifest_of(
        name, replace(pool, **changes), command=["sh", "-c", script], image_tag=tag,
        template={"spec": {"terminationGracePeriodSeconds": 1}},
    )  # fmt: skip


def run(cluster, name: str, script: str) -> str:
    cluster.needs_nodes()
    return cluster.create(worker(name, script, image=cluster.image))["metadata"]["name"]


def log_of(cluster, name: str) -> str:
    pod = cluster.pods(name)[0]["metadata"]["name"]
    answer = cluster.core.read_namespaced_pod_log(
        pod, cluster.namespace, tail_lines=100, _preload_content=False
    )
    return answer.data.decode()


CONFINED = """
echo told $TOLD; echo user $(id -u)
echo > /tmp/mine && echo scratch is written
{ echo > /mine; } 2>/dev/null || echo root is read-only
test -e /var/run/secrets/kubernetes.io || echo no token
"""


def test_a_worker_is_confined_as_its_job_says(cluster):
    name = run(cluster, "confined", CONFINED)
    assert ended(cluster, name, timeout_s=180)[1].kind == "done"
    assert log_of(cluster, name).splitlines() == [
        "told by-a-secret", "user 10001", "scratch is written", "root is read-only", "no token",
    ]  # fmt: skip


def test_a_workers_exit_code_is_told(cluster):
    _, end = ended(cluster, run(cluster, "exits", "exit 3"), timeout_s=180)
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


def test_the_choice_of_nodes_is_respected(cluster):
    """What keeps a pool's work on its own nodes."""
    cluster.needs_nodes()
    name = cluster.create(worker("picky", node_selector=NOWHERE))["metadata"]["name"]
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
    assert log_of(cluster, name) == ""
