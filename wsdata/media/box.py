"""A box: one bubblewrap with its zygote, seen from the parent, one file after the other.

What the zygote does inside stands in `zygote`; who lends boxes to jobs, and moves what they
leave, in `sandbox`.
"""

import contextlib
import errno
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from wsdata.errors import SandboxError
from wsdata.media import bwrap, zygote
from wsdata.media.jobs import READY, JobReport, make_report, read_answer
from wsdata.media.watchdog import Watch

LEVEL = "bubblewrap"
_START_S, _END_S = 120.0, 10.0
_COMPLAINT_BYTES = 1000
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class BoxLost(Exception):
    """The box ended before it had taken a file: nothing was parsed, another box may be tried."""


@functools.cache
def _starter(_of_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-starter")


def sealed_copy(path: Path) -> int:
    """Return a descriptor of a copy in memory that nobody can ever change, at its start."""
    descriptor = os.memfd_create("source", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with path.open("rb") as file:
            while os.sendfile(descriptor, file.fileno(), None, 1 << 24):
                pass
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Box:
    """A running box. Used by one thread at a time; after a verdict or a loss it is of no use.

    Args:
        out_root: Folder that is seen at `bwrap.OUT_AT`.
        source: File that is seen at `bwrap.SOURCE_AT`, for a box of one file.
        preload: Modules imported before any file: none that starts threads.
        devices: Devices let in.
        is_warm: Whether several files are to follow each other.

    Raises:
        SandboxError: It does not start.
    """

    def __init__(
        self,
        out_root: Path,
        *,
        source: Path | None = None,
        preload: Sequence[str] = (),
        devices: Sequence[str] = (),
        is_warm: bool = False,
    ) -> None:
        command = bwrap.box_command(
            bwrap.bubblewrap_path() or "bwrap", out_root, source=source, devices=devices,
            is_warm=is_warm,
        )  # fmt: skip
        self._control, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._complaints = os.memfd_create("complaints")
        self._about, about = os.pipe2(os.O_CLOEXEC)
        try:
            # bubblewrap dies with the thread that started it: with one that lasts
            self._process = _starter(os.getpid()).submit(
                subprocess.Popen,
                [
                    command[0], "--info-fd", str(about), *command[1:],
                    sys.executable, "-P", "-s", "-m", zygote.__name__, *preload,
                ],
                stdin=inside.fileno(), stdout=self._complaints, stderr=self._complaints,
                env=bwrap.ENVIRONMENT, start_new_session=True, pass_fds=[about],
            ).result()  # fmt: skip
        except BaseException:
            self._control.close()
            os.close(self._complaints)
            os.close(self._about)
            raise
        finally:
            inside.close()
            os.close(about)
        self._is_awaited = True
        self._is_open = True
        self._complaint = ""

    def run(self, request: dict[str, Any], watch: Watch, source_fd: int | None) -> JobReport:
        """Run one file's job; its processes are all gone when this returns without a verdict.

        Args:
            request: What `child.lock_in_and_run` wants, but for its descriptors.
            watch: What the job is held to.
            source_fd: The file, in a box that was made for several.

        Returns:
            The report. After a verdict of the watchdog, or a child that took the zygote along,
            the box has ended.

        Raises:
            BoxLost: It ended before it took the file.
            SandboxError: The child could not be locked in.
        """
        self._await_start()
        answer_fd = os.memfd_create("answer")
        request_fd = _in_memory(request)
        output, child_output = os.pipe2(os.O_CLOEXEC)
        watch.output = output
        try:
            passed = [request_fd, answer_fd, watch.progress.fd, child_output]
            passed += [] if source_fd is None else [source_fd]
            try:
                socket.send_fds(self._control, [b"file"], passed)
            except OSError as error:
                raise BoxLost(f"the box does not take a file: {error}") from error
            os.close(child_output)
            child_output = -1
            verdict = watch.until(self._control.fileno())
            returncode = self._returncode() if verdict is None else self.close()
            answer = read_answer(answer_fd)
            if not self._is_open and verdict is None and not answer.startswith(READY):
                raise BoxLost(f"the box ended: {self._complaint}")
            return make_report(returncode, answer, verdict, tail=watch.tail_text, level=LEVEL)
        finally:
            for descriptor in (answer_fd, request_fd, output, child_output):
                if descriptor >= 0:
                    os.close(descriptor)

    @property
    def is_open(self) -> bool:
        """Whether it can take another file."""
        return self._is_open

    def _await_start(self) -> None:
        if not self._is_awaited:
            return
        self._control.settimeout(_START_S)
        try:
            is_ready = self._control.recv(zygote.MAX_MESSAGE_BYTES) == READY
        except OSError:
            is_ready = False
        self._control.settimeout(None)
        self._is_awaited = False
        if not is_ready:
            code = self.close()
            raise SandboxError(f"a sandbox did not start (exit {code}): {self._complaint}")

    def _returncode(self) -> int:
        """What the zygote tells of its child; where it is gone itself, how it ended."""
        try:
            told = self._control.recv(zygote.MAX_MESSAGE_BYTES)
            if told:
                return int(json.loads(told)["returncode"])
        except (OSError, ValueError, KeyError):
            pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return self.close()

    def close(self) -> int:
        """End all that is inside; return how bubblewrap ended, negative for a signal.

        Bubblewrap ends once the zygote has, and the zygote once all of its PID space is gone: so
        nothing inside lives or writes any more when this returns.
        """
        if self._is_open:
            self._is_open = False
            self._kill_zygote()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._control.close()
            os.close(self._about)
            size = os.fstat(self._complaints).st_size
            told = os.pread(self._complaints, _COMPLAINT_BYTES, max(0, size - _COMPLAINT_BYTES))
            self._complaint = told.decode(errors="replace").strip() or os.strerror(errno.EIO)
            os.close(self._complaints)
        code = self._process.returncode
        return code if code < 128 else 128 - code

    def _kill_zygote(self) -> None:
        try:  # bubblewrap tells its number at once, or ends without
            pid = int(json.loads(os.read(self._about, 4096))["child-pid"])
        except (OSError, ValueError, KeyError):
            return
        if self._process.poll() is None:  # its number cannot be another's before that is reaped
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _in_memory(request: dict[str, Any]) -> int:
    descriptor = os.memfd_create("request")
    data = json.dumps(request, allow_nan=False).encode()
    with os.fdopen(descriptor, "wb", closefd=False) as handle:
        handle.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
