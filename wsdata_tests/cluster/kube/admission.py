"""What the API refuses, and what it fills in, before an object is stored."""

import re
from typing import Any

from wsdata_tests.cluster.kube.objects import Object, Objects, Refused

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9][-a-z0-9.]*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_NAME, _MAX_LABEL = 253, 63
_BUILT_IN_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
# kinds whose names may hold what the others' may not (system:..., and events of long names)
_FREE_NAMES = ("roles", "rolebindings", "clusterroles", "clusterrolebindings", "events")


def check_object(plural: str, body: Object) -> None:
    """Check name and labels.

    Raises:
        Refused: 422, as a control plane words it.
    """
    metadata = body.get("metadata") or {}
    name = metadata.get("name") or ""
    kind = body.get("kind", plural)
    if (
        name
        and plural not in _FREE_NAMES
        and (_NAME.fullmatch(name) is None or len(name) > _MAX_NAME)
    ):
        raise _invalid(kind, name, f'metadata.name: Invalid value: "{name}"')
    _check_labels(kind, name, "metadata.labels", metadata.get("labels"))
    for key, value in (metadata.get("annotations") or {}).items():
        if not isinstance(value, str):
            raise _invalid(kind, name, f"metadata.annotations[{key}]: {value!r} is not a string")
    template = (
        (body.get("spec") or {}).get("template") if plural in ("jobs", "deployments") else None
    )
    if plural == "jobs":
        _check_job(name, body)
    if template:
        labels = (template.get("metadata") or {}).get("labels")
        _check_labels(kind, name, "spec.template.labels", labels)


def _invalid(kind: str, name: str, fault: str) -> Refused:
    return Refused(422, "Invalid", f'{kind} "{name}" is invalid: {fault}')


def _check_labels(kind: str, name: str, where: str, labels: Any) -> None:
    for key, value in (labels or {}).items():
        if _LABEL_KEY.fullmatch(key) is None or len(key.rpartition("/")[2]) > _MAX_LABEL:
            raise _invalid(kind, name, f'{where}: Invalid value: "{key}"')
        if (
            not isinstance(value, str)
            or len(value) > _MAX_LABEL
            or _LABEL_VALUE.fullmatch(value) is None
        ):
            raise _invalid(kind, name, f"{where}: Invalid value: {value!r} of {key}")


def _check_job(name: str, body: Object) -> None:
    if len(name) > _MAX_LABEL:
        raise _invalid("Job", name, "metadata.name: must be no more than 63 characters")
    spec = body["spec"]
    policy = spec["template"]["spec"].get("restartPolicy", "Always")
    if policy not in ("Never", "OnFailure"):
        raise _invalid(
            "Job", name, f'spec.template.spec.restartPolicy: Unsupported value: "{policy}"'
        )
    if spec.get("podFailurePolicy") and policy != "Never":
        raise _invalid("Job", name, "spec.podFailurePolicy: only with restartPolicy Never")


def admit_pod(objects: Objects, namespace: str, body: Object) -> None:
    """Fill in what a pod leaves open: account, priority, what its runtime class asks of nodes.

    Raises:
        Refused: It names an account or a class that is not there, or has no containers.
    """
    spec, metadata = body["spec"], body["metadata"]
    name = metadata.get("name") or metadata.get("generateName") or ""
    if not spec.get("containers"):
        raise _invalid("Pod", name, "spec.containers: Required value")
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    if objects.find("serviceaccounts", namespace, account) is None:
        raise _forbidden(
            name,
            f"error looking up service account {namespace}/{account}: "
            f'serviceaccount "{account}" not found',
        )
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    _apply_runtime_class(objects, name, spec)
    _apply_priority(objects, name, spec)
    body["status"] = {"phase": "Pending"}


def _forbidden(name: str, why: str) -> Refused:
    return Refused(403, "Forbidden", f'pods "{name}" is forbidden: {why}')


def _apply_runtime_class(objects: Objects, name: str, spec: Object) -> None:
    wanted = spec.get("runtimeClassName")
    if not wanted:
        return
    found = objects.find("runtimeclasses", "", wanted)
    if found is None:
        raise _forbidden(name, f'pod rejected: RuntimeClass "{wanted}" not found')
    scheduling = found.get("scheduling") or {}
    if scheduling.get("nodeSelector"):
        spec["nodeSelector"] = (spec.get("nodeSelector") or {}) | scheduling["nodeSelector"]
    if scheduling.get("tolerations"):
        spec["tolerations"] = [*(spec.get("tolerations") or []), *scheduling["tolerations"]]


def _apply_priority(objects: Objects, name: str, spec: Object) -> None:
    wanted = spec.get("priorityClassName")
    if wanted in _BUILT_IN_PRIORITIES:
        spec["priority"] = _BUILT_IN_PRIORITIES[wanted]
        return
    if wanted:
        found = objects.find("priorityclasses", "", wanted)
        if found is None:
            raise _forbidden(name, f"no PriorityClass with name {wanted} was found")
    else:
        defaults = [one for one in objects.select("priorityclasses") if one.get("globalDefault")]
        found = defaults[0] if defaults else {"value": 0}
    spec["priority"] = found["value"]
    spec["preemptionPolicy"] = found.get("preemptionPolicy", "PreemptLowerPriority")
