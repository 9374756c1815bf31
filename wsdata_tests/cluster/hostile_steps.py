"""A step whose files are taken over, and ``wsdata`` with it in its registry.

Whatever launches it is production's; so are the sandboxes. The order says what is tried, and the
rows tell, one per attempt, what came of it as JSON.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from wsdata import steps, tables
from wsdata.__main__ import main
from wsdata.media import sandbox
from wsdata.media.jobs import Limits
from wsdata.orders import Step, StepResult, StepRun

STEP = Step(
    stage="preprocess",
    name="decode",
    function="wsdata_tests.cluster.hostile_steps:run",
    code_version="hostile-test-1",
    partition="drop",
    assets={"decode_status": ("decode_status",)},
    pool="nvdec",
)
SECRET = "AWS_SECRET_ACCESS_KEY"  # noqa: S105  its name, which is no secret
HUNGRY = Limits(memory_bytes=512 << 20)


def run(run: StepRun) -> StepResult:
    """Let hostile jobs loose in a sandbox of one file, and in a warm one, twice."""
    if run.params.get("is_closed"):  # as on a node without user namespaces
        sandbox.bubblewrap_path = lambda: "/bin/false"
    run.progress(0, 1, f"worker holds its secret: {SECRET in os.environ}")
    with sandbox.Sandbox() as box:
        found = [_let_loose(run, runner) for runner in (sandbox.run_job, box.run, box.run)]
    rows = [
        {"asset_id": f"{index:064x}", "status": "ok", "attempts": 1, "reason": json.dumps(each),
         "sandbox_level": each["level"]}
        for index, each in enumerate(found)
    ]  # fmt: skip
    return StepResult(tables={"decode_status": tables.rows_of("decode_status", rows)})


def _let_loose(run: StepRun, runner) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out, beside, source = Path(folder) / "out", Path(folder) / "beside", Path(folder) / "source"
        out.mkdir()
        beside.write_bytes(b"beside")
        source.write_bytes(b"source bytes")

        def job(name: str, args: dict, limits: Limits | None = None):
            return runner(
                f"wsdata.media.hostile:{name}", args, source=source, out_dir=out, wall_s=120.0,
                limits=limits, minimum_level=run.settings["sandbox_minimum"],
            )  # fmt: skip

        own = f"/proc/{os.getpid()}"
        tried = job("break_out", {
            "write": [str(beside), str(Path(folder) / "new"), str(Path.cwd() / "new"), "/etc/new"],
            "read": [
                str(beside), f"{own}/environ", f"{own}/mem", f"{own}/cwd/README.md",
                "/proc/1/environ", "/proc/1/mem", "/proc/1/root/etc/passwd", "/var/run/secrets",
                "/etc/passwd",
            ],
        })  # fmt: skip
        return {
            "level": tried.level,
            "tried": tried.result,
            "memory": job("take_memory", {}, HUNGRY).status,
            "forks": job("bomb", {"most": 100}).result,
            "source": source.read_bytes().decode(),
            "beside": beside.read_bytes().decode(),
            "left": sorted(path.name for path in Path(folder).iterdir()),
        }


if __name__ == "__main__":
    steps.STEPS["preprocess/decode"] = STEP
    sys.exit(main())
