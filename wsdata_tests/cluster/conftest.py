"""The Kubernetes double with clients of it, and the control planes of the conformance suite."""

import pytest
from kubernetes import client
from kubernetes.config import new_client_from_config

from wsdata_tests.cluster import control_plane
from wsdata_tests.cluster.kube.double import running_kube
from wsdata_tests.cluster.kube.samples import NODES


@pytest.fixture(
    scope="module",
    params=["double", pytest.param("real", marks=pytest.mark.conformance)],
)
def cluster(request, tmp_path_factory):
    """A control plane with what a namespace of the chart holds: its accounts, a pool's Secret."""
    if request.param == "double":
        opened = control_plane.double(tmp_path_factory.mktemp("kube"))
    else:
        opened = control_plane.named()
    with opened as found:
        for identity in ("pipeline", "decode", "vault", "trainer"):
            found.create({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": f"wsdata-{identity}"}, "automountServiceAccountToken": False,
            })  # fmt: skip
        found.create({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wsdata-decode-s3"},
            "stringData": {"TOLD": "by-a-secret"},
        })  # fmt: skip
        yield found


@pytest.fixture(scope="module")
def kube(tmp_path_factory):
    with running_kube(tmp_path_factory.mktemp("kube"), nodes=NODES) as running:
        yield running


@pytest.fixture(scope="module")
def api(kube):
    return new_client_from_config(str(kube.kubeconfig))


@pytest.fixture
def core(api):
    return client.CoreV1Api(api)


@pytest.fixture
def batch(api):
    return client.BatchV1Api(api)
