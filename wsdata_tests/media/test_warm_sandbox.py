"""One warm sandbox, file after file: whatever one does, the next finds nothing of it."""

import os
import shutil
import signal
import threading
from pathlib import Path

import psutil
import pytest

from wsdata.errors import SandboxError, StoreFull
from wsdata.media import bwrap, sandbox
from wsdata.media.jobs import Limits
from wsdata.media.sandbox import Sandbox, SandboxPool, run_job

HOSTILE = "wsdata.media.hostile"
FORKS = Limits(num_processes=8)
NO_WAY = {"write": [], "read": []}


@pytest.fixture(autouse=True, scope="module")
def reached():
    """A level that is not reached proves nothing, and is no reason to pass."""
    assert sandbox.reachable_level() == "bubblewrap", "install bubblewrap, allow user namespaces"


@pytest.fixture(scope="module")
def box():
    with Sandbox() as box:
        yield box


class Files:
    """Runs jobs of one box, each with a folder of its own."""

    def __init__(self, box, tmp_path):
        self.box, self.path = box, tmp_path
        self.source = tmp_path / "source.bin"
        self.source.write_bytes(b"source bytes")
        self.count = 0

    def run(self, name, args, *, wall_s=60.0, limits=None):
        self.count += 1
        self.out = self.path / f"out{self.count}"
        self.out.mkdir()
        return self.box.run(
            f"{HOSTILE}:{name}", args, source=self.source, out_dir=self.out, wall_s=wall_s,
            limits=limits, minimum_level="limits",
        )  # fmt: skip

    def is_well(self):
        """A harmless file's job, as it must go whatever went before."""
        report = self.run("break_out", NO_WAY)
        return report.status == "ok" and (self.out / "allowed").read_bytes() == b"sour"


@pytest.fixture
def files(box, tmp_path):
    return Files(box, tmp_path)


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def zygote(box):
    return box._box._process.pid


def test_nothing_gets_out_of_a_file_s_process(files, tmp_path):
    secret, beside = tmp_path / "secret", tmp_path / "written"
    secret.write_bytes(b"secret")
    args = {
        "write": [str(beside), "/usr/written", "/source", "/tmp/x", "/dev/shm/x", "/x"],  # noqa: S108
        "read": [str(secret), "/etc/passwd", "/proc/1/environ", "/proc/1/mem", "/proc/1/maps"],
    }
    found = files.run("break_out", args).result
    denied = (
        "socket", "unix_socket", "kill_parent", "new_session", "namespace", "fork", "exec",
        "signal_parent", "disarm_parent", "parent_memory", "own_signal", "shared_memory",
        "rewrite_source",
    )  # fmt: skip
    assert {name: found[name] for name in denied} == dict.fromkeys(denied, "PermissionError")
    assert found["thread"] == "done"
    assert "done" not in found["write"] + found["read"]
    assert found["processes"] == 2, "the zygote, and itself"
    ours = {*bwrap.ENVIRONMENT, "PWD", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH"}  # OpenCV's own
    assert set(found["environment"]) <= ours
    assert files.source.read_bytes() == b"source bytes"
    assert not beside.exists()


def test_files_share_a_zygote_and_nothing_else(files):
    assert files.is_well()
    first = zygote(files.box)
    litter = files.run("litter", {"depth": 2000})
    assert litter.status == "ok"
    assert sorted(path.name for path in files.out.iterdir()) == ["plain"]
    assert (files.out / "plain").read_bytes() == b"plain"
    assert set(litter.result["kept"]) <= {
        place for place in litter.result["found"] if "/out" in place
    }
    again = files.run("litter", {"depth": 1})
    root = str(bwrap.OUT_AT)
    assert len(again.result["found"][root]) == 1, "its own folder"
    assert not any("left" in names for names in again.result["found"].values())
    assert files.is_well()
    assert zygote(files.box) == first


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, 0])
def test_a_crash_costs_the_next_file_nothing(files, number):
    assert files.is_well()
    first = zygote(files.box)
    report = files.run("crash", {"signal": int(number)})
    once = run_job(
        f"{HOSTILE}:crash", {"signal": int(number)}, source=None, out_dir=files.out, wall_s=60.0,
        minimum_level="limits",
    )  # fmt: skip
    assert (report.status, report.detail) == (once.status, once.detail)
    assert report.status == ("memory" if number == signal.SIGKILL else "crashed")
    assert files.is_well()
    assert zygote(files.box) == first


def test_what_is_used_up_is_used_up_for_one_file(files):
    assert files.run("take_memory", {}, limits=Limits(memory_bytes=1 << 30)).status == "memory"
    assert files.run("fill_file", {}, limits=Limits(file_bytes=1 << 20)).status == "failed"
    spins = {"children": 0, "spins": True}
    assert "SIGXCPU" in files.run("hang", spins, limits=Limits(cpu_s=1)).detail
    full = files.run("fill_folder", {"num_bytes": 1 << 20}, limits=Limits(out_bytes=8 << 20))
    assert (full.status, full.result) == ("failed", None)
    assert "left over 8388608 bytes" in full.detail
    assert files.is_well()


def test_leftover_processes_are_gone_before_the_next_file(files):
    assert files.is_well()
    first = zygote(files.box)
    assert files.run("leave_grandchild", {}, limits=FORKS).result == {"left": True}
    assert files.run("bomb", {"most": 5}, limits=FORKS).status == "ok"
    found = files.run("break_out", NO_WAY).result
    assert found["processes"] == 2
    assert zygote(files.box) == first


@pytest.mark.parametrize("spins", [True, False])
def test_a_hang_takes_its_box_along_and_a_new_one_follows(files, spins):
    assert files.is_well()
    first = zygote(files.box)
    inside = [first, *(p.pid for p in psutil.Process(first).children(recursive=True))]
    report = files.run("hang", {"children": 3, "spins": spins}, wall_s=1.0, limits=FORKS)
    assert (report.status, report.result) == ("timeout", None)
    assert not any(is_alive(pid) for pid in inside)
    assert files.is_well()
    assert zygote(files.box) != first


def test_a_zygote_that_dies_is_replaced(files):
    assert files.is_well()
    inner = psutil.Process(zygote(files.box)).children()[0]
    os.kill(zygote(files.box), signal.SIGKILL)
    inner.wait(30)  # until then it takes a file, and loses it
    assert files.is_well()
    inner = psutil.Process(zygote(files.box)).children()[0]
    killer = threading.Timer(0.5, inner.kill)
    killer.start()
    report = files.run("hang", {"children": 0, "spins": False})
    killer.join()
    assert report.status == "memory", "as when the kernel wants memory back"
    assert files.is_well()


@pytest.mark.parametrize("level", ["seccomp", "bubblewrap"])
def test_no_progress_ends_a_job_early_and_slow_progress_does_not(tmp_path, level):
    limits = Limits(stall_s=1.0)
    with Sandbox(maximum_level=level) as box:
        files = Files(box, tmp_path)
        report = files.run("stall", {"num_frames": 7}, wall_s=600.0, limits=limits)
        assert report.status == "timeout"
        assert report.detail == "killed by the watchdog: no progress since frame 7"
        alive = files.run("creep", {"num_frames": 6, "pause_s": 0.3}, wall_s=600.0, limits=limits)
        assert (alive.status, alive.result) == ("ok", {"frames": 6})


def test_a_large_file_gets_a_sandbox_of_its_own(files, monkeypatch):
    assert files.is_well()
    first = zygote(files.box)
    monkeypatch.setattr(sandbox, "MAX_WARM_BYTES", 4)
    found = files.run("break_out", {"write": ["/source"], "read": []}).result
    assert found["rewrite_source"] == "OSError", "a read-only file system"
    assert found["write"] == ["OSError"]
    assert zygote(files.box) == first


def test_a_module_that_is_missing_is_no_preload(tmp_path):
    with (
        Sandbox(preload=("wsdata_no_such_module",)) as box,
        pytest.raises(SandboxError, match="No module named"),
    ):
        Files(box, tmp_path).is_well()


def test_a_pool_serves_many_workers_and_leaves_nothing(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    done = []

    def work(pool, index):
        folder = tmp_path / str(index)
        folder.mkdir()
        files = Files(pool, folder)
        done.extend(files.run("flood", {"num_bytes": index}).result["written"] for _ in range(5))

    with SandboxPool(2) as pool:
        workers = [threading.Thread(target=work, args=(pool, index)) for index in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        roots = [box._root for box in pool._all if box._root]
    assert sorted(done) == sorted([0, 1, 2, 3] * 5)
    assert not any(root.exists() for root in roots)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_below_the_minimum_is_an_error_in_a_warm_one_too(tmp_path):
    with Sandbox(maximum_level="limits") as box, pytest.raises(SandboxError, match="demands"):
        box.run(
            f"{HOSTILE}:flood", {"num_bytes": 1}, source=None, out_dir=tmp_path, wall_s=10.0,
            minimum_level="seccomp",
        )  # fmt: skip


def test_a_full_disk_is_not_the_files_fault_in_a_warm_one_either(files):
    with pytest.raises(StoreFull, match="not to blame"):
        files.run("meet_full_disk", {})
    assert files.is_well()


def test_a_device_is_there_only_where_it_is_let_in(tmp_path):
    others = [path for path in ("/dev/fuse", "/dev/kvm", "/dev/loop0") if Path(path).exists()]
    if not others:
        pytest.skip("this machine has no device beside those that every sandbox has")
    tried = {"write": [], "read": others[:1]}
    for devices, found in (((), "FileNotFoundError"), (others[:1], None)):
        with Sandbox(devices=devices) as box:
            result = Files(box, tmp_path).run("break_out", tried).result
        assert (result["read"] == [found]) == (found is not None), "there, whatever reading gives"
        for path in tmp_path.glob("out*"):
            shutil.rmtree(path)
