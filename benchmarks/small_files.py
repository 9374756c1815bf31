"""What a sandbox costs per small image: a process of its own for each, or a fork of a warm one.

Prints JSON. Both sides run the same jobs (the prints of stage 1, the decode of stage 2) on the
same files, by turns in one run, one worker, and the rows they give are compared. Processor time is
that of all processes started, from their start to their end.

    python benchmarks/small_files.py --files 100 --rounds 3
"""

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import av
import numpy as np

from wsdata.media.encode import encode_jpeg
from wsdata.media.sandbox import Sandbox, reachable_level, run_job

JOBS: dict[str, dict[str, Any]] = {
    "wsdata.media.keyframes:keyframes_job": {
        "max_keyframes": 120, "is_dense": False, "num_color": 0, "has_sound": False,
    },
    "wsdata.preprocess.onepass:decode_job": {
        "path": "plain", "window_min_s": 2.0, "window_target_s": 5.0, "window_max_s": 10.0,
    },
}  # fmt: skip


def make_images(folder: Path, count: int, side_px: int) -> list[Path]:
    """Write photographs' likeness: noise over a gradient, each another."""
    draw = np.random.default_rng(7)
    ramp = np.linspace(0, 200, side_px)[None, :, None]
    paths: list[Path] = []
    for index in range(count):
        coarse = draw.integers(0, 56, (side_px // 8, side_px // 8, 3)).repeat(8, 0).repeat(8, 1)
        path = folder / f"{index}.jpg"
        path.write_bytes(encode_jpeg((ramp + coarse).astype(np.uint8)))
        paths.append(path)
    return paths


def cpu_s() -> float:
    """Processor seconds of this process, and of all that it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def measure(paths: list[Path], *, is_warm: bool) -> tuple[dict[str, float], list[Any]]:
    """Run every job on every file; return seconds of wall and processor, and the answers."""
    begun, used = time.perf_counter(), cpu_s()
    answers: list[Any] = []
    with (
        Sandbox(preload=[job.partition(":")[0] for job in JOBS])
        if is_warm
        else nullcontext() as box
    ):
        run = box.run if isinstance(box, Sandbox) else run_job
        for path in paths:
            for job, args in JOBS.items():
                with tempfile.TemporaryDirectory() as out:
                    report = run(job, args, source=path, out_dir=Path(out), wall_s=120.0)
                    left = sorted((p.name, p.read_bytes()) for p in Path(out).iterdir())
                if report.status != "ok":
                    raise SystemExit(f"{path}: {report}")
                answers.append((report.result, left))
    return {"wall_s": time.perf_counter() - begun, "cpu_s": cpu_s() - used}, answers


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side-px", type=int, default=256)
    asked = parser.parse_args()
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = make_images(Path(folder), asked.files, asked.side_px)
        for _ in range(asked.rounds):
            seen: dict[str, list[Any]] = {}
            for name in ("one_shot", "warm"):
                spent, seen[name] = measure(paths, is_warm=name == "warm")
                if name not in best or spent["cpu_s"] < best[name]["cpu_s"]:
                    best[name] = spent
            if seen["one_shot"] != seen["warm"]:
                raise SystemExit("the two sides gave different answers")
    each = {
        name: {
            "cpu_ms_per_image": round(1000 * spent["cpu_s"] / asked.files, 2),
            "images_per_s": round(asked.files / spent["wall_s"], 1),
        }
        for name, spent in best.items()
    }
    told = {
        "files": asked.files, "side_px": asked.side_px, "jobs_per_image": len(JOBS),
        "rounds": asked.rounds, "level": reachable_level(), "workers": 1,
        "cpu_count": os.cpu_count(), "python": platform.python_version(), "av": av.__version__,
        **each,
        "cpu_ratio_one_shot_to_warm": round(best["one_shot"]["cpu_s"] / best["warm"]["cpu_s"], 2),
        "speed_ratio_warm_to_one_shot": round(
            best["one_shot"]["wall_s"] / best["warm"]["wall_s"], 2
        ),
    }  # fmt: skip
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
