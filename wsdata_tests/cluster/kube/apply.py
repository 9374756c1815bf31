"""Manifests as Helm installs them: kinds in order, hooks before and after, failures told."""

import time
from typing import TYPE_CHECKING

from wsdata_tests.cluster.kube.objects import Object, Refused, has_condition, resource_of

if TYPE_CHECKING:
    from wsdata_tests.cluster.kube.double import Kube

# the order in which Helm installs kinds; others come last
_ORDER = (
    "PriorityClass", "Namespace", "NetworkPolicy", "ResourceQuota", "LimitRange",
    "PodDisruptionBudget", "ServiceAccount", "Secret", "ConfigMap", "StorageClass",
    "PersistentVolume", "PersistentVolumeClaim", "CustomResourceDefinition", "ClusterRole",
    "ClusterRoleBinding", "Role", "RoleBinding", "Service", "RuntimeClass", "DaemonSet", "Pod",
    "ReplicaSet", "Deployment", "HorizontalPodAutoscaler", "StatefulSet", "Job", "CronJob",
)  # fmt: skip
_HOOK, _WEIGHT = "helm.sh/hook", "helm.sh/hook-weight"
_POLICY = "helm.sh/hook-delete-policy"


class HookFailed(Exception):
    """A Job that must succeed in an installation did not."""


def apply_manifests(kube: "Kube", manifests: list[Object], *, timeout_s: float) -> None:
    """Create or change objects; hook Jobs run before or after the rest, and are waited for.

    Args:
        kube: Where.
        manifests: Objects; None entries, as empty templates give, are passed over.
        timeout_s: For each hook Job.

    Raises:
        Refused: The API refuses one; its name is added.
        HookFailed: A hook Job failed or took too long; holds its log.
    """
    wanted = [manifest for manifest in manifests if manifest]
    plain = [manifest for manifest in wanted if not _hooks(manifest)]
    _run_hooks(kube, wanted, ("pre-install", "crd-install"), timeout_s)
    for manifest in sorted(plain, key=_rank):
        _put(kube, manifest)
    _run_hooks(kube, wanted, ("post-install",), timeout_s)


def _annotations(manifest: Object) -> dict[str, str]:
    return manifest["metadata"].get("annotations") or {}


def _hooks(manifest: Object) -> list[str]:
    return [hook.strip() for hook in _annotations(manifest).get(_HOOK, "").split(",") if hook]


def _rank(manifest: Object) -> int:
    kind = manifest["kind"]
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _path(kube: "Kube", manifest: Object, *, is_item: bool) -> str:
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace") or kube.namespace
    return resource_of(manifest).path(namespace, metadata["name"] if is_item else "")


def _put(kube: "Kube", manifest: Object) -> None:
    named = f"{manifest['kind']}/{manifest['metadata']['name']}"
    try:
        kube.request("POST", _path(kube, manifest, is_item=False), manifest)
    except Refused as refused:
        if refused.reason != "AlreadyExists":
            refused.add_note(f"while applying {named}")
            raise
        try:
            kube.request(
                "PATCH", _path(kube, manifest, is_item=True), manifest,
                content_type="application/merge-patch+json",
            )  # fmt: skip
        except Refused as again:
            again.add_note(f"while changing {named}")
            raise


def _run_hooks(
    kube: "Kube", manifests: list[Object], hooks: tuple[str, ...], timeout_s: float
) -> None:
    chosen = [manifest for manifest in manifests if set(hooks) & set(_hooks(manifest))]
    chosen.sort(key=lambda one: (int(_annotations(one).get(_WEIGHT, "0")), _rank(one)))
    for manifest in chosen:
        path = _path(kube, manifest, is_item=True)
        policies = _annotations(manifest).get(_POLICY, "before-hook-creation")
        if "before-hook-creation" in policies:
            _delete(kube, path)
        _put(kube, manifest)
        if manifest["kind"] == "Job":
            _wait_for_job(kube, path, timeout_s)
        if "hook-succeeded" in policies:
            _delete(kube, path)


def _delete(kube: "Kube", path: str) -> None:
    """Delete an object, and wait until it has gone with all that it owns."""
    try:
        kube.request("DELETE", f"{path}?propagationPolicy=Foreground")
        while True:
            kube.request("GET", path)
            time.sleep(0.05)
    except Refused as refused:
        if refused.code != 404:
            raise


def _wait_for_job(kube: "Kube", path: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        job = kube.request("GET", path)
        if has_condition(job, "Complete"):
            return
        if has_condition(job, "Failed"):
            raise HookFailed(f"{path}: {job['status']}\n{_logs_of(kube, job)}")
        if time.monotonic() > deadline:
            raise HookFailed(f"{path}: not done within {timeout_s:g} s\n{_logs_of(kube, job)}")
        time.sleep(0.1)


def _logs_of(kube: "Kube", job: Object) -> str:
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    pods = kube.request("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=job-name={name}")
    parts: list[str] = []
    for pod in pods["items"]:
        pod_name = pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            where = (
                f"/api/v1/namespaces/{namespace}/pods/{pod_name}/log?container={container['name']}"
            )
            try:
                parts.append(f"--- {pod_name}/{container['name']}\n{kube.request('GET', where)}")
            except Refused as refused:
                parts.append(f"--- {pod_name}/{container['name']}: {refused.message}")
    events = kube.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    parts += [
        f"{event['involvedObject']['name']}: {event['reason']}: {event['message']}"
        for event in events
        if event["type"] == "Warning" and event["involvedObject"]["name"].startswith(name)
    ]
    return "\n".join(parts)
