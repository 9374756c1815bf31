"""Workers as local processes: each in a session of its own, ended as a group.

Dagster's own Pipes client signals only the process that it started, so the session is opened
here. Which pool a worker belongs to does not matter on one machine.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from resources.workers import TAIL_LINES, WorkerJob, WorkerLost, last_error, step_failure
from wsdata.cli.stage import EXIT_TRY_AGAIN
from wsdata.records import Report

if TYPE_CHECKING:
    from resources.compute_pool import PoolSpec

DRAIN_S = 2.0
# What would lead a worker to the ledger or to Dagster's own storage.
WITHHELD = ("DAGSTER_HOME", "WSDATA_HOME")
WITHHELD_PREFIXES = ("DAGSTER_PG_", "PG", "WSDATA_CATALOG_")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExit:
    """How a worker ended: its exit code (negative: a signal), and its last lines."""

    code: int
    tail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalLauncher:
    """Starts workers on this machine. `grace_s`: seconds to end after an interrupt."""

    command: Sequence[str]
    grace_s: float = 5.0

    def launch(self, context: dg.AssetExecutionContext, pool: "PoolSpec", job: WorkerJob) -> Report:
        """Run a job to its end; see `resources.compute_pool.WorkerLauncher`."""
        with (
            tempfile.TemporaryDirectory(prefix="wsdata-order-") as folder,
            dg.open_pipes_session(
                context=context,
                context_injector=dg.PipesTempFileContextInjector(),
                message_reader=dg.PipesTempFileMessageReader(),
            ) as session,
        ):
            path = Path(folder) / "order.json"
            path.write_text(json.dumps(job.to_json()), encoding="utf-8")
            ended = run_group(
                [*self.command, "stage", job.stage, job.step, str(path)],
                env={
                    **worker_environment(os.environ),
                    **job.environment,
                    **session.get_bootstrap_env_vars(),
                },
                grace_s=self.grace_s,
            )
        if ended.code < 0:
            raise WorkerLost(f"its worker was killed by {_signal_name(-ended.code)}")
        if ended.code == EXIT_TRY_AGAIN:
            raise WorkerLost(last_error(ended.tail))
        if ended.code > 0:
            raise step_failure(job, exit_code=ended.code, tail=ended.tail)
        for message in session.get_custom_messages():
            if isinstance(message, dict) and "wsdata_report" in message:
                return Report.from_json(message["wsdata_report"])
        raise WorkerLost(f"its worker in pool {pool.name} ended without a report")


def worker_environment(environment: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """Return an environment without what leads to the ledger or to Dagster's storage."""
    return {
        name: value
        for name, value in environment.items()
        if name not in WITHHELD and not name.startswith(WITHHELD_PREFIXES)
    }


def run_group(command: Sequence[str], *, env: dict[str, str], grace_s: float) -> WorkerExit:
    """Run a command in a session of its own, and leave nothing of its group behind.

    Its standard error is passed on to this process's own. Whatever interrupts the wait ends
    the whole group: SIGINT, then SIGKILL after `grace_s`.
    """
    process = subprocess.Popen(  # noqa: S603
        command,
        env=env,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a worker's report comes over Pipes
        stderr=subprocess.PIPE,
    )
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    reader = threading.Thread(target=_pass_on, args=(process, tail), daemon=True)
    reader.start()
    try:
        # The leader is left a zombie until its group is ended, so that its id cannot be reused.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except BaseException:
        _signal_group(process.pid, signal.SIGINT)
        _wait_quietly(process.pid, grace_s)
        raise
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(DRAIN_S)
    return WorkerExit(code=process.returncode, tail="".join(tail))


def _pass_on(process: subprocess.Popen[bytes], tail: deque[str]) -> None:
    assert process.stderr is not None  # noqa: S101
    for line in process.stderr:
        tail.append(line.decode(errors="replace"))
        with contextlib.suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _wait_quietly(pid: int, grace_s: float) -> None:
    ended = threading.Event()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    ended.wait(grace_s)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
