"""Homes in which the whole graph has run, as its users run it: by the launcher, in a process."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsdata.catalog.ledger import Ledger
from wsdata.deployment import Deployment, load_deployment
from wsdata.store import BlobStore
from wsdata.units import SPEEDS

ROOT = Path(__file__).parents[2]
AUDIT = Path(__file__).with_name("audit")
MICRO_RECIPE = Path(__file__).with_name("micro.toml")


@dataclass(frozen=True)
class Home:
    """One WSDATA_HOME, and the programs run on it."""

    path: Path

    @property
    def deployment(self) -> Deployment:
        return load_deployment(self.path)

    @property
    def ledger(self) -> Ledger:
        return self.deployment.open_ledger()

    @property
    def store(self) -> BlobStore:
        return self.deployment.open_store()

    def environment(self, **extra: str) -> dict[str, str]:
        return {
            **os.environ,
            "WSDATA_HOME": str(self.path),
            "PYTHONPATH": f"{AUDIT}:{ROOT}",
            **extra,
        }

    def run(self, *arguments: str, code: int | None = 0, **extra: str) -> Any:
        """Run the CLI with --json; return its answer, checking the exit code."""
        return self._start(["-m", "wsdata", *arguments], code, extra)

    def process_drops(self) -> Any:
        """Do the main job but for its dataset version; return its answer, whatever its code."""
        return self._start(["launch.py", "run", "--no-cut"], None, {})

    def _start(self, arguments: list[str], code: int | None, extra: dict[str, str]) -> Any:
        done = subprocess.run(  # noqa: S603
            [sys.executable, *arguments, "--json"],
            capture_output=True, text=True, cwd=ROOT, env=self.environment(**extra), check=False,
        )  # fmt: skip
        if code is not None:
            assert done.returncode == code, (
                f"{arguments}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
        return json.loads(done.stdout) if done.stdout.strip() else None

    def ask(self, *arguments: str, code: int = 0) -> Any:
        """Ask the CLI in this process: as `run` does, a second of the program's start less."""
        from wsdata.cli.main import run_command

        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            found = run_command([*arguments, "--home", str(self.path), "--json"])
        assert found == code, f"{arguments}: {told.getvalue()[-2000:]}"
        return json.loads(told.getvalue()) if told.getvalue().strip() else None

    def objects(self) -> dict[tuple[str, str, str], str]:
        """What is live: (table, partition, version) -> sha256."""
        return {
            (ref.table, ref.partition, ref.version): ref.sha256 for ref in self.ledger.all_objects()
        }

    def blobs(self) -> dict[str, bytes]:
        """Whole content of the store but other engines' mirror, and how long workers took."""
        return {
            key: self.store.get(key)
            for key, _ in self.store.list("")
            if not key.startswith(("mirror/", SPEEDS))
        }
