"""The objects of the cluster: kept, versioned, selected and watched. What they mean is elsewhere.

A stored object is never changed in place, so that readers need no copies: use `edit`.
"""

import copy
import logging
import secrets
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wsdata_tests.cluster.kube.selectors import field_matcher, label_matcher

log = logging.getLogger(__name__)

Object = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-wide), name

_HISTORY_LENGTH = 20_000
_MAX_EVENTS = 5_000


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.is_namespaced else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


def _table() -> dict[str, Resource]:
    rbac, policy = "rbac.authorization.k8s.io", "policy"
    rows = [
        *(("", "v1", kind, True) for kind in (
            "Pod", "Event", "ConfigMap", "Secret", "Service", "ServiceAccount", "Endpoints",
            "PersistentVolumeClaim", "ResourceQuota", "LimitRange",
        )),
        *(("", "v1", kind, False) for kind in ("Node", "Namespace", "PersistentVolume")),
        ("batch", "v1", "Job", True), ("batch", "v1", "CronJob", True),
        *(("apps", "v1", kind, True) for kind in (
            "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet",
        )),
        ("networking.k8s.io", "v1", "NetworkPolicy", True),
        ("networking.k8s.io", "v1", "Ingress", True),
        (rbac, "v1", "Role", True), (rbac, "v1", "RoleBinding", True),
        (rbac, "v1", "ClusterRole", False), (rbac, "v1", "ClusterRoleBinding", False),
        ("node.k8s.io", "v1", "RuntimeClass", False),
        ("scheduling.k8s.io", "v1", "PriorityClass", False),
        ("storage.k8s.io", "v1", "StorageClass", False),
        (policy, "v1", "PodDisruptionBudget", True),
        ("autoscaling", "v2", "HorizontalPodAutoscaler", True),
        ("coordination.k8s.io", "v1", "Lease", True),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", False),
        ("monitoring.coreos.com", "v1", "PodMonitor", True),
        ("monitoring.coreos.com", "v1", "ServiceMonitor", True),
        ("monitoring.coreos.com", "v1", "PrometheusRule", True),
        ("keda.sh", "v1alpha1", "ScaledObject", True),
    ]  # fmt: skip
    return {
        kind: Resource(group, version, plural_of(kind), kind, is_namespaced)
        for group, version, kind, is_namespaced in rows
    }


def plural_of(kind: str) -> str:
    word = kind.lower()
    if word == "endpoints":
        return word
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith("s") else "s")


RESOURCES = _table()
BY_PLURAL = {resource.plural: resource for resource in RESOURCES.values()}


def resource_of(manifest: Object) -> Resource:
    """Return the resource of a manifest; kinds that are not known are taken as namespaced."""
    kind = manifest.get("kind", "")
    if kind in RESOURCES:
        return RESOURCES[kind]
    group, _, version = manifest.get("apiVersion", "").rpartition("/")
    return Resource(group, version, plural_of(kind), kind)


class Refused(Exception):
    """An answer other than success, as the API gives it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def to_status(self) -> Object:
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.code,
        }  # fmt: skip


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Objects:
    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._objects: dict[str, dict[Key, Object]] = defaultdict(dict)  # by plural
        self._version = 1
        self._history: deque[tuple[int, str, str, Object]] = deque(maxlen=_HISTORY_LENGTH)

    @property
    def lock(self) -> threading.Condition:
        """Held by those who must see several objects in one state."""
        return self._changed

    @property
    def version(self) -> int:
        return self._version

    def create(self, plural: str, namespace: str, body: Object) -> Object:
        body = copy.deepcopy(body)
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise Refused(422, "Invalid", f"{plural}: name or generateName is required")
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        name = metadata["name"]
        with self._changed:
            if (namespace, name) in self._objects[plural]:
                raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
            if namespace:
                metadata["namespace"] = namespace
            metadata["uid"] = str(uuid.uuid4())
            metadata["creationTimestamp"] = now()
            metadata.setdefault("generation", 1)
            return self._put("ADDED", plural, namespace, body)

    def _put(self, change: str, plural: str, namespace: str, body: Object) -> Object:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self._objects[plural][namespace, body["metadata"]["name"]] = body
        self._history.append((self._version, change, plural, body))
        self._changed.notify_all()
        return body

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        return self._objects[plural].get((namespace, name))

    def read(self, plural: str, namespace: str, name: str) -> Object:
        found = self.find(plural, namespace, name)
        if found is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        return found

    def select(
        self, plural: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """List objects in the order of their creation; without a namespace, those of all."""
        has_labels, has_fields = label_matcher(labels), field_matcher(fields)
        with self._changed:
            found = [
                stored
                for (inside, _), stored in self._objects[plural].items()
                if namespace in (None, "", inside)
            ]
        return [
            stored
            for stored in found
            if has_labels(stored["metadata"].get("labels") or {}) and has_fields(stored)
        ]

    def owned_by(self, uid: str, plural: str) -> list[Object]:
        return [stored for stored in self.select(plural) if uid in owner_uids(stored)]

    @contextmanager
    def edit(self, plural: str, namespace: str, name: str, *, uid: str = "") -> Iterator[Object]:
        """Change a copy of an object; it replaces the stored one unless the block raises.

        Raises:
            Refused: There is no such object, or it is another one by that name.
        """
        with self._changed:
            stored = self.read(plural, namespace, name)
            if uid and stored["metadata"]["uid"] != uid:
                raise Refused(404, "NotFound", f'{plural} "{name}" is another one by now')
            body = copy.deepcopy(stored)
            yield body
            if body != stored:
                if body.get("spec") != stored.get("spec"):
                    body["metadata"]["generation"] = stored["metadata"].get("generation", 0) + 1
                self._put("MODIFIED", plural, namespace, body)

    def remove(self, plural: str, namespace: str, name: str, *, uid: str = "") -> Object | None:
        with self._changed:
            stored = self.find(plural, namespace, name)
            if stored is None or (uid and stored["metadata"]["uid"] != uid):
                return None
            del self._objects[plural][namespace, name]
            self._version += 1
            last = copy.deepcopy(stored)
            last["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, "DELETED", plural, last))
            self._changed.notify_all()
            return last

    def wait_past(self, version: int, timeout_s: float) -> int:
        """Wait until something changes after a version, or time is up; return the version."""
        with self._changed:
            if self._version == version:
                self._changed.wait(timeout_s)
            return self._version

    def changes_since(self, version: int, plural: str) -> list[tuple[int, str, Object]]:
        with self._changed:
            if self._history and version and version < self._history[0][0] - 1:
                raise Refused(410, "Expired", f"too old resource version: {version}")
            return [
                (at, change, body)
                for at, change, kept, body in self._history
                if at > version and kept == plural
            ]

    def record_event(
        self, about: Object, reason: str, message: str, *, is_warning: bool = False
    ) -> None:
        """Add an event about an object, or count a repeated one."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        name = f"{metadata['name']}.{reason.lower()}.{abs(hash(message)) % 16**8:08x}"
        with self._changed:
            if self.find("events", namespace, name):
                with self.edit("events", namespace, name) as event:
                    event["count"] += 1
                    event["lastTimestamp"] = now()
                return
            while len(self._objects["events"]) >= _MAX_EVENTS:
                self.remove("events", *next(iter(self._objects["events"])))
            involved = {
                "kind": about.get("kind"), "name": metadata["name"], "namespace": namespace,
                "uid": metadata["uid"], "apiVersion": about.get("apiVersion"),
            }  # fmt: skip
            self.create("events", namespace, {
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": name},
                "type": "Warning" if is_warning else "Normal", "reason": reason,
                "message": message, "count": 1, "firstTimestamp": now(), "lastTimestamp": now(),
                "involvedObject": involved, "source": {"component": "kube-double"},
            })  # fmt: skip


def owner_uids(stored: Object) -> list[str]:
    return [owner["uid"] for owner in stored["metadata"].get("ownerReferences") or []]


def set_condition(
    status: Object, kind: str, value: str, reason: str = "", message: str = ""
) -> None:
    """Set a condition of a pod, job or deployment; its transition time moves with its value."""
    conditions = status.setdefault("conditions", [])
    old = next((condition for condition in conditions if condition["type"] == kind), None)
    new: Object = {"type": kind, "status": value, "lastTransitionTime": now()}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    if old is None:
        conditions.append(new)
    else:
        if old["status"] == value:
            new["lastTransitionTime"] = old["lastTransitionTime"]
        conditions[conditions.index(old)] = new


def has_condition(stored: Object, kind: str) -> bool:
    conditions = stored.get("status", {}).get("conditions") or []
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def run_controller(
    objects: Objects, stopped: threading.Event, reconcile: Callable[[], None]
) -> None:
    """Call a controller on every change, and a few times a second for what time alone changes."""
    version = 0
    while not stopped.is_set():
        version = objects.wait_past(version, 0.2)
        try:
            reconcile()
        except Refused as refused:  # something went away between the look and the act
            if refused.code not in (404, 409):
                log.exception("controller %s", reconcile)
        except Exception:  # one bad object must not stop the work on all others
            log.exception("controller %s", reconcile)
