"""Sandboxed jobs as their caller sees them: what one may use, and the report of how it went.

Levels, weakest first: ``limits`` (own process group, empty environment, resource limits, wall
clock), ``seccomp`` (with a system-call filter), ``bubblewrap`` (with namespaces of its own: no
network, read-only root, own PID space, no capabilities). Processes belong to `box` and `sandbox`.
"""

import errno
import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsdata.errors import SandboxError

LEVELS = ("limits", "seccomp", "bubblewrap")
STATUSES = ("ok", "failed", "crashed", "timeout", "memory")
READY = b"ready\n"

_JOB = re.compile(r"wsdata(\.[a-z_][a-z0-9_]*)+:[a-z_][a-z0-9_]*")
_MAX_ANSWER_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a child may use.

    Attributes:
        memory_bytes: Address space, threads and mapped libraries included.
        file_bytes: Size of each file that it writes.
        out_bytes: Size of all files that it leaves.
        num_files: Descriptors open at once.
        num_processes: Processes at once. With 1 the filter denies starting any; threads are
            free up to `num_threads`.
        num_threads: Threads at once, for users other than root.
        cpu_s: Processor seconds over all threads; None for twice the wall clock per core.
        stall_s: Seconds without a frame decoded or a byte read, after which it counts as hung.
    """

    memory_bytes: int = 4 << 30
    file_bytes: int = 4 << 30
    out_bytes: int = 32 << 30
    num_files: int = 256
    num_processes: int = 1
    num_threads: int = 256
    cpu_s: int | None = None
    stall_s: float = 120.0

    def rlimits(self, wall_s: float) -> dict[str, int]:
        """Resource limits by their name in `resource`, for a job of so many wall seconds."""
        cores = os.cpu_count() or 1
        cpu_s = self.cpu_s if self.cpu_s is not None else int(2 * wall_s * cores) + 1
        # the kernel counts every task of the user, so those that run already are added
        running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
        return {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CPU": cpu_s,
            "RLIMIT_NOFILE": self.num_files,
            "RLIMIT_NPROC": running + self.num_processes + self.num_threads,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """How a job went.

    Attributes:
        status: ``ok``; ``failed``, the job raised; ``crashed``, the child ended without an
            answer; ``timeout``; ``memory``.
        result: What the job returned, where status is ``ok``.
        detail: Exception type and message, or the signal; the same on every machine.
        level: The sandbox level that was in force.
        stderr_tail: Last of what the child wrote to stdout and stderr, for people.
    """

    status: str
    result: dict[str, Any] | None
    detail: str
    level: str
    stderr_tail: str = ""


def check_request(job: str, out_dir: Path, *levels: str) -> None:
    """Check what is the caller's own to get right.

    Raises:
        ValueError: A job outside ``wsdata``, an unknown level, or a missing folder.
    """
    if _JOB.fullmatch(job) is None:
        raise ValueError(f"job {job!r}: expected 'wsdata.<module>:<function>'")
    if not out_dir.is_dir():
        raise ValueError(f"job {job}: out_dir {out_dir} is not a folder")
    for level in levels:
        if level not in LEVELS:
            raise ValueError(f"sandbox level {level!r}: expected one of {LEVELS}")


def read_answer(answer_fd: int) -> bytes:
    """What a child wrote to its answer: `READY`, and JSON where it got so far."""
    size = os.fstat(answer_fd).st_size
    if size > _MAX_ANSWER_BYTES:
        return READY
    parts: list[bytes] = []
    offset = 0
    while offset < size and (part := os.pread(answer_fd, size - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def make_report(
    returncode: int, answer: bytes, verdict: tuple[str, str] | None, *, tail: str, level: str
) -> JobReport:
    """Judge how a job went by what its child left.

    Args:
        returncode: Exit status of the child, negative for a signal.
        answer: What it wrote to its answer.
        verdict: Status and reason where the watchdog killed it.
        tail: The last of its output.
        level: The level that was in force.

    Raises:
        SandboxError: It was not locked in before it would have begun.
    """

    def report(status: str, detail: str, result: dict[str, Any] | None = None) -> JobReport:
        return JobReport(
            status=status, result=result, detail=detail, level=level, stderr_tail=tail.strip()
        )

    if verdict is not None:
        return report(*verdict)
    if not answer.startswith(READY):
        raise SandboxError(
            f"the child could not be locked in at level {level!r} (exit {returncode}): "
            f"{tail.strip()[-1000:] or os.strerror(errno.EIO)}"
        )
    body = answer[len(READY) :]
    if body:
        try:
            told = json.loads(body)
            return report(told["status"], told.get("detail", ""), told.get("result"))
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
            pass  # the child has the pen: what it wrote may be anything
    return report(*_how_it_ended(returncode))


def _how_it_ended(returncode: int) -> tuple[str, str]:
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        return "crashed", f"ended with exit status {returncode} and no answer"
    if name == "SIGKILL":  # not ours: the kernel's, for want of memory
        return "memory", "killed by SIGKILL, as the kernel does when memory runs out"
    if name == "SIGXCPU":
        return "timeout", "killed by SIGXCPU: the processor-time limit passed"
    return "crashed", f"killed by {name}"
