"""The double as tests use it: started, talked to over HTTP, disturbed and ended."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsdata_tests.cluster.kube.apply import apply_manifests
from wsdata_tests.cluster.kube.images import ROOT
from wsdata_tests.cluster.kube.objects import BY_PLURAL, Object, Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Kube:
    """A running double.

    Attributes:
        url: Its plain address; whoever asks there without a token may do all.
        kubeconfig: The same for clients that want a file.
        folder: Its state: logs of pods under ``pods/<uid>/logs``.
        namespace: Where methods look that are told no other.
    """

    url: str
    kubeconfig: Path
    folder: Path
    namespace: str = "default"

    def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> Any:
        """Ask the API; returns its JSON, or text where it answers with text.

        Raises:
            Refused: It answers with an error.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  an address of our own
            self.url + path, data=data, method=method, headers={"Content-Type": content_type}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            told = json.loads(error.read() or b"{}")
            raise Refused(error.code, told.get("reason", ""), told.get("message", "")) from error
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return json.loads(text) if is_json else text

    def apply(self, manifests: list[Object], *, timeout_s: float = 300) -> None:
        """Install manifests as Helm does: see `apply_manifests`."""
        apply_manifests(self, manifests, timeout_s=timeout_s)

    def audit(self) -> list[Object]:
        """Return the API calls so far, controllers' included: method, path, user, code."""
        return self._disturb("audit")

    def calls(self) -> list[str]:
        """Return the API calls so far as ``POST pods`` or ``GET pods/log``."""
        return [f"{call['method']} {call['resource']}" for call in self.audit()]

    def get(self, plural: str, name: str) -> Object:
        """Return one object.

        Raises:
            Refused: There is none of that name.
        """
        return self.request("GET", BY_PLURAL[plural].path(self.namespace, name))

    def pods(self, label_selector: str = "") -> list[Object]:
        """Return the pods of the namespace that a selector takes."""
        query = urllib.parse.urlencode({"labelSelector": label_selector})
        return self.request("GET", f"/api/v1/namespaces/{self.namespace}/pods?{query}")["items"]

    def logs(self, pod: str, container: str = "") -> str:
        """Return what a container has written so far."""
        query = urllib.parse.urlencode({"container": container} if container else {})
        return self.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log?{query}")

    def log_of_job(self, name: str) -> str:
        """Return what the newest pod of a Job has written so far; empty before it has."""
        pods = self.pods(f"job-name={name}")
        try:
            return self.logs(pods[-1]["metadata"]["name"]) if pods else ""
        except Refused as refused:
            if refused.code == 400:
                return ""
            raise

    def kill_pod(self, name: str, signal: str = "SIGKILL") -> None:
        """Signal the processes of a pod, by the signal's name or number; SIGKILL exits with 137."""
        self._disturb("kill", pod=name, signal=str(int(signal) if _is_number(signal) else signal))

    def oom_kill(self, name: str) -> None:
        """End the processes of a pod as the kernel does when their memory runs out."""
        self._disturb("kill", pod=name, signal="SIGKILL", reason="OOMKilled")

    def preempt(self, name: str, *, grace_s: float | None = None) -> None:
        """End a pod in favour of another; it gets its grace, or the one given here."""
        self._disturb("preempt", pod=name, grace_s=grace_s)

    def lose_node(self, name: str) -> list[str]:
        """Take a node away with all that runs on it; returns the names of its pods."""
        return self._disturb("lose_node", node=name)

    def restore_node(self, name: str) -> None:
        """Bring a lost node back, empty."""
        self._disturb("restore_node", node=name)

    def wait_for(self, condition: Callable[[], Any], what: str, *, timeout_s: float = 60) -> Any:
        """Ask until the answer is true, and return it.

        Raises:
            TimeoutError: It did not become true; tells the pods as they are.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        shown = {pod["metadata"]["name"]: pod["status"] for pod in self.pods()}
        raise TimeoutError(f"{what}: not within {timeout_s:g} s; pods {json.dumps(shown)}")

    def _disturb(self, act: str, **asked: Any) -> Any:
        return self.request("POST", f"/double/{act}", {"namespace": self.namespace, **asked})


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or str(value).isdigit()


def connect(folder: Path, *, namespace: str = "default") -> Kube:
    """Return a double that runs with this state folder."""
    kubeconfig = folder / "kubeconfig"
    url = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    return Kube(url=url, kubeconfig=kubeconfig, folder=folder, namespace=namespace)


@contextmanager
def running_kube(
    folder: Path,
    nodes: list[Object] | dict[str, Object] | None = None,
    *,
    images: dict[str, Any] | None = None,
    namespace: str = "default",
) -> Iterator[Kube]:
    """Run a double in a process of its own; at the end all pods are killed.

    Args:
        folder: For its state; made if missing.
        nodes: Entries of name, labels, taints, allocatable, gpus, or a map from names to the
            rest; None for one of each pool.
        images: Other images, or fields of the project's to replace, by name: binds, path, env,
            user, working_dir.
        namespace: Made if missing, and what the returned object's methods look at.

    Raises:
        RuntimeError: It does not start; the message holds what it said.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", "wsdata_tests.cluster.kube", "--state", str(folder)]
    command += ["--parent", str(os.getpid())]
    for name, value in (("nodes", nodes), ("images", images)):
        if value is not None:
            path = folder / f"{name}.json"
            path.write_text(json.dumps(value))
            command += [f"--{name}", str(path)]
    with _running(command, folder / "double.log"):
        kube = connect(folder, namespace=namespace)
        kube.request("POST", "/double/add_namespace", {"namespace": namespace})
        yield kube


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    """Run the double's process; entered once it serves."""
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=file, start_new_session=True
        )
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise RuntimeError(f"the Kubernetes double did not start: {log.read_text()}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
