"""The node agent: starts bound pods, ends those that must go, and removes what has ended."""

import signal
import threading

from wsdata_tests.cluster.kube.objects import Object, Objects, Refused, now, set_condition
from wsdata_tests.cluster.kube.pods import Machine, PodRun

JOB_FINALIZER = "batch.kubernetes.io/job-tracking"
_TERMINAL = ("Succeeded", "Failed")


class Kubelet:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._objects: Objects = machine.objects
        self._lock = threading.RLock()
        self._runs: dict[str, PodRun] = {}
        self._deadlines: dict[str, float] = {}

    def reconcile(self) -> None:
        """Start and end pods as the objects say."""
        for pod in self._objects.select("pods"):
            metadata = pod["metadata"]
            run = self._runs.get(metadata["uid"])
            is_leaving = "deletionTimestamp" in metadata
            if run is None and pod["spec"].get("nodeName") and not is_leaving:
                if pod["status"]["phase"] not in _TERMINAL:
                    self._start(pod)
            elif is_leaving:
                if run is not None and not run.ended.is_set():
                    run.stop(metadata.get("deletionGracePeriodSeconds", 30))
                else:
                    self._remove(pod)

    def _start(self, pod: Object) -> None:
        run = PodRun(self._machine, pod)
        self._runs[pod["metadata"]["uid"]] = run
        run.start()
        deadline_s = pod["spec"].get("activeDeadlineSeconds")
        if deadline_s is not None:
            threading.Thread(target=_end_late, args=(run, float(deadline_s)), daemon=True).start()

    def _remove(self, pod: Object) -> None:
        """Remove a pod that must go and has ended, once nobody holds it: its Job until counted."""
        metadata = pod["metadata"]
        if pod["status"]["phase"] not in _TERMINAL:
            with self._objects.edit("pods", metadata["namespace"], metadata["name"]) as body:
                body["status"]["phase"] = "Failed"
            return
        if not metadata.get("finalizers"):
            self._objects.remove(
                "pods", metadata["namespace"], metadata["name"], uid=metadata["uid"]
            )
            self._runs.pop(metadata["uid"], None)

    def run_of(self, pod: Object) -> PodRun | None:
        return self._runs.get(pod["metadata"]["uid"])

    def is_running(self, pod: Object) -> bool:
        run = self.run_of(pod)
        return run is not None and not run.ended.is_set()

    # -- what the API and the other controllers ask of it

    def delete(self, pod: Object, grace_s: float | None = None) -> Object:
        """Mark a pod to be ended and removed."""
        metadata = pod["metadata"]
        if grace_s is None:
            grace_s = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        seconds = int(grace_s)  # a whole number: clients in other languages insist
        with self._objects.edit("pods", metadata["namespace"], metadata["name"]) as body:
            body["metadata"].setdefault("deletionTimestamp", now())
            before = body["metadata"].get("deletionGracePeriodSeconds", seconds)
            body["metadata"]["deletionGracePeriodSeconds"] = min(seconds, before)
        if self.is_running(pod):
            self._objects.record_event(pod, "Killing", "Stopping containers")
        run = self.run_of(pod)
        if run is not None and seconds <= 0:
            run.stop(0)
        return self._objects.find("pods", metadata["namespace"], metadata["name"]) or pod

    def disrupt(
        self, pod: Object, reason: str, message: str, *, grace_s: float | None = None
    ) -> None:
        """End a pod for the cluster's reasons, not for its own."""
        metadata = pod["metadata"]
        with self._objects.edit("pods", metadata["namespace"], metadata["name"]) as body:
            set_condition(body["status"], "DisruptionTarget", "True", reason, message)
        self.delete(pod, grace_s)

    def kill(self, namespace: str, name: str, number: int, reason: str = "") -> None:
        """Signal the processes of a pod.

        Raises:
            Refused: There is no such pod, or it does not run.
        """
        pod = self._objects.read("pods", namespace, name)
        run = self.run_of(pod)
        if run is None or run.ended.is_set():
            phase = pod["status"]["phase"]
            raise Refused(409, "Conflict", f'pod "{name}" has no processes: it is {phase}')
        run.kill(number, reason)

    def lose_node(self, name: str) -> list[str]:
        """Take a node away with all that runs on it; returns the names of its pods."""
        self._objects.remove("nodes", "", name)
        lost = [
            pod
            for pod in self._objects.select("pods")
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] not in _TERMINAL
        ]
        for pod in lost:
            message = f"Taint manager: deleting due to NoExecute taint of lost node {name}"
            self.disrupt(pod, "DeletionByTaintManager", message, grace_s=0)
        return [pod["metadata"]["name"] for pod in lost]

    def end_all(self) -> None:
        """Kill every process of every pod, and wait for their ends."""
        runs = list(self._runs.values())
        for run in runs:
            run.stop(0)
        for run in runs:
            run.join(5)


def _end_late(run: PodRun, deadline_s: float) -> None:
    if not run.ended.wait(deadline_s):
        run.fail(
            "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
        )


def number_of(name: str) -> int:
    """Return a signal's number by its name or number.

    Raises:
        Refused: There is no such signal.
    """
    try:
        return int(name) if name.isdigit() else int(signal.Signals[name])
    except KeyError:
        raise Refused(400, "BadRequest", f"signal {name!r} is not known") from None
