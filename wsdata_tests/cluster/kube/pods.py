"""One pod from its binding to its end: init containers, containers, restarts, probes, phases."""

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wsdata_tests.cluster.kube.access import Access
from wsdata_tests.cluster.kube.bubblewrap import Container, ContainerPlan
from wsdata_tests.cluster.kube.images import Image, find_image
from wsdata_tests.cluster.kube.logs import PodLogs
from wsdata_tests.cluster.kube.objects import Object, Objects, Refused, now, set_condition
from wsdata_tests.cluster.kube.probes import is_ready
from wsdata_tests.cluster.kube.volumes import NotYet, PodVolumes, environment_of, expand

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_MAX_BACKOFF_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What all pods share."""

    objects: Objects
    access: Access
    images: dict[str, Image]
    folder: Path
    hosts: Path
    accounts: Path


@dataclass
class _Slot:
    """One container of the pod's spec, and the process that stands for it now."""

    spec: Object
    is_init: bool
    process: Container | None = None
    killed_as: str = ""
    restarts: int = 0
    last_code: int = 0
    status: Object = field(default_factory=dict)


class PodRun:
    """A pod's processes and its status; one thread per container."""

    def __init__(self, machine: Machine, pod: Object) -> None:
        self._machine, self._objects = machine, machine.objects
        metadata = pod["metadata"]
        self.namespace, self.name, self.uid = (
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
        )
        self._pod = pod
        spec = pod["spec"]
        self._policy = spec.get("restartPolicy", "Always")
        self._slots = [_Slot(one, is_init=True) for one in spec.get("initContainers") or []]
        self._slots += [_Slot(one, is_init=False) for one in spec["containers"]]
        root = machine.folder / "pods" / self.uid
        self.logs = PodLogs(root / "logs")
        self._volumes = PodVolumes(root / "volumes", machine.folder / "claims")
        self._stopping = threading.Event()
        self.ended = threading.Event()
        self._refusal = ""
        self._thread = threading.Thread(target=self._run, name=f"pod-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- what others ask of it

    def stop(self, grace_s: float) -> None:
        """End it: SIGTERM, and SIGKILL when the grace is over. Returns at once."""
        if self._stopping.is_set() and grace_s > 0:
            return
        self._stopping.set()
        if grace_s <= 0:
            self._signal_all(signal.SIGKILL)
            return
        self._signal_all(signal.SIGTERM)
        threading.Thread(target=self._kill_after, args=(grace_s,), daemon=True).start()

    def fail(self, reason: str, message: str) -> None:
        """End it as failed, whatever its restart policy says."""
        self._refusal = reason
        with self._status() as status:
            status["reason"], status["message"] = reason, message
        self.stop(2)

    def kill(self, number: int, reason: str = "") -> None:
        """Signal its containers; a reason is told as that of their end."""
        for slot in self._slots:
            if slot.process is not None:
                slot.killed_as = reason
        self._signal_all(number)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _kill_after(self, grace_s: float) -> None:
        if not self.ended.wait(grace_s):
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for slot in self._slots:
            if slot.process is not None:
                slot.process.signal(number)

    # -- its life

    def _run(self) -> None:
        try:
            self._tell_start()
            if self._prepare() and self._run_init_containers():
                self._run_containers()
            self._tell_end()
        except Refused as refused:
            log.info("pod %s went away: %s", self.name, refused.message)
        finally:
            self._fail_if_unfinished()
            self.ended.set()
            self._volumes.remove()
            with self._objects.lock:
                self._objects.lock.notify_all()

    def _fail_if_unfinished(self) -> None:
        """Leave no pod without an end, also where this machine failed it."""
        found = self._objects.find("pods", self.namespace, self.name)
        if found is None or found["metadata"]["uid"] != self.uid:
            return
        if found["status"]["phase"] not in ("Succeeded", "Failed"):
            with self._status() as status:
                status["phase"] = "Failed"
                status["message"] = "its processes could not be kept: see the double's log"

    def _prepare(self) -> bool:
        files = self._machine.access.token_files(self._pod)
        return self._retry_until_done(
            lambda: self._volumes.make(self._objects, self._pod, files), "FailedMount"
        )

    def _retry_until_done(self, act: Callable[[], Any], reason: str) -> bool:
        while not self._stopping.is_set():
            try:
                act()
            except NotYet as missing:
                self._tell_waiting(self._slots, missing.reason, missing.message)
                self._objects.record_event(self._pod, reason, missing.message, is_warning=True)
                self._stopping.wait(_RETRY_S)
            else:
                return True
        return False

    def _run_init_containers(self) -> bool:
        for slot in (slot for slot in self._slots if slot.is_init):
            self._run_slot(slot, "OnFailure" if self._policy != "Never" else "Never")
            if slot.last_code != 0 or self._stopping.is_set():
                return False
        with self._status() as status:
            set_condition(status, "Initialized", "True")
        return not self._stopping.is_set()

    def _run_containers(self) -> None:
        threads = [
            threading.Thread(target=self._run_slot, args=(slot, self._policy), daemon=True)
            for slot in self._slots
            if not slot.is_init
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_slot(self, slot: _Slot, policy: str) -> None:
        while not self._stopping.is_set():
            slot.last_code = self._run_once(slot)
            if policy == "Never" or (policy == "OnFailure" and slot.last_code == 0):
                return
            if self._stopping.is_set():
                return
            backoff_s = min(_RETRY_S * 2**slot.restarts, _MAX_BACKOFF_S)
            slot.restarts += 1
            self._tell_waiting([slot], "CrashLoopBackOff", f"back-off {backoff_s:g}s restarting")
            self._objects.record_event(
                self._pod, "BackOff", f"Back-off restarting container {slot.spec['name']}",
                is_warning=True,
            )  # fmt: skip
            self._stopping.wait(backoff_s)

    def _run_once(self, slot: _Slot) -> int:
        plans: list[ContainerPlan] = []
        if not self._retry_until_done(lambda: plans.append(self._plan(slot.spec)), "Failed"):
            return 137
        slot.killed_as = ""
        name = slot.spec["name"]
        with self.logs.writing(name, slot.restarts) as write:
            started_at = now()
            process = slot.process = Container(plans[-1], write)
            self._tell_running(slot, started_at)
            if self._stopping.is_set():  # the stop came before there was anything to signal
                process.signal(signal.SIGTERM)
            finished = threading.Event()
            threading.Thread(
                target=self._watch_readiness, args=(slot, plans[-1], finished), daemon=True
            ).start()
            code = process.wait()
            finished.set()
            with self._objects.lock:
                slot.process = None
        self._tell_terminated(slot, code, started_at)
        return 128 if code is None else code

    def _plan(self, spec: Object) -> ContainerPlan:
        image = find_image(self._machine.images, spec["image"])
        if image is None:
            raise NotYet("ImagePullBackOff", f'Back-off pulling image "{spec["image"]}": not known')
        security = (self._pod["spec"].get("securityContext") or {}) | (
            spec.get("securityContext") or {}
        )
        user = int(security.get("runAsUser", image.user))
        if security.get("runAsNonRoot") and user == 0:
            raise NotYet(
                "CreateContainerConfigError",
                "container has runAsNonRoot and image will run as root",
            )
        own = {"PATH": image.search_path(), "HOME": "/tmp", "HOSTNAME": self.name}  # noqa: S108
        variables = image.env | environment_of(self._objects, self._pod, spec)
        argv = [*(spec.get("command") or []), *(spec.get("args") or [])]
        if not argv:
            raise NotYet("RunContainerError", "no command specified")
        return ContainerPlan(
            argv=[expand(str(part), variables) for part in argv],
            environment=own | self._machine.access.service_environment() | variables,
            user=user,
            working_dir=spec.get("workingDir") or image.working_dir,
            hostname=self.name[:63],
            mounts=self._volumes.mounts_of(self._pod, spec),
            is_root_read_only=bool(security.get("readOnlyRootFilesystem")),
            binds={
                **image.binds,
                "/etc/hosts": str(self._machine.hosts),
                "/etc/passwd": str(self._machine.accounts),
            },
        )

    def _watch_readiness(self, slot: _Slot, plan: ContainerPlan, finished: threading.Event) -> None:
        if slot.is_init:
            return
        probe = slot.spec.get("readinessProbe") or slot.spec.get("startupProbe")
        every_s = min(float((probe or {}).get("periodSeconds", 1)), 1.0)
        while not finished.is_set():
            ready = probe is None or is_ready(probe, slot.spec, plan)
            if slot.process is not None and ready != slot.status.get("ready"):
                try:
                    self._tell_ready(slot, is_ready=ready)
                except Refused:
                    return
            if probe is None:
                return
            finished.wait(every_s)

    # -- what it tells

    def _status(self) -> Any:
        return _StatusEdit(self)

    def _write(self, status: Object) -> None:
        for key, is_init in (("initContainerStatuses", True), ("containerStatuses", False)):
            shown = [dict(slot.status) for slot in self._slots if slot.is_init == is_init]
            if shown:
                status[key] = shown
        mains = [slot for slot in self._slots if not slot.is_init]
        is_pod_ready = all(slot.status.get("ready") for slot in mains)
        for kind in ("ContainersReady", "Ready"):
            set_condition(status, kind, "True" if is_pod_ready else "False")

    def _tell_start(self) -> None:
        has_init = any(slot.is_init for slot in self._slots)
        for slot in self._slots:
            reason = "ContainerCreating" if slot.is_init or not has_init else "PodInitializing"
            slot.status = {
                "name": slot.spec["name"], "image": slot.spec["image"], "imageID": "",
                "restartCount": 0, "ready": False, "started": False,
                "state": {"waiting": {"reason": reason}}, "lastState": {},
            }  # fmt: skip
        with self._status() as status:
            status.update(startTime=now(), hostIP="127.0.0.1", podIP="127.0.0.1")
            status["podIPs"] = [{"ip": "127.0.0.1"}]

    def _tell_waiting(self, slots: list[_Slot], reason: str, message: str) -> None:
        for slot in slots:
            state = slot.status["state"]
            if "terminated" in state and reason != "CrashLoopBackOff":
                continue
            if "terminated" in state:
                slot.status["lastState"] = state
            slot.status["state"] = {"waiting": {"reason": reason, "message": message}}
            slot.status["restartCount"] = slot.restarts
        with self._status():
            pass

    def _tell_running(self, slot: _Slot, started_at: str) -> None:
        slot.status.update(state={"running": {"startedAt": started_at}}, started=True)
        slot.status["restartCount"] = slot.restarts
        slot.status["containerID"] = f"bubblewrap://{self.uid}/{slot.spec['name']}/{slot.restarts}"
        if not slot.is_init and not slot.spec.get("readinessProbe", slot.spec.get("startupProbe")):
            slot.status["ready"] = True
        with self._status() as status:
            if not slot.is_init:
                status["phase"] = "Running"
        self._objects.record_event(self._pod, "Started", f"Started container {slot.spec['name']}")

    def _tell_ready(self, slot: _Slot, *, is_ready: bool) -> None:
        with self._objects.lock:
            if slot.process is not None:  # else its end has been told
                slot.status["ready"] = is_ready
                with self._status():
                    pass

    def _tell_terminated(self, slot: _Slot, code: int | None, started_at: str) -> None:
        ended: Object = {"startedAt": started_at, "finishedAt": now(), "exitCode": code}
        ended["reason"] = slot.killed_as or ("Completed" if code == 0 else "Error")
        if code is None:
            said = self.logs.tail(slot.spec["name"], 5)
            ended |= {"exitCode": 128, "reason": "StartError", "message": said}
        slot.status.update(state={"terminated": ended}, started=False)
        slot.status["ready"] = slot.is_init and code == 0
        with self._status():
            pass

    def _tell_end(self) -> None:
        ran = all("terminated" in slot.status.get("state", {}) for slot in self._slots)
        is_good = ran and not self._refusal and all(slot.last_code == 0 for slot in self._slots)
        with self._status() as status:
            status["phase"] = "Succeeded" if is_good else "Failed"


class _StatusEdit:
    """Edits the pod's status; on leaving, the containers' states are written as well."""

    def __init__(self, run: PodRun) -> None:
        self._run = run
        self._edit = run._objects.edit("pods", run.namespace, run.name, uid=run.uid)

    def __enter__(self) -> Object:
        body = self._edit.__enter__()
        self._status = body.setdefault("status", {})
        return self._status

    def __exit__(self, *raised: Any) -> bool | None:
        if raised[0] is None:
            self._run._write(self._status)
        return self._edit.__exit__(*raised)
