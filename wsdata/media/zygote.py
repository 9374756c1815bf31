"""The zygote: a locked-in process that forks one short-lived child per file.

Started by `box` as the first process of a PID space of its own. It parses no outside byte: it
imports, forks, waits, and before the next file ends all that the last one has left running. Its
memory cannot be opened by its children, and no signal of theirs reaches it.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from wsdata.errors import SandboxError
from wsdata.media.child import lock_in_and_run
from wsdata.media.jobs import READY

NUM_DESCRIPTORS = 5
MAX_MESSAGE_BYTES = 4096
_EXIT_NOT_LOCKED_IN = 70  # sysexits' EX_SOFTWARE
_PR_SET_DUMPABLE = 4
_SETTLE_S = 10.0
_SLEEPERS = {"polars-ooc-clea"}  # waits for spilled files to remove, of which there are none


def _hide_memory() -> None:
    """Close this process's ``/proc/1/mem``, and that of its children, to their like."""
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise SandboxError("the kernel does not let the zygote close its memory")


def _wait_for_idle_threads() -> None:
    """Go on once nothing but this thread runs: a fork leaves the locks of others as they are.

    Raises:
        SandboxError: A preloaded module has started threads that may work.
    """
    deadline = time.monotonic() + _SETTLE_S
    while busy := _busy_threads():  # a thread takes its name, and falls asleep, after its start
        if time.monotonic() > deadline:
            raise SandboxError(
                f"preloaded modules have started threads, which they must not: {busy}"
            )
        time.sleep(0.001)


def _busy_threads() -> list[str]:
    own = str(threading.get_native_id())
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != own]
    seen = [
        (
            (task / "comm").read_text().strip(),
            (task / "stat").read_text().rpartition(")")[2].split(),
        )
        for task in tasks
    ]
    return [name for name, fields in seen if name not in _SLEEPERS or fields[0] != "S"]


def _become_child(control: socket.socket, descriptors: list[int]) -> None:
    """Run the job of the request in a fresh fork; never returns."""
    try:
        control.close()
        os.setsid()
        request_fd, answer_fd, progress_fd, output_fd, *source_fds = descriptors
        with os.fdopen(request_fd, "rb") as handle:
            request: dict[str, Any] = json.loads(handle.read())
        for standard in (sys.stdout, sys.stderr):
            os.dup2(output_fd, standard.fileno())
        os.close(output_fd)
        request |= {"answer_fd": answer_fd, "progress_fd": progress_fd}
        if source_fds:
            request["source"] = {"fd": source_fds[0]}
        os.environ["TMPDIR"] = tempfile.tempdir = request["temp_dir"]
        os.chdir(request["temp_dir"])
        lock_in_and_run(request)
    except BaseException:  # noqa: BLE001  told to the parent, which then finds no READY
        with contextlib.suppress(OSError):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(_EXIT_NOT_LOCKED_IN)


def _end_all() -> None:
    """End every process but this one, and reap it; a killed one cannot fork any more."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _run_file(control: socket.socket, descriptors: list[int]) -> int:
    """Fork for one file; return its exit status, negative for a signal, once all is quiet."""
    child = os.fork()
    if child == 0:
        _become_child(control, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    status = os.waitpid(child, 0)[1]
    _end_all()
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Serve files over the socket that standard input is, until its other end is closed."""
    if os.getpid() != 1:
        raise SandboxError("the zygote must be the first process of a PID space of its own")
    _hide_memory()
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in sys.argv[1:]:
        importlib.import_module(name)
    _wait_for_idle_threads()
    gc.freeze()  # so that no collection in a child copies the pages of all modules
    control.send(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, NUM_DESCRIPTORS)
        if not message:
            os._exit(0)
        control.send(json.dumps({"returncode": _run_file(control, descriptors)}).encode())


if __name__ == "__main__":
    main()
