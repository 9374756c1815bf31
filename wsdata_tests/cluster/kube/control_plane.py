"""The whole double in one process: listeners, controllers, nodes, and what tests do to it."""

import json
import logging
import threading
from collections import deque
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wsdata_tests.cluster.kube.access import Access
from wsdata_tests.cluster.kube.bubblewrap import check_containers_possible
from wsdata_tests.cluster.kube.collector import finish_foreground
from wsdata_tests.cluster.kube.deployments import DeploymentController
from wsdata_tests.cluster.kube.images import image_from
from wsdata_tests.cluster.kube.jobs import JobController
from wsdata_tests.cluster.kube.kubelet import Kubelet, number_of
from wsdata_tests.cluster.kube.names import HostsFile, write_accounts
from wsdata_tests.cluster.kube.objects import Object, Objects, Refused, run_controller
from wsdata_tests.cluster.kube.pods import Machine
from wsdata_tests.cluster.kube.rest import handler_for, resource_path
from wsdata_tests.cluster.kube.scheduler import Scheduler, node_entries, node_object
from wsdata_tests.cluster.kube.verbs import Verbs

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_MAX_CALLS = 100_000


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("connection from %s", client_address, exc_info=True)


class ControlPlane:
    """An API on two ports: plain HTTP for tests, HTTPS for pods."""

    def __init__(
        self, folder: Path, nodes: list[Object] | dict[str, Object], images: dict[str, Any]
    ) -> None:
        check_containers_possible()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder, self._nodes = folder, node_entries(nodes)
        self.objects = Objects()
        self.access = Access(self.objects, folder / "certificates")
        hosts = HostsFile(self.objects, folder / "hosts")
        self.kubelet = Kubelet(Machine(
            objects=self.objects, access=self.access, folder=folder, hosts=hosts.path,
            images={name: image_from(image) for name, image in images.items()},
            accounts=write_accounts(folder / "passwd"),
        ))  # fmt: skip
        self.verbs = Verbs(self.objects, self.kubelet)
        self.stopped = threading.Event()
        self._calls: deque[Object] = deque(maxlen=_MAX_CALLS)
        self._controllers: list[Callable[[], None]] = [
            Scheduler(self.objects, self.kubelet).reconcile,
            JobController(self.objects, self.kubelet, self._record_pod).reconcile,
            DeploymentController(self.objects, self.kubelet, self._record_pod).reconcile,
            self.kubelet.reconcile,
            hosts.reconcile,
            lambda: finish_foreground(self.objects),
        ]
        self._servers: list[_Server] = []

    def start(self, port: int = 0, host: str = "127.0.0.1") -> str:
        """Listen and run; returns the address for tests."""
        for namespace in ("default", "kube-system"):
            self.verbs.add_namespace(namespace)
        for node in self._nodes:
            self.objects.create("nodes", "", node_object(node))
        secure = _Server((host, 0), handler_for(self, is_anonymous_admin=False))
        # the handshake belongs to the connection's own thread
        secure.socket = self.access.certificates.server_context().wrap_socket(
            secure.socket, server_side=True, do_handshake_on_connect=False
        )
        self.access.https_port = secure.server_port
        plain = _Server((host, port), handler_for(self, is_anonymous_admin=True))
        self._servers = [plain, secure]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        for reconcile in self._controllers:
            threading.Thread(
                target=run_controller, args=(self.objects, self.stopped, reconcile), daemon=True
            ).start()
        return f"http://{host}:{plain.server_port}"

    def stop(self) -> None:
        """End every pod, then the listeners."""
        self.stopped.set()
        self.kubelet.end_all()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def record_call(self, method: str, path: str, user: str, code: int) -> None:
        if not path.startswith("/double/"):
            self._calls.append({
                "method": method, "path": path, "user": user, "code": code,
                "resource": resource_path(path),
            })  # fmt: skip

    def _record_pod(self, namespace: str, user: str) -> None:
        """Note a pod that a controller made, as a control plane's own audit does."""
        account = f"system:serviceaccount:kube-system:{user}"
        self.record_call("POST", f"/api/v1/namespaces/{namespace}/pods", account, 201)

    def disturb(self, what: str, asked: Object) -> Any:
        """Do what a test asks beside the API.

        Raises:
            Refused: There is no such pod, node or act.
        """
        acts: dict[str, Callable[[Object], Any]] = {
            "audit": lambda _: list(self._calls),
            "kill": self._kill,
            "preempt": self._preempt,
            "lose_node": lambda asked: self.kubelet.lose_node(asked["node"]),
            "restore_node": self._restore_node,
            "add_namespace": lambda asked: self.verbs.add_namespace(asked["namespace"]),
        }
        if what not in acts:
            raise Refused(404, "NotFound", f"/double/{what}: expected one of {sorted(acts)}")
        return acts[what](asked)

    def _kill(self, asked: Object) -> None:
        number = number_of(str(asked.get("signal", "SIGKILL")))
        self.kubelet.kill(asked["namespace"], asked["pod"], number, asked.get("reason", ""))

    def _preempt(self, asked: Object) -> None:
        pod = self.objects.read("pods", asked["namespace"], asked["pod"])
        message = "Preempted in favour of a pod of higher priority"
        self.kubelet.disrupt(pod, "PreemptionByScheduler", message, grace_s=asked.get("grace_s"))

    def _restore_node(self, asked: Object) -> None:
        known = {node["name"]: node for node in self._nodes}
        if asked["node"] not in known:
            raise Refused(
                404, "NotFound", f"node {asked['node']!r}: expected one of {sorted(known)}"
            )
        self.objects.create("nodes", "", node_object(known[asked["node"]]))


def write_kubeconfig(path: Path, url: str, namespace: str = "default") -> Path:
    """Write the configuration that lets its reader do all."""
    named = "kube-double"
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": named,
        "clusters": [{"name": named, "cluster": {"server": url}}],
        "users": [{"name": named, "user": {}}],
        "contexts": [
            {"name": named, "context": {"cluster": named, "user": named, "namespace": namespace}}
        ],
    }, indent=2))  # fmt: skip
    return path
