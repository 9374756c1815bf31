"""The child that parses outside bytes: locks itself in, runs one job, hands back its result.

Forked by `zygote`, or started by `sandbox` where there are no namespaces. It holds no
credential, and nothing here trusts the bytes.
"""

import base64
import ctypes
import importlib
import io
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from wsdata.errors import SandboxError
from wsdata.media import progress
from wsdata.media.jobs import READY
from wsdata.media.seccomp import load_filter

_PR_SET_PDEATHSIG = 1
_OPENCV_OUT_OF_MEMORY = -4


class _Source(io.FileIO):
    """The source without a path: what libraries print about it is the same everywhere."""

    name = "source"  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def readinto(self, buffer: Any, /) -> int | None:
        read = super().readinto(buffer)
        progress.advance_bytes(read or 0)
        return read


def _open_source(source: dict[str, Any] | None) -> BinaryIO:
    if source is None:
        return io.BytesIO()
    return io.BufferedReader(_Source(source["path"] if "path" in source else source["fd"], "rb"))


def _die_with_parent(parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SandboxError("the parent was gone before the child began")


def _set_limits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # at the hard limit of processor time the kernel sends SIGKILL, which tells nothing
        grace = 1 if kind == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else 0
        resource.setrlimit(kind, (allowed, allowed + grace))


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or getattr(error, "code", 0) == _OPENCV_OUT_OF_MEMORY


def _run(job: str, args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    module, _, name = job.partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(args, source, out_dir)
        text = json.dumps(result, allow_nan=False)
    except Exception as error:  # noqa: BLE001  the sandbox: failure becomes a record
        status = "memory" if _is_out_of_memory(error) else "failed"
        return {"status": status, "detail": f"{type(error).__name__}: {error}"[:2000]}
    return {"status": "ok", "result": json.loads(text)}


def lock_in_and_run(request: dict[str, Any]) -> None:
    """Lock this process in for good, run the job of a request, write the answer, and end.

    Args:
        request: ``job``, ``args``, ``out_dir``, ``source`` (``path`` or ``fd``, or null),
            ``answer_fd``, ``progress_fd``, ``limits`` and ``filter``.
    """
    _set_limits(request["limits"])
    source = _open_source(request["source"])
    progress.attach(request["progress_fd"])
    if request["filter"]:
        load_filter(base64.b64decode(request["filter"]))
    answer_fd = request["answer_fd"]
    os.write(answer_fd, READY)
    answer = _run(request["job"], request["args"], source, Path(request["out_dir"]))
    with os.fdopen(answer_fd, "wb", closefd=False) as handle:
        handle.write(json.dumps(answer).encode())
    sys.stdout.flush()
    os._exit(0)  # not held up by threads or exit handlers of libraries


def main() -> None:
    """Read the request from standard input, and run it."""
    request = json.loads(sys.stdin.buffer.read())
    _die_with_parent(request["parent_pid"])
    lock_in_and_run(request)


if __name__ == "__main__":
    main()
