"""One container: the bubblewrap command that starts it, and its process. No pods here."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wsdata.media.sandbox import bubblewrap_path
from wsdata_tests.cluster.kube.images import interpreter_binds, program

# what an image's /etc holds, without this machine's secrets
_ETC = (
    "alternatives", "ca-certificates", "debian_version", "fonts", "host.conf", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "os-release",
    "protocols", "resolv.conf", "services", "ssl", "timezone",
)  # fmt: skip
# As root, bubblewrap hides parts of /proc, and then no sandbox inside could mount its own: so the
# container's /proc is mounted plainly, before its program becomes another user.
_AS_ROOT = (
    "user=$1; shift; {mount} -t proc -o nosuid,nodev,noexec proc /proc && exec {unshare} --user "
    '--map-user="$user" --map-group="$user" -- {env} -u PWD -u OLDPWD "$@"'
)


class ContainersImpossible(Exception):
    """Bubblewrap does not start a container on this machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    at: str
    source: Path
    is_read_only: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerPlan:
    """What a container is started with; nothing of the spec is left to look up."""

    argv: list[str]
    environment: dict[str, str]
    user: int
    working_dir: str
    hostname: str
    mounts: list[Mount]
    is_root_read_only: bool
    binds: dict[str, str] = field(default_factory=dict)


def _base() -> list[str]:
    arguments = [
        bubblewrap_path() or "bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
        "--as-pid-1", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--ro-bind", "/sys", "/sys",
        "--dev", "/dev", "--dir", "/tmp", "--dir", "/var/tmp", "--dir", "/run",  # noqa: S108
        "--symlink", "/run", "/var/run",
    ]  # fmt: skip
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    for name in _ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for path in interpreter_binds():
        arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def command_of(plan: ContainerPlan, status_fd: int) -> list[str]:
    arguments = [*_base(), "--json-status-fd", str(status_fd), "--hostname", plan.hostname]
    for at, folder in plan.binds.items():
        arguments += ["--ro-bind", folder, at]
    for mount in sorted(plan.mounts, key=lambda mount: len(Path(mount.at).parts)):
        arguments += [
            "--ro-bind" if mount.is_read_only else "--bind",
            str(mount.source),
            _real(mount.at),
        ]
    is_root = os.geteuid() == 0
    if is_root:
        arguments += ["--dir", "/proc"]
    else:
        user = str(plan.user)
        arguments += ["--unshare-user", "--uid", user, "--gid", user, "--proc", "/proc"]
    if plan.is_root_read_only:
        arguments += ["--remount-ro", "/"]
    arguments += ["--chdir", plan.working_dir]
    if not is_root:
        return [*arguments, *plan.argv]
    script = _AS_ROOT.format(mount=program("mount"), unshare=program("unshare"), env=program("env"))
    return [*arguments, program("sh"), "-c", script, "container", str(plan.user), *plan.argv]


def _real(at: str) -> str:
    return at.replace("/var/run/", "/run/", 1) if at.startswith("/var/run/") else at


class Container:
    """A running container; made, waited for and ended by one thread, signalled by any."""

    def __init__(self, plan: ContainerPlan, on_output: Callable[[bytes], None]) -> None:
        """Start it.

        Raises:
            OSError: Bubblewrap itself does not start.
        """
        status_read, status_write = os.pipe()
        try:
            # the parent-death signal follows this thread, which lives until the process ends
            self._process = subprocess.Popen(  # noqa: S603
                command_of(plan, status_write),
                env=plan.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, pass_fds=[status_write], start_new_session=True,
            )  # fmt: skip
        except OSError:
            os.close(status_read)
            raise
        finally:
            os.close(status_write)
        self._status = os.fdopen(status_read)
        self._pid = self._read_pid()
        self._on_output = on_output
        self._is_killed = threading.Event()
        self._pump = threading.Thread(target=self._read_output, daemon=True)
        self._pump.start()

    def _read_pid(self) -> int | None:
        line = self._status.readline()
        return json.loads(line)["child-pid"] if line else None

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on_output(line)

    def wait(self) -> int | None:
        """Wait for the end; return the exit code as a shell gives it, None if nothing started."""
        code = self._process.wait()
        self._pump.join()
        is_set_up = "exit-code" in self._status.read() or self._is_killed.is_set()
        self._status.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if not is_set_up:
            return None
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Signal the first process; SIGKILL ends all of the container."""
        if number == signal.SIGKILL:
            self._is_killed.set()
        try:
            if self._pid is not None and self._process.poll() is None:
                os.kill(self._pid, number)
        except ProcessLookupError:
            return


def check_containers_possible() -> None:
    """Start the smallest container.

    Raises:
        ContainersImpossible: It does not start; the message says why and what to do.
    """
    plan = ContainerPlan(
        argv=["/bin/true"], environment={}, user=10001, working_dir="/", hostname="probe",
        mounts=[], is_root_read_only=True,
    )  # fmt: skip
    said: list[bytes] = []
    try:
        code = Container(plan, said.append).wait()
    except OSError as error:
        code, said = None, [str(error).encode()]
    if code != 0:
        raise ContainersImpossible(
            f"bubblewrap cannot start a container here (exit {code}): "
            f"{b''.join(said).decode(errors='replace').strip()}. Install bubblewrap, and allow "
            "user namespaces or run as root outside of a container that forbids mounts; the "
            "Kubernetes double never runs pods without it."
        )
