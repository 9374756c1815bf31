"""The sandbox: jobs on files from outside, each in a process that can harm nothing.

`run_job` starts one for a single file; a `Sandbox` stays warm and forks one per file, for the
price of a fork. The strongest level (see `jobs`) that this machine allows is taken and reported;
below the wanted minimum is an error. What a job does with the file belongs elsewhere.
"""

import base64
import contextlib
import errno
import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wsdata.errors import SandboxError, StoreFull
from wsdata.media import bwrap, child, seccomp
from wsdata.media.box import Box, BoxLost, sealed_copy
from wsdata.media.bwrap import bubblewrap_path
from wsdata.media.jobs import (
    LEVELS,
    JobReport,
    Limits,
    check_request,
    make_report,
    read_answer,
)
from wsdata.media.leavings import keep_plain_files, move_plain_files, remove
from wsdata.media.watchdog import Progress, Watch

log = logging.getLogger(__name__)

PRELOAD = ("av", "cv2", "numpy", "wsdata.media.keyframes")
MAX_WARM_BYTES = 32 << 20  # a larger file takes far longer to decode than a sandbox to start
_MIN_FREE_BYTES = 1 << 20


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
            [*bwrap.base_command(program), "/bin/true"],
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("bubblewrap does not start here: %s", error)
        return "seccomp"
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip()
        log.warning("bubblewrap does not run here, children get seccomp and limits: %s", reason)
        return "seccomp"
    return "bubblewrap"


def _level(minimum_level: str, maximum_level: str) -> str:
    level = min(reachable_level(), maximum_level, key=LEVELS.index)
    if LEVELS.index(level) < LEVELS.index(minimum_level):
        raise SandboxError(
            f"sandbox level {level!r} was reached, the deployment demands {minimum_level!r}: "
            "install libseccomp and bubblewrap, and allow user namespaces on this machine, or "
            "lower sandbox_minimum in deployment.toml knowingly"
        )
    return level


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
    devices: Sequence[str] = (),
) -> JobReport:
    """Run one job on one file in a sandboxed child of its own.

    Args:
        job: ``module:function`` under ``wsdata.``; called as ``function(args, source, out_dir)``
            with the source as a read-only binary file, and returning a JSON-able dict. Paths in
            the result must be relative to `out_dir`: the child sees it elsewhere.
        args: JSON-able arguments.
        source: The file to parse. The child can neither write nor replace it.
        out_dir: Existing folder; the only place where the child can leave files. Plain files
            that lie straight in it are kept, all else is removed.
        wall_s: After so many seconds the child's whole group is killed.
        limits: What it may use.
        minimum_level: One of `LEVELS`; a machine that reaches less is an error.
        maximum_level: One of `LEVELS`; for tests of the weaker ones.
        devices: Device files let in, such as `bwrap.gpu_devices`; all are at weaker levels.

    Returns:
        The report. A bad file, a crash, a hang or a job that raises never raise here.

    Raises:
        SandboxError: The minimum level was not reached, or the child could not be locked in.
        StoreFull: The job failed because nothing more could be written beside it.
        ValueError: A job outside ``wsdata``, an unknown level, or a missing folder.
    """
    check_request(job, out_dir, minimum_level, maximum_level)
    level = _level(minimum_level, maximum_level)
    limits = limits or Limits()
    request = _request(job, args, limits, wall_s, level)
    with _watching(limits, wall_s, out_dir) as watch:
        if level != "bubblewrap":
            request |= {"out_dir": str(out_dir.resolve()), "parent_pid": os.getpid()}
            report = _run_plain(request, source, watch, level)
        else:
            request |= {"out_dir": bwrap.OUT_AT, "temp_dir": bwrap.TEMP_AT}
            if source is not None:
                request["source"] = {"path": bwrap.SOURCE_AT}
            box = Box(out_dir, source=source, devices=devices)
            try:
                report = box.run(request, watch, None)
            except BoxLost as error:
                raise SandboxError(f"{job}: {error}") from error
            finally:
                box.close()
    keep_plain_files(out_dir)
    return _checked(report, job, out_dir)


def _request(
    job: str, args: dict[str, Any], limits: Limits, wall_s: float, level: str
) -> dict[str, Any]:
    program = b""
    if level != "limits":
        program = seccomp.compile_filter(can_fork=limits.num_processes > 1) or b""
    return {
        "job": job,
        "args": args,
        "source": None,
        "limits": limits.rlimits(wall_s),
        "filter": base64.b64encode(program).decode(),
    }


@contextlib.contextmanager
def _watching(limits: Limits, wall_s: float, out_dir: Path) -> Iterator[Watch]:
    progress = Progress()
    try:
        yield Watch(
            wall_s=wall_s,
            stall_s=limits.stall_s,
            out_dir=out_dir,
            out_bytes=limits.out_bytes,
            progress=progress,
        )
    finally:
        progress.close()


def _checked(report: JobReport, job: str, out_dir: Path) -> JobReport:
    if report.status != "ok" and (
        f"[Errno {errno.ENOSPC}]" in report.detail
        or shutil.disk_usage(out_dir).free < _MIN_FREE_BYTES
    ):
        raise StoreFull(
            f"no space left in {out_dir.parent} while {job} was at work: free some and run "
            "again; the file is not to blame and is not quarantined for it"
        )
    return report


def _run_plain(request: dict[str, Any], source: Path | None, watch: Watch, level: str) -> JobReport:
    """Run a job without namespaces: a process in a group of its own, its source a descriptor."""
    descriptors = [os.memfd_create("answer")]
    output, child_output = os.pipe2(os.O_CLOEXEC)
    watch.output = output
    try:
        if source is not None:
            descriptors.append(os.open(source, os.O_RDONLY | os.O_CLOEXEC))
            request["source"] = {"fd": descriptors[-1]}
        request |= {"answer_fd": descriptors[0], "progress_fd": watch.progress.fd}
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(request, allow_nan=False).encode())
            stdin.seek(0)
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-s", "-m", child.__name__],
                stdin=stdin,
                stdout=child_output,
                stderr=child_output,
                env=bwrap.ENVIRONMENT,
                pass_fds=[*descriptors, watch.progress.fd],
                start_new_session=True,
            )
        end = os.pidfd_open(process.pid)
        try:
            verdict = watch.until(end)
        finally:
            os.close(end)
            _kill_group(process)
        answer = read_answer(descriptors[0])
        return make_report(process.returncode, answer, verdict, tail=watch.tail_text, level=level)
    finally:
        for descriptor in (*descriptors, output, child_output):
            os.close(descriptor)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError as error:  # a zombie group on some kernels
        log.debug("group %d: %s", process.pid, error)
    process.wait()


# warm ----------------------------------------------------------------------------------------


class Sandbox:
    """A warm sandbox: locked in and imported once, it forks one short-lived process per file.

    Each file has limits, a filter, a source, an output folder, a temporary folder and an answer
    of its own; all its processes are gone, and what they left was moved out, before the next
    begins. A box that dies, or holds a hang, is replaced. Files above `MAX_WARM_BYTES`, and
    machines without namespaces, get a process of their own, as by `run_job`. To be closed, or
    used in a ``with``; several threads take turns.

    Args:
        preload: Modules imported once for all files, beside `PRELOAD`; none may start threads.
        devices: Device files let in.
        maximum_level: One of `LEVELS`; for tests.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        devices: Sequence[str] = (),
        maximum_level: str = "bubblewrap",
    ) -> None:
        self._preload, self._devices = (*PRELOAD, *preload), tuple(devices)
        self._maximum_level = maximum_level
        self._turn = threading.Lock()
        self._root: Path | None = None
        self._box: Box | None = None
        self._num_files = 0
        self._is_closed = False

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it for good, after the file that it is at."""
        with self._turn:
            self._is_closed = True
            self._end()

    def _end(self) -> None:
        if self._box is not None:
            self._box.close()
        if self._root is not None:
            remove(self._root)
        self._box = self._root = None

    def run(
        self,
        job: str,
        args: dict[str, Any],
        *,
        source: Path | None,
        out_dir: Path,
        wall_s: float,
        limits: Limits | None = None,
        minimum_level: str = "seccomp",
    ) -> JobReport:
        """Run one job on one file; see `run_job`."""
        check_request(job, out_dir, minimum_level)
        level = _level(minimum_level, self._maximum_level)
        if level != "bubblewrap" or (source and source.stat().st_size > MAX_WARM_BYTES):
            return run_job(
                job, args, source=source, out_dir=out_dir, wall_s=wall_s, limits=limits,
                minimum_level=minimum_level, maximum_level=self._maximum_level,
                devices=self._devices,
            )  # fmt: skip
        limits = limits or Limits()
        request = _request(job, args, limits, wall_s, level)
        with self._turn:
            if self._is_closed:
                raise SandboxError(f"{job}: its sandbox was closed")
            source_fd = None if source is None else sealed_copy(source)
            try:
                report = self._run_warm(request, source_fd, out_dir, limits, wall_s)
            finally:
                if source_fd is not None:
                    os.close(source_fd)
        return _checked(report, job, out_dir)

    def _run_warm(
        self,
        request: dict[str, Any],
        source_fd: int | None,
        out_dir: Path,
        limits: Limits,
        wall_s: float,
    ) -> JobReport:
        for attempt in range(2):  # one that died meanwhile has taken no file
            box, made, seen = self._next()
            request |= {"out_dir": f"{seen}/out", "temp_dir": f"{seen}/temp"}
            try:
                with _watching(limits, wall_s, made / "out") as watch:
                    report = box.run(request, watch, source_fd)
                move_plain_files(made / "out", out_dir)
            except BoxLost as error:
                self._end()
                if attempt:
                    raise SandboxError(f"{request['job']}: {error}") from error
                continue
            except BaseException:
                self._end()
                raise
            self._clear()
            return report
        raise AssertionError("a lost box is an error on the second attempt")

    def _next(self) -> tuple[Box, Path, str]:
        """A box that is open, and a fresh folder in it: here, and as its processes see it."""
        if self._box is None or not self._box.is_open or self._root is None:
            self._end()
            self._root = Path(tempfile.mkdtemp(prefix="wsdata-box-"))
            self._box = Box(self._root, preload=self._preload, devices=self._devices, is_warm=True)
        self._num_files += 1
        name = str(self._num_files)
        for part in ("out", "temp"):
            (self._root / name / part).mkdir(parents=True)
        return self._box, self._root / name, f"{bwrap.OUT_AT}/{name}"

    def _clear(self) -> None:
        """Remove all that the last file left anywhere; a box that holds a hang goes too."""
        if self._box is None or not self._box.is_open or self._root is None:
            self._end()
            return
        for left in self._root.iterdir():
            remove(left)


class SandboxPool:
    """Warm sandboxes for several workers, made as they are needed; each job gets a free one.

    Args:
        count: How many at most; further jobs wait.
        preload: Modules imported once for all files, beside `PRELOAD`; none may start threads.
        devices: Device files let in.
    """

    def __init__(
        self, count: int, *, preload: Sequence[str] = (), devices: Sequence[str] = ()
    ) -> None:
        self._all = [Sandbox(preload=preload, devices=devices) for _ in range(count)]
        self._free = list(self._all)
        self._is_free = threading.Semaphore(count)

    def __enter__(self) -> "SandboxPool":
        return self

    def __exit__(self, *_: object) -> None:
        for box in self._all:
            box.close()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Sandbox]:
        """Lend a sandbox that nobody else uses meanwhile: the one used last."""
        with self._is_free:
            box = self._free.pop()
            try:
                yield box
            finally:
                self._free.append(box)

    def run(self, job: str, args: dict[str, Any], **options: Any) -> JobReport:
        """Run one job on one file in a free sandbox; see `run_job`."""
        with self.lend() as box:
            return box.run(job, args, **options)
