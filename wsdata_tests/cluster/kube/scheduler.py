"""Which pod runs on which node, and whom it pushes aside. How a pod ends belongs to the kubelet."""

from collections import Counter
from typing import Any

from wsdata_tests.cluster.kube.kubelet import Kubelet
from wsdata_tests.cluster.kube.objects import Object, Objects, set_condition
from wsdata_tests.cluster.kube.selectors import matches_expression, quantity

_MAX_PODS = 110
# what a node has that says nothing: more than this machine, since nothing is measured
_ROOM = {"cpu": "256", "memory": "2048Gi", "ephemeral-storage": "8192Gi"}
_TERMINAL = ("Succeeded", "Failed")


def default_nodes() -> list[Object]:
    """Return a node for each kind of pool: plain ones, and ones with GPUs behind a taint."""
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes: list[Object] = [
        {
            "name": f"{pool}-0",
            "labels": {"wsdata/pool": pool},
        }
        for pool in ("cpu", "vault")
    ]
    nodes += [
        {
            "name": f"{pool}-0",
            "labels": {"wsdata/pool": pool},
            "taints": [taint],
            "gpus": 8,
        }
        for pool in ("nvdec", "vlm", "encode")
    ]
    return nodes


def node_entries(nodes: list[Object] | dict[str, Object]) -> list[Object]:
    """Return a list of nodes from either form of one, GPUs as a resource."""
    if isinstance(nodes, dict):
        nodes = [{"name": name, **node} for name, node in nodes.items()]
    entries: list[Object] = []
    for node in nodes:
        room = dict(node.get("allocatable") or {})
        if node.get("gpus"):
            room["nvidia.com/gpu"] = str(node["gpus"])
        entries.append({**node, "allocatable": room})
    return entries


def node_object(node: Object) -> Object:
    """Return the Node of an entry of a node list: name, labels, taints, allocatable."""
    name = node["name"]
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    }
    room = {**_ROOM, "pods": str(_MAX_PODS)} | (node.get("allocatable") or {})
    room = {key: str(value) for key, value in room.items()}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, **(node.get("labels") or {})}},
        "spec": {"taints": node.get("taints") or []},
        "status": {
            "allocatable": room, "capacity": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }  # fmt: skip


def requests_of(pod: Object) -> Counter[str]:
    """Return what a pod books: requests, else limits, of its containers together."""
    total: Counter[str] = Counter({"pods": 1})
    for container in pod["spec"]["containers"]:
        total.update(_booked(container))
    for container in pod["spec"].get("initContainers") or []:
        for name, amount in _booked(container).items():
            total[name] = max(total[name], amount)
    return total


def _booked(container: Object) -> dict[str, Any]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in asked.items()}


class Scheduler:
    def __init__(self, objects: Objects, kubelet: Kubelet) -> None:
        self._objects, self._kubelet = objects, kubelet

    def reconcile(self) -> None:
        """Bind what fits, the highest priority first; tell the others why they wait."""
        with self._objects.lock:
            pods = self._objects.select("pods")
            waiting = [pod for pod in pods if _is_waiting(pod)]
            for pod in sorted(waiting, key=_priority, reverse=True):
                self._place(pod)

    def _place(self, pod: Object) -> None:
        nodes = self._objects.select("nodes")
        faults = {node["metadata"]["name"]: self._fault(pod, node) for node in nodes}
        free = next((name for name, fault in faults.items() if not fault), None)
        metadata = pod["metadata"]
        if free is not None:
            with self._objects.edit("pods", metadata["namespace"], metadata["name"]) as body:
                body["spec"]["nodeName"] = free
                body["status"].pop("nominatedNodeName", None)
                set_condition(body["status"], "PodScheduled", "True")
            place = f"{metadata['namespace']}/{metadata['name']}"
            self._objects.record_event(pod, "Scheduled", f"Successfully assigned {place} to {free}")
            return
        self._tell_waiting(pod, list(faults.values()))
        if pod["spec"].get("preemptionPolicy") != "Never":
            self._preempt_for(pod, [node for node in nodes if self._suits(pod, node)])

    def _tell_waiting(self, pod: Object, faults: list[str]) -> None:
        counts = Counter(faults)
        listed = ", ".join(f"{count} {fault}" for fault, count in sorted(counts.items()))
        message = f"0/{len(faults)} nodes are available: {listed}."
        metadata = pod["metadata"]
        before = (pod["status"].get("conditions") or [{}])[0].get("message")
        if before == message:
            return
        with self._objects.edit("pods", metadata["namespace"], metadata["name"]) as body:
            set_condition(body["status"], "PodScheduled", "False", "Unschedulable", message)
        self._objects.record_event(pod, "FailedScheduling", message, is_warning=True)

    def _suits(self, pod: Object, node: Object) -> bool:
        """Whether the node would do if it were empty."""
        return not _mismatch(pod, node) and not _short_of(requests_of(pod), _room(node))

    def _fault(self, pod: Object, node: Object) -> str:
        fault = _mismatch(pod, node)
        if fault:
            return fault
        short = _short_of(requests_of(pod), self._left(node))
        return f"Insufficient {short}" if short else ""

    def _running_on(self, node: Object) -> list[Object]:
        name = node["metadata"]["name"]
        return [
            pod
            for pod in self._objects.select("pods")
            if pod["spec"].get("nodeName") == name
            and (pod["status"]["phase"] not in _TERMINAL or self._kubelet.is_running(pod))
        ]

    def _left(self, node: Object, *, without: list[Object] | None = None) -> Counter[str]:
        left = _room(node)
        gone = {pod["metadata"]["uid"] for pod in without or []}
        for pod in self._running_on(node):
            if pod["metadata"]["uid"] not in gone:
                left.subtract(requests_of(pod))
        return left

    def _preempt_for(self, pod: Object, nodes: list[Object]) -> None:
        """End pods of lower priority on the node where that costs least."""
        wanted = requests_of(pod)
        choices: list[tuple[int, int, str, list[Object]]] = []
        for node in nodes:
            running = self._running_on(node)
            leaving = [one for one in running if "deletionTimestamp" in one["metadata"]]
            if not _short_of(wanted, self._left(node, without=leaving)):
                return  # room is being made already
            victims = self._victims(pod, node, leaving)
            if victims:
                worst = max(_priority(victim) for victim in victims)
                choices.append((worst, len(victims), node["metadata"]["name"], victims))
        if not choices:
            return
        *_, name, victims = min(choices, key=lambda choice: choice[:3])
        metadata = pod["metadata"]
        with self._objects.edit("pods", metadata["namespace"], metadata["name"]) as body:
            body["status"]["nominatedNodeName"] = name
        for victim in victims:
            message = f"Preempted by pod {metadata['uid']} on node {name}"
            self._objects.record_event(victim, "Preempted", message)
            self._kubelet.disrupt(victim, "PreemptionByScheduler", message)

    def _victims(self, pod: Object, node: Object, leaving: list[Object]) -> list[Object]:
        lower = [one for one in self._running_on(node) if _priority(one) < _priority(pod)]
        lower = [one for one in lower if one not in leaving]
        taken: list[Object] = []
        # the lowest first, among equals the youngest
        youngest_first = lower[::-1]
        for victim in sorted(youngest_first, key=_priority):
            taken.append(victim)
            if not _short_of(requests_of(pod), self._left(node, without=[*leaving, *taken])):
                return taken
        return []


def _is_waiting(pod: Object) -> bool:
    return (
        pod["status"]["phase"] == "Pending"
        and not pod["spec"].get("nodeName")
        and "deletionTimestamp" not in pod["metadata"]
        and not pod["spec"].get("schedulingGates")
    )


def _priority(pod: Object) -> int:
    return pod["spec"].get("priority", 0)


def _room(node: Object) -> Counter[str]:
    room: Counter[str] = Counter()
    room.update({name: quantity(amount) for name, amount in node["status"]["allocatable"].items()})  # type: ignore[arg-type]
    return room


def _short_of(wanted: Counter[str], left: Counter[str]) -> str:
    return next((name for name, amount in wanted.items() if amount > left[name]), "")


def _mismatch(pod: Object, node: Object) -> str:
    labels, spec = node["metadata"].get("labels") or {}, pod["spec"]
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()) or not _fits_affinity(
        spec, labels
    ):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node["spec"].get("taints") or []:
        if taint.get("effect") != "PreferNoSchedule" and not any(
            _tolerates(toleration, taint) for toleration in spec.get("tolerations") or []
        ):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    return ""


def _fits_affinity(spec: Object, labels: dict[str, str]) -> bool:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(
        all(matches_expression(one, labels) for one in term.get("matchExpressions") or [])
        for term in required["nodeSelectorTerms"]
    )


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator", "Equal") == "Exists":
        return key in ("", taint["key"])
    return key == taint["key"] and (toleration.get("value") or "") == taint.get("value", "")
