"""Jobs that misbehave: what the sandbox is proven with, in tests and on a new machine.

Each does what a decoder taken over by its input could do, and answers what came of it.
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from wsdata.media import progress

_CLONE_NEWUSER = 0x10000000
_SYS_TGKILL = {"x86_64": 234, "aarch64": 131}


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


def _call(name: str, *args: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)


def _open_memory(pid: int) -> None:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))


def _signal_thread(pid: int) -> None:
    _call("syscall", _SYS_TGKILL[os.uname().machine], pid, pid, 0)


def _share_memory() -> None:
    _call("shmget", 4711, 4096, 0o1600)


def _disarm(pid: int) -> None:
    held = resource.getrlimit(resource.RLIMIT_CORE)  # whatever it is: being let is what counts
    resource.prlimit(pid, resource.RLIMIT_CORE, held)


def _be_told_of(pid: int, descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, pid)


def break_out(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Try each way out: ``write`` and ``read`` are paths to try."""
    (out_dir / "allowed").write_bytes(source.read(4))
    descriptor = f"/proc/self/fd/{source.fileno()}"
    parent = os.getppid() or 1
    return {
        "socket": _try(lambda: socket.socket(socket.AF_INET).close()),
        "unix_socket": _try(lambda: socket.socket(socket.AF_UNIX).close()),
        "kill_parent": _try(lambda: os.kill(os.getppid(), 0)),
        "new_session": _try(os.setsid),
        "namespace": _try(lambda: _call("unshare", _CLONE_NEWUSER)),
        "fork": _try(_fork),
        "exec": _try(lambda: os.execv("/none", ["none"])),  # noqa: S606
        "signal_parent": _try(lambda: _signal_thread(parent)),
        "disarm_parent": _try(lambda: _disarm(parent)),
        "parent_memory": _try(lambda: _open_memory(parent)),
        "own_signal": _try(lambda: _be_told_of(parent, source.fileno())),
        "shared_memory": _try(_share_memory),
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


def stall(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Read, tell of ``num_frames`` frames, then stand still without a sign of life."""
    del out_dir
    source.read()
    progress.advance(args["num_frames"])
    time.sleep(3600)
    return {}


def creep(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Tell of ``num_frames`` frames, ``pause_s`` apart: slow, but alive."""
    del source, out_dir
    for _ in range(args["num_frames"]):
        time.sleep(args["pause_s"])
        progress.advance()
    return {"frames": args["num_frames"]}


def litter(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Leave things that are hard to clear away, and a file; answer what lay there before.

    ``depth`` folders deep, closed to their owner, beside links, a pipe and a file of mode 0, and
    in every place that takes them.
    """
    del source
    places = [str(out_dir.parent), str(out_dir.parent.parent), "/tmp", "/dev", "/dev/shm"]  # noqa: S108
    found = {place: sorted(os.listdir(place)) for place in places if Path(place).is_dir()}  # noqa: PTH208
    kept = [
        place for place in places if _try(lambda place=place: _write(f"{place}/left")) == "done"
    ]
    (out_dir / "plain").write_bytes(b"plain")
    (out_dir / "plain").chmod(0)
    os.mkfifo(out_dir / "pipe")
    (out_dir / "link").symlink_to("/etc/passwd")
    deep = out_dir
    for _ in range(args["depth"]):
        os.chdir(deep)
        deep = Path("d")
        deep.mkdir()
    deep.chmod(0)
    return {"found": found, "kept": kept}


def fill_folder(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Write files of ``num_bytes`` without end."""
    del source
    index = 0
    while True:
        (out_dir / f"big-{index}").write_bytes(b"x" * args["num_bytes"])
        index += 1
