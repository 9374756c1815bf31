"""Volumes and environment of a pod, from its spec and the objects that it names."""

import base64
import re
import shutil
from pathlib import Path
from typing import Any

from wsdata_tests.cluster.kube.bubblewrap import Mount
from wsdata_tests.cluster.kube.objects import Object, Objects
from wsdata_tests.cluster.kube.selectors import quantity

TOKEN_AT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  a path
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.\-][A-Za-z0-9_.\-]*)\)")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class NotYet(Exception):
    """Something that the pod names is not there; it waits, as on a cluster."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


def expand(text: str, variables: dict[str, str]) -> str:
    """Replace ``$(NAME)``; unknown names stay, ``$$`` is one dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def contents(objects: Objects, plural: str, namespace: str, name: str) -> dict[str, bytes] | None:
    """Return the entries of a ConfigMap or Secret, None where there is none."""
    found = objects.find(plural, namespace, name)
    if found is None:
        return None
    data = found.get("data") or {}
    if plural == "secrets":
        entries = {key: base64.b64decode(value) for key, value in data.items()}
        plain = found.get("stringData") or {}
    else:
        binary = found.get("binaryData") or {}
        entries = {key: base64.b64decode(value) for key, value in binary.items()}
        plain = data
    return entries | {key: str(value).encode() for key, value in plain.items()}


def environment_of(objects: Objects, pod: Object, container: Object) -> dict[str, str]:
    """Return what ``envFrom`` and ``env`` of a container give.

    Raises:
        NotYet: A ConfigMap, Secret or key that it needs is not there.
    """
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        plural = "configmaps" if "configMapRef" in source else "secrets"
        reference = source.get("configMapRef") or source["secretRef"]
        entries = _entries(objects, pod, plural, reference)
        prefix = source.get("prefix", "")
        variables |= {prefix + key: value.decode() for key, value in entries.items()}
    for entry in container.get("env") or []:
        value = _value_of(objects, pod, container, entry, variables)
        if value is not None:
            variables[entry["name"]] = value
    return variables


def _entries(objects: Objects, pod: Object, plural: str, reference: Object) -> dict[str, bytes]:
    namespace = pod["metadata"]["namespace"]
    entries = contents(objects, plural, namespace, reference["name"])
    if entries is None:
        if reference.get("optional"):
            return {}
        kind = plural.removesuffix("s")
        raise NotYet("CreateContainerConfigError", f'{kind} "{reference["name"]}" not found')
    return entries


def _value_of(
    objects: Objects, pod: Object, container: Object, entry: Object, known: dict[str, str]
) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return expand(str(entry.get("value") or ""), known)
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource_of(container, source["resourceFieldRef"])
    plural = "configmaps" if "configMapKeyRef" in source else "secrets"
    reference = source.get("configMapKeyRef") or source["secretKeyRef"]
    entries = _entries(objects, pod, plural, reference)
    if reference["key"] in entries:
        return entries[reference["key"]].decode()
    if reference.get("optional"):
        return None
    raise NotYet(
        "CreateContainerConfigError",
        f"couldn't find key {reference['key']} in {plural.removesuffix('s')} "
        f"{pod['metadata']['namespace']}/{reference['name']}",
    )


def field_of(pod: Object, path: str) -> str:
    """Return a field as the downward API gives it."""
    if match := _SUBSCRIPT.match(path):
        return (pod["metadata"].get(match[1]) or {}).get(match[2], "")
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)


def _resource_of(container: Object, reference: Object) -> str:
    part, _, name = reference["resource"].partition(".")
    value = ((container.get("resources") or {}).get(part) or {}).get(name, "0")
    divisor = quantity(reference.get("divisor") or "1") or 1
    return str(-int(-quantity(value) // divisor))


class PodVolumes:
    """The volumes of one pod, each a folder of this machine.

    The folders are made once and live as long as the pod, so that a restarted container finds its
    ``emptyDir`` again.
    """

    def __init__(self, folder: Path, claims: Path) -> None:
        self.folder = folder
        self._claims = claims

    def make(self, objects: Objects, pod: Object, token_files: dict[str, bytes]) -> None:
        """Make every volume of a pod.

        Raises:
            NotYet: A ConfigMap, Secret or claim that it names is not there.
        """
        for volume in pod["spec"].get("volumes") or []:
            folder = self._folder_of(pod, volume)
            folder.mkdir(parents=True, exist_ok=True)
            if files := self._files_of(objects, pod, volume, token_files):
                _write_files(folder, files)
        if token_files:
            _write_files(self.folder / "-token", token_files)

    def _folder_of(self, pod: Object, volume: Object) -> Path:
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            return self._claims / pod["metadata"]["namespace"] / claim
        return self.folder / volume["name"]

    def _files_of(
        self, objects: Objects, pod: Object, volume: Object, token_files: dict[str, bytes]
    ) -> dict[str, bytes]:
        namespace = pod["metadata"]["namespace"]
        if "emptyDir" in volume:
            return {}
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            if objects.find("persistentvolumeclaims", namespace, claim) is None:
                raise NotYet("ContainerCreating", f'persistentvolumeclaim "{claim}" not found')
            return {}
        if "projected" in volume:
            files: dict[str, bytes] = {}
            for source in volume["projected"].get("sources") or []:
                if "serviceAccountToken" in source:
                    files |= token_files
                else:
                    files |= _chosen(objects, pod, source)
            return files
        return _chosen(objects, pod, volume)

    def mounts_of(self, pod: Object, container: Object) -> list[Mount]:
        """Return where the volumes lie in a container.

        Raises:
            NotYet: It mounts what is no volume, or a part of one that is not there.
        """
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
        mounts = [self._mount(pod, volumes, mount) for mount in container.get("volumeMounts") or []]
        token = self.folder / "-token"
        if token.exists() and not any(mount.at == TOKEN_AT for mount in mounts):
            mounts.append(Mount(at=TOKEN_AT, source=token, is_read_only=True))
        return mounts

    def _mount(self, pod: Object, volumes: dict[str, Object], mount: Object) -> Mount:
        volume = volumes.get(mount["name"])
        if volume is None:
            raise NotYet("CreateContainerConfigError", f"no volume is named {mount['name']!r}")
        is_writable = "emptyDir" in volume or "persistentVolumeClaim" in volume
        source = self._folder_of(pod, volume)
        if mount.get("subPath"):
            source = source / mount["subPath"]
            if not source.exists():
                if not is_writable:
                    raise NotYet(
                        "CreateContainerConfigError",
                        f"failed to prepare subPath {mount['subPath']!r} of {mount['name']!r}",
                    )
                source.mkdir(parents=True)
        return Mount(
            at=mount["mountPath"].rstrip("/") or "/",
            source=source,
            is_read_only=bool(mount.get("readOnly")) or not is_writable,
        )

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def _chosen(objects: Objects, pod: Object, volume: Object) -> dict[str, bytes]:
    """Return the files of a configMap, secret or downwardAPI volume or projection."""
    if "downwardAPI" in volume:
        return {
            item["path"]: field_of(pod, item["fieldRef"]["fieldPath"]).encode()
            for item in volume["downwardAPI"].get("items") or []
        }
    if "configMap" in volume:
        plural, reference = "configmaps", volume["configMap"]
    elif "secret" in volume:
        plural, reference = "secrets", volume["secret"]
    else:
        kind = next((key for key in volume if key != "name"), "none")
        raise NotYet(
            "ContainerCreating", f"volume {volume.get('name')!r}: {kind} is not provided here"
        )
    name = reference.get("name") or reference.get("secretName", "")
    entries = contents(objects, plural, pod["metadata"]["namespace"], name)
    if entries is None:
        if reference.get("optional"):
            return {}
        raise NotYet(
            "ContainerCreating", f'MountVolume.SetUp failed: {plural[:-1]} "{name}" not found'
        )
    items = reference.get("items")
    if items is None:
        return entries
    missing = [item["key"] for item in items if item["key"] not in entries]
    if missing and not reference.get("optional"):
        raise NotYet("ContainerCreating", f"{plural[:-1]} {name!r} has no key {missing}")
    return {item["path"]: entries[item["key"]] for item in items if item["key"] in entries}
