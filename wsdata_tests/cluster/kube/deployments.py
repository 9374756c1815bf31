"""The Deployment controller: keeps as many pods of the newest template as asked."""

import hashlib
import json
import time
from collections.abc import Callable

from wsdata_tests.cluster.kube.admission import admit_pod
from wsdata_tests.cluster.kube.collector import pod_from_template
from wsdata_tests.cluster.kube.kubelet import Kubelet
from wsdata_tests.cluster.kube.objects import (
    Object,
    Objects,
    Refused,
    has_condition,
    set_condition,
)  # fmt: skip

_TERMINAL = ("Succeeded", "Failed")
_RETRY_S = 1.0


class DeploymentController:
    def __init__(
        self, objects: Objects, kubelet: Kubelet, on_pod: Callable[[str, str], None]
    ) -> None:
        self._objects, self._kubelet, self._on_pod = objects, kubelet, on_pod
        self._retry_at: dict[str, float] = {}

    def reconcile(self) -> None:
        """Bring every Deployment one step further."""
        for deployment in self._objects.select("deployments"):
            with self._objects.lock:
                self._step(deployment)

    def _step(self, deployment: Object) -> None:
        metadata = deployment["metadata"]
        current = self._objects.find("deployments", metadata["namespace"], metadata["name"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return
        if "deletionTimestamp" in current["metadata"]:
            return
        spec = current["spec"]
        template_hash = _hash(spec["template"])
        pods = self._objects.owned_by(metadata["uid"], "pods")
        for pod in pods:
            if pod["status"]["phase"] in _TERMINAL and "deletionTimestamp" not in pod["metadata"]:
                self._kubelet.delete(pod)
        alive = [pod for pod in pods if pod["status"]["phase"] not in _TERMINAL]
        staying = [pod for pod in alive if "deletionTimestamp" not in pod["metadata"]]
        old = [pod for pod in staying if _hash_of(pod) != template_hash]
        new = [pod for pod in staying if _hash_of(pod) == template_hash]
        wanted = spec.get("replicas", 1)
        for pod in [*old, *new[wanted:]]:
            self._kubelet.delete(pod)
        # ports are shared by all pods of this machine, so that the old one must have ended
        if len(new) < wanted and len(alive) == len(new):
            self._make_pod(current, template_hash)
        self._tell(current, alive, new[:wanted], wanted)

    def _make_pod(self, deployment: Object, template_hash: str) -> None:
        metadata = deployment["metadata"]
        if time.monotonic() < self._retry_at.get(metadata["uid"], 0):
            return
        pod = pod_from_template(
            deployment, deployment["spec"]["template"], {"pod-template-hash": template_hash}
        )
        try:
            admit_pod(self._objects, metadata["namespace"], pod)
            self._objects.create("pods", metadata["namespace"], pod)
            self._on_pod(metadata["namespace"], "deployment-controller")
        except Refused as refused:
            self._retry_at[metadata["uid"]] = time.monotonic() + _RETRY_S
            message = f"Error creating: {refused.message}"
            self._objects.record_event(deployment, "FailedCreate", message, is_warning=True)

    def _tell(
        self, deployment: Object, alive: list[Object], new: list[Object], wanted: int
    ) -> None:
        metadata = deployment["metadata"]
        num_ready = sum(has_condition(pod, "Ready") for pod in new)
        with self._objects.edit("deployments", metadata["namespace"], metadata["name"]) as body:
            status = body.setdefault("status", {})
            status.update(
                observedGeneration=metadata["generation"],
                replicas=len(alive), updatedReplicas=len(new),
                readyReplicas=num_ready, availableReplicas=num_ready,
                unavailableReplicas=max(wanted - num_ready, 0),
            )  # fmt: skip
            is_available = num_ready >= wanted
            set_condition(
                status, "Available", "True" if is_available else "False",
                "MinimumReplicasAvailable" if is_available else "MinimumReplicasUnavailable",
            )  # fmt: skip
            set_condition(status, "Progressing", "True", "NewReplicaSetAvailable")


def _hash(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _hash_of(pod: Object) -> str:
    return (pod["metadata"].get("labels") or {}).get("pod-template-hash", "")
