"""The Kubernetes double, asked by the client that the project uses: real HTTP, real processes."""

import contextlib
from pathlib import Path

import pytest
from kubernetes.client.exceptions import ApiException

from wsdata_tests.cluster.kube.apply import HookFailed
from wsdata_tests.cluster.kube.double import running_kube
from wsdata_tests.cluster.kube.samples import (
    DISRUPTED,
    NODES,
    ON_GPU,
    deployment,
    ended,
    events,
    job,
    running,
)


def test_a_job_succeeds_and_its_log_streams(kube, core, batch):
    script = "for i in 1 2 3; do echo line $i; sleep 0.1; done; touch /tmp/gone"
    batch.create_namespaced_job("default", job("streams", script))
    (pod,) = running(kube, "job-name=streams")
    stream = core.read_namespaced_pod_log(
        pod["metadata"]["name"], "default", follow=True, timestamps=True, _preload_content=False
    )
    lines = b"".join(stream.stream()).decode().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["line 1", "line 2", "line 3"]
    assert [line.split(" ", 1)[0] for line in lines] == sorted(line.split(" ")[0] for line in lines)
    assert ended(kube, "streams")["type"] == "Complete"
    status = batch.read_namespaced_job_status("streams", "default").status
    assert (status.succeeded, status.failed, status.active) == (1, None, 0)
    last = core.read_namespaced_pod_log(
        pod["metadata"]["name"], "default", tail_lines=1, _preload_content=False
    )
    assert last.data == b"line 3\n"


def test_a_job_fails_with_its_exit_code(kube, core, batch):
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]
    spec = {"backoffLimit": 5, "podFailurePolicy": {"rules": rules}}
    batch.create_namespaced_job("default", job("fails", "echo bad input; exit 3", job_spec=spec))
    verdict = ended(kube, "fails")
    assert (verdict["type"], verdict["reason"]) == ("Failed", "PodFailurePolicy")
    assert "exit code 3 matching FailJob rule at index 0" in verdict["message"]
    (pod,) = core.list_namespaced_pod("default", label_selector="job-name=fails").items
    state = pod.status.container_statuses[0].state.terminated
    assert (pod.status.phase, state.exit_code, state.reason) == ("Failed", 3, "Error")


def test_a_failing_job_is_tried_as_often_as_its_limit_says(kube, batch):
    batch.create_namespaced_job("default", job("retries", "exit 1", job_spec={"backoffLimit": 2}))
    assert ended(kube, "retries")["reason"] == "BackoffLimitExceeded"
    assert kube.get("jobs", "retries")["status"]["failed"] == 3
    assert len(kube.pods("job-name=retries")) == 3


def test_a_preempted_pod_is_made_again_and_not_counted(kube, batch):
    spec = {"podFailurePolicy": {"rules": [DISRUPTED]}}
    pod_spec = {"volumes": [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]}
    mounts = [{"name": "kept", "mountPath": "/kept"}]
    kube.apply([{
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"]},
    }])  # fmt: skip
    # the second pod finds what the first has left, and ends
    script = "test -e /kept/first && exit 0; touch /kept/first; echo began; exec sleep 60"
    batch.create_namespaced_job(
        "default", job("moved", script, job_spec=spec, pod_spec=pod_spec, volumeMounts=mounts)
    )
    (first,) = running(kube, "job-name=moved")
    kube.wait_for(lambda: "began" in kube.log_of_job("moved"), "the first pod's file")
    kube.preempt(first["metadata"]["name"], grace_s=0)
    assert ended(kube, "moved")["type"] == "Complete"
    status = kube.get("jobs", "moved")["status"]
    assert (status["succeeded"], status.get("failed", 0)) == (1, 0)
    (second,) = kube.pods("job-name=moved")
    assert second["metadata"]["name"] != first["metadata"]["name"]


def test_without_a_failure_policy_a_preempted_pod_counts(kube, batch):
    batch.create_namespaced_job("default", job("counted", "exec sleep 60"))
    (pod,) = running(kube, "job-name=counted")
    kube.preempt(pod["metadata"]["name"], grace_s=0)
    assert ended(kube, "counted")["reason"] == "BackoffLimitExceeded"


def test_out_of_memory_is_told(kube, core, batch):
    batch.create_namespaced_job("default", job("oom", "exec sleep 60"))
    (pod,) = running(kube, "job-name=oom")
    kube.oom_kill(pod["metadata"]["name"])
    assert ended(kube, "oom")["type"] == "Failed"
    shown = core.read_namespaced_pod(pod["metadata"]["name"], "default")
    state = shown.status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (137, "OOMKilled")


def test_a_gpu_pod_waits_for_a_node_and_two_take_turns(kube, batch):
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    for name in ("gpu-a", "gpu-b"):
        made = job(name, "date +%s%N; sleep 0.3; date +%s%N", pod_spec=ON_GPU, **limits)
        batch.create_namespaced_job("default", made)
    lost = job("gpu-lost", "true", pod_spec={"nodeSelector": {"wsdata/pool": "none"}}, **limits)
    batch.create_namespaced_job("default", lost)
    spans = []
    for name in ("gpu-a", "gpu-b"):
        assert ended(kube, name)["type"] == "Complete"
        spans.append([int(line) for line in kube.log_of_job(name).split()])
    (_, first_end), (second_start, _) = sorted(spans)
    assert first_end <= second_start
    (waiting,) = kube.pods("job-name=gpu-lost")
    assert waiting["status"]["phase"] == "Pending"
    assert "FailedScheduling" in events(kube, waiting["metadata"]["name"])
    batch.delete_namespaced_job("gpu-lost", "default", propagation_policy="Background")
    kube.wait_for(lambda: not kube.pods("job-name=gpu-lost"), "the waiting pod's end")


def test_a_pod_of_higher_priority_takes_the_place_of_the_lowest(kube, batch):
    kube.apply([
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
         "metadata": {"name": name}, "value": value}
        for name, value in (("low", 1), ("high", 100))
    ])  # fmt: skip
    spec = {"podFailurePolicy": {"rules": [DISRUPTED]}}
    whole = {"resources": {"requests": {"cpu": "1"}}}

    def asked(name, script):
        pod_spec = {"nodeSelector": {"wsdata/pool": "spare"}, "priorityClassName": name}
        return job(f"rank-{name}", script, job_spec=spec, pod_spec=pod_spec, **whole)

    batch.create_namespaced_job("default", asked("low", "test -e /kept || exec sleep 60"))
    (victim,) = running(kube, "job-name=rank-low")
    batch.create_namespaced_job("default", asked("high", "true"))
    assert ended(kube, "rank-high")["type"] == "Complete"
    assert "Preempted" in events(kube, victim["metadata"]["name"])
    (again,) = running(kube, "job-name=rank-low")
    assert again["metadata"]["name"] != victim["metadata"]["name"]
    assert kube.get("jobs", "rank-low")["status"].get("failed", 0) == 0
    batch.delete_namespaced_job("rank-low", "default", propagation_policy="Foreground")
    kube.wait_for(lambda: not kube.pods("job-name=rank-low"), "the end")


def test_a_deployments_pod_comes_back_however_it_goes(kube):
    kube.apply([deployment("daemon", "exec sleep 60")])
    (first,) = running(kube, "app=daemon")
    name = first["metadata"]["name"]
    kube.kill_pod(name)

    def restarts():
        (pod,) = kube.pods("app=daemon")
        return (
            pod["status"]["phase"] == "Running"
            and pod["status"]["containerStatuses"][0]["restartCount"]
        )

    assert kube.wait_for(restarts, "a restart in place") == 1
    running(kube, "app=daemon")
    kube.request("DELETE", f"/api/v1/namespaces/default/pods/{name}")
    kube.wait_for(
        lambda: [pod["metadata"]["name"] for pod in running(kube, "app=daemon")] != [name],
        "another pod",
    )
    kube.wait_for(
        lambda: kube.get("deployments", "daemon")["status"].get("availableReplicas") == 1, "ready"
    )
    kube.request("DELETE", "/apis/apps/v1/namespaces/default/deployments/daemon")
    kube.wait_for(lambda: not kube.pods("app=daemon"), "the end")


def test_a_lost_node_takes_its_pods_along(kube, batch):
    pod_spec = {"nodeSelector": {"wsdata/pool": "spare"}}
    kube.apply([deployment("roaming", "exec sleep 60", **pod_spec)])
    (first,) = running(kube, "app=roaming")
    assert kube.lose_node("spare-0") == [first["metadata"]["name"]]

    def phases():
        return [pod["status"]["phase"] for pod in kube.pods("app=roaming")]

    kube.wait_for(lambda: phases() == ["Pending"], "a successor without a node")
    kube.restore_node("spare-0")
    (second,) = running(kube, "app=roaming")
    assert second["metadata"]["name"] != first["metadata"]["name"]
    kube.request("DELETE", "/apis/apps/v1/namespaces/default/deployments/roaming")


def test_finished_jobs_leave_after_their_time(kube, batch):
    batch.create_namespaced_job(
        "default", job("brief", "true", job_spec={"ttlSecondsAfterFinished": 1})
    )
    kube.wait_for(lambda: "Completed" in events(kube, "brief"), "the end of the job")
    with contextlib.suppress(ApiException):
        kube.wait_for(lambda: batch.read_namespaced_job("brief", "default") is None, "removal")
    assert kube.pods("job-name=brief") == []


def test_a_job_ends_at_its_deadline(kube, batch):
    made = job("late", "exec sleep 60", job_spec={"activeDeadlineSeconds": 1})
    batch.create_namespaced_job("default", made)
    assert ended(kube, "late")["reason"] == "DeadlineExceeded"
    assert kube.pods("job-name=late") == []


def test_a_deleted_jobs_pods_stay_unless_asked(kube, batch):
    batch.create_namespaced_job("default", job("leaves", "exec sleep 60"))
    (pod,) = running(kube, "job-name=leaves")
    batch.delete_namespaced_job("leaves", "default")
    (left,) = running(kube, "job-name=leaves")
    assert left["metadata"]["ownerReferences"] == []
    kube.request("DELETE", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
    kube.wait_for(lambda: not kube.pods("job-name=leaves"), "the end")


def test_hooks_run_after_the_rest_and_failures_show_their_log(kube):
    hook = job("migrate", 'test "$READY" = yes || { echo no settings; exit 4; }')
    hook["metadata"]["annotations"] = {
        "helm.sh/hook": "post-install,post-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    spec = hook["spec"]["template"]["spec"]["containers"][0]
    spec["env"] = [{"name": "READY", "value": "no"}]
    with pytest.raises(HookFailed, match="no settings"):
        kube.apply([hook])
    spec["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    del spec["env"]
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
                "data": {"READY": "yes"}}  # fmt: skip
    kube.apply([hook, settings])
    assert "migrate" not in {job["metadata"]["name"] for job in kube.request(
        "GET", "/apis/batch/v1/namespaces/default/jobs")["items"]}  # fmt: skip


def test_the_end_of_the_double_is_the_end_of_its_pods(tmp_path):
    with running_kube(tmp_path / "kube", nodes=NODES) as kube:
        kube.apply([deployment("stays", "exec sleep 61.25")])
        running(kube, "app=stays")
        kube.wait_for(lambda: _processes("61.25"), "its process")
    assert not _processes("61.25")


def _processes(argument):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[1:2] == [argument.encode()]:
                found.append(path)
    return found
