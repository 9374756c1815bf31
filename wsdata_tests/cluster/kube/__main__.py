"""Run the double as a process of its own: ``python -m wsdata_tests.cluster.kube``."""

import argparse
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from wsdata_tests.cluster.kube.bubblewrap import ContainersImpossible
from wsdata_tests.cluster.kube.control_plane import ControlPlane, write_kubeconfig
from wsdata_tests.cluster.kube.images import merged_images
from wsdata_tests.cluster.kube.scheduler import default_nodes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m wsdata_tests.cluster.kube",
        description="A Kubernetes API on 127.0.0.1 whose pods are local processes.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 for a free one")
    parser.add_argument("--state", type=Path, required=True, help="folder for its files")
    parser.add_argument("--nodes", type=Path, help="JSON list of name, labels, taints, allocatable")
    parser.add_argument("--images", type=Path, help="JSON map of image names; see images.py")
    parser.add_argument("--parent", type=int, help="end when this is no longer the parent process")
    return parser.parse_args()


def _read(path: Path | None, default: object) -> object:
    return json.loads(path.read_text()) if path is not None else default


def main() -> int:
    """Serve until SIGTERM or SIGINT; print where as one line of JSON."""
    arguments = _arguments()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    wanted = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: wanted.set())
    nodes = _read(arguments.nodes, default_nodes())
    images = merged_images(_read(arguments.images, {}))  # type: ignore[arg-type]
    try:
        plane = ControlPlane(arguments.state.resolve(), nodes, images)  # type: ignore[arg-type]
    except ContainersImpossible as impossible:
        sys.stderr.write(f"error: {impossible}\n")
        return 1
    url = plane.start(arguments.port)
    try:
        kubeconfig = write_kubeconfig(plane.folder / "kubeconfig", url)
        sys.stdout.write(json.dumps({"url": url, "kubeconfig": str(kubeconfig)}) + "\n")
        sys.stdout.flush()
        while not wanted.wait(0.5):
            if arguments.parent is not None and os.getppid() != arguments.parent:
                break
    finally:
        plane.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
