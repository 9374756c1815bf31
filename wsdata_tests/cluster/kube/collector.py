"""Owners and what they own: pods made from templates, deletion down the tree."""

import copy
import secrets
from typing import Any

from wsdata_tests.cluster.kube.kubelet import Kubelet
from wsdata_tests.cluster.kube.objects import BY_PLURAL, Object, Objects, owner_uids

_MAX_BASE = 57


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
    """Delete an object, and what it owns unless the policy is Orphan."""
    metadata = stored["metadata"]
    with objects.lock:
        objects.remove(plural, metadata.get("namespace", ""), metadata["name"], uid=metadata["uid"])
        for owned_plural in BY_PLURAL:
            for owned in objects.owned_by(metadata["uid"], owned_plural):
                _let_go(objects, kubelet, owned_plural, owned, metadata["uid"], policy)


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
        delete_with_dependents(objects, kubelet, plural, owned)
