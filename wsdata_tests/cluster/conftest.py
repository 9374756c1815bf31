"""The control planes that the conformance suite asks."""

import pytest

from wsdata_tests.cluster import control_plane


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
