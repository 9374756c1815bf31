"""What the project relies on from a Kubernetes API, asked of the double and of a real one.

The double answers in the default suite. A real control plane is asked by ``make conformance
KUBECONFIG=...``; what was found where is in docs/conformance.md. Pods that no node takes are
made to end by this suite itself, which plays the kubelet: the controllers are the real ones.
"""

import re
from dataclasses import replace

import pytest

from resources.compute_pool import POOLS
from resources.worker_pods import job_name, waits_for
from wsdata_tests.cluster.conformance_jobs import (
    DISRUPTED,
    NOWHERE,
    ended,
    failed_with,
    held,
    hold,
    let_go,
    lost,
    manifest_of,
    work,
)
from wsdata_tests.cluster.control_plane import SINCE, refusal
from wsdata_tests.deploy.chart import over
from wsdata_tests.deploy.launched import run_job

FOREGROUND = "foregroundDeletion"

pytestmark = pytest.mark.timeout(300)


# -- Jobs are taken as they are


@pytest.mark.parametrize("pool", POOLS)
def test_the_job_of_every_pool_is_kept_as_it_is_sent(cluster, pool):
    manifest = manifest_of(f"as-is-{pool}", POOLS[pool])
    kept = cluster.create(manifest, is_dry=True)
    unknown = {
        f".spec.{name}"
        for name in ("podFailurePolicy", "ttlSecondsAfterFinished")
        if cluster.version < SINCE[name]
    }
    missing = lost(manifest["spec"], kept["spec"], ".spec")
    assert [at for at in missing if not at.startswith(tuple(unknown))] == []
    assert lost(manifest["metadata"], kept["metadata"]) == []


def test_the_failure_policy_is_kept(cluster):
    cluster.needs("podFailurePolicy")
    manifest = manifest_of("policy")
    kept = cluster.create(manifest, is_dry=True)["spec"]["podFailurePolicy"]
    assert kept == manifest["spec"]["podFailurePolicy"]


def test_the_time_to_live_is_kept(cluster):
    cluster.needs("ttlSecondsAfterFinished")
    assert cluster.create(manifest_of("ttl"), is_dry=True)["spec"]["ttlSecondsAfterFinished"] == (
        POOLS["encode"].ttl_seconds_after_finished
    )


def test_the_job_of_a_run_is_taken(cluster, tmp_path, monkeypatch):
    manifest = run_job("plain", tmp_path, monkeypatch)
    kept = cluster.create(manifest, is_dry=True)
    newer = cluster.version < SINCE["ttlSecondsAfterFinished"]
    unknown = [".spec.ttlSecondsAfterFinished"] if newer else []
    assert [at for at in lost(manifest["spec"], kept["spec"], ".spec") if at not in unknown] == []


@pytest.mark.parametrize(
    ("changed", "unknown"),
    [
        ({"podFailurePolicies": {"rules": []}}, "spec.podFailurePolicies"),
        ({"template": {"spec": {"nodeSelektor": {}}}}, "spec.template.spec.nodeSelektor"),
    ],
    ids=["job", "pod"],
)
def test_a_field_that_is_not_known_is_refused(cluster, changed, unknown):
    cluster.needs("fieldValidation")
    code, reason, said = refusal(lambda: cluster.create(manifest_of("typo", **changed)))
    assert (code, reason) == (400, "BadRequest")
    assert f'unknown field "{unknown}"' in said


@pytest.mark.parametrize("is_dry", [True, False])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"metadata": {"labels": {"wsdata/step": "no spaces"}}}, "metadata.labels"),
        ({"metadata": {"name": "n" * 64}}, "63 characters"),
        ({"spec": {"template": {"spec": {"restartPolicy": "Always"}}}}, "restartPolicy"),
    ],
    ids=["label", "name", "restart"],
)
def test_an_invalid_job_is_refused(cluster, changed, said, is_dry):
    manifest = over(manifest_of("invalid"), changed)
    code, reason, message = refusal(lambda: cluster.create(manifest, is_dry=is_dry))
    assert (code, reason) == (422, "Invalid")
    assert said in message
    assert cluster.job(manifest["metadata"]["name"]) is None


def test_a_dry_run_makes_nothing(cluster):
    manifest = manifest_of("dry")
    cluster.create(manifest, is_dry=True)
    assert cluster.job(manifest["metadata"]["name"]) is None
    held(cluster, "dry")
    assert refusal(lambda: cluster.create(manifest, is_dry=True))[:2] == (409, "AlreadyExists")


# -- Jobs are found again


def test_a_name_is_given_once(cluster):
    name = held(cluster, "once")
    assert refusal(lambda: held(cluster, "once"))[:2] == (409, "AlreadyExists")
    found = cluster.job(name)
    assert found["metadata"]["annotations"]["wsdata/report"] == "reports/a/b.json"
    assert name == job_name(work("once"))


def test_jobs_and_pods_are_listed_by_what_they_are(cluster):
    one, two = held(cluster, "listed-1"), held(cluster, "listed-2", POOLS["cpu"])
    batch, space = cluster.batch, cluster.namespace

    def names(**selectors):
        found = batch.list_namespaced_job(space, **selectors).items
        return {each.metadata.name for each in found} & {one, two}

    assert names() == {one, two}
    assert names(label_selector="wsdata/pool=cpu") == {two}
    assert names(label_selector="app.kubernetes.io/name=wsdata-worker,wsdata/pool!=cpu") == {one}
    assert names(label_selector="wsdata/pool in (cpu,encode)") == {one, two}
    assert names(field_selector=f"metadata.name={two}") == {two}
    pod = cluster.pod_of(one)
    assert [each["metadata"]["name"] for each in cluster.pods(one)] == [pod["metadata"]["name"]]
    assert pod["metadata"]["labels"]["wsdata/identity"] == "decode"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == cluster.job(one)["metadata"]["uid"]
    by_name = cluster.core.list_namespaced_pod(
        space, field_selector=f"metadata.name={pod['metadata']['name']}"
    )
    assert len(by_name.items) == 1


def test_what_is_not_there_is_told(cluster):
    batch = cluster.batch
    for call in (
        lambda: batch.read_namespaced_job("no-such", cluster.namespace),
        lambda: batch.delete_namespaced_job("no-such", cluster.namespace),
        lambda: batch.create_namespaced_job("no-such-namespace", manifest_of("lost")),
    ):
        assert refusal(call)[:2] == (404, "NotFound")


def test_a_job_says_how_many_pods_it_has(cluster):
    name = held(cluster, "active")
    cluster.pod_of(name)
    assert cluster.wait_for(lambda: cluster.job(name)["status"].get("active"), "its count") == 1


# -- Jobs are deleted


def test_a_job_is_there_until_its_pods_are_gone(cluster):
    """The launcher makes the next Job of a name only when the old one's pods have ended."""
    name = held(cluster, "foreground")
    pod = cluster.pod_of(name)["metadata"]["name"]
    core, space = cluster.core, cluster.namespace
    hold(cluster, pod)
    cluster.batch.delete_namespaced_job(name, space, propagation_policy="Foreground")
    cluster.wait_for(
        lambda: core.read_namespaced_pod(pod, space).metadata.deletion_timestamp, "the pod's end"
    )
    found = cluster.job(name)
    assert found["metadata"]["deletionTimestamp"]
    assert FOREGROUND in found["metadata"]["finalizers"]
    assert refusal(lambda: held(cluster, "foreground"))[0] == 409
    let_go(cluster, pod)
    cluster.wait_for(lambda: cluster.job(name) is None, "the Job's end")
    assert cluster.pods(name) == []
    held(cluster, "foreground")


def test_deleting_in_the_background_takes_the_pods_too(cluster):
    name = held(cluster, "background")
    cluster.pod_of(name)
    cluster.batch.delete_namespaced_job(name, cluster.namespace, propagation_policy="Background")
    cluster.wait_for(lambda: cluster.job(name) is None, "the Job's end")
    cluster.wait_for(lambda: not cluster.pods(name), "its pod's end")


def test_a_job_is_deleted_only_if_it_is_the_one_meant(cluster):
    name = held(cluster, "meant")
    body = {"preconditions": {"uid": "another"}, "propagationPolicy": "Background"}
    call = lambda: cluster.batch.delete_namespaced_job(  # noqa: E731
        name, cluster.namespace, body=body
    )
    assert refusal(call)[:2] == (409, "Conflict")
    assert cluster.job(name)


# -- Why no pod starts


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"service_account_name": "no-such-account"}, 'serviceaccount "no-such-account" not found'),
        ({"runtime_class_name": "no-such-class"}, 'RuntimeClass "no-such-class" not found'),
        ({"priority_class_name": "no-such-rank"}, "no PriorityClass with name no-such-rank"),
    ],
    ids=["account", "runtime", "priority"],
)
def test_why_no_pod_is_made_is_told_by_an_event(cluster, changes, said):
    (what,) = changes
    name = held(cluster, f"no-pod-{what}", replace(POOLS["encode"], **changes))
    (message, *_) = cluster.wait_for(lambda: cluster.events(name, "FailedCreate"), "the event")
    assert said in message
    assert cluster.pods(name) == []
    assert cluster.condition(name) is None


def test_why_no_node_takes_a_pod_is_told(cluster):
    name = held(cluster, "nowhere")
    said = cluster.wait_for(lambda: waits_for(cluster.pod_of(name)), "the scheduler's word")
    assert re.search(r"0/\d+ nodes are available|no nodes available", said)


def test_the_log_of_a_pod_that_no_node_has_is_empty(cluster):
    pod = cluster.pod_of(held(cluster, "silent"))["metadata"]["name"]
    answer = cluster.core.read_namespaced_pod_log(
        pod, cluster.namespace, follow=True, _preload_content=False
    )
    assert (answer.status, answer.data) == (204, b"")


def test_a_worker_gets_no_token(cluster):
    spec = cluster.pod_of(held(cluster, "tokenless"))["spec"]
    assert [each["name"] for each in spec["volumes"]] == ["scratch"]
    assert [each["mountPath"] for each in spec["containers"][0]["volumeMounts"]] == ["/tmp"]  # noqa: S108


# -- How Jobs end


def test_a_job_whose_pod_succeeded_is_complete(cluster):
    name = held(cluster, "succeeded")
    cluster.set_pod_status(cluster.pod_of(name), {"phase": "Succeeded"})
    condition, end = ended(cluster, name)
    assert (condition["type"], end.kind) == ("Complete", "done")
    status = cluster.job(name)["status"]
    assert (status["succeeded"], status.get("failed", 0)) == (1, 0)
    assert status["completionTime"]


def test_a_job_whose_pod_failed_has_failed(cluster):
    name = held(cluster, "failed")
    cluster.set_pod_status(cluster.pod_of(name), failed_with(3))
    condition, end = ended(cluster, name)
    assert (condition["type"], condition["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert (end.kind, end.exit_code) == ("failed", 3)
    assert len(cluster.pods(name)) == 1


def test_a_pod_that_was_taken_away_is_made_again(cluster):
    cluster.needs("DisruptionTarget")
    name = held(cluster, "disrupted")
    first = cluster.pod_of(name)
    cluster.set_pod_status(first, failed_with(137, DISRUPTED))
    second = cluster.wait_for(
        lambda: [pod for pod in cluster.pods(name)
                 if pod["metadata"]["uid"] != first["metadata"]["uid"]],
        "another pod",
    )[0]  # fmt: skip
    assert cluster.condition(name) is None
    cluster.set_pod_status(second, {"phase": "Succeeded"})
    assert ended(cluster, name)[1].kind == "done"


def test_without_a_failure_policy_the_launcher_sees_what_took_a_pod_away(cluster):
    """So it is on a control plane that drops the policy: the Job fails, its order has not."""
    manifest = manifest_of("dropped", replace(POOLS["encode"], node_selector=NOWHERE))
    del manifest["spec"]["podFailurePolicy"]
    name = cluster.create(manifest)["metadata"]["name"]
    cluster.set_pod_status(cluster.pod_of(name), failed_with(137, DISRUPTED))
    condition, end = ended(cluster, name)
    assert (condition["type"], end.kind) == ("Failed", "preempted")


def test_a_job_that_takes_too_long_is_ended(cluster):
    name = held(cluster, "late", activeDeadlineSeconds=1)
    condition, end = ended(cluster, name)
    assert (condition["type"], condition["reason"]) == ("Failed", "DeadlineExceeded")
    assert end.kind == "late"
    cluster.wait_for(lambda: not cluster.pods(name), "its pod's end")


def test_an_ended_job_goes_when_its_time_is_up(cluster):
    name = held(cluster, "old", ttlSecondsAfterFinished=1)
    if "ttlSecondsAfterFinished" not in cluster.job(name)["spec"]:
        cluster.needs("ttlSecondsAfterFinished")
    cluster.set_pod_status(cluster.pod_of(name), {"phase": "Succeeded"})
    cluster.wait_for(lambda: cluster.job(name) is None, "the Job's end")
    cluster.wait_for(lambda: not cluster.pods(name), "its pod's end")
