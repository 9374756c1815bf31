"""What each request does to the objects. How requests arrive belongs to `rest`."""

import copy
from typing import Any

from wsdata_tests.cluster.kube.admission import admit_pod, check_object
from wsdata_tests.cluster.kube.budgets import check_budgets
from wsdata_tests.cluster.kube.collector import delete_with_dependents
from wsdata_tests.cluster.kube.kubelet import Kubelet
from wsdata_tests.cluster.kube.objects import BY_PLURAL, Object, Objects, Refused
from wsdata_tests.cluster.kube.patches import patched

_NO_STATUS_OF_CLIENTS = ("pods", "jobs", "deployments")


class Verbs:
    def __init__(self, objects: Objects, kubelet: Kubelet) -> None:
        self._objects, self._kubelet = objects, kubelet

    def add_namespace(self, name: str) -> None:
        """Make a namespace with its default account, where there is none."""
        with self._objects.lock:
            if self._objects.find("namespaces", "", name) is None:
                self.create("namespaces", "", {"metadata": {"name": name}})

    def create(self, plural: str, namespace: str, body: Object, *, is_dry: bool = False) -> Object:
        body = copy.deepcopy(body)
        known = BY_PLURAL.get(plural)
        if known is not None:
            body.setdefault("apiVersion", known.api_version)
            body.setdefault("kind", known.kind)
        check_object(plural, body)
        if namespace and self._objects.find("namespaces", "", namespace) is None:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        if plural in _NO_STATUS_OF_CLIENTS:
            body["status"] = {}
        if plural == "pods":
            admit_pod(self._objects, namespace, body)
        if plural == "deployments":
            _check_selector(body)
        if plural == "persistentvolumeclaims":
            body["status"] = {"phase": "Bound"}
        if is_dry:
            if self._objects.find(plural, namespace, body["metadata"].get("name", "")):
                raise Refused(409, "AlreadyExists", f"{plural} by that name exists")
            return body
        made = self._objects.create(plural, namespace, body)
        if plural == "namespaces":
            account = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default"},
            }
            self._objects.create("serviceaccounts", made["metadata"]["name"], account)
        return made

    def change(
        self, plural: str, namespace: str, name: str, part: str, new: Any, content_type: str
    ) -> Object:
        """Replace or patch an object, or one part of it: its status or its scale."""
        is_patch = "patch" in content_type
        with self._objects.edit(plural, namespace, name) as body:
            before = copy.deepcopy(body)
            after = patched(body, new, content_type) if is_patch else copy.deepcopy(new)
            _check_version(before, new)
            if part == "scale":
                body["spec"]["replicas"] = (after.get("spec") or {}).get("replicas", 1)
            elif part == "status":
                body["status"] = after.get("status") or {}
            else:
                _take_over(plural, body, before, after)
                check_object(plural, body)
        return self._objects.read(plural, namespace, name)

    def delete(self, plural: str, namespace: str, name: str, options: Object) -> Object:
        """Delete an object as delete options ask; returns what the API answers."""
        stored = self._objects.read(plural, namespace, name)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted and wanted != stored["metadata"]["uid"]:
            raise Refused(409, "Conflict", f"the UID in the precondition ({wanted}) does not match")
        if plural == "pods":
            grace_s = options.get("gracePeriodSeconds")
            return self._kubelet.delete(stored, None if grace_s is None else float(grace_s))
        # a Job's pods stay unless asked: what the API keeps doing for its oldest clients
        default = "Orphan" if plural == "jobs" else "Background"
        policy = options.get("propagationPolicy") or default
        if options.get("orphanDependents"):
            policy = "Orphan"
        delete_with_dependents(self._objects, self._kubelet, plural, stored, policy=policy)
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": name, "kind": plural, "uid": stored["metadata"]["uid"]},
        }  # fmt: skip

    def evict(self, namespace: str, name: str, body: Object) -> Object:
        """End a pod for a drain, if the disruption budgets allow."""
        pod = self._objects.read("pods", namespace, name)
        check_budgets(self._objects, pod)
        grace_s = (body.get("deleteOptions") or {}).get("gracePeriodSeconds")
        self._kubelet.disrupt(
            pod, "EvictionByEvictionAPI", "Eviction API: evicting",
            grace_s=None if grace_s is None else float(grace_s),
        )  # fmt: skip
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def scale_of(stored: Object) -> Object:
    metadata = stored["metadata"]
    return {
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")},
        "spec": {"replicas": stored["spec"].get("replicas", 1)},
        "status": {"replicas": stored.get("status", {}).get("replicas", 0)},
    }  # fmt: skip


def _check_selector(body: Object) -> None:
    wanted = (body["spec"].get("selector") or {}).get("matchLabels") or {}
    labels = (body["spec"]["template"].get("metadata") or {}).get("labels") or {}
    if not wanted or any(labels.get(key) != value for key, value in wanted.items()):
        raise Refused(
            422, "Invalid",
            f'Deployment "{body["metadata"]["name"]}" is invalid: spec.template.metadata.labels: '
            f"{labels} do not match the selector {wanted}",
        )  # fmt: skip


def _check_version(stored: Object, new: Any) -> None:
    if not isinstance(new, dict):
        return
    wanted = (new.get("metadata") or {}).get("resourceVersion")
    if wanted and wanted != stored["metadata"]["resourceVersion"]:
        raise Refused(
            409, "Conflict",
            f'Operation cannot be fulfilled on "{stored["metadata"]["name"]}": the object has been '
            "modified; please apply your changes to the latest version and try again",
        )  # fmt: skip


def _take_over(plural: str, body: Object, before: Object, after: Object) -> None:
    """Let a new version replace an object, but for what only the API writes."""
    if plural == "jobs" and after["spec"]["template"] != before["spec"]["template"]:
        raise Refused(422, "Invalid", f'Job "{before["metadata"]["name"]}" is invalid: '
                      "spec.template: Invalid value: field is immutable")  # fmt: skip
    body.clear()
    body.update(after)
    metadata = {**after.get("metadata", {})}
    for key in ("uid", "creationTimestamp", "generation", "namespace", "name", "resourceVersion"):
        if key in before["metadata"]:
            metadata[key] = before["metadata"][key]
    body["metadata"] = metadata
    body.setdefault("kind", before.get("kind"))
    body.setdefault("apiVersion", before.get("apiVersion"))
    if plural in _NO_STATUS_OF_CLIENTS:
        body["status"] = before.get("status", {})
    if plural == "pods":
        body["spec"] = before["spec"]  # a pod's spec stays, but for parts that nobody here changes
