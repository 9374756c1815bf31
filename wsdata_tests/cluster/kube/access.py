"""Who may ask what: service-account tokens, the API's certificate, and RBAC."""

import re
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from wsdata_tests.cluster.kube.objects import Object, Objects, Refused
from wsdata_tests.cluster.kube.tls import make_certificates

ADMIN = "kubernetes-admin"
_ACCOUNT = re.compile(r"system:serviceaccount:[^:]+:[^:]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What RBAC looks at."""

    verb: str
    group: str
    resource: str  # with its subresource: "pods/log"
    namespace: str
    name: str = ""


class Access:
    def __init__(self, objects: Objects, folder: Path) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[str, str]] = {}
        self._by_account: dict[tuple[str, str], str] = {}
        self.certificates = make_certificates(folder)
        self.https_port = 0

    def service_environment(self) -> dict[str, str]:
        """Return where a pod finds the API."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.https_port),
        }

    def token_files(self, pod: Object) -> dict[str, bytes]:
        """Return the files of a pod's service account, none where it wants none."""
        namespace, spec = pod["metadata"]["namespace"], pod["spec"]
        name = spec.get("serviceAccountName", "default")
        account = self._objects.find("serviceaccounts", namespace, name) or {}
        wanted = spec.get(
            "automountServiceAccountToken", account.get("automountServiceAccountToken", True)
        )
        if wanted is False:
            return {}
        return {
            "token": self._token_of(namespace, name).encode(),
            "ca.crt": self.certificates.authority.read_bytes(),
            "namespace": namespace.encode(),
        }

    def _token_of(self, namespace: str, name: str) -> str:
        with self._lock:
            token = self._by_account.get((namespace, name))
            if token is None:
                token = self._by_account[namespace, name] = secrets.token_urlsafe(32)
                self._tokens[token] = (namespace, name)
            return token

    def user_of(
        self, authorization: str, *, is_anonymous_admin: bool, impersonated: str = ""
    ) -> str:
        """Return who asks, or who they ask as.

        Raises:
            Refused: 401, the token is not known, or there is none where one is needed; 403, who
                asks may not ask as another, or the other is no service account.
        """
        user = self._holder_of(authorization, is_anonymous_admin=is_anonymous_admin)
        if not impersonated:
            return user
        if user != ADMIN or _ACCOUNT.fullmatch(impersonated) is None:
            raise Refused(
                403, "Forbidden",
                f'users "{impersonated}" is forbidden: User "{user}" cannot impersonate it',
            )  # fmt: skip
        return impersonated

    def _holder_of(self, authorization: str, *, is_anonymous_admin: bool) -> str:
        scheme, _, token = authorization.partition(" ")
        if not authorization and is_anonymous_admin:
            return ADMIN
        if scheme.lower() == "bearer" and token.strip() in self._tokens:
            namespace, name = self._tokens[token.strip()]
            return f"system:serviceaccount:{namespace}:{name}"
        raise Refused(401, "Unauthorized", "Unauthorized")

    def check(self, user: str, request: Request) -> None:
        """Let a request pass.

        Raises:
            Refused: 403, no role that is bound to the user allows it.
        """
        if user == ADMIN or any(_allows(rule, request) for rule in self._rules(user, request)):
            return
        resource, _, part = request.resource.partition("/")
        shown = f'"{resource}/{part}"' if part else f'"{resource}"'
        named = f' "{request.name}"' if request.name else ""
        where = (
            f'in the namespace "{request.namespace}"'
            if request.namespace
            else "at the cluster scope"
        )
        raise Refused(
            403, "Forbidden",
            f'{resource}{named} is forbidden: User "{user}" cannot {request.verb} resource {shown} '
            f'in API group "{request.group}" {where}',
        )  # fmt: skip

    def _rules(self, user: str, request: Request) -> list[Object]:
        namespace, name = user.split(":")[2:4]
        bindings = self._objects.select("clusterrolebindings")
        if request.namespace:
            bindings += self._objects.select("rolebindings", request.namespace)
        rules: list[Object] = []
        for binding in bindings:
            if any(
                _is_subject(one, binding, namespace, name) for one in binding.get("subjects") or []
            ):
                rules += self._role_of(binding).get("rules") or []
        return rules

    def _role_of(self, binding: Object) -> Object:
        role = binding["roleRef"]
        if role["kind"] == "ClusterRole":
            return self._objects.find("clusterroles", "", role["name"]) or {}
        return self._objects.find("roles", binding["metadata"]["namespace"], role["name"]) or {}


def _is_subject(subject: Object, binding: Object, namespace: str, name: str) -> bool:
    if subject.get("kind") == "Group":
        return subject["name"] in (
            "system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated",
        )  # fmt: skip
    # a namespace is required of a service account; without one a real binding matches nobody
    return (
        subject.get("kind") == "ServiceAccount"
        and subject["name"] == name
        and subject.get("namespace", "") == namespace
    )


def _allows(rule: Object, request: Request) -> bool:
    names = rule.get("resourceNames")
    return (
        _covers(rule.get("apiGroups"), request.group)
        and _covers(rule.get("resources"), request.resource)
        and _covers(rule.get("verbs"), request.verb)
        and (not names or request.name in names)
    )


def _covers(listed: list[str] | None, value: str) -> bool:
    return bool(listed) and ("*" in listed or value in listed)
