"""What the API says of itself: its version, its groups and their resources."""

import re

from wsdata_tests.cluster.kube.objects import RESOURCES, Object

VERSION = "v1.34.0"
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SHORT = {
    "pods": "po", "services": "svc", "configmaps": "cm", "deployments": "deploy", "events": "ev",
    "namespaces": "ns", "nodes": "no", "serviceaccounts": "sa", "persistentvolumeclaims": "pvc",
    "poddisruptionbudgets": "pdb", "networkpolicies": "netpol", "priorityclasses": "pc",
    "cronjobs": "cj", "horizontalpodautoscalers": "hpa",
}  # fmt: skip
_GROUP = re.compile(r"^/(?:api/v1|apis/([^/]+)/([^/]+))$")


def discovery_of(path: str) -> Object | None:
    """Return the document of a discovery path, None for other paths."""
    if path == "/version":
        return {
            "major": "1", "minor": "34", "gitVersion": VERSION, "gitCommit": "", "buildDate": "",
            "gitTreeState": "clean", "goVersion": "", "compiler": "", "platform": "linux/amd64",
        }  # fmt: skip
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups = sorted({(one.group, one.version) for one in RESOURCES.values() if one.group})
    if path == "/apis":
        return {
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": [_group(group, version) for group, version in groups],
        }  # fmt: skip
    match = _GROUP.match(path)
    if match is None:
        return None
    group, version = match[1] or "", match[2] or "v1"
    if group and (group, version) not in groups:
        return None
    return {
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": _resources(group, version),
    }  # fmt: skip


def _group(group: str, version: str) -> Object:
    known = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [known], "preferredVersion": known}


def _resources(group: str, version: str) -> list[Object]:
    found = [one for one in RESOURCES.values() if (one.group, one.version) == (group, version)]
    listed = [
        {
            "name": one.plural, "singularName": one.kind.lower(), "kind": one.kind,
            "namespaced": one.is_namespaced, "verbs": _VERBS,
            "shortNames": [_SHORT[one.plural]] if one.plural in _SHORT else [],
        }
        for one in found
    ]  # fmt: skip
    parts = {"pods": ("log", "status", "eviction"), "jobs": ("status",)}
    parts["deployments"] = ("status", "scale")
    for one in found:
        listed += [
            {
                "name": f"{one.plural}/{part}", "singularName": "", "kind": one.kind,
                "namespaced": True, "verbs": ["get", "patch", "update"],
            }
            for part in parts.get(one.plural, ())
        ]  # fmt: skip
    for one in listed:
        if one["name"] == "pods/eviction":
            one.update(kind="Eviction", group="policy", version="v1", verbs=["create"])
    return listed
