"""Manifests that tests of the double make, and what they wait for."""

NODES = {
    "cpu-0": {"labels": {"wsdata/pool": "cpu"}},
    "gpu-0": {
        "labels": {"wsdata/pool": "nvdec"},
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        "gpus": 1,
    },
    "spare-0": {"labels": {"wsdata/pool": "spare"}, "allocatable": {"cpu": "1"}},
}

ON_GPU = {
    "nodeSelector": {"wsdata/pool": "nvdec"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}

DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def container(script, **spec):
    return {"name": "main", "image": "wsdata-gpu:1", "command": ["sh", "-c", script], **spec}


def job(name, script, *, job_spec=None, pod_spec=None, **spec):
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    pod |= {"containers": [container(script, **spec)], **(pod_spec or {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, **(job_spec or {}), "template": {"spec": pod}},
    }


def deployment(name, script, replicas=1, **spec):
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container(script)],
                         **spec},
            },
        },
    }  # fmt: skip


def condition(kube, name):
    """The reason why a Job is done, with what it is: None before."""
    for one in kube.get("jobs", name).get("status", {}).get("conditions") or []:
        if one["type"] in ("Complete", "Failed"):
            return one
    return None


def ended(kube, name):
    return kube.wait_for(lambda: condition(kube, name), f"job {name}")


def running(kube, selector, count=1):
    def look():
        pods = [pod for pod in kube.pods(selector) if pod["status"]["phase"] == "Running"]
        return pods if len(pods) == count else None

    return kube.wait_for(look, f"{count} running of {selector}")


def events(kube, name):
    listed = kube.request(
        "GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    )
    return {event["reason"]: event["message"] for event in listed["items"]}
