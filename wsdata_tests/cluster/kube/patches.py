"""The patches that the API takes: merge, strategic merge, JSON patch, apply."""

import copy
from typing import Any

from wsdata_tests.cluster.kube.objects import Object, Refused

# lists that a strategic merge joins by a key; those that are not here are replaced
_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
    "volumeMounts": "mountPath", "conditions": "type", "ports": "containerPort",
}  # fmt: skip


def patched(stored: Object, patch: Any, content_type: str) -> Object:
    """Return an object with a patch applied.

    Raises:
        Refused: 400 or 415, the patch is of a form that is not taken here.
    """
    if "json-patch" in content_type:
        if not isinstance(patch, list):
            raise Refused(400, "BadRequest", "a JSON patch is a list of operations")
        result = copy.deepcopy(stored)
        for operation in patch:
            _apply_operation(result, operation)
        return result
    if "merge-patch" in content_type or "apply-patch" in content_type:
        is_strategic = "strategic" in content_type or "apply-patch" in content_type
        return _merged(stored, patch, is_strategic=is_strategic)
    raise Refused(415, "UnsupportedMediaType", f"content type {content_type!r} is no patch")


def _merged(old: Any, new: Any, *, is_strategic: bool, key: str = "") -> Any:
    if isinstance(new, dict):
        result = copy.deepcopy(old) if isinstance(old, dict) else {}
        for name, value in new.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = _merged(result.get(name), value, is_strategic=is_strategic, key=name)
        return result
    merge_key = _MERGE_KEYS.get(key)
    if is_strategic and merge_key and isinstance(new, list) and isinstance(old, list):
        return _merged_list(old, new, merge_key)
    return copy.deepcopy(new)


def _merged_list(old: list[Object], new: list[Object], merge_key: str) -> list[Object]:
    result = copy.deepcopy(old)
    for item in new:
        known = next((one for one in result if one.get(merge_key) == item.get(merge_key)), None)
        if item.get("$patch") == "delete":
            result = [one for one in result if one is not known]
        elif known is None:
            result.append(copy.deepcopy(item))
        else:
            result[result.index(known)] = _merged(known, item, is_strategic=True)
    return result


def _apply_operation(target: Any, operation: Object) -> None:
    *path, last = [
        part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
    ]
    try:
        for part in path:
            target = target[int(part) if isinstance(target, list) else part]
        _set(target, last, operation)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise Refused(422, "Invalid", f"JSON patch {operation}: {error!r}") from error


def _set(target: Any, last: str, operation: Object) -> None:
    if isinstance(target, list):
        match operation["op"]:
            case "add":
                target.insert(len(target) if last == "-" else int(last), operation["value"])
            case "replace":
                target[int(last)] = operation["value"]
            case "remove":
                del target[int(last)]
        return
    match operation["op"]:
        case "add" | "replace":
            target[last] = operation["value"]
        case "remove":
            del target[last]
        case "test":
            if target.get(last) != operation["value"]:
                raise ValueError("test failed")
