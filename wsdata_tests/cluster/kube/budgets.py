"""Pod disruption budgets: whether one more pod may be evicted."""

import math
from typing import Any

from wsdata_tests.cluster.kube.objects import Object, Objects, Refused, has_condition
from wsdata_tests.cluster.kube.selectors import matches_selector


def check_budgets(objects: Objects, pod: Object) -> None:
    """Let an eviction pass.

    Raises:
        Refused: 429, a budget that selects the pod has no disruption left.
    """
    namespace = pod["metadata"]["namespace"]
    labels = pod["metadata"].get("labels") or {}
    for budget in objects.select("poddisruptionbudgets", namespace):
        selector = budget["spec"].get("selector")
        if not matches_selector(selector, labels) or not has_condition(pod, "Ready"):
            continue
        covered = [
            one
            for one in objects.select("pods", namespace)
            if matches_selector(selector, one["metadata"].get("labels") or {})
            and one["status"]["phase"] in ("Pending", "Running")
        ]
        healthy = [
            one
            for one in covered
            if has_condition(one, "Ready") and "deletionTimestamp" not in one["metadata"]
        ]
        if len(healthy) - 1 < _needed(budget["spec"], len(covered)):
            raise Refused(
                429, "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
            )  # fmt: skip


def _needed(spec: Object, num_covered: int) -> int:
    if "minAvailable" in spec:
        return _count(spec["minAvailable"], num_covered)
    return num_covered - _count(spec.get("maxUnavailable", 0), num_covered)


def _count(value: Any, total: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * total / 100)
    return int(value)
