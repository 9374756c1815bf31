"""A worker's Job: what is in its manifest, and how its end is told from its status."""

import json
import re
from dataclasses import replace

import dagster as dg
import pytest

from resources.compute_pool import POOLS, pools_from, pools_to_json, with_attempts
from resources.worker_pods import cannot_start, has_started, how_it_ended, job_name, worker_job
from resources.workers import WorkerJob, WorkerLost
from wsdata.deployment import Kubernetes
from wsdata.errors import WsdataError
from wsdata.records import Order, Report

CLUSTER = Kubernetes(namespace="video", image_registry="registry.example/ml", image_tag="1.2.3")
SECRETS = {"AWS_SECRET_ACCESS_KEY", "WSDATA_CATALOG_PASSWORD", "DAGSTER_PG_PASSWORD"}


def make_job(partition: str = "crawl.web.20261101.001", step: str = "decode") -> WorkerJob:
    order = Order(
        stage="preprocess", step=step, partition=partition, code_version="1", params={}, inputs={},
        tables=("clips",),
    )  # fmt: skip
    return WorkerJob(stage="preprocess", step=step, order=order, store="s3://bucket/store")


def manifest(pool: str = "nvdec", **changes) -> dict:
    return worker_job(
        replace(POOLS[pool], **changes), make_job(), CLUSTER,
        command=["python", "-m", "wsdata"], report_key="reports/cd/ef.json",
        environment={"DAGSTER_PIPES_CONTEXT": "x"},
    )  # fmt: skip


def pod(name: str = "p", *, made: str = "2026-11-01T00:00:00Z", **status) -> dict:
    return {"metadata": {"name": name, "creationTimestamp": made}, "status": status}


def worker(**state) -> list[dict]:
    return [{"name": "worker", "state": state}]


def failed(reason: str = "BackoffLimitExceeded") -> dict:
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": "too long"}
    return {"metadata": {}, "status": {"conditions": [condition]}}


def test_the_same_order_has_the_same_job_and_another_partition_another():
    assert job_name(make_job()) == job_name(make_job())
    assert job_name(make_job()) != job_name(make_job("crawl.web.20261101.002"))
    longest = job_name(make_job(step="a_very_long_name_of_a_step_that_nobody_would_choose_at_all"))
    assert len(longest) <= 63
    assert "_" not in longest


@pytest.mark.parametrize("pool", sorted(POOLS))
def test_a_worker_holds_no_token_no_root_and_no_secret_but_its_own(pool):
    made = manifest(pool)
    spec = made["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not SECRETS & {each["name"] for each in container["env"]}
    assert container["envFrom"] == [{"secretRef": {"name": f"wsdata-{POOLS[pool].identity}-s3"}}]
    assert spec["serviceAccountName"] == f"wsdata-{POOLS[pool].identity}"


def test_only_the_vault_pool_carries_the_vaults_identity():
    assert [name for name, pool in POOLS.items() if pool.identity == "vault"] == ["vault"]
    assert POOLS["vault"].env_secrets == ("wsdata-vault-s3",)


def test_a_decode_pod_is_in_its_sandbox_on_its_nodes():
    spec = manifest("nvdec")["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["nodeSelector"] == {"wsdata/pool": "nvdec"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert spec["containers"][0]["image"] == "registry.example/ml/wsdata-gpu:1.2.3"


def test_what_a_deployment_leaves_empty_is_not_said():
    spec = manifest(runtime_class_name="", env_secrets=())["spec"]["template"]["spec"]
    assert not {"runtimeClassName", "priorityClassName", "imagePullSecrets"} & set(spec)
    assert spec["containers"][0]["envFrom"] == []


def test_pools_survive_their_json():
    values = json.loads(json.dumps(pools_to_json(POOLS)))
    assert pools_from(values) == POOLS
    assert pools_from({"vlm": {"gpuCount": 4}})["vlm"] == replace(POOLS["vlm"], gpu_count=4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"nvdecc": {}}, "no pools"),
        ({"vlm": {"gpus": 4}}, "gpuCount"),
        ({"vlm": {"memoryGib": 0}}, "vlm: memory_gib 0.0 is not positive"),
        ({"vlm": {"memoryGib": "much"}}, "vlm: memoryGib: expected float, got 'much'"),
        ({"vlm": {"envSecrets": "one"}}, "vlm: envSecrets: expected a list"),
    ],
)
def test_a_wrong_pool_is_refused_by_name(values, said):
    with pytest.raises(WsdataError, match=said):
        pools_from(values)


ENDS = {
    "going on": ({"metadata": {}, "status": {"active": 1}}, [pod(phase="Running")], None),
    "the step failed": (
        failed(), [pod(containerStatuses=worker(terminated={"exitCode": 1}))], "failed",
    ),
    "out of memory": (
        failed(),
        [pod(containerStatuses=worker(terminated={"exitCode": 137, "reason": "OOMKilled"}))],
        "lost",
    ),
    "killed": (failed(), [pod(containerStatuses=worker(terminated={"exitCode": 137}))], "lost"),
    "its store was away": (
        failed(), [pod(containerStatuses=worker(terminated={"exitCode": 75}))], "lost",
    ),
    "preempted": (
        failed(),
        [
            pod(
                conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "Preempted"}],
                containerStatuses=worker(terminated={"exitCode": 137}),
            )
        ],
        "preempted",
    ),
    "evicted": (failed(), [pod(phase="Failed", reason="Evicted")], "preempted"),
    "its node is gone": (failed(), [], "preempted"),
    "never started": (failed(), [pod(phase="Failed")], "lost"),
    "too long": (failed("DeadlineExceeded"), [], "late"),
    "the last pod counts": (
        failed(),
        [
            pod("b", made="2026-11-01T00:00:09Z",
                containerStatuses=worker(terminated={"exitCode": 2})),
            pod("a", made="2026-11-01T00:00:01Z", reason="Evicted"),
        ],
        "failed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_ends_are_told_apart(name):
    job, pods, kind = ENDS[name]
    ended = how_it_ended(job, pods)
    assert (ended.kind if ended else None) == kind


def test_a_complete_job_is_done():
    job = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert how_it_ended(job, []).kind == "done"


def test_a_pod_that_cannot_start_says_why():
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    stuck = pod(containerStatuses=worker(waiting=waiting))
    assert cannot_start(stuck) == "ImagePullBackOff: no such image"
    assert not has_started(stuck)
    assert has_started(pod(containerStatuses=worker(running={})))


class Quiet:
    def warning(self, *_):
        pass


def tried(ends: list[WorkerLost | None], **changes) -> int:
    """Launch with some ends in turn; how many launches it took."""
    left = list(ends)

    def launch() -> Report:
        if (end := left.pop(0)) is not None:
            raise end
        return Report(order_digest="", version_digest="", objects={})

    with_attempts(launch, replace(POOLS["cpu"], **changes), make_job(), Quiet())
    return len(ends) - len(left)


def lost(*, is_preempted: bool = False) -> WorkerLost:
    return WorkerLost("gone", is_preempted=is_preempted)


def test_preemptions_do_not_use_up_attempts():
    ends = [lost(is_preempted=True)] * 5 + [lost()] * 2 + [None]
    assert tried(ends, max_attempts=3, max_preemptions=5) == 8


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([lost()] * 3, "3 times in pool cpu.*more memory"),
        ([lost(is_preempted=True)] * 3, "3 times in pool cpu.*priority"),
    ],
)
def test_what_never_ends_well_is_given_up(ends, said):
    with pytest.raises(dg.Failure) as raised:
        tried(ends, max_attempts=3, max_preemptions=2)
    assert re.search(said, raised.value.description or "")
