import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from wsdata import deployment
from wsdata.errors import SandboxError, StoreFull
from wsdata.media import bwrap, sandbox
from wsdata.media.jobs import LEVELS, Limits
from wsdata.media.sandbox import run_job

HOSTILE = "wsdata.media.hostile"
FORKS = Limits(num_processes=8)
REFUSED = ("signal_parent", "disarm_parent", "parent_memory", "own_signal", "shared_memory")


@pytest.fixture(autouse=True, scope="module")
def reached():
    """A level that is not reached proves nothing, and is no reason to pass."""
    assert sandbox.reachable_level() == "bubblewrap", "install bubblewrap, allow user namespaces"


def _run(name, args, tmp_path, *, wall_s=30.0, limits=None, level="bubblewrap"):
    source, out_dir = tmp_path / "source.bin", tmp_path / "out"
    source.write_bytes(b"source bytes")
    out_dir.mkdir(exist_ok=True)
    return run_job(
        f"{HOSTILE}:{name}",
        args,
        source=source,
        out_dir=out_dir,
        wall_s=wall_s,
        limits=limits,
        minimum_level="limits",
        maximum_level=level,
    )


def test_levels_are_those_of_the_deployment():
    assert LEVELS == deployment.SANDBOX_LEVELS


def test_nothing_gets_out_of_bubblewrap(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    beside = tmp_path / "written"
    args = {
        "write": [str(beside), "/usr/written", "/source", "/etc/written"],
        "read": [str(secret), "/etc/passwd", "/proc/1/environ", "/root/.bashrc"],
    }
    report = _run("break_out", args, tmp_path)
    assert (report.status, report.level) == ("ok", "bubblewrap")
    found = report.result
    assert found is not None
    assert found["socket"] == found["unix_socket"] == "PermissionError"
    assert found["kill_parent"] == found["namespace"] == found["new_session"] == "PermissionError"
    assert {found[name] for name in ("fork", "exec", *REFUSED)} == {"PermissionError"}
    assert found["thread"] == "done"
    assert found["rewrite_source"] == "OSError"  # a read-only file system
    assert "done" not in found["write"]
    assert found["read"][:2] == ["FileNotFoundError", "FileNotFoundError"]
    assert found["read"][3] == "FileNotFoundError"
    assert found["processes"] <= 3
    assert (tmp_path / "out" / "allowed").read_bytes() == b"sour"
    assert (tmp_path / "source.bin").read_bytes() == b"source bytes"
    assert not beside.exists()


def test_the_filter_alone_denies_network_processes_and_namespaces(tmp_path):
    report = _run("break_out", {"write": [], "read": []}, tmp_path, level="seccomp")
    assert (report.status, report.level) == ("ok", "seccomp")
    found = report.result
    assert found is not None
    denied = ("socket", "unix_socket", "kill_parent", "new_session", "namespace", "fork", "exec")
    assert {found[name] for name in REFUSED if name != "parent_memory"} == {"PermissionError"}
    assert {found[name] for name in denied} == {"PermissionError"}
    assert found["thread"] == "done"


@pytest.mark.parametrize("level", LEVELS)
def test_the_environment_is_not_inherited(tmp_path, monkeypatch, level):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    report = _run("break_out", {"write": [], "read": []}, tmp_path, level=level)
    assert report.result is not None
    assert "AWS_SECRET_ACCESS_KEY" not in report.result["environment"]
    assert set(report.result["environment"]) <= {*bwrap.ENVIRONMENT, "PWD", "LC_CTYPE", "TMPDIR"}


@pytest.mark.parametrize("level", LEVELS)
def test_memory_is_bounded(tmp_path, level):
    report = _run("take_memory", {}, tmp_path, level=level, limits=Limits(memory_bytes=1 << 30))
    assert (report.status, report.result) == ("memory", None)


def test_output_is_bounded(tmp_path):
    report = _run("fill_file", {}, tmp_path, limits=Limits(file_bytes=8 << 20))
    assert report.status == "failed"
    assert "OSError" in report.detail
    assert (tmp_path / "out" / "big").stat().st_size <= 8 << 20


def test_processor_time_is_bounded(tmp_path):
    report = _run("hang", {"children": 0, "spins": True}, tmp_path, limits=Limits(cpu_s=1))
    assert report.status == "timeout"
    assert "SIGXCPU" in report.detail


def _is_running(marker: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "cmdline").read_bytes().decode(errors="replace"):
                    return True
            except OSError:
                continue
    return False


@pytest.mark.parametrize(
    ("level", "spins"), [*((level, False) for level in LEVELS), ("bubblewrap", True)]
)
def test_a_hang_is_killed_as_a_group(tmp_path, level, spins):
    args = {"children": 3, "spins": spins}
    report = _run("hang", args, tmp_path, wall_s=2.0, level=level, limits=FORKS)
    assert report.status == "timeout"
    alive = [int(path.name.split("-")[1]) for path in (tmp_path / "out").iterdir()]
    assert len(alive) == 4
    if level == "bubblewrap":  # its process numbers mean nothing here
        _wait_until(lambda: not _is_running(str(tmp_path / "out")))
        return
    _wait_until(lambda: all(_state(pid) in ("", "Z") for pid in alive))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("level", LEVELS)
def test_the_child_dies_with_its_parent(tmp_path, level):
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    code = (
        "from pathlib import Path; from wsdata.media.sandbox import run_job; "
        f"run_job('{HOSTILE}:hang', {{'children': 0, 'spins': False}}, source=None, "
        f"out_dir=Path({str(out_dir)!r}), wall_s=300.0, minimum_level='limits', "
        f"maximum_level={level!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])  # noqa: S603
    try:
        _wait_until(lambda: any(out_dir.iterdir()))
        begun = {pid for pid in _descendants(parent.pid) if _state(pid)}
        assert begun
    finally:
        parent.kill()
        parent.wait()
    _wait_until(lambda: all(_state(pid) in ("", "Z") for pid in begun))


def _wait_until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _descendants(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_flood_of_errors_does_not_block(tmp_path, level):
    report = _run("flood", {"num_bytes": 1 << 20}, tmp_path, level=level)
    assert (report.status, report.result) == ("ok", {"written": 1 << 20})
    assert report.stderr_tail.endswith("eee")


@pytest.mark.parametrize("level", LEVELS)
def test_a_grandchild_that_holds_the_pipe_does_not_block(tmp_path, level):
    report = _run("leave_grandchild", {}, tmp_path, wall_s=300.0, level=level, limits=FORKS)
    assert (report.status, report.result) == ("ok", {"left": True})


def test_a_fork_bomb_is_bounded(tmp_path):
    report = _run("bomb", {"most": 10_000}, tmp_path)
    assert (report.status, report.result) == ("ok", {"forks": 0})


@pytest.mark.parametrize("level", LEVELS)
def test_a_crash_is_a_report(tmp_path, level):
    report = _run("crash", {"signal": int(signal.SIGSEGV)}, tmp_path, level=level)
    assert (report.status, report.detail) == ("crashed", "killed by SIGSEGV")
    report = _run("crash", {"signal": 0}, tmp_path, level=level)
    assert (report.status, report.detail) == ("crashed", "ended with exit status 3 and no answer")
    report = _run("crash", {"signal": int(signal.SIGKILL)}, tmp_path, level=level)
    assert report.status == "memory"


def test_a_job_that_raises_is_a_report(tmp_path):
    report = _run("crash", {}, tmp_path)
    assert (report.status, report.detail) == ("failed", "KeyError: 'signal'")


def test_an_answer_that_is_no_json_is_a_failure(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    report = run_job(
        "wsdata.media.child:_open_source", {"path": "/source"}, source=source, out_dir=out_dir,
        wall_s=30.0, minimum_level="limits",
    )  # fmt: skip
    assert report.status == "failed"


def test_below_the_minimum_is_an_error(tmp_path):
    with pytest.raises(SandboxError, match="'limits' was reached, the deployment demands"):
        run_job(
            f"{HOSTILE}:flood", {"num_bytes": 1}, source=None, out_dir=tmp_path, wall_s=10.0,
            minimum_level="seccomp", maximum_level="limits",
        )  # fmt: skip


@pytest.mark.parametrize("job", ["os:system", "wsdata:x", "wsdata.media", "wsdata.a:b:c", ""])
def test_only_jobs_of_this_package_run(tmp_path, job):
    with pytest.raises(ValueError, match="expected 'wsdata"):
        run_job(job, {}, source=None, out_dir=tmp_path, wall_s=10.0)


def test_a_missing_folder_is_our_own_mistake(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        run_job(f"{HOSTILE}:crash", {}, source=None, out_dir=tmp_path / "none", wall_s=10.0)


def test_no_descriptor_is_lost(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    _run("crash", {"signal": 0}, tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_full_disk_is_not_the_files_fault(tmp_path):
    with pytest.raises(StoreFull, match="not to blame"):
        _run("meet_full_disk", {}, tmp_path)
