"""A pool's worker as a Kubernetes Job: its manifest, and what became of its pods.

Pure functions over plain objects; who talks to the API server is `kubernetes_launcher`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resources.compute_pool import PoolSpec
from resources.workers import WorkerJob
from wsdata.cli.stage import EXIT_TRY_AGAIN
from wsdata.deployment import Kubernetes
from wsdata.digest import short_digest

CONTAINER = "worker"
METRICS_PORT = 9108
RUN_AS_USER = 10001
GRACE_S = 30
REPORT_ANNOTATION = "wsdata/report"
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
# Why the kubelet or the scheduler took a pod away that had done nothing wrong.
TAKEN_AWAY = frozenset(
    [
        *("Evicted", "NodeLost", "NodeShutdown", "NodeAffinity", "Shutdown", "Terminated"),
        *("Preempting", "Preempted", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory"),
    ]
)
CANNOT_START = frozenset(
    [
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a Job ended.

    Attributes:
        kind: ``done``; ``failed``, by the step itself; ``lost``, killed by something that may be
            its order's doing; ``preempted``, taken away for others; ``late``, past its deadline.
        said: What the control plane says of it, for a person.
        pod: The pod that was last, if one is still known.
        exit_code: Its worker's, where it has one.
    """

    kind: str
    said: str = ""
    pod: str = ""
    exit_code: int | None = None


def job_name(job: WorkerJob) -> str:
    """Name of a job's Job: the same for the same order, so that it is found again."""
    step = job.step.replace("_", "-")[:32]
    part = f"-{job.part.index}-of-{job.part.of}" if job.part else ""
    return f"wsdata-{step}-{short_digest([job.order.digest, job.order.partition])}{part}"


def worker_job(
    pool: PoolSpec,
    job: WorkerJob,
    cluster: Kubernetes,
    *,
    command: Sequence[str],
    report_key: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Build the Job of one order.

    The control plane itself makes a preempted pod again; every other end is told to the
    launcher, which knows the order.

    Args:
        pool: Where it runs.
        job: What is worked.
        cluster: Names of images.
        command: What the container runs.
        report_key: Where it puts its report.
        environment: Of Dagster Pipes.
    """
    labels = {
        "app.kubernetes.io/name": "wsdata-worker",
        "app.kubernetes.io/component": pool.name,
        "wsdata/pool": pool.name,
        "wsdata/identity": pool.identity,
        "wsdata/stage": job.stage,
        "wsdata/step": job.step,
    }
    annotations = {
        "wsdata/partition": job.order.partition,
        "wsdata/order": job.order.digest,
        **({"wsdata/part": f"{job.part.index}/{job.part.of}"} if job.part else {}),
        REPORT_ANNOTATION: report_key,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(job), "labels": labels, "annotations": annotations},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": pool.ttl_seconds_after_finished,
            "activeDeadlineSeconds": pool.active_deadline_seconds,
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [DISRUPTED]}]},
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {
                        **annotations,
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(METRICS_PORT),
                    },
                },
                "spec": _pod_spec(pool, job, cluster, command, environment),
            },
        },
    }


def _pod_spec(
    pool: PoolSpec,
    job: WorkerJob,
    cluster: Kubernetes,
    command: Sequence[str],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    image = f"{pool.image}:{cluster.image_tag}"
    resources: dict[str, dict[str, str]] = {
        "requests": {
            "cpu": f"{pool.cpu_count:g}",
            "memory": _mebibytes(pool.memory_gib),
            "ephemeral-storage": _mebibytes(pool.scratch_gib),
        },
        "limits": {"memory": _mebibytes(pool.memory_gib)},
    }
    if pool.gpu_count:
        resources["limits"]["nvidia.com/gpu"] = str(pool.gpu_count)
    stated = {
        "HOME": "/tmp",  # noqa: S108 - the only folder of the pod that can be written
        "PYTHONDONTWRITEBYTECODE": "1",
        "WSDATA_METRICS_PORT": str(METRICS_PORT),
        "WSDATA_IDENTITY": pool.identity,
        "WSDATA_POOL": pool.name,
        **pool.extra_env,
        **job.environment,
        **environment,
    }
    worker = {
        "name": CONTAINER,
        "image": f"{cluster.image_registry}/{image}" if cluster.image_registry else image,
        "imagePullPolicy": cluster.image_pull_policy,
        "command": list(command),
        "env": [{"name": name, "value": value} for name, value in sorted(stated.items())],
        "envFrom": [{"secretRef": {"name": name}} for name in pool.env_secrets],
        "resources": resources,
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],  # noqa: S108
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": pool.service_account_name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "nodeSelector": dict(pool.node_selector),
        "tolerations": [dict(each) for each in pool.tolerations],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": RUN_AS_USER,
            "runAsGroup": RUN_AS_USER,
            "fsGroup": RUN_AS_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [worker],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": _mebibytes(pool.scratch_gib)}}],
    }
    if pool.runtime_class_name:
        spec["runtimeClassName"] = pool.runtime_class_name
    if pool.priority_class_name:
        spec["priorityClassName"] = pool.priority_class_name
    if cluster.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.image_pull_secrets]
    return spec


def _mebibytes(gib: float) -> str:
    return f"{round(gib * 1024)}Mi"


def how_it_ended(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> Ended | None:
    """Tell how a Job ended, from its own status and its pods'; None while it goes on.

    Args:
        job: The Job, as the API server gives it.
        pods: Its pods that are still known, in any order.
    """
    condition = _ending_condition(job)
    if condition is None:
        return None
    if condition["type"] == "Complete":
        return Ended(kind="done")
    if condition.get("reason") == "DeadlineExceeded":
        return Ended(kind="late", said=condition.get("message", "past its deadline"))
    if not pods:
        return Ended(kind="preempted", said="its pod is gone, and its node may be")
    return _how_pod_ended(max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"]))


def _ending_condition(job: Mapping[str, Any]) -> dict[str, Any] | None:
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return condition
    return None


def _how_pod_ended(pod: Mapping[str, Any]) -> Ended:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            said = f"its pod {name} was taken away: {condition.get('reason', 'disrupted')}"
            return Ended(kind="preempted", said=said, pod=name)
    if status.get("reason") in TAKEN_AWAY:
        said = f"its pod {name} was taken away: {status['reason']} {status.get('message', '')}"
        return Ended(kind="preempted", said=said.rstrip(), pod=name)
    ended = _terminated(status)
    if ended is None:
        said = f"its pod {name} ended as {status.get('phase')}, its worker never started"
        return Ended(kind="lost", said=said, pod=name)
    code = ended["exitCode"]
    if ended.get("reason") == "OOMKilled":
        return Ended(
            kind="lost", said=f"its pod {name} ran out of memory", pod=name, exit_code=code
        )
    if code == EXIT_TRY_AGAIN:
        return Ended(kind="lost", said="", pod=name, exit_code=code)
    if code > 128:
        said = f"its pod {name} was killed by signal {code - 128}"
        return Ended(kind="lost", said=said, pod=name, exit_code=code)
    return Ended(kind="failed", pod=name, exit_code=code)


def _terminated(status: Mapping[str, Any]) -> dict[str, Any] | None:
    for container in status.get("containerStatuses") or []:
        if container["name"] == CONTAINER:
            return container.get("state", {}).get("terminated")
    return None


def has_started(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's worker runs or ran, so that its log can be read."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        state = container.get("state") or {}
        if container["name"] == CONTAINER and {"running", "terminated"} & set(state):
            return True
    return False


def cannot_start(pod: Mapping[str, Any]) -> str:
    """Why a pod's worker cannot be started, in the kubelet's words; empty where nothing says so."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in CANNOT_START:
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return ""


def waits_for(pod: Mapping[str, Any]) -> str:
    """Why no node has a pod yet, in the scheduler's words; empty where one has."""
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("message", condition.get("reason", ""))
    return ""
