"""A real Postgres of a test's own: in a folder, on a free loopback port, with a password.

Debian's `postgresql` gives the programs (tools/setup.sh installs it). The server refuses root, so
root runs it as the user that the package makes.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from wsdata_tests.ports import free_port

START_S = 60
USER = "wsdata"


def programs() -> Path:
    """The folder with `initdb` and `pg_ctl`.

    Raises:
        FileNotFoundError: Postgres is not installed.
    """
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[4])
    )
    if not found:
        raise FileNotFoundError("no /usr/lib/postgresql/*/bin/pg_ctl: run tools/setup.sh")
    return found[-1].parent


def _as_server_user(arguments: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return arguments
    return ["runuser", "-u", "postgres", "--", *arguments]


def _run(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(  # noqa: S603
        _as_server_user(arguments), cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        log = folder / "server.log"
        raise RuntimeError(
            f"{' '.join(arguments[:2])} failed with {done.returncode}: {done.stdout}{done.stderr}"
            f"{log.read_text()[-2000:] if log.is_file() else ''}"
        )


@dataclass
class Postgres:
    """One running server. `url` holds the password; `url_without_password` does not."""

    folder: Path
    host: str
    port: int
    user: str = USER
    password: str = field(default_factory=lambda: secrets.token_urlsafe(12), repr=False)
    database: str = "wsdata"
    is_durable: bool = False  # whether a lost machine, not only a killed server, loses nothing

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database, with the password."""
        return self.url_of(self.database)

    @property
    def url_without_password(self) -> str:
        """As `url`, for a deployment that holds the password by reference."""
        return f"postgresql+psycopg2://{self.user}@{self.host}:{self.port}/{self.database}"

    def url_of(self, database: str) -> str:
        """SQLAlchemy URL of some database of this server."""
        who = f"{self.user}:{self.password}"
        return f"postgresql+psycopg2://{who}@{self.host}:{self.port}/{database}"

    def make_database(self, name: str | None = None) -> str:
        """Make an empty database, of a new name without one given, and return its URL."""
        import psycopg2

        name = name or f"d{secrets.token_hex(6)}"
        connection = psycopg2.connect(
            host=self.host, port=self.port, user=self.user, password=self.password,
            dbname="postgres",
        )  # fmt: skip
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}"')
        connection.close()
        return self.url_of(name)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses={self.host}"
        if not self.is_durable:
            options += " -c fsync=off"
        _run(
            [str(programs() / "pg_ctl"), "start", "-w", "-t", str(START_S), "-D",
             str(self.folder / "data"), "-l", str(self.folder / "server.log"), "-o", options],
            self.folder,
        )  # fmt: skip

    def stop(self, mode: str = "fast") -> None:
        """Stop it as an administrator would: running transactions are rolled back."""
        _run(
            [str(programs() / "pg_ctl"), "stop", "-w", "-m", mode, "-D",
             str(self.folder / "data")],
            self.folder,
        )  # fmt: skip

    @property
    def pid(self) -> int | None:
        """Process id of the server, if it runs."""
        try:
            return int((self.folder / "data/postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None

    def kill(self) -> None:
        """Kill the server and all that serve its connections at once, as a lost node would."""
        pid = self.pid
        if pid is None:
            return
        family = [pid, *_children(pid)]
        os.kill(pid, signal.SIGSTOP)  # so that it starts nobody meanwhile
        for each in [*family[1:], *_children(pid), pid]:
            _kill(each)
        for each in family:
            _wait_gone(each)
        # A new server would take a dead one that nobody reaped for a running one.
        (self.folder / "data/postmaster.pid").unlink(missing_ok=True)
        (self.folder / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(path.parent.name))
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wait_gone(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(1000):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.01)
    raise TimeoutError(f"process {pid} outlived SIGKILL")


@contextmanager
def running_postgres(folder: Path | None = None, *, is_durable: bool = False) -> Iterator[Postgres]:
    """Run a server with one empty database `wsdata`, and stop it on the way out.

    Args:
        folder: Where to make the server's own folder; the system's temporary folder without it,
            and for root, whose test folders the server's user cannot enter. The path should be
            short: that of the socket in it is at most 107 bytes.
        is_durable: Also outlive the loss of the machine, at the speed of its disk.
    """
    base = str(folder) if folder is not None and os.geteuid() != 0 else None
    home = Path(tempfile.mkdtemp(prefix="wsdata-pg-", dir=base))
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(home, owner.pw_uid, owner.pw_gid)
    server = Postgres(folder=home, host="127.0.0.1", port=free_port(), is_durable=is_durable)
    try:
        _make(server)
        server.start()
        try:
            server.make_database(server.database)
            yield server
        finally:
            if server.pid is not None:
                server.stop("immediate")  # its data goes away
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _make(server: Postgres) -> None:
    password = server.folder / "password"
    password.write_text(server.password)
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(password, owner.pw_uid, owner.pw_gid)
    password.chmod(0o600)
    _run(
        [str(programs() / "initdb"), "-D", str(server.folder / "data"), "-N", "-U", server.user,
         "-E", "UTF8", "--locale", "C.UTF-8", "-A", "scram-sha-256", "--pwfile", str(password)],
        server.folder,
    )  # fmt: skip
    password.unlink()
