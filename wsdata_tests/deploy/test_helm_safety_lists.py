"""The chart mounts safety lists where the deployment that it writes looks for them."""

import pytest

from wsdata.deployment import load_deployment
from wsdata_tests.deploy.chart import files_of, pods, render
from wsdata_tests.deploy.launched import write


@pytest.mark.parametrize(
    ("name", "kind"),
    [("plain", None), ("all_on", "secret"), ("all_off", "persistentVolumeClaim")],
)
def test_safety_lists_are_where_the_deployment_looks_for_them(name, kind, tmp_path):
    deployment = load_deployment(write(tmp_path, files_of(name, "deployment")))
    assert deployment.safety_max_distance == (24 if name == "all_on" else 31)
    for pod in pods(render(name)).values():
        if not any(volume["name"] == "wsdata-home" for volume in pod.spec["volumes"]):
            continue
        mounted = {mount["name"]: mount for mount in pod.spec["containers"][0]["volumeMounts"]}
        lists = [each for each in pod.spec["volumes"] if each["name"] == "safety-lists"]
        assert [set(each) - {"name"} for each in lists] == ([{kind}] if kind else [])
        if kind:
            assert mounted["safety-lists"]["mountPath"] == deployment.safety_lists
            assert mounted["safety-lists"]["readOnly"] is True
