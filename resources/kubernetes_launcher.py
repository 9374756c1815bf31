"""Workers as Kubernetes Jobs: made or joined, followed to their end, and told apart by it.

Order and report are objects of the store; progress and logs come over Dagster Pipes from the
pod's log. A Job's name is its order's, so that the run that follows a dead one joins the Job
that it left. What a Job looks like belongs to `worker_pods`.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg
import kubernetes
from dagster_k8s.pipes import PipesK8sPodLogsMessageReader
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from resources.worker_pods import (
    REPORT_ANNOTATION,
    Ended,
    cannot_start,
    has_started,
    how_it_ended,
    job_name,
    waits_for,
    worker_job,
)
from resources.workers import (
    TAIL_LINES,
    WorkerJob,
    WorkerLeft,
    WorkerLost,
    last_error,
    step_failure,
)
from wsdata.catalog.presence import Presence
from wsdata.deployment import Kubernetes
from wsdata.digest import sha256_bytes
from wsdata.records import Report
from wsdata.store import BlobStore, open_store

if TYPE_CHECKING:
    from resources.compute_pool import PoolSpec

T = TypeVar("T")
DRAIN_S = 10.0
SERVER_GRACE_S = 300.0  # an API server may be restarted under us
CONFLICT, NOT_FOUND = 409, 404
CANCELLED = (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesLauncher:
    """Starts workers as Jobs of one cluster.

    Attributes:
        cluster: Which.
        command: What runs ``stage`` in its images.
        stop: Once set, no thread waits for its worker any longer. An interrupt reaches the main
            thread alone.
    """

    cluster: Kubernetes
    command: Sequence[str] = ("python", "-m", "wsdata")
    stop: threading.Event = field(default_factory=threading.Event)

    def launch(self, context: dg.AssetExecutionContext, pool: "PoolSpec", job: WorkerJob) -> Report:
        """Run a job to its end; see `resources.compute_pool.WorkerLauncher`.

        Raises:
            WorkerLost: The pod was killed, or taken away for others.
            WorkerLeft: The run was interrupted.
            dagster.Failure: The step failed, ran past its deadline, or cannot be started.
        """
        store = open_store(job.store)
        order = json.dumps(job.to_json(), sort_keys=True).encode()
        order_key = f"orders/{sha256_bytes(order)}.json"
        store.put(order_key, order)
        reader = PipesK8sPodLogsMessageReader()
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesEnvContextInjector(),
            message_reader=reader,
        ) as session:
            report_key = f"reports/{job.order.digest}/{secrets.token_hex(8)}.json"
            manifest = worker_job(
                pool,
                job,
                self.cluster,
                command=[
                    *(*self.command, "stage", job.stage, job.step, order_key),
                    *("--store", job.store, "--report", report_key),
                ],
                report_key=report_key,
                environment=session.get_bootstrap_env_vars(),
            )
            watch = _Watch(
                api=_Api(self.cluster),
                context=context,
                reader=reader,
                store=store,
                job=job,
                stop=self.stop,
            )
            try:
                ended = watch.run(manifest)
            except BaseException:
                watch.leave()
                raise
            return watch.report(ended)


class _Api:
    """The API server: calls that outlive its restarts, answering plain objects."""

    def __init__(self, cluster: Kubernetes) -> None:
        if cluster.kubeconfig:
            configuration = kubernetes.client.Configuration()
            kubernetes.config.load_kube_config(
                cluster.kubeconfig, client_configuration=configuration
            )
        else:
            configuration = kubernetes.client.Configuration()
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        self._client = kubernetes.client.ApiClient(configuration)
        self.batch = kubernetes.client.BatchV1Api(self._client)
        self.core = kubernetes.client.CoreV1Api(self._client)
        self.namespace = cluster.namespace
        self.poll_s = cluster.poll_s
        self.start_grace_s = cluster.start_grace_s

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call, trying again while the server cannot answer; give what it says as plain objects."""
        deadline = time.monotonic() + SERVER_GRACE_S
        while True:
            try:
                answer = function(*arguments, **options)
                return self._client.sanitize_for_serialization(answer)
            except (ApiException, HTTPError, OSError) as error:
                status = getattr(error, "status", None)
                is_refused = status is not None and 400 <= int(status) < 500 and status != 429
                if is_refused or time.monotonic() > deadline:
                    raise
                time.sleep(self.poll_s)

    def job(self, name: str) -> dict[str, Any] | None:
        """The Job of a name, if there is one."""
        return _or_none(lambda: self.call(self.batch.read_namespaced_job, name, self.namespace))

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods of a Job that are still known."""
        return self.call(
            self.core.list_namespaced_pod, self.namespace, label_selector=f"job-name={name}"
        )["items"]

    def why_no_pod(self, name: str) -> str:
        """Why the control plane made no pod for a Job, in its words; empty where it says nothing.

        A service account that is not there, or a quota.
        """
        events = self.call(
            self.core.list_namespaced_event,
            self.namespace,
            field_selector=f"involvedObject.name={name}",
        )["items"]
        said = [each.get("message", "") for each in events if each.get("reason") == "FailedCreate"]
        return said[-1] if said else ""

    def delete(self, name: str, uid: str) -> None:
        """Remove one Job with its pods; no error where it has gone, or another has its name."""
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        while True:
            try:
                self.call(self.batch.delete_namespaced_job, name, self.namespace, body=body)
            except ApiException as error:
                if error.status not in (NOT_FOUND, CONFLICT):
                    raise
            found = self.job(name)
            if found is None or found["metadata"]["uid"] != uid:
                return  # another run may be quick to make the next one
            time.sleep(min(self.poll_s, 1.0))

    def tail(self, pod: str) -> str:
        """The last lines that a pod's worker said, without what was meant for Pipes."""
        try:
            # Asked for raw: the client's own reading of text gives the look of bytes.
            answer: Any = self.core.read_namespaced_pod_log(
                pod, self.namespace, tail_lines=4 * TAIL_LINES, _preload_content=False
            )
        except (ApiException, HTTPError):
            return ""
        said = answer.data.decode(errors="replace").splitlines()
        lines = [line for line in said if "__dagster_pipes_version" not in line]
        return "\n".join(lines[-TAIL_LINES:])


@dataclass(kw_only=True, slots=True)
class _Watch:
    """One Job, from its making to its end."""

    api: _Api
    context: dg.AssetExecutionContext
    reader: PipesK8sPodLogsMessageReader
    store: BlobStore
    job: WorkerJob
    stop: threading.Event
    followed: dict[str, threading.Thread] = field(default_factory=dict[str, threading.Thread])
    waiting: set[str] = field(default_factory=set[str])
    report_key: str = ""
    uid: str = ""

    @property
    def name(self) -> str:
        return job_name(self.job)

    def run(self, manifest: dict[str, Any]) -> Ended:
        """Make the Job, or join the one that is there; wait for its end."""
        self._make_or_join(manifest)
        stuck_since: float | None = None
        while True:
            found, pods = self.api.job(self.name), self.api.pods(self.name)
            for pod in pods:
                if has_started(pod):
                    self._follow(pod["metadata"]["name"])
            if found is None or found["metadata"]["uid"] != self.uid:
                return Ended(kind="preempted", said=f"its Job {self.name} was deleted")
            if ended := how_it_ended(found, pods):
                for thread in self.followed.values():
                    thread.join(DRAIN_S)
                return ended
            why = next(filter(None, map(cannot_start, pods)), "") if pods else "no pod was made"
            stuck_since = (stuck_since or time.monotonic()) if why else None
            if stuck_since and time.monotonic() - stuck_since > self.api.start_grace_s:
                raise self._stuck(why if pods else self.api.why_no_pod(self.name) or why)
            self._tell_waiting(pods)
            if self.stop.wait(self.api.poll_s):
                raise WorkerLeft(f"{self.job}: the run was interrupted")

    def _stuck(self, why: str) -> dg.Failure:
        self.api.delete(self.name, self.uid)
        return dg.Failure(
            description=f"{self.job}: its pod cannot start: {why}", allow_retries=False
        )

    def _tell_waiting(self, pods: list[dict[str, Any]]) -> None:
        """Say once why a pod waits for a node: the pool may be too small, or its labels wrong."""
        for pod in pods:
            why = waits_for(pod)
            if why and pod["metadata"]["name"] not in self.waiting:
                self.waiting.add(pod["metadata"]["name"])
                self.context.log.info(f"{self.job}: pod {pod['metadata']['name']} waits: {why}")

    def _make_or_join(self, manifest: dict[str, Any]) -> None:
        """Make the Job, unless one of the same order is at work or has reported what is there."""
        found = self.api.job(self.name)
        if found is not None and not self._can_join(found):
            self.api.delete(self.name, found["metadata"]["uid"])
            found = None
        if found is None:
            try:
                found = self.api.call(
                    self.api.batch.create_namespaced_job, self.api.namespace, manifest
                )
            except ApiException as error:
                found = self.api.job(self.name) if error.status == CONFLICT else None
                if found is None:
                    raise _refused(self.job, error) from error
        else:
            self.context.log.info(f"{self.job}: joining Job {self.name}, which an earlier run left")
        self.report_key = found["metadata"]["annotations"][REPORT_ANNOTATION]
        self.uid = found["metadata"]["uid"]

    def _can_join(self, found: dict[str, Any]) -> bool:
        if found["metadata"].get("deletionTimestamp"):
            return False
        ended = how_it_ended(found, [])
        if ended is None:
            return True
        key = found["metadata"].get("annotations", {}).get(REPORT_ANNOTATION, "")
        if ended.kind != "done" or not key or self.store.size(key) is None:
            return False
        report = Report.from_json(json.loads(self.store.get(key)))
        presence = Presence(self.store)
        return not any(presence.is_lost(ref) for ref in report.objects.values())

    def _follow(self, pod: str) -> None:
        """Pass a pod's log on to the run, once."""
        if pod in self.followed:
            return

        def consume() -> None:
            try:
                self.reader.consume_pod_logs(self.context, self.api.core, pod, self.api.namespace)
            except Exception as error:  # noqa: BLE001 - logs are for people; the report is not in them
                self.context.log.warning(f"{self.job}: the log of pod {pod} broke off: {error}")

        self.followed[pod] = threading.Thread(target=consume, name=f"log-{pod}", daemon=True)
        self.followed[pod].start()

    def report(self, ended: Ended) -> Report:
        """Read the report of a Job that is done, or say how it ended instead.

        Raises:
            WorkerLost: It was killed or taken away.
            dagster.Failure: The step failed.
        """
        if ended.kind == "done":
            if self.store.size(self.report_key) is None:
                raise WorkerLost(f"its Job {self.name} is complete, and put no report")
            return Report.from_json(json.loads(self.store.get(self.report_key)))
        tail = self.api.tail(ended.pod) if ended.pod else ""
        if ended.kind == "failed":
            raise step_failure(
                self.job, exit_code=ended.exit_code or 1, tail=tail, where=f"pod {ended.pod}"
            )
        if ended.kind == "late":
            raise dg.Failure(
                description=f"{self.job}: {ended.said}; what it finished is kept, so run it again, "
                "or give its pool a longer activeDeadlineSeconds",
                allow_retries=False,
            )
        self.api.delete(self.name, self.uid)
        raise WorkerLost(ended.said or last_error(tail), is_preempted=ended.kind == "preempted")

    def leave(self) -> None:
        """End the Job where the run was cancelled by a person; else leave it to the next run."""
        try:
            run = self.context.instance.get_run_by_id(self.context.run.run_id)
            if self.uid and run is not None and run.status in CANCELLED:
                body = {"propagationPolicy": "Background", "preconditions": {"uid": self.uid}}
                self.api.batch.delete_namespaced_job(self.name, self.api.namespace, body=body)
        except Exception as error:  # noqa: BLE001 - what interrupted the run is what must be told
            log.warning("%s: Job %s is left: %s", self.job, self.name, error)


def _or_none(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except ApiException as error:
        if error.status == NOT_FOUND:
            return None
        raise


def _refused(job: WorkerJob, error: ApiException) -> dg.Failure:
    return dg.Failure(
        description=f"{job}: the cluster refuses its Job: {error.status} {error.body or error}",
        allow_retries=False,
    )
