"""S3 servers of a test's own on loopback: moto, the same behind a proxy that fails, and Ceph's.

moto is fast and lets everybody do everything. `running_radosgw` is a real server that enforces
keys and policies; `tools/cluster_setup.sh` installs what it needs.
"""

import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from wsdata.access import IDENTITIES, bucket_policy
from wsdata_tests.cluster.faulty_proxy import failing_proxy
from wsdata_tests.ports import free_port

START_S = 60
OWNER = "owner"
PLACES = ("store", "vault", "landing")
REGION = "us-east-1"
FAULTY_SHARE = 0.05
SERVERS = ("moto", pytest.param("radosgw", marks=pytest.mark.slow))  # of a fixture


@dataclass
class S3Server:
    """One running server. `keys` are access key and secret by user; OWNER owns the buckets."""

    endpoint: str
    keys: dict[str, tuple[str, str]] = field(repr=False)

    def environment(self, user: str = OWNER) -> dict[str, str]:
        """The environment variables that make a process that user."""
        key, secret = self.keys[user]
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": REGION,
        }

    def client(self, user: str = OWNER) -> Any:
        """A boto3 client of that user, as plain as it comes."""
        from boto3.session import Session

        key, secret = self.keys[user]
        return Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )

    def address(self, bucket: str, prefix: str = "") -> str:
        """Store address of a bucket, or of a prefix of it."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}"

    def make_bucket(self, bucket: str | None = None) -> str:
        """Make a bucket of the owner's, of a new name without one given; return its name."""
        bucket = bucket or f"b{secrets.token_hex(8)}"
        self.client().create_bucket(Bucket=bucket)
        return bucket

    def set_policy(self, bucket: str, policy: dict[str, Any]) -> None:
        """Put a bucket policy in force."""
        self.client().put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


def _wait_until_it_answers(endpoint: str, is_alive: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            urlopen(endpoint, timeout=5).close()  # noqa: S310 - loopback
        except HTTPError:
            return
        except (URLError, OSError):
            if not is_alive():
                break
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the S3 server at {endpoint} did not come up")


# moto ------------------------------------------------------------------------------------------


@contextmanager
def running_moto(*, in_process: bool = True) -> Iterator[S3Server]:
    """Run moto's server.

    Args:
        in_process: A thread of this process: up at once, but all such servers of a process share
            their buckets. Else a process of its own.
    """
    keys = {user: (f"AKIA{user.upper():X<16}", f"{user}-secret") for user in (OWNER, *IDENTITIES)}
    if in_process:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            host, port = server.get_host_and_port()
            yield S3Server(f"http://{host}:{port}", keys)
        finally:
            server.stop()
        return
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_until_it_answers(endpoint, lambda: process.poll() is None)
        yield S3Server(endpoint, keys)
    finally:
        process.kill()
        process.wait()


# Ceph ------------------------------------------------------------------------------------------

CEPH_CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}/0
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon max pg per osd = 1000
mon data avail warn = 1
mon osd initial require min compat client = luminous
osd objectstore = memstore
memstore device bytes = 2147483648
ms bind ipv6 = false
ms mon client mode = crc
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
osd class load list = *
osd class default list = *
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
pid file = {folder}/$name.pid
keyring = {folder}/keyring
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {folder}/rgw
rgw enable usage log = false
rgw lc debug interval = -1
rgw dynamic resharding = false
rgw relaxed s3 bucket names = false
"""
CEPH_PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool")


def has_radosgw() -> bool:
    """Whether Ceph's gateway is installed: Debian's radosgw, ceph-mon and ceph-osd."""
    return all(shutil.which(name) for name in CEPH_PROGRAMS)


@contextmanager
def running_radosgw(folder: Path | None = None) -> Iterator[S3Server]:
    """Run a real Ceph S3 gateway: one monitor, one store in memory, users OWNER and IDENTITIES.

    Args:
        folder: Where to make the server's own folder; the system's temporary folder without it.
            The path should be short: sockets lie in it.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="wsdata-rgw-", dir=folder))
    ceph = _Ceph(home)
    try:
        ceph.start()
        keys = {user: ceph.make_user(user) for user in (OWNER, *IDENTITIES)}
        yield S3Server(ceph.endpoint, keys)
    finally:
        ceph.stop()
        shutil.rmtree(home, ignore_errors=True)


class _Ceph:
    """The three daemons, all children of this process, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.mon_port = free_port(), free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.fsid = Path("/proc/sys/kernel/random/uuid").read_text().strip()

    def _run(self, *command: str) -> str:
        program, *rest = command
        done = subprocess.run(  # noqa: S603
            [program, *rest],
            cwd=self.folder,
            env={**os.environ, "CEPH_CONF": str(self.folder / "ceph.conf")},
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a daemon in the foreground, so that it is ours to end."""
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            daemon = subprocess.Popen(  # noqa: S603
                [*command, "-f", "-c", "ceph.conf"], cwd=self.folder, stdout=out, stderr=out
            )
        self.daemons.append(daemon)
        return daemon

    def start(self) -> None:
        for name in ("mon", "osd", "rgw"):
            (self.folder / name).mkdir()
        values = {"fsid": self.fsid, "folder": self.folder}
        (self.folder / "ceph.conf").write_text(
            CEPH_CONF.format(**values, port=self.port, mon_port=self.mon_port)
        )
        every = ("--cap", "osd", "allow *", "--cap", "mgr", "allow *")
        make = ("ceph-authtool", "keyring", "--gen-key", "-n")
        self._run("ceph-authtool", "--create-keyring", *make[1:], "mon.", "--cap", "mon", "allow *")
        for name in ("client.admin", "client.rgw"):
            self._run(*make, name, "--cap", "mon", "allow *", *every)
        where = f"[v2:127.0.0.1:{self.mon_port}/0]"
        self._run("monmaptool", "--create", "--addv", "a", where, "--fsid", self.fsid, "monmap")
        self._run(
            *("ceph-mon", "-c", "ceph.conf", "--mkfs", "-i", "a"),
            *("--monmap", "monmap", "--keyring", "keyring"),
        )
        self._start("ceph-mon", "-i", "a")
        osd = Path("/proc/sys/kernel/random/uuid").read_text().strip()
        self._run("ceph", "-c", "ceph.conf", "--connect-timeout", "30", "osd", "new", osd)
        self._run("ceph-osd", "-c", "ceph.conf", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._start("ceph-osd", "-i", "0")
        gateway = self._start("radosgw", "-n", "client.rgw")
        _wait_until_it_answers(self.endpoint, lambda: gateway.poll() is None)

    def make_user(self, name: str) -> tuple[str, str]:
        key, secret = f"{name}{secrets.token_hex(6)}", secrets.token_hex(16)
        self._run(
            *("radosgw-admin", "-c", "ceph.conf", "user", "create", f"--uid={name}"),
            *(f"--display-name={name}", f"--access-key={key}", f"--secret={secret}"),
        )
        return key, secret

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()


# either ----------------------------------------------------------------------------------------


@contextmanager
def running_s3(kind: str) -> Iterator[S3Server]:
    """Run a server of a kind of SERVERS; a test is skipped where it is not installed."""
    if kind == "radosgw" and not has_radosgw():
        pytest.skip("no Ceph gateway: run tools/cluster_setup.sh")
    with running_moto() if kind == "moto" else running_radosgw() as server:
        yield server


# a site ----------------------------------------------------------------------------------------


@contextmanager
def running_site_s3(kind: str, folder: Path | None = None) -> Iterator[S3Server]:
    """Run a server with the buckets store, vault and landing, and the policies of all identities.

    Args:
        kind: ``moto``, which enforces nothing; ``faulty``, the same where one request in twenty
            fails; or ``radosgw``.
        folder: Where a server that needs one makes its own folder.
    """
    is_ceph = kind == "radosgw"
    with ExitStack() as stack:
        running = running_radosgw(folder) if is_ceph else running_moto(in_process=False)
        server = stack.enter_context(running)
        for bucket in PLACES:
            server.make_bucket(bucket)
        if is_ceph:
            apply_policies(server)
        if kind == "faulty":
            faults = stack.enter_context(failing_proxy(server.endpoint, share=FAULTY_SHARE, seed=1))
            server = replace(server, endpoint=faults.endpoint)
        yield server


def apply_policies(server: S3Server, *, reads_transcodes: bool = False) -> None:
    """Let each identity do, in the buckets store, vault and landing, what it may."""
    addresses = {place: server.address(place) for place in PLACES}
    principals = {identity: f"arn:aws:iam:::user/{identity}" for identity in IDENTITIES}
    for bucket in PLACES:
        made = bucket_policy(bucket, principals, **addresses, reads_transcodes=reads_transcodes)
        server.set_policy(bucket, made)
