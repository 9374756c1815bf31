"""What a pod of the Kubernetes double sees and may do: files, environment, names, the API."""

import json
import subprocess
import sys

import pytest
from kubernetes.client.exceptions import ApiException

from wsdata_tests.cluster.kube.objects import Refused
from wsdata_tests.cluster.kube.samples import (
    container,
    ended,
    events,
    job,
)

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


def _files_job():
    """A Job that shows its files and its environment."""
    script = """
        cat /opt/wsdata/home/a.toml /etc/wsdata/only.toml; ls /etc/wsdata
        touch /opt/x /opt/wsdata/home/a.toml 2>/dev/null && echo WRITABLE
        echo kept > /scratch/file && cat /scratch/file
        id -u; env | sort | grep -v '^PATH='; ls /var/run/secrets; echo $0; pwd
    """
    return job(
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


def test_files_and_environment_are_what_the_spec_says(kube, batch):
    kube.apply([
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"},
         "data": {"a.toml": "one = 1\n", "b.toml": "two = 2\n"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
         "stringData": {"KEY_ID": "abc"}},
    ])  # fmt: skip
    batch.create_namespaced_job("default", _files_job())
    verdict = ended(kube, "files")
    (pod,) = kube.pods("job-name=files")
    lines = kube.logs(pod["metadata"]["name"]).splitlines()
    assert verdict["type"] == "Complete", lines
    port = next(line for line in lines if line.startswith("KUBERNETES_SERVICE_PORT="))
    assert [line for line in lines if "/var/run/secrets" not in line] == [
        "one = 1", "two = 2", "only.toml", "kept", "10002", "",
        "HOME=/tmp", f"HOSTNAME={pod['metadata']['name']}", "KEY_ID=abc",
        "KUBERNETES_SERVICE_HOST=127.0.0.1", port, "ONE=one = 1", "POD=default",
        "PWD=/scratch", "PYTHONPATH=/opt/wsdata/app", "abc-default-$(NONE)", "/scratch",
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
    )  # fmt: skip
    made["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", program]
    batch.create_namespaced_job("default", made)
    ended(kube, "sandboxed")
    here = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert kube.log_of_job("sandboxed") == here.stdout


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
