"""The HTTP side of the API: routes, bodies, streams. What a request means is in `verbs`."""

import json
import logging
import re
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import yaml

from wsdata_tests.cluster.kube.access import ADMIN, Request
from wsdata_tests.cluster.kube.discovery import discovery_of
from wsdata_tests.cluster.kube.logs import LogRequest
from wsdata_tests.cluster.kube.objects import BY_PLURAL, Object, Refused
from wsdata_tests.cluster.kube.selectors import field_matcher, label_matcher
from wsdata_tests.cluster.kube.strict import check_known_fields
from wsdata_tests.cluster.kube.verbs import scale_of

if TYPE_CHECKING:
    from wsdata_tests.cluster.kube.control_plane import ControlPlane

log = logging.getLogger(__name__)

_ROUTE = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>.+))?)?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_TRUE = ("true", "True", "1")


class Handler(BaseHTTPRequestHandler):
    """One connection; bound to a control plane by `handler_for`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    plane: ClassVar["ControlPlane"]
    is_anonymous_admin: ClassVar[bool]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base
        log.debug(format, *args)

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self.answered = 0
        self.user = ""
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        try:
            self.user = self.plane.access.user_of(
                self.headers.get("Authorization", ""),
                is_anonymous_admin=self.is_anonymous_admin,
                impersonated=self.headers.get("Impersonate-User", ""),
            )
            body = _parse(raw, self.headers.get("Content-Type", ""))
            self._route(parts.path.rstrip("/"), body)
        except Refused as refused:
            self._answer(refused.code, refused.to_status())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.exception("%s %s", self.command, self.path)
            told = Refused(400, "BadRequest", f"{self.command} {parts.path}: {error!r}")
            self._answer(told.code, told.to_status())
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.plane.record_call(self.command, self.path, self.user, self.answered)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _route(self, path: str, body: Any) -> None:
        if path.startswith("/double/"):
            if self.user != ADMIN:
                raise Refused(403, "Forbidden", "only the test itself may disturb the cluster")
            self._answer(200, self.plane.disturb(path.removeprefix("/double/"), body or {}))
            return
        if self.command == "GET":
            if path in ("/healthz", "/livez", "/readyz"):
                self._send(200, "text/plain", b"ok")
                return
            found = discovery_of(path)
            if found is not None:
                self._answer(200, found)
                return
        match = _ROUTE.match(path)
        if match is None:
            raise Refused(404, "NotFound", f"the server could not find {path}")
        route = match.groupdict(default="")
        known = BY_PLURAL.get(route["plural"])
        if known is not None and known.group != route["group"]:
            raise Refused(404, "NotFound", f"the server could not find {path}")
        self._check_access(route)
        if route["name"]:
            self._on_object(route, body)
        else:
            self._on_collection(route, body)

    def _check_access(self, route: dict[str, str]) -> None:
        is_item = bool(route["name"])
        if self.command == "GET":
            verb = "get" if is_item else "watch" if self._asks("watch") else "list"
        elif self.command == "DELETE":
            verb = "delete" if is_item else "deletecollection"
        else:
            verb = _VERBS[self.command]
        resource = route["plural"] + (f"/{route['part']}" if route["part"] else "")
        self.plane.access.check(
            self.user,
            Request(
                verb=verb, group=route["group"], resource=resource,
                namespace=route["namespace"], name=route["name"],
            ),
        )  # fmt: skip

    def _asks(self, name: str) -> bool:
        return self.query.get(name) in _TRUE

    # -- collections

    def _on_collection(self, route: dict[str, str], body: Any) -> None:
        plural, namespace = route["plural"], route["namespace"]
        objects, verbs = self.plane.objects, self.plane.verbs
        if self.command == "POST":
            if not isinstance(body, dict):
                raise Refused(400, "BadRequest", "a body with the object is required")
            if self.query.get("fieldValidation") == "Strict":
                check_known_fields(body)
            is_dry = self.query.get("dryRun") == "All"
            self._answer(201, verbs.create(plural, namespace, body, is_dry=is_dry))
            return
        labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
        if self._asks("watch"):
            self._watch(plural, namespace, labels, fields)
            return
        with objects.lock:
            version = objects.version
            items = objects.select(plural, namespace, labels, fields)
        if self.command == "DELETE":
            for item in items:
                metadata = item["metadata"]
                verbs.delete(
                    plural, metadata.get("namespace", ""), metadata["name"], self._options(body)
                )
        elif self.command != "GET":
            raise Refused(405, "MethodNotAllowed", f"{self.command} of a collection")
        self._answer(200, {
            "kind": _kind(plural) + "List", "apiVersion": _api_version(route),
            "metadata": {"resourceVersion": str(version)}, "items": items,
        })  # fmt: skip

    def _watch(self, plural: str, namespace: str, labels: str, fields: str) -> None:
        objects = self.plane.objects
        has_labels, has_fields = label_matcher(labels), field_matcher(fields)
        seen = int(self.query.get("resourceVersion") or 0)
        lines: list[tuple[str, Object]] = []
        with objects.lock:
            if not seen:
                seen = objects.version
                lines = [
                    ("ADDED", item) for item in objects.select(plural, namespace, labels, fields)
                ]
        if self._asks("sendInitialEvents"):
            lines.append(("BOOKMARK", _initial_end(plural, seen)))
        self._start_stream("application/json")
        waited_s, limit_s = 0.0, float(self.query.get("timeoutSeconds") or 3600)
        while True:
            for change, item in lines:
                self._send_chunk(json.dumps({"type": change, "object": item}).encode() + b"\n")
            if waited_s >= limit_s or self.plane.stopped.is_set():
                break
            before = objects.version
            objects.wait_past(seen if not lines else before - 1, 0.25)
            waited_s += 0.25 if objects.version == before else 0.0
            lines = []
            for at, change, item in objects.changes_since(seen, plural):
                seen = max(seen, at)
                if namespace not in ("", item["metadata"].get("namespace")):
                    continue
                if has_labels(item["metadata"].get("labels") or {}) and has_fields(item):
                    lines.append((change, item))
            seen = max(seen, before)
        self._end_stream()

    # -- single objects

    def _options(self, body: Any) -> Object:
        options = dict(body) if isinstance(body, dict) else {}
        for name in ("propagationPolicy", "gracePeriodSeconds"):
            if name in self.query:
                options[name] = self.query[name]
        return options

    def _on_object(self, route: dict[str, str], body: Any) -> None:
        plural, namespace, name, part = (
            route[key] for key in ("plural", "namespace", "name", "part")
        )
        objects, verbs = self.plane.objects, self.plane.verbs
        if part == "log":
            self._log(objects.read(plural, namespace, name))
        elif part == "eviction":
            self._answer(201, verbs.evict(namespace, name, body or {}))
        elif part not in ("", "status", "scale"):
            raise Refused(404, "NotFound", f"{plural}/{part} is not served")
        elif self.command == "GET":
            stored = objects.read(plural, namespace, name)
            self._answer(200, scale_of(stored) if part == "scale" else stored)
        elif self.command == "DELETE":
            self._answer(200, verbs.delete(plural, namespace, name, self._options(body)))
        else:
            self._change(plural, namespace, name, part, body)

    def _change(self, plural: str, namespace: str, name: str, part: str, body: Any) -> None:
        verbs = self.plane.verbs
        content_type = self.headers.get("Content-Type", "") if self.command == "PATCH" else "put"
        is_apply = "apply-patch" in content_type
        if is_apply and self.plane.objects.find(plural, namespace, name) is None:
            self._answer(201, verbs.create(plural, namespace, body))
            return
        changed = verbs.change(plural, namespace, name, part, body, content_type)
        self._answer(200, scale_of(changed) if part == "scale" else changed)

    def _log(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            self._send(204, "text/plain", b"")  # there is no kubelet to ask yet
            return
        container = self.query.get("container") or _default_container(pod)
        run = self.plane.kubelet.run_of(pod)
        if run is None or not run.logs.has(container):
            raise Refused(400, "BadRequest", _waiting_text(pod, name, container))
        query = self.query
        request = LogRequest(
            is_following=self._asks("follow"),
            has_timestamps=self._asks("timestamps"),
            tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
            since_s=float(query["sinceSeconds"]) if "sinceSeconds" in query else None,
        )
        lines = run.logs.lines(container, request, is_previous=self._asks("previous"))
        if request.is_following:
            self._stream(lines)
        else:
            self._send(200, "text/plain", b"".join(lines))

    # -- answers

    def _answer(self, code: int, body: Any) -> None:
        self._send(code, "application/json", json.dumps(body).encode())

    def _send(self, code: int, content_type: str, body: bytes) -> None:
        self.answered = code
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, lines: Iterable[bytes]) -> None:
        self._start_stream("text/plain")
        for line in lines:
            self._send_chunk(line)
        self._end_stream()

    def _start_stream(self, content_type: str) -> None:
        self.answered = 200
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _send_chunk(self, chunk: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def resource_path(path: str) -> str:
    """Return the resource that a path names, with its subresource: ``pods/log``."""
    match = _ROUTE.match(urlsplit(path).path)
    if match is None:
        return path
    return match["plural"] + (f"/{match['part']}" if match["part"] else "")


def handler_for(plane: "ControlPlane", *, is_anonymous_admin: bool) -> type[Handler]:
    """Return the handler class of one listener."""
    bound = {"plane": plane, "is_anonymous_admin": is_anonymous_admin}
    return type("BoundHandler", (Handler,), bound)


def _parse(raw: bytes, content_type: str) -> Any:
    if not raw:
        return None
    if "protobuf" in content_type:  # what kubectl tries first; this answer makes it use JSON
        raise Refused(415, "UnsupportedMediaType", f"{content_type} is not taken here: send JSON")
    if "yaml" in content_type:
        return yaml.safe_load(raw)
    return json.loads(raw)


def _kind(plural: str) -> str:
    known = BY_PLURAL.get(plural)
    return known.kind if known else plural.capitalize()


def _api_version(route: dict[str, str]) -> str:
    return f"{route['group']}/{route['version']}" if route["group"] else route["core"]


def _initial_end(plural: str, version: int) -> Object:
    """Return the object that tells a watch that all there was has been sent."""
    known = BY_PLURAL.get(plural)
    return {
        "kind": _kind(plural), "apiVersion": known.api_version if known else "v1",
        "metadata": {
            "resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"},
        },
    }  # fmt: skip


def _default_container(pod: Object) -> str:
    annotations = pod["metadata"].get("annotations") or {}
    named = annotations.get("kubectl.kubernetes.io/default-container")
    names = [container["name"] for container in pod["spec"]["containers"]]
    if named or len(names) == 1:
        return named or names[0]
    raise Refused(
        400, "BadRequest",
        f"a container name must be specified for pod {pod['metadata']['name']}, "
        f"choose one of: {names}",
    )  # fmt: skip


def _waiting_text(pod: Object, name: str, container: str) -> str:
    status = pod.get("status", {})
    shown = (status.get("containerStatuses") or []) + (status.get("initContainerStatuses") or [])
    reason = next(
        (one["state"]["waiting"]["reason"] for one in shown
         if one["name"] == container and "waiting" in one["state"]),
        "PodInitializing",
    )  # fmt: skip
    return f'container "{container}" in pod "{name}" is waiting to start: {reason}'
