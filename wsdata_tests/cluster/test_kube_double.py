"""The Kubernetes double, asked by the clients that the project uses: real HTTP, real processes."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config

from wsdata_tests.cluster.kube import running_kube
from wsdata_tests.cluster.kube.apply import HookFailed
from wsdata_tests.cluster.kube.objects import Refused

NODES = {
    "cpu-0": {"labels": {"wsdata/pool": "cpu"}},
    "gpu-0": {
        "labels": {"wsdata/pool": "nvdec"},
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        "gpus": 1,
    },
    "spare-0": {"labels": {"wsdata/pool": "spare"}, "allocatable": {"cpu": "1"}},
}
ON_GPU = {
    "nodeSelector": {"wsdata/pool": "nvdec"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}
DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.fixture(scope="module")
def kube(tmp_path_factory):
    with running_kube(tmp_path_factory.mktemp("kube"), nodes=NODES) as running:
        yield running


@pytest.fixture(scope="module")
def api(kube):
    return new_client_from_config(str(kube.kubeconfig))


@pytest.fixture
def core(api):
    return client.CoreV1Api(api)


@pytest.fixture
def batch(api):
    return client.BatchV1Api(api)


def container(script, **spec):
    return {"name": "main", "image": "wsdata-gpu:1", "command": ["sh", "-c", script], **spec}


def job(name, script, *, job_spec=None, pod_spec=None, **spec):
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    pod |= {"containers": [container(script, **spec)], **(pod_spec or {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, **(job_spec or {}), "template": {"spec": pod}},
    }


def condition(kube, name):
    """The reason why a Job is done, with what it is: None before."""
    for one in kube.get("jobs", name).get("status", {}).get("conditions") or []:
        if one["type"] in ("Complete", "Failed"):
            return one
    return None


def ended(kube, name):
    return kube.wait_for(lambda: condition(kube, name), f"job {name}")


def running(kube, selector, count=1):
    def look():
        pods = [pod for pod in kube.pods(selector) if pod["status"]["phase"] == "Running"]
        return pods if len(pods) == count else None

    return kube.wait_for(look, f"{count} running of {selector}")


def events(kube, name):
    listed = kube.request(
        "GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    )
    return {event["reason"]: event["message"] for event in listed["items"]}


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


def test_what_is_not_there_is_refused(kube, core, batch):
    pod = {"metadata": {"name": "alien"}, "spec": {"containers": [container("true")]}}
    for field, value, said in (
        ("serviceAccountName", "nobody", 'serviceaccount "nobody" not found'),
        ("runtimeClassName", "gvisor", 'RuntimeClass "gvisor" not found'),
        ("priorityClassName", "urgent", "no PriorityClass with name urgent was found"),
    ):
        wrong = {**pod, "spec": {**pod["spec"], field: value}}
        with pytest.raises(ApiException, match=said.split('"')[0]) as refused:
            core.create_namespaced_pod("default", wrong)
        assert refused.value.status == 403
    batch.create_namespaced_job(
        "default", job("orphaned", "true", pod_spec={"serviceAccountName": "nobody"})
    )
    kube.wait_for(lambda: "FailedCreate" in events(kube, "orphaned"), "the refusal's event")
    assert kube.pods("job-name=orphaned") == []
    batch.delete_namespaced_job("orphaned", "default")


def test_invalid_names_and_labels_are_refused(batch):
    wrong = job("Upper_Case", "true")
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job("default", wrong)
    assert refused.value.status == 422
    wrong = job("labelled", "true")
    wrong["spec"]["template"]["metadata"] = {"labels": {"wsdata/step": "x" * 64}}
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job("default", wrong)
    assert refused.value.status == 422


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


def test_files_and_environment_are_what_the_spec_says(kube, batch):
    kube.apply([
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"},
         "data": {"a.toml": "one = 1\n", "b.toml": "two = 2\n"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
         "stringData": {"KEY_ID": "abc"}},
    ])  # fmt: skip
    script = """
        cat /opt/wsdata/home/a.toml /etc/wsdata/only.toml; ls /etc/wsdata
        touch /opt/x /opt/wsdata/home/a.toml 2>/dev/null && echo WRITABLE
        echo kept > /scratch/file && cat /scratch/file
        id -u; env | sort | grep -v '^PATH='; ls /var/run/secrets; echo $0; pwd
    """
    made = job(
        "files", script, args=["$(KEY_ID)-$(POD)-$(NONE)"],
        pod_spec={
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10002},
            "volumes": [
                {"name": "conf", "configMap": {"name": "conf"}},
                {"name": "one", "configMap": {
                    "name": "conf", "items": [{"key": "b.toml", "path": "only.toml"}]}},
                {"name": "scratch", "emptyDir": {}},
            ],
        },
        securityContext={"readOnlyRootFilesystem": True},
        workingDir="/scratch",
        envFrom=[{"secretRef": {"name": "keys"}}],
        env=[
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "a.toml"}}},
        ],
        volumeMounts=[
            {"name": "conf", "mountPath": "/opt/wsdata/home/a.toml", "subPath": "a.toml"},
            {"name": "one", "mountPath": "/etc/wsdata"},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    )  # fmt: skip
    batch.create_namespaced_job("default", made)
    verdict = ended(kube, "files")
    (pod,) = kube.pods("job-name=files")
    lines = kube.logs(pod["metadata"]["name"]).splitlines()
    assert verdict["type"] == "Complete", lines
    port = next(line for line in lines if line.startswith("KUBERNETES_SERVICE_PORT="))
    assert [line for line in lines if "/var/run/secrets" not in line] == [
        "one = 1", "two = 2", "only.toml", "kept", "10002", "",
        "HOME=/tmp", f"HOSTNAME={pod['metadata']['name']}", "KEY_ID=abc",
        "KUBERNETES_SERVICE_HOST=127.0.0.1", port, "ONE=one = 1", "POD=default",
        "PWD=/scratch", "abc-default-$(NONE)", "/scratch",
    ]  # fmt: skip


def test_a_pod_waits_for_a_secret_that_comes_later(kube, batch):
    made = job("patient", 'test "$KEY" = now', envFrom=[{"secretRef": {"name": "later"}}])
    batch.create_namespaced_job("default", made)

    def is_waiting():
        (status,) = kube.pods("job-name=patient")[0]["status"].get("containerStatuses") or [{}]
        waiting = (status.get("state") or {}).get("waiting") or {}
        return waiting.get("reason") == "CreateContainerConfigError"

    kube.wait_for(lambda: kube.pods("job-name=patient") and is_waiting(), "the wait")
    name = kube.pods("job-name=patient")[0]["metadata"]["name"]
    with pytest.raises(Refused, match="is waiting to start: CreateContainerConfigError"):
        kube.logs(name)
    kube.apply([{
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later"},
        "data": {"KEY": "bm93"},
    }])  # fmt: skip
    assert ended(kube, "patient")["type"] == "Complete"


def deployment(name, script, replicas=1, **spec):
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container(script)],
                         **spec},
            },
        },
    }  # fmt: skip


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


ASK = """
import json
from kubernetes import client, config
config.load_incluster_config()
core, batch = client.CoreV1Api(), client.BatchV1Api()
def code(act):
    try:
        act()
        return 200
    except client.exceptions.ApiException as refused:
        print(json.loads(refused.body)["message"])
        return refused.status
print(json.dumps([
    code(lambda: core.list_namespaced_pod("default")),
    code(lambda: core.list_namespaced_secret("default")),
    code(lambda: core.list_namespaced_pod("kube-system")),
    code(lambda: batch.delete_namespaced_job("anything", "default")),
]))
"""


def test_a_pods_token_may_do_what_its_roles_allow(kube, batch):
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads-pods"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    group = "rbac.authorization.k8s.io/v1"
    kube.apply([
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}},
        {"apiVersion": group, "kind": "Role", "metadata": {"name": "reads-pods"}, "rules": rules},
        {"apiVersion": group, "kind": "RoleBinding", "metadata": {"name": "reads-pods"},
         "roleRef": role, "subjects": [subject]},
    ])  # fmt: skip
    made = job("asks", "", pod_spec={"serviceAccountName": "reader"})
    made["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", ASK]
    batch.create_namespaced_job("default", made)
    verdict = ended(kube, "asks")
    *said, codes = kube.log_of_job("asks").splitlines()
    assert verdict["type"] == "Complete", said
    assert json.loads(codes) == [200, 403, 403, 403]
    assert said[0] == (
        'secrets is forbidden: User "system:serviceaccount:default:reader" cannot list resource '
        '"secrets" in API group "" in the namespace "default"'
    )


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


def test_services_are_names_of_loopback(kube, batch):
    kube.apply([{
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "store"},
        "spec": {"ports": [{"port": 9000}]},
    }])  # fmt: skip
    ask = "getent hosts store store.default.svc.cluster.local"
    batch.create_namespaced_job("default", job("named", ask))
    assert ended(kube, "named")["type"] == "Complete"
    assert [line.split()[0] for line in kube.log_of_job("named").splitlines()] == ["127.0.0.1"] * 2


def test_the_decode_sandbox_keeps_its_level_inside_a_pod(kube, batch):
    program = "from wsdata.media.sandbox import reachable_level; print(reachable_level())"
    made = job(
        "sandboxed", "",
        pod_spec={"volumes": [{"name": "tmp", "emptyDir": {}}]},
        volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
        securityContext={"readOnlyRootFilesystem": True},
        env=[{"name": "PYTHONPATH", "value": "/opt/wsdata/app"}],
    )  # fmt: skip
    made["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", program]
    batch.create_namespaced_job("default", made)
    ended(kube, "sandboxed")
    here = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert kube.log_of_job("sandboxed") == here.stdout


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


DAGSTER_JOB = """
import os
import time
import dagster as dg

@dg.op
def hello(context):
    context.log.info("pod " + os.environ["HOSTNAME"])
    return 1

@dg.op
def sleep():
    time.sleep(60)

@dg.job(executor_def=dg.in_process_executor)
def short():
    hello()

@dg.job(executor_def=dg.in_process_executor)
def long():
    sleep()
"""


def _dagster_home(kube):
    """A Dagster home that this process and run pods see under one path, through a claim."""
    home = kube.folder / "claims" / "default" / "dagster-home"
    home.mkdir(parents=True)
    launcher = {
        "dagster_home": str(home), "instance_config_map": "dagster-instance",
        "job_image": "wsdata-orchestrator:1",
        "job_namespace": "default", "service_account_name": "default",
        "load_incluster_config": False, "kubeconfig_file": str(kube.kubeconfig),
        "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "dagster-home"}}],
        "volume_mounts": [{"name": "home", "mountPath": str(home)}],
    }  # fmt: skip
    text = json.dumps({
        "run_launcher": {
            "module": "dagster_k8s", "class": "K8sRunLauncher", "config": launcher,
        },
        "telemetry": {"enabled": False},
    })  # fmt: skip
    (home / "dagster.yaml").write_text(text)
    (home / "location.py").write_text(DAGSTER_JOB)
    kube.apply([
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "dagster-home"},
         "spec": {"accessModes": ["ReadWriteOnce"]}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dagster-instance"},
         "data": {"dagster.yaml": text}},
    ])  # fmt: skip
    return home


@pytest.mark.slow
def test_dagsters_run_launcher_runs_and_terminates(kube, monkeypatch):
    import dagster as dg
    from dagster._core.definitions.reconstruct import ReconstructableJob
    from dagster._core.launcher import WorkerStatus

    home = _dagster_home(kube)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:

        def launch(name):
            recon = ReconstructableJob.for_file(str(home / "location.py"), name)
            run = instance.create_run_for_job(
                recon.get_definition(), job_code_origin=recon.get_python_origin()
            )
            return instance.launch_run(run.run_id, None).run_id

        def status_of(run_id):
            return instance.get_run_by_id(run_id).status

        short = launch("short")
        kube.wait_for(lambda: instance.get_run_by_id(short).is_finished, "the short run")
        log = kube.log_of_job(f"dagster-run-{short}")
        assert status_of(short) == dg.DagsterRunStatus.SUCCESS, log
        kube.wait_for(lambda: condition(kube, f"dagster-run-{short}"), "the short run's Job")
        health = instance.run_launcher.check_run_worker_health(instance.get_run_by_id(short))
        assert health.status == WorkerStatus.SUCCESS

        long = launch("long")
        kube.wait_for(lambda: status_of(long) == dg.DagsterRunStatus.STARTED, "the long run")
        assert instance.run_launcher.terminate(long)
        kube.wait_for(lambda: status_of(long) == dg.DagsterRunStatus.CANCELED, "its end")
        kube.wait_for(lambda: not kube.pods(f"job-name=dagster-run-{long}"), "its pod's end")


PIPES = """
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes() as pipes:
    pipes.log.info("in the pod")
    pipes.report_asset_materialization(metadata={"frames": 42})
"""


@pytest.mark.slow
def test_dagsters_pipes_client_runs_a_pod(kube):
    import dagster as dg
    from dagster_k8s import PipesK8sClient

    @dg.asset
    def captions(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        pipes = PipesK8sClient(
            load_incluster_config=False, kubeconfig_file=str(kube.kubeconfig), poll_interval=0.2
        )
        spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
        return pipes.run(
            context=context, image="wsdata-gpu:1", command=["python", "-c", PIPES],
            namespace="default", base_pod_spec={**spec, **ON_GPU},
        ).get_materialize_result()  # fmt: skip

    result = dg.materialize([captions])
    (made,) = result.get_asset_materialization_events()
    assert made.materialization.metadata["frames"].value == 42
