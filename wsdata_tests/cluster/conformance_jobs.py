"""Workers' Jobs as the conformance suite makes them, and what becomes of them."""

import re
from dataclasses import replace

from kubernetes.client.exceptions import ApiException
from kubernetes.utils.quantity import parse_quantity

from resources.compute_pool import POOLS
from resources.worker_pods import how_it_ended, worker_job
from resources.workers import WorkerJob
from wsdata.deployment import Kubernetes
from wsdata.records import Order
from wsdata_tests.deploy.chart import over

NOWHERE = {"wsdata/pool": "no-node-has-this"}
OURS = "wsdata/held"  # a finalizer
NOW = "2026-11-30T00:00:00Z"
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
             "lastTransitionTime": NOW}  # fmt: skip


def work(name: str, store: str = "s3://store") -> WorkerJob:
    order = Order(
        stage="preprocess", step="onepass", partition=f"crawl.{name}.20261101.001",
        code_version="1", params={}, inputs={}, tables=(),
    )  # fmt: skip
    return WorkerJob(stage=order.stage, step=order.step, order=order, store=store)


def manifest_of(name: str, pool=POOLS["encode"], *, command=("true",), image_tag="1", **spec):
    """The Job of a pool's worker, with fields of its spec replaced."""
    made = worker_job(
        pool, work(name), Kubernetes(image_tag=image_tag), command=command,
        report_key="reports/a/b.json", environment={"DAGSTER_PIPES_CONTEXT": "c"},
    )  # fmt: skip
    return over(made, {"spec": spec})


def held(cluster, name: str, pool=POOLS["encode"], **spec) -> str:
    """Make a worker's Job that no node takes; returns its name."""
    manifest = manifest_of(name, replace(pool, node_selector=NOWHERE), **spec)
    return cluster.create(manifest)["metadata"]["name"]


def ended(cluster, name: str, *, timeout_s: float = 60):
    """Wait for a Job's end: its condition, and what the launcher makes of it."""
    condition = cluster.wait_for(
        lambda: cluster.condition(name), f"the end of Job {name}", timeout_s=timeout_s
    )
    return condition, how_it_ended(cluster.job(name), cluster.pods(name))


def failed_with(code: int, *conditions) -> dict:
    terminated = {"exitCode": code, "reason": "Error", "startedAt": NOW, "finishedAt": NOW}
    return {
        "phase": "Failed",
        "conditions": list(conditions),
        "containerStatuses": [{
            "name": "worker", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": terminated},
        }],
    }  # fmt: skip


def lost(sent, kept, path: str = "") -> list[str]:
    """Where an API did not keep what it was sent; what is empty need not be kept."""
    if isinstance(sent, dict):
        kept = kept or {}
        return [at for key in sent for at in lost(sent[key], kept.get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        if len(sent) != len(kept or []):
            return [path]
        return [
            at
            for number, each in enumerate(sent)
            for at in lost(each, kept[number], f"{path}[{number}]")
        ]
    if sent in ("", None) or sent == kept:
        return []
    is_same = kept is not None and bool(re.search(r"\.(requests|limits|sizeLimit)", path)) and (
        parse_quantity(sent) == parse_quantity(kept)
    )  # fmt: skip
    return [] if is_same else [path]


def hold(cluster, pod: str) -> None:
    """Keep a pod from going, as a kubelet does whose containers have not ended."""
    core, space = cluster.core, cluster.namespace
    if core.read_namespaced_pod(pod, space).metadata.finalizers:
        added = [{"op": "add", "path": "/metadata/finalizers/-", "value": OURS}]
    else:
        added = {"metadata": {"finalizers": [OURS]}}
    core.patch_namespaced_pod(pod, space, added)


def let_go(cluster, pod: str) -> None:
    """Take our finalizer away, however its neighbours change meanwhile."""

    def has_gone() -> bool:
        finalizers = cluster.core.read_namespaced_pod(pod, cluster.namespace).metadata.finalizers
        at = f"/metadata/finalizers/{finalizers.index(OURS)}"
        steps = [{"op": "test", "path": at, "value": OURS}, {"op": "remove", "path": at}]
        try:
            cluster.core.patch_namespaced_pod(pod, cluster.namespace, steps)
        except ApiException as error:
            if error.status in (409, 422):
                return False
            raise
        return True

    cluster.wait_for(has_gone, "our finalizer's end")
