"""The Job controller: makes pods, counts how they end, and says when a Job is done."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from wsdata_tests.cluster.kube.admission import admit_pod
from wsdata_tests.cluster.kube.collector import delete_with_dependents, pod_from_template
from wsdata_tests.cluster.kube.kubelet import JOB_FINALIZER, Kubelet
from wsdata_tests.cluster.kube.objects import (
    Object,
    Objects,
    Refused,
    has_condition,
    now,
    set_condition,
)  # fmt: skip

_TERMINAL = ("Succeeded", "Failed")
_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 2.0


@dataclass
class _Memory:
    """What the status of a Job does not tell to the fraction of a second."""

    started_at: float
    finished_at: float | None = None
    next_pod_at: float = 0.0


class JobController:
    def __init__(
        self, objects: Objects, kubelet: Kubelet, on_pod: Callable[[str, str], None]
    ) -> None:
        self._objects, self._kubelet, self._on_pod = objects, kubelet, on_pod
        self._memory: dict[str, _Memory] = {}

    def reconcile(self) -> None:
        """Bring every Job one step further."""
        jobs = {job["metadata"]["uid"]: job for job in self._objects.select("jobs")}
        for job in jobs.values():
            with self._objects.lock:
                self._step(job)
        self._release_orphans(set(jobs))
        for uid in set(self._memory) - set(jobs):
            del self._memory[uid]

    def _release_orphans(self, known: set[str]) -> None:
        for pod in self._objects.select("pods"):
            if JOB_FINALIZER in (pod["metadata"].get("finalizers") or []):
                owner = pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]
                if owner not in known:
                    self._release(pod)

    def _release(self, pod: Object) -> None:
        metadata = pod["metadata"]
        with self._objects.edit("pods", metadata["namespace"], metadata["name"]) as body:
            body["metadata"]["finalizers"].remove(JOB_FINALIZER)

    def _step(self, job: Object) -> None:
        metadata = job["metadata"]
        current = self._objects.find("jobs", metadata["namespace"], metadata["name"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return
        memory = self._memory.setdefault(metadata["uid"], _Memory(time.monotonic()))
        pods = self._objects.owned_by(metadata["uid"], "pods")
        is_leaving = "deletionTimestamp" in current["metadata"]
        if is_leaving or has_condition(current, "Complete") or has_condition(current, "Failed"):
            for pod in pods:
                self._release_ended(pod)
            if not is_leaving:
                self._collect_when_old(current, memory)
            return
        with self._objects.edit("jobs", metadata["namespace"], metadata["name"]) as body:
            self._advance(body, pods, memory)

    def _release_ended(self, pod: Object) -> None:
        if pod["status"]["phase"] in _TERMINAL and JOB_FINALIZER in (
            pod["metadata"].get("finalizers") or []
        ):
            self._release(pod)

    def _collect_when_old(self, job: Object, memory: _Memory) -> None:
        if memory.finished_at is None:
            memory.finished_at = time.monotonic()
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        if ttl_s is not None and time.monotonic() - memory.finished_at >= ttl_s:
            delete_with_dependents(self._objects, self._kubelet, "jobs", job)

    def _advance(self, job: Object, pods: list[Object], memory: _Memory) -> None:
        spec, status = job["spec"], job.setdefault("status", {})
        if "startTime" not in status and not spec.get("suspend"):
            status["startTime"] = now()
        verdict = self._count_ended(job, pods, memory)
        active = [pod for pod in pods if pod["status"]["phase"] not in _TERMINAL]
        status["active"] = len(active)
        status["ready"] = sum(has_condition(pod, "Ready") for pod in active)
        status["terminating"] = sum("deletionTimestamp" in pod["metadata"] for pod in active)
        status["uncountedTerminatedPods"] = {}
        if verdict is None and status.get("failed", 0) > spec.get("backoffLimit", 6):
            verdict = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        decided = [one for one in status.get("conditions") or [] if one["type"] == "FailureTarget"]
        if decided:
            verdict = (decided[0]["reason"], decided[0].get("message", ""))
        deadline_s = spec.get("activeDeadlineSeconds")
        if deadline_s is not None and time.monotonic() - memory.started_at >= deadline_s:
            verdict = verdict or (
                "DeadlineExceeded", "Job was active longer than specified deadline",
            )  # fmt: skip
        if status.get("succeeded", 0) >= spec.get("completions", 1):
            self._complete(job)
        elif verdict is not None:
            self._give_up(job, active, *verdict)
        elif spec.get("suspend"):
            set_condition(status, "Suspended", "True", "JobSuspended", "Job suspended")
        else:
            self._make_pods(job, len(active), memory)

    def _count_ended(
        self, job: Object, pods: list[Object], memory: _Memory
    ) -> tuple[str, str] | None:
        """Count pods that ended since the last look; return why the Job must fail, if it must."""
        verdict = None
        status = job["status"]
        for pod in pods:
            if pod["status"]["phase"] not in _TERMINAL or self._kubelet.is_running(pod):
                continue
            if JOB_FINALIZER not in (pod["metadata"].get("finalizers") or []):
                continue
            if pod["status"]["phase"] == "Succeeded":
                status["succeeded"] = status.get("succeeded", 0) + 1
            else:
                action, message = _policy_action(job, pod)
                if action == "FailJob":
                    verdict = ("PodFailurePolicy", message)
                if action != "Ignore":
                    status["failed"] = status.get("failed", 0) + 1
                    wait_s = min(_BACKOFF_S * 2 ** (status["failed"] - 1), _MAX_BACKOFF_S)
                    memory.next_pod_at = time.monotonic() + wait_s
            self._release(pod)
        return verdict

    def _complete(self, job: Object) -> None:
        status = job["status"]
        message = "Reached expected number of succeeded pods"
        for kind in ("SuccessCriteriaMet", "Complete"):
            set_condition(status, kind, "True", "CompletionsReached", message)
        status["completionTime"] = now()
        self._objects.record_event(job, "Completed", "Job completed")

    def _give_up(self, job: Object, active: list[Object], reason: str, message: str) -> None:
        set_condition(job["status"], "FailureTarget", "True", reason, message)
        if active:  # a Job has failed once its pods have ended
            for pod in active:
                if "deletionTimestamp" not in pod["metadata"]:
                    self._kubelet.delete(pod)
            return
        set_condition(job["status"], "Failed", "True", reason, message)
        self._objects.record_event(job, reason, message, is_warning=True)

    def _make_pods(self, job: Object, num_active: int, memory: _Memory) -> None:
        spec, status = job["spec"], job["status"]
        wanted = min(
            spec.get("parallelism", 1), spec.get("completions", 1) - status.get("succeeded", 0)
        )
        if num_active >= wanted or time.monotonic() < memory.next_pod_at:
            return
        labels = {}
        for prefix in ("", "batch.kubernetes.io/"):
            labels[f"{prefix}job-name"] = job["metadata"]["name"]
            labels[f"{prefix}controller-uid"] = job["metadata"]["uid"]
        namespace = job["metadata"]["namespace"]
        pod = pod_from_template(job, spec["template"], labels)
        pod["metadata"]["finalizers"] = [JOB_FINALIZER]
        try:
            admit_pod(self._objects, namespace, pod)
            made = self._objects.create("pods", namespace, pod)
        except Refused as refused:
            memory.next_pod_at = time.monotonic() + _MAX_BACKOFF_S
            message = f"Error creating: {refused.message}"
            self._objects.record_event(job, "FailedCreate", message, is_warning=True)
            return
        self._on_pod(namespace, "job-controller")
        status["active"] = num_active + 1
        self._objects.record_event(
            job, "SuccessfulCreate", f"Created pod: {made['metadata']['name']}"
        )


def _policy_action(job: Object, pod: Object) -> tuple[str, str]:
    """Return what the Job's podFailurePolicy says of a failed pod, Count where it says nothing."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate(rules):
        said = _matches_codes(rule.get("onExitCodes"), pod) or _matches_conditions(
            rule.get("onPodConditions"), pod
        )
        if said:
            what, detail = said
            return rule["action"], (
                f"{what} for pod {where} {detail} matching {rule['action']} rule at index {number}"
            )
    return "Count", ""


def _matches_codes(wanted: Object | None, pod: Object) -> tuple[str, str] | None:
    if not wanted:
        return None
    for status in pod["status"].get("containerStatuses") or []:
        code = (status["state"].get("terminated") or {}).get("exitCode", 0)
        if code == 0 or wanted.get("containerName") not in (None, status["name"]):
            continue
        if (code in wanted["values"]) == (wanted["operator"] == "In"):
            return f"Container {status['name']}", f"failed with exit code {code}"
    return None


def _matches_conditions(wanted: list[Object] | None, pod: Object) -> tuple[str, str] | None:
    for pattern in wanted or []:
        for condition in pod["status"].get("conditions") or []:
            if (condition["type"], condition["status"]) == (
                pattern["type"], pattern.get("status", "True"),
            ):  # fmt: skip
                return "Condition", f"with type {condition['type']}"
    return None
