"""Owners and what they own: pods made from templates, deletion down the tree."""

import copy
import secrets
from typing import Any

from wsdata_tests.cluster.kube.kubelet import Kubelet
from wsdata_tests.cluster.kube.objects import BY_PLURAL, Object, Objects, now, owner_uids

FOREGROUND = "foregroundDeletion"
_MAX_BASE = 57
_OWNERS = ("jobs", "cronjobs", "deployments", "replicasets")


def pod_from_template(owner: Object, template: Object, labels: dict[str, str]) -> Object:
    """Return a pod that an owner's template describes, with the owner's reference."""
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template)}
    metadata = pod.setdefault("metadata", {})
    base = owner["metadata"]["name"][:_MAX_BASE]
    metadata["name"] = f"{base}-{secrets.token_hex(3)[:5]}"
    metadata["generateName"] = f"{base}-"
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["ownerReferences"] = [{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }]  # fmt: skip
    return pod


def delete_with_dependents(
    objects: Objects, kubelet: Kubelet, plural: str, stored: Object, *, policy: str = "Background"
) -> None:
    """Delete an object, and what it owns unless the policy is Orphan.

    By the policy Foreground it stays, marked, until what it owns has gone: `finish_foreground`.
    """
    metadata = stored["metadata"]
    namespace, name, uid = metadata.get("namespace", ""), metadata["name"], metadata["uid"]
    with objects.lock:
        owned = _owned(objects, uid)
        if policy == "Foreground" and owned:
            with objects.edit(plural, namespace, name, uid=uid) as body:
                body["metadata"].setdefault("deletionTimestamp", now())
                body["metadata"]["finalizers"] = [FOREGROUND]
        else:
            objects.remove(plural, namespace, name, uid=uid)
        for owned_plural, one in owned:
            _let_go(objects, kubelet, owned_plural, one, uid, policy)


def finish_foreground(objects: Objects) -> None:
    """Remove the objects that waited for all that they own to go."""
    for plural in _OWNERS:
        for stored in objects.select(plural):
            metadata = stored["metadata"]
            if FOREGROUND in (metadata.get("finalizers") or []) and not _owned(
                objects, metadata["uid"]
            ):
                objects.remove(plural, metadata["namespace"], metadata["name"], uid=metadata["uid"])


def _owned(objects: Objects, uid: str) -> list[tuple[str, Object]]:
    return [(plural, one) for plural in BY_PLURAL for one in objects.owned_by(uid, plural)]


def _let_go(
    objects: Objects, kubelet: Kubelet, plural: str, owned: Object, uid: str, policy: str
) -> None:
    metadata = owned["metadata"]
    if policy == "Orphan":
        with objects.edit(plural, metadata["namespace"], metadata["name"]) as body:
            body["metadata"]["ownerReferences"] = [
                owner for owner in body["metadata"]["ownerReferences"] if owner["uid"] != uid
            ]
    elif plural == "pods":
        kubelet.delete(owned)
    elif owner_uids(owned) == [uid]:
        delete_with_dependents(objects, kubelet, plural, owned, policy=policy)
