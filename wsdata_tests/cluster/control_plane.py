"""A control plane as the conformance suite asks it: the double, or a real one, by one interface.

A real one is named by ``WSDATA_KUBECONFIG``. All that the suite makes there lies in a namespace of
its own, which is deleted at the end; of what lies outside, it only asks.
"""

import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config

from wsdata_tests.cluster.kube.double import running_kube
from wsdata_tests.cluster.kube.samples import NODES
from wsdata_tests.deploy.chart import ROOT

Object = dict[str, Any]

KUBECONFIG, IMAGE = "WSDATA_KUBECONFIG", "WSDATA_CONFORMANCE_IMAGE"
TOOLS = ROOT / ".venv" / "bin"
DOUBLES_IMAGE, SOME_IMAGE = "wsdata-gpu:1", "busybox:stable"

# The version that first has, without a feature gate, what an expectation is about.
SINCE = {
    "ttlSecondsAfterFinished": (1, 21),
    "policy/v1": (1, 22),  # its Eviction; PodDisruptionBudgets came one earlier
    "server-side apply": (1, 22),
    "gRPC probes": (1, 24),
    "fieldValidation": (1, 25),
    "CronJob.spec.timeZone": (1, 25),
    "podFailurePolicy": (1, 26),
    "DisruptionTarget": (1, 26),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """One control plane, asked with the official client.

    Attributes:
        kubeconfig: How it is reached, with all rights.
        namespace: Where the suite works.
        api: The client.
        version: Major and minor.
        is_double: Whether it is the test double.
        ready_nodes: Nodes that can run pods.
        image: What a pod that runs is made of: a shell and the usual tools.
    """

    kubeconfig: Path
    namespace: str
    api: client.ApiClient
    version: tuple[int, int]
    is_double: bool
    ready_nodes: int
    image: str
    _groups: dict[str, Object] = field(default_factory=dict)

    @property
    def batch(self) -> client.BatchV1Api:
        return client.BatchV1Api(self.api)

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    def needs(self, what: str) -> None:
        """Skip the test where the control plane is older than what it is about."""
        if self.version < SINCE[what]:
            pytest.skip(f"{what} came with Kubernetes {_dotted(SINCE[what])}: this is {self}")

    def needs_nodes(self) -> None:
        """Skip the test where no pod can run."""
        if not self.ready_nodes:
            pytest.skip(f"no node of this control plane is ready, so no pod runs: this is {self}")

    def acting_as(self, account: str) -> "Cluster":
        """Return the same cluster as a service account of the namespace sees it."""
        api = new_client_from_config(str(self.kubeconfig))
        api.set_default_header(
            "Impersonate-User", f"system:serviceaccount:{self.namespace}:{account}"
        )
        return replace(self, api=api)

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Object:
        """Ask, and return the answer's JSON.

        Raises:
            ApiException: It is another than success.
        """
        answer: Any = self.api.call_api(
            path, method, query_params=list(query.items()), body=body,
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            auth_settings=["BearerToken"], _preload_content=False, _return_http_data_only=True,
        )  # fmt: skip
        return json.loads(answer.data or b"null")

    def path_of(self, api_version: str, kind: str) -> str:
        """Return where objects of a kind lie in the suite's namespace, as discovery tells.

        Raises:
            KeyError: The control plane serves no such kind.
        """
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if root not in self._groups:
            try:
                self._groups[root] = self.request("GET", root)
            except ApiException as error:
                raise KeyError(f"{api_version} is not served by {self}") from error
        for each in self._groups[root]["resources"]:
            if each["kind"] == kind and "/" not in each["name"]:
                inside = f"/namespaces/{self.namespace}" if each["namespaced"] else ""
                return f"{root}{inside}/{each['name']}"
        raise KeyError(f"{api_version} {kind} is not served by {self}")

    def create(self, manifest: Object, *, is_dry: bool = False, is_strict: bool = True) -> Object:
        """Create an object; where strictly, a field that is not known is refused, since 1.25.

        Raises:
            ApiException: It is refused.
        """
        query = {"fieldValidation": "Strict" if is_strict else "Ignore"}
        query |= {"dryRun": "All"} if is_dry else {}
        path = self.path_of(manifest["apiVersion"], manifest["kind"])
        return self.request("POST", path, manifest, **query)

    def job(self, name: str) -> Object | None:
        """Return a Job as it is now, None where there is none."""
        try:
            return self._plain(self.batch.read_namespaced_job(name, self.namespace))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def pods(self, job: str) -> list[Object]:
        """Return the pods of a Job that are known."""
        found = self.core.list_namespaced_pod(self.namespace, label_selector=f"job-name={job}")
        return [self._plain(each) for each in found.items]

    def pod_of(self, job: str) -> Object:
        """Wait until a Job has its one pod, and return it."""

        def one() -> Object | None:
            living = [pod for pod in self.pods(job) if "deletionTimestamp" not in pod["metadata"]]
            return living[0] if living else None

        return self.wait_for(one, f"a pod of Job {job}")

    def set_pod_status(self, pod: Object, status: Object) -> None:
        """Play the kubelet: say how a pod is that no node has."""
        self.core.patch_namespaced_pod_status(
            pod["metadata"]["name"], self.namespace, {"status": status}
        )

    def condition(self, job: str) -> Object | None:
        """Return the condition that ends a Job, None before it has one."""
        found = self.job(job) or {}
        for each in found.get("status", {}).get("conditions") or []:
            if each["type"] in ("Complete", "Failed") and each["status"] == "True":
                return each
        return None

    def events(self, about: str, reason: str) -> list[str]:
        """Return what events of a reason say about an object."""
        found = self.core.list_namespaced_event(
            self.namespace, field_selector=f"involvedObject.name={about}"
        )
        return [each.message for each in found.items if each.reason == reason]

    def wait_for(self, look: Callable[[], Any], what: str, *, timeout_s: float = 60) -> Any:
        """Look until there is something, and return it.

        Raises:
            TimeoutError: There is nothing for too long.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.1)
        raise TimeoutError(f"{what}: not within {timeout_s:g} s on {self}")

    def run(
        self, tool: str, *arguments: str, namespace: str = "", stdin: Any = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl or helm, in the suite's namespace unless told; objects go in as JSON."""
        inside = ["--kubeconfig", str(self.kubeconfig), "-n", namespace or self.namespace]
        return subprocess.run(  # noqa: S603
            [str(TOOLS / tool), *inside, *arguments],
            input="" if stdin is None else json.dumps(stdin),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    def _plain(self, answer: Any) -> Object:
        return self.api.sanitize_for_serialization(answer)

    def __str__(self) -> str:
        return f"{'the double' if self.is_double else 'Kubernetes'} {_dotted(self.version)}"


def refusal(call: Callable[[], Any]) -> tuple[int, str, str]:
    """Return the code, reason and message that a call is refused with."""
    with pytest.raises(ApiException) as caught:
        call()
    told = json.loads(caught.value.body or "{}")
    return told.get("code", caught.value.status), told.get("reason", ""), told.get("message", "")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


@contextmanager
def double(folder: Path) -> Iterator[Cluster]:
    """Run the double for the suite."""
    namespace = f"wsdata-conformance-{secrets.token_hex(3)}"
    with running_kube(folder, nodes=NODES, namespace=namespace) as kube:
        yield _cluster(kube.kubeconfig, namespace, is_double=True, image=DOUBLES_IMAGE)


@contextmanager
def named() -> Iterator[Cluster]:
    """Work on the control plane that the environment names; skip the test where it names none."""
    path = os.environ.get(KUBECONFIG)
    if not path:
        pytest.skip(f"{KUBECONFIG} names no kubeconfig: make conformance KUBECONFIG=...")
    namespace = f"wsdata-conformance-{secrets.token_hex(3)}"
    image = os.environ.get(IMAGE, SOME_IMAGE)
    cluster = _cluster(Path(path), namespace, is_double=False, image=image)
    body = client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace))
    cluster.core.create_namespace(body)
    try:
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        cluster.wait_for(lambda: _is_there(cluster, account), "the namespace's own account")
        yield cluster
    finally:
        cluster.core.delete_namespace(namespace)


def _is_there(cluster: Cluster, path: str) -> bool:
    with suppress(ApiException):
        cluster.request("GET", path)
        return True
    return False


def _cluster(kubeconfig: Path, namespace: str, *, is_double: bool, image: str) -> Cluster:
    api = new_client_from_config(str(kubeconfig))
    said = client.VersionApi(api).get_code()
    numbers = re.match(r"v?(\d+)\.(\d+)", said.git_version)
    if numbers is None:
        raise ValueError(f"{kubeconfig}: version {said.git_version!r}: expected v1.34.0, say")
    return Cluster(
        kubeconfig=kubeconfig, namespace=namespace, api=api, image=image, is_double=is_double,
        version=(int(numbers[1]), int(numbers[2])),
        ready_nodes=sum(_is_ready(node) for node in client.CoreV1Api(api).list_node().items),
    )  # fmt: skip


def _is_ready(node: Any) -> bool:
    conditions = {each.type: each.status for each in node.status.conditions or []}
    return conditions.get("Ready") == "True" and not node.spec.unschedulable
