"""The decode pass beside bare decode, beside one command per rung, and the memory of its worker.

Every side decodes, scales and encodes on one thread. CPU-seconds are of the work itself: our
modules are imported before the clock starts, as a warm sandbox has them, and the peers' programs
count whole. Rounds are interleaved; the least of each side counts, as others share the machine.

Run: PYTHONPATH=. .venv/bin/python benchmarks/one_pass.py FOLDER [analysis|ladder|ssim|memory ...]
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.one_pass_made import make_hours, make_longer, make_minute
from wsdata.media.encode import FPS, GOP_S, X264
from wsdata.preprocess.ladder import RUNG_SIZES
from wsdata.preprocess.windows import window_params

LADDER = ("256p", "512p", "720p")
ARGS = {"path": "plain", **window_params()}
ROUNDS = 2  # more where the machine is quiet
SSIM_EVERY, SSIM_S = 12, 14  # frames; seconds of input


# sides; each returns CPU-seconds -------------------------------------------------------------


def _timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _decoded(path: Path) -> Iterator[Any]:
    """Frames of a file, by PyAV on one thread."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        stream.codec_context.thread_type = "NONE"
        yield from container.decode(stream)


def bare_decode(path: Path) -> float:
    """Decode to nothing with PyAV, on one thread."""

    def work() -> None:
        for _ in _decoded(path):
            pass

    return _timed(work)


def one_pass(path: Path, rungs: tuple[str, ...], out_dir: Path) -> tuple[float, dict[str, Any]]:
    """Run the decode job in this process."""
    import cv2  # noqa: F401  as a warm sandbox has it
    import pdqhash  # noqa: F401
    import polars as pl  # noqa: F401

    from wsdata.preprocess.onepass import decode_job

    told: dict[str, Any] = {}

    def work() -> None:
        with path.open("rb") as source:
            told.update(decode_job({**ARGS, "rungs": rungs}, source, out_dir))

    return _timed(work), told


def _command(*args: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


Spans = list[tuple[int, int]]


def spans_of(told: dict[str, Any]) -> Spans:
    """Source frames [first, end) of each clip; the input has as many a second as the rungs."""
    starts = [(round(clip["start_s"] * FPS), clip["num_frames"]) for clip in told["clips"]]
    return [(first, first + count) for first, count in starts]


def ffmpeg_rung(path: Path, rung: str, out: Path, spans: Spans) -> float:
    """One rung of some frames by one ffmpeg command with the encoder settings of ours."""
    width, height = RUNG_SIZES[rung]["16:9"]
    chosen = "+".join(f"between(n,{first},{end - 1})" for first, end in spans)
    settings = [part for name, value in X264.items() for part in (f"-{name}", value)]
    return _command(
        "ffmpeg", "-v", "error", "-y", "-threads", "1", "-filter_threads", "1", "-i", str(path),
        "-vf", f"select='{chosen}',setpts=N/{FPS}/TB,"
        f"scale={width}:{height}:flags=bicubic+accurate_rnd", "-an", "-c:v", "libx264",
        *settings, "-g", str(GOP_S * FPS), "-threads", "1", str(out),
    )  # fmt: skip


def scene_detect(path: Path) -> float:
    """PySceneDetect's adaptive detector over all frames, decoded by PyAV on one thread."""
    import cv2
    from scenedetect import SceneManager, open_video
    from scenedetect.detectors import AdaptiveDetector

    cv2.setNumThreads(1)

    def work() -> None:
        video = open_video(str(path), backend="pyav", threading_mode="NONE")
        manager = SceneManager()
        manager.add_detector(AdaptiveDetector())
        manager.detect_scenes(video)

    return _timed(work)


def print_pass(path: Path) -> float:
    """Decode all, and hash a frame a second with PDQ, of pictures as large as ours."""
    import pdqhash

    def work() -> None:
        for index, frame in enumerate(_decoded(path)):
            if index % FPS == 0:
                picture = frame.reformat(width=256, height=144, format="rgb24", threads=1)
                pdqhash.compute(picture.to_ndarray())

    return _timed(work)


# parts ---------------------------------------------------------------------------------------


def analysis(folder: Path) -> dict[str, Any]:
    """Shot features, prints, motion and overlay samples, and no ladder, beside bare decode."""
    path = make_minute(folder)
    bare, ours, told = [], [], {}
    for _ in range(ROUNDS):
        bare.append(bare_decode(path))
        with tempfile.TemporaryDirectory() as out:
            cpu_s, told = one_pass(path, (), Path(out))
        ours.append(cpu_s)
    return {
        "bare_decode_cpu_s": bare, "one_pass_cpu_s": ours, "ratio": min(ours) / min(bare),
        "bound": 1.2, "clips": len(told["clips"]), "prints": len(told["prints"]),
    }  # fmt: skip


def ladder(folder: Path) -> dict[str, Any]:
    """Analysis and three rungs, beside three ffmpeg commands, PySceneDetect and a hash pass.

    Both sides encode the same frames: those of our clips.
    """
    path = make_minute(folder)
    sides: dict[str, list[float]] = {}
    told: dict[str, Any] = {}
    for _ in range(ROUNDS - 1):
        with tempfile.TemporaryDirectory() as out:
            cpu_s, told = one_pass(path, LADDER, Path(out))
            sides.setdefault("one_pass", []).append(cpu_s)
        with tempfile.TemporaryDirectory() as out:
            for rung in LADDER:
                cpu_s = ffmpeg_rung(path, rung, Path(out) / f"{rung}.mp4", spans_of(told))
                sides.setdefault(f"ffmpeg_{rung}", []).append(cpu_s)
        sides.setdefault("scenedetect", []).append(scene_detect(path))
        sides.setdefault("hash_pass", []).append(print_pass(path))
    least = {name: min(values) for name, values in sides.items()}
    ours = least.pop("one_pass")
    frames = sum(clip["num_frames"] for clip in told["clips"])
    return {
        "cpu_s": sides, "ratio": ours / sum(least.values()), "bound": 0.65,
        "ratio_to_commands": ours / sum(v for k, v in least.items() if k.startswith("ffmpeg")),
        "frames_encoded": frames, "frames_decoded": told["frames_decoded"],
    }  # fmt: skip


def _luma(path: Path, size: tuple[int, int], shown: set[int]) -> dict[int, np.ndarray]:
    """Luma of some frames at a size; the reference is Lanczos from the source."""
    import av

    found: dict[int, np.ndarray] = {}
    with av.open(str(path)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index not in shown:
                continue
            if (frame.width, frame.height) != size:
                frame = frame.reformat(*size, format="yuv420p", interpolation="LANCZOS")
            found[index] = frame.to_ndarray()[: size[1]]
    return found


def _ssim(a: np.ndarray, b: np.ndarray) -> float:
    import cv2

    def blur(x: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(x, (11, 11), 1.5)

    a, b = a.astype(np.float32), b.astype(np.float32)
    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    both = blur(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    value = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return float((value / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean())


def ssim(folder: Path) -> dict[str, Any]:
    """Rungs of both sides against the source at their size, and how large they are."""
    path = make_minute(folder, SSIM_S)
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as out:
        _, told = one_pass(path, LADDER, Path(out))
        spans = spans_of(told)
        frames = [index for first, end in spans for index in range(first, end)]
        inner = [range(0, end - first, SSIM_EVERY) for first, end in spans]
        shown = {first + k for (first, _), each in zip(spans, inner, strict=True) for k in each}
        for rung in LADDER:
            size = RUNG_SIZES[rung]["16:9"]
            peer = Path(out) / f"peer_{rung}.mp4"
            ffmpeg_rung(path, rung, peer, spans)
            truth = _luma(path, size, shown)
            theirs = _luma(peer, size, {k for k, index in enumerate(frames) if index in shown})
            scores: list[tuple[float, float]] = []
            ours_bytes = 0
            for (first, _), each, clip in zip(spans, inner, told["clips"], strict=True):
                made = Path(out) / clip["transcodes"][rung]["file"]
                ours_bytes += made.stat().st_size
                for k, picture in _luma(made, size, set(each)).items():
                    reference, other = truth[first + k], theirs[frames.index(first + k)]
                    scores.append((_ssim(reference, picture), _ssim(reference, other)))
            mine, peers = np.mean(scores, axis=0).tolist()
            answer[rung] = {
                "ours": mine, "ffmpeg": peers, "frames_compared": len(scores),
                "bytes_per_frame_ours": ours_bytes / len(frames),
                "bytes_per_frame_ffmpeg": peer.stat().st_size / len(frames),
            }  # fmt: skip
    return answer


# memory --------------------------------------------------------------------------------------


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def _tree(pid: int) -> list[int]:
    found = [pid]
    for at in found:
        for task in Path(f"/proc/{at}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def worker_memory(path: Path, rungs: tuple[str, ...]) -> dict[str, Any]:
    """Peak of the proportional set size of a worker and all that it starts, for one file."""
    request = json.dumps({"path": str(path), "args": {**ARGS, "rungs": rungs}})
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )  # fmt: skip
    peak: dict[str, int] = {"all": 0}
    begun = time.monotonic()

    def watch() -> None:
        while process.poll() is None:
            each = [_pss_bytes(pid) for pid in _tree(process.pid)]
            if sum(each) > peak["all"]:
                peak.update({"all": sum(each), "worker": each[0], "sandbox": sum(each[1:])})
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate(request)
    watcher.join()
    return {
        "file": path.name, "rungs": rungs, "wall_s": time.monotonic() - begun, **json.loads(out),
        **{f"{name}_mb": value / 1e6 for name, value in peak.items()},
    }  # fmt: skip


def _work() -> None:
    """Be a worker: one file through the sandbox, as the step does it."""
    from wsdata.media.sandbox import run_job
    from wsdata.preprocess.decode_drop import JOB, LIMITS

    request = json.loads(sys.stdin.read())
    with tempfile.TemporaryDirectory() as out:
        report = run_job(
            JOB, request["args"], source=Path(request["path"]), out_dir=Path(out), wall_s=7200,
            limits=LIMITS,
        )  # fmt: skip
    result = report.result or {}
    told = {"status": report.status, "detail": report.detail, "level": report.level}
    print(json.dumps(told | {"clips": len(result.get("clips", [])),
                             "frames": result.get("frames_decoded")}))  # fmt: skip


def memory(folder: Path) -> dict[str, Any]:
    """A quarter of a minute and a minute with every rung, all at 1080p."""
    quarter, minute = make_minute(folder, SSIM_S), make_minute(folder)
    every = (*LADDER, "1080p")
    return {
        "bound_mb": 350,
        "quarter": worker_memory(quarter, LADDER),
        "quarter_all": worker_memory(quarter, every),
        "minute_all": worker_memory(minute, every),
    }


def memory_minutes(folder: Path) -> dict[str, Any]:
    """Ten minutes at 1080p beside one, with the two rungs that take least time."""
    minute = make_minute(folder)
    return {
        "minute": worker_memory(minute, LADDER[:2]),
        "ten_minutes": worker_memory(make_longer(minute, 10), LADDER[:2]),
    }


def memory_hours(folder: Path) -> dict[str, Any]:
    """Two hours of 1080p at a frame a second, cheap to decode, beside two minutes, to 256p."""
    return {
        "two_minutes": worker_memory(make_hours(folder, 1 / 30, 1), LADDER[:1]),
        "two_hours": worker_memory(make_hours(folder, 2, 1), LADDER[:1]),
    }


PARTS = {
    "analysis": analysis, "ladder": ladder, "ssim": ssim, "memory": memory,
    "memory_minutes": memory_minutes, "memory_hours": memory_hours,
}  # fmt: skip


def main() -> None:
    """Run the parts that are asked for, all by default, and print JSON."""
    if sys.argv[1:] == ["--worker"]:
        _work()
        return
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or PARTS:
        print(json.dumps({name: PARTS[name](folder)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
