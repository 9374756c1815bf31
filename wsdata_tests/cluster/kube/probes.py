"""Readiness probes: HTTP, TCP and commands. Liveness is not looked at."""

import http.client
import signal
import socket
import threading
from typing import Any

from wsdata_tests.cluster.kube.bubblewrap import Container, ContainerPlan
from wsdata_tests.cluster.kube.objects import Object


def is_ready(probe: Object, container: Object, plan: ContainerPlan) -> bool:
    """Probe once.

    A command runs in a second container with the same mounts, not inside the first: it sees its
    files and ports, not its processes.
    """
    timeout_s = float(probe.get("timeoutSeconds", 1))
    if "httpGet" in probe:
        return _answers(probe["httpGet"], container, timeout_s)
    if "tcpSocket" in probe or "grpc" in probe:
        port = port_of(container, (probe.get("tcpSocket") or probe["grpc"])["port"])
        try:
            with socket.create_connection(("127.0.0.1", port), timeout_s):
                return True
        except OSError:
            return False
    command = probe["exec"]["command"]
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    probing = Container(ContainerPlan(**{**fields, "argv": command}), lambda _: None)
    late = threading.Timer(timeout_s, probing.signal, [signal.SIGKILL])
    late.start()
    try:
        return probing.wait() == 0
    finally:
        late.cancel()


def port_of(container: Object, port: Any) -> int:
    """Return a port by its number or by its name in the container.

    Raises:
        ValueError: The container has no port of that name.
    """
    if str(port).isdigit():
        return int(port)
    for known in container.get("ports") or []:
        if known.get("name") == port:
            return known["containerPort"]
    raise ValueError(f"container {container['name']} has no port named {port!r}")


def _answers(get: Object, container: Object, timeout_s: float) -> bool:
    connection = http.client.HTTPConnection(
        "127.0.0.1", port_of(container, get["port"]), timeout=timeout_s
    )
    try:
        connection.request("GET", get.get("path", "/"))
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
