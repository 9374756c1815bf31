"""How one run of a job is worked: in this process, or submitted to a cluster's Dagster.

Which runs are worked, and in which order, belongs to `main_job`.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import dagster as dg
import requests
from dagster import DagsterEventType

from resources.instances import PID_TAG, UNFINISHED
from sensors.jobs import JobSpec
from sensors.progress import Progress

QUIET_LOGS = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
LAUNCHED_BY = {"wsdata/launched_by": "run"}
PARTITION_TAG = "dagster/partition"
WILL_RETRY_TAG = "dagster/will_retry"
IN_FLIGHT = [dg.DagsterRunStatus.QUEUED, *UNFINISHED]
SERVER_GRACE_S = 300.0  # a webserver may be restarted under us
RETRY_GRACE_S = 120.0  # the daemon takes its time to try a run again
LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on InvalidSubsetError { message }
    ... on PipelineNotFoundError { message }
    ... on UnauthorizedError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDone:
    """How a run ended.

    Attributes:
        run_id: Dagster's.
        is_ok: Nothing failed.
        is_lost: It failed outside its steps: its pod or its database went away.
        faults: Of each failed step, why.
    """

    run_id: str
    is_ok: bool
    is_lost: bool = False
    faults: list[str] = field(default_factory=list[str])


class Runs(Protocol):
    """Works runs. `at_once`: how many may be worked at the same time."""

    at_once: int

    def work(self, spec: JobSpec, partition: str, keys: Sequence[dg.AssetKey]) -> RunDone:
        """Work some assets of one partition to their end.

        Raises:
            KeyboardInterrupt: It was interrupted.
        """
        ...


class InProcessRuns:
    """Runs in this process, one after the other."""

    at_once = 1

    def __init__(
        self, defs: dg.Definitions, instance: dg.DagsterInstance, progress: Progress
    ) -> None:
        self._defs = defs
        self._instance = instance
        self._progress = progress

    def work(self, spec: JobSpec, partition: str, keys: Sequence[dg.AssetKey]) -> RunDone:
        """Work some assets of one partition; see `Runs`."""
        run_id = str(uuid.uuid4())
        self._instance.add_event_listener(run_id, self._progress.see)
        try:
            result = self._defs.resolve_job_def(spec.name).execute_in_process(
                instance=self._instance,
                partition_key=None if spec.partition == "none" else partition,
                asset_selection=list(keys),
                raise_on_error=False,
                run_id=run_id,
                run_config=QUIET_LOGS,
                tags={**LAUNCHED_BY, PID_TAG: str(os.getpid())},
            )
        except dg.DagsterExecutionInterruptedError:
            raise KeyboardInterrupt from None
        if _was_interrupted(result.all_events):
            raise KeyboardInterrupt
        return RunDone(
            run_id=run_id, is_ok=result.success, faults=list(failures(result.all_events))
        )


class SubmittedRuns:
    """Runs submitted through the webserver of a cluster, and waited for.

    A run of the same partition that is in flight already, a sensor's say, is waited for instead.

    Args:
        url: The webserver, ``http://host:port``.
        instance: The cluster's instance, which tells how runs stand.
        progress: Where it is told.
        at_once: Runs in flight at the same time.
        poll_s: Seconds between two looks at a run.
        tags: Further tags of the runs.
    """

    def __init__(
        self,
        url: str,
        instance: dg.DagsterInstance,
        progress: Progress,
        *,
        at_once: int,
        poll_s: float,
        tags: Mapping[str, str],
    ) -> None:
        self.at_once = at_once
        self._url = f"{url.rstrip('/')}/graphql"
        self._instance = instance
        self._progress = progress
        self._poll_s = poll_s
        self._tags = {**LAUNCHED_BY, **tags}

    def work(self, spec: JobSpec, partition: str, keys: Sequence[dg.AssetKey]) -> RunDone:
        """Work some assets of one partition; see `Runs`."""
        run_id = self._in_flight(spec, partition) or self._submit(spec, partition, keys)
        while True:
            run = self._wait(run_id)
            if run.is_success:
                return RunDone(run_id=run_id, is_ok=True)
            again = self._retry_of(run, spec, partition)
            if again is None:
                faults = self._faults(run_id)
                return RunDone(
                    run_id=run_id, is_ok=False, is_lost=not faults,
                    faults=faults or [f"  run {run_id[:8]} was lost: see it in the UI"],
                )  # fmt: skip
            self._progress.say(f"  run {run_id[:8]} was lost; run {again[:8]} goes on with it")
            run_id = again

    def _in_flight(self, spec: JobSpec, partition: str) -> str | None:
        tags = {} if spec.partition == "none" else {PARTITION_TAG: partition}
        found = self._instance.get_runs(
            dg.RunsFilter(job_name=spec.name, tags=tags, statuses=IN_FLIGHT), limit=1
        )
        return found[0].run_id if found else None

    def _submit(self, spec: JobSpec, partition: str, keys: Sequence[dg.AssetKey]) -> str:
        tags = dict(self._tags)
        if spec.partition != "none":
            tags[PARTITION_TAG] = partition
        selector = {
            "repositoryLocationName": "wsdata",
            "repositoryName": "__repository__",
            "jobName": spec.name,
            "assetSelection": [{"path": list(key.path)} for key in keys],
        }
        params = {
            "selector": selector,
            "runConfigData": {},
            "mode": "default",
            "executionMetadata": {
                "tags": [{"key": key, "value": value} for key, value in sorted(tags.items())]
            },
        }
        answer = self._ask(LAUNCH, {"params": params})["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            errors = answer.get("errors") or [answer]
            said = "; ".join(each.get("message", answer["__typename"]) for each in errors)
            raise dg.DagsterInvariantViolationError(
                f"{spec.name} of {partition}: {self._url} refuses the run: {said}"
            )
        return answer["run"]["runId"]

    def _ask(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Ask the webserver, outliving its restarts.

        A request whose answer was lost is sent again: a second run of the same work is waste
        at the worst, since what is done is asked of the ledger.
        """
        deadline = time.monotonic() + SERVER_GRACE_S
        while True:
            try:
                response = requests.post(
                    self._url, json={"query": query, "variables": variables}, timeout=60
                )
                response.raise_for_status()
                body = response.json()
            except (requests.RequestException, ValueError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(self._poll_s)
                continue
            if body.get("errors"):
                raise dg.DagsterInvariantViolationError(
                    f"{self._url} answers: {body['errors'][0].get('message')}"
                )
            return body["data"]

    def _wait(self, run_id: str) -> dg.DagsterRun:
        while True:
            run = self._instance.get_run_by_id(run_id)
            if run is None:
                raise dg.DagsterInvariantViolationError(f"run {run_id} was deleted")
            if run.is_finished:
                return run
            time.sleep(self._poll_s)

    def _retry_of(self, run: dg.DagsterRun, spec: JobSpec, partition: str) -> str | None:
        """The run that the daemon makes of one whose pod was lost, where it makes one.

        Whether it will is written a moment after the run is told to have failed.
        """
        deadline = time.monotonic() + RETRY_GRACE_S
        while time.monotonic() < deadline:
            if again := self._in_flight(spec, partition):
                return again
            told = self._instance.get_run_by_id(run.run_id) or run
            if told.is_success or told.tags.get(WILL_RETRY_TAG, "").lower() == "false":
                return None
            time.sleep(self._poll_s)
        return None

    def _faults(self, run_id: str) -> list[str]:
        entries = self._instance.all_logs(run_id, of_type=DagsterEventType.STEP_FAILURE)
        return list(failures([e.dagster_event for e in entries if e.dagster_event is not None]))


def failures(events: Sequence[dg.DagsterEvent]) -> Iterator[str]:
    """Say of each failed step why, in the words of the error that was first."""
    for event in events:
        if not event.is_step_failure:
            continue
        data = event.step_failure_data
        step = (event.step_key or "").replace("__", "/")
        if data.user_failure_data is not None and data.user_failure_data.description:
            yield f"  {step}: {data.user_failure_data.description}"
        elif data.error is not None:
            yield f"  {step}: {_first_cause(data.error)}"


def _first_cause(error: Any) -> str:
    while error.cause is not None:
        error = error.cause
    return error.message.strip()


def _was_interrupted(events: Sequence[dg.DagsterEvent]) -> bool:
    return any(
        event.is_step_failure
        and (error := event.step_failure_data.error) is not None
        and error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt")
        for event in events
    )
