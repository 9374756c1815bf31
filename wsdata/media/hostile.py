"""Jobs that misbehave: what the sandbox is proven with, in tests and on a new machine.

Each does what a decoder taken over by its input could do, and answers what came of it.
"""

import ctypes
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_CLONE_NEWUSER = 0x10000000


def _try(act: Callable[[], object]) -> str:
    try:
        act()
    except (OSError, RuntimeError) as error:
        return type(error).__name__
    return "done"


def _write(path: str) -> None:
    with Path(path).open("ab") as handle:
        handle.write(b"x")


def _read(path: str) -> None:
    with Path(path).open("rb") as handle:
        handle.read(1)


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def _new_user_namespace() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def break_out(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Try each way out: ``write`` and ``read`` are paths to try."""
    (out_dir / "allowed").write_bytes(source.read(4))
    descriptor = f"/proc/self/fd/{source.fileno()}"
    return {
        "socket": _try(lambda: socket.socket(socket.AF_INET).close()),
        "unix_socket": _try(lambda: socket.socket(socket.AF_UNIX).close()),
        "kill_parent": _try(lambda: os.kill(os.getppid(), 0)),
        "new_session": _try(os.setsid),
        "namespace": _try(_new_user_namespace),
        "fork": _try(_fork),
        "thread": _try(lambda: threading.Thread(target=time.time).start()),
        "rewrite_source": _try(lambda: _write(descriptor)),
        "write": [_try(lambda path=path: _write(path)) for path in args["write"]],
        "read": [_try(lambda path=path: _read(path)) for path in args["read"]],
        "environment": sorted(os.environ),
        "processes": sum(name.isdigit() for name in os.listdir("/proc")),  # noqa: PTH208
    }


def take_memory(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Allocate without end."""
    del args, source, out_dir
    held: list[bytes] = []
    while True:
        held.append(b"x" * (64 << 20))


def fill_file(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Write one file without end."""
    del args, source
    with (out_dir / "big").open("wb") as handle:
        while True:
            handle.write(b"x" * (1 << 20))


def hang(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Ignore SIGTERM, start ``children`` that do so too, then spin or sleep for ever."""
    del source
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(args["children"]):
        if os.fork() == 0:
            break
    (out_dir / f"alive-{os.getpid()}").touch()
    while True:
        if not args["spins"]:
            time.sleep(60)


def flood(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Write ``num_bytes`` to standard error before anything else, then answer."""
    del source, out_dir
    sys.stderr.write("e" * args["num_bytes"])
    sys.stderr.flush()
    return {"written": args["num_bytes"]}


def leave_grandchild(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Answer, and leave behind a process that holds the pipes open."""
    del args, source, out_dir
    if os.fork() == 0:
        time.sleep(3600)
    return {"left": True}


def bomb(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Fork for as long as it is allowed, up to ``most``; answer how often it was."""
    del source, out_dir
    for count in range(args["most"]):
        try:
            if os.fork() == 0:
                time.sleep(3600)
        except OSError:
            return {"forks": count}
    return {"forks": args["most"]}


def crash(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Die by ``signal``, or end without an answer where that is 0."""
    del source, out_dir
    if args["signal"] == 0:
        os._exit(3)
    signal.raise_signal(args["signal"])
    return {}


def meet_full_disk(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Fail as a write on a full disk does."""
    del args, source
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out_dir / "clip.mp4"))
