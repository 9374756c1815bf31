"""The names of Services: a hosts file that every container shows as its own."""

from pathlib import Path

from wsdata_tests.cluster.kube.objects import Objects


class HostsFile:
    """Kept up to date in place, since running containers have it mounted."""

    def __init__(self, objects: Objects, path: Path) -> None:
        self._objects, self.path = objects, path
        self._written = ""
        self.reconcile()

    def reconcile(self) -> None:
        """Write the names of the Services that are there now."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for service in self._objects.select("services"):
            name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
            within = f"{name}.{namespace}"
            lines.append(f"127.0.0.1 {name} {within} {within}.svc {within}.svc.cluster.local")
        lines.append("127.0.0.1 kubernetes kubernetes.default kubernetes.default.svc")
        text = "\n".join(lines) + "\n"
        if text != self._written:
            self.path.write_text(text)
            self._written = text


def write_accounts(path: Path) -> Path:
    """Write the passwd file of every container."""
    path.write_text(
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
        "wsdata:x:10001:10001::/tmp:/bin/sh\n"
    )
    return path
