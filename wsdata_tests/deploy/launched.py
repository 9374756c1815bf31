"""What the rendered settings make Dagster do: its instance, and the Jobs of its runs."""

from pathlib import Path
from unittest import mock

import kubernetes
from dagster._core.instance.ref import InstanceRef
from dagster._core.storage.dagster_run import DagsterRun
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import construct_dagster_k8s_job

from wsdata_tests.deploy.chart import PodTemplate, files_of


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def instance_of(name: str, folder: Path, monkeypatch) -> InstanceRef:
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "secret")
    write(folder, {"dagster.yaml": files_of(name, "instance")["dagster.yaml"]})
    return InstanceRef.from_dir(str(folder))


def run_job(name: str, folder: Path, monkeypatch) -> dict:
    """The Job of a run, as the rendered launcher would make it."""
    ref = instance_of(name, folder, monkeypatch)
    with (
        mock.patch("kubernetes.config.load_incluster_config"),
        mock.patch("kubernetes.config.load_kube_config"),
    ):
        launcher = ref.run_launcher_data.rehydrate(as_type=object)
    context = K8sContainerContext.create_for_run(
        DagsterRun(job_name="j"), launcher, include_run_tags=True
    )
    job = construct_dagster_k8s_job(
        job_config=context.get_k8s_job_config("site/wsdata-orchestrator:1", launcher),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-x",
        component="run_worker",
        user_defined_k8s_config=context.run_k8s_config,
    )
    return kubernetes.client.ApiClient().sanitize_for_serialization(job)


def assert_confined(pod: PodTemplate) -> None:
    """Not root, nothing to write but scratch, no capabilities, bounded."""
    whole, own = pod.spec["securityContext"], pod.container["securityContext"]
    assert (whole["runAsNonRoot"], whole["runAsUser"]) == (True, 10001), pod.owner
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, pod.owner
    assert own["readOnlyRootFilesystem"] is True, pod.owner
    assert own["allowPrivilegeEscalation"] is False, pod.owner
    assert own["capabilities"] == {"drop": ["ALL"]}, pod.owner
    assert pod.container["resources"]["requests"], pod.owner
    assert pod.container["resources"]["limits"]["memory"], pod.owner
    mounts = {mount["mountPath"]: mount["name"] for mount in pod.container["volumeMounts"]}
    scratch_name = mounts["/tmp"]  # noqa: S108 - a pod's
    (scratch,) = [each for each in pod.spec["volumes"] if each["name"] == scratch_name]
    assert "emptyDir" in scratch, pod.owner
    assert not any("hostPath" in volume for volume in pod.spec["volumes"]), pod.owner
