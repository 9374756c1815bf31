"""Near duplicates: the index beside flat and approximate ones, and copies among distractors.

    PYTHONPATH=. .venv/bin/python benchmarks/near_duplicates.py [--hashes 1e6] [--distractors 10000]

The index part: random 256-bit hashes, queries that are hashes with 0 to 31 bits turned, all sides
on one thread, in one run, interleaved. The video part: copies of the sample clips as
`near_duplicates_made.py` derives them, coded and printed as the ingest step prints (the sandbox
left out), among distractors whose prints are drawn, not filmed: hash bits halves of one and
zero as PDQ makes them, a third of the frames of each a slow drift of the one before, every tenth
distractor with a card, a black intro or an intro that it shares with others.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import faiss
import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks import near_duplicates_made as made
from wsdata import tables
from wsdata.ingest.fingerprint import MAX_KEYFRAMES, print_rows, sound_rows
from wsdata.ingest.neardup import MAX_DISTANCE, Printed, match_prints
from wsdata.ingest.print_index import PrintIndex
from wsdata.media.keyframes import keyframes_job

MEDIA = Path(__file__).parents[1] / "samples" / "media"
CLIPS = (
    "bbb_0_30.webm", "bottle.mp4", "flower.webm", "sintel_trailer_30s.mp4", "stream_of_water.webm",
    "derived_friday_burnedtext_hevc.mp4", "pattern_hd.mp4", "spheres.mp4",
)  # fmt: skip
MOST_S, SIDE_PX = 15.0, 640
Hashes = NDArray[np.uint8]


def _turned(rng: np.random.Generator, hashes: Hashes, least: int, most: int) -> Hashes:
    bits = np.unpackbits(hashes, axis=1)
    for row in bits:
        row[rng.choice(256, rng.integers(least, most + 1), replace=False)] ^= 1
    return np.packbits(bits, axis=1)


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


def measure_index(num_hashes: int, num_queries: int, num_flat: int) -> dict[str, Any]:
    """Recall at distance 31 and queries per CPU-second, ours beside faiss."""
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 256, (num_hashes, 32), dtype=np.uint8)
    origin = rng.integers(0, num_hashes, num_queries)
    queries = _turned(rng, hashes[origin], 0, MAX_DISTANCE)
    hard = _turned(rng, hashes[origin], MAX_DISTANCE, MAX_DISTANCE)
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    build_s, index = _timed(lambda: PrintIndex(hashes, radius=MAX_DISTANCE))
    ask_s, found = _timed(lambda: index.near(queries))
    after_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    at_edge = index.near(hard)
    ours = {
        "tables": index.num_tables,
        "build_cpu_s": round(build_s, 2),
        "queries_per_cpu_s": round(num_queries / ask_s, 1),
        "recall": _recall(found.left, found.right, origin),
        "recall_at_31": _recall(at_edge.left, at_edge.right, origin),
        "bytes_per_hash": 32 + 4 * index.num_tables,
        "peak_mb_over_hashes": round(after_mb - before_mb, 1),
    }
    peers = {"flat": _peer(faiss.IndexBinaryFlat(256), hashes, queries[:num_flat], origin)}
    if num_hashes <= 2_000_000:
        peers["multi_hash_16x16"] = _peer(_multi_hash(), hashes, queries[: 4 * num_flat], origin)
        coarse = faiss.IndexBinaryFlat(256)
        inverted = faiss.IndexBinaryIVF(coarse, 256, 1024)
        inverted.train(hashes[rng.choice(num_hashes, min(num_hashes, 100_000), replace=False)])
        inverted.nprobe = 32
        peers["ivf_1024_nprobe_32"] = _peer(inverted, hashes, queries, origin)
    flat = peers["flat"]["queries_per_cpu_s"]
    return {
        "num_hashes": num_hashes,
        "ours": ours,
        **peers,
        "times_flat": round(ours["queries_per_cpu_s"] / flat, 1),
    }


def _multi_hash() -> Any:
    index = faiss.IndexBinaryMultiHash(256, 16, 16)
    index.nflip = 1
    return index


def _peer(index: Any, hashes: Hashes, queries: Hashes, origin: NDArray[np.int64]) -> dict[str, Any]:
    build_s, _ = _timed(lambda: index.add(hashes))
    ask_s, (limits, _, labels) = _timed(lambda: index.range_search(queries, MAX_DISTANCE + 1))
    left = np.repeat(np.arange(len(queries)), np.diff(limits.astype(np.int64)))
    return {
        "build_cpu_s": round(build_s, 2),
        "queries_per_cpu_s": round(len(queries) / ask_s, 1),
        "recall": _recall(left, labels, origin[: len(queries)]),
    }


def _recall(left: NDArray[Any], right: NDArray[Any], origin: NDArray[np.int64]) -> float:
    return round(float(len(np.unique(left[right == origin[left]])) / len(origin)), 5)


def _printed(path: Path) -> dict[str, Any]:
    args = {"max_keyframes": MAX_KEYFRAMES, "is_dense": False, "num_color": 0, "has_sound": True}
    with path.open("rb") as source:
        return keyframes_job(args, source, path.parent)


def _rows(told: dict[str, dict[str, Any]]) -> Printed:
    prints, probes, sounds = [], [], []
    for name, one in told.items():
        prints += print_rows(name, one["prints"])
        probes.append({"asset_id": name, **one["probe"]})
        sounds += sound_rows(name, one["sound"])
    return Printed(
        tables.rows_of("fingerprints", prints),
        tables.rows_of("probes", probes),
        tables.rows_of("audio_prints", sounds),
    )


def derive(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, tuple[str, str]]]:
    """Print the originals, their copies, compilations and black intros: name -> print, truth.

    The truth of a name is (original, kind).
    """
    told: dict[str, dict[str, Any]] = {}
    truth: dict[str, tuple[str, str]] = {}
    clips = {name.split(".")[0]: _small(made.read_clip(MEDIA / name, most_s=MOST_S))
             for name in CLIPS}  # fmt: skip
    names = list(clips)
    for place, (name, clip) in enumerate(clips.items()):
        intro = clips[names[(place + 3) % len(names)]].cut(0.0, 2.0)
        told[name] = _printed(made.write_clip(clip, folder / f"{name}.mp4", crf=20))
        for kind, path in made.copies(clip, intro, folder, name):
            told[f"{name}-{kind}"] = _printed(path)
            truth[f"{name}-{kind}"] = (name, kind)
        if clip.duration_s >= 10:
            others = [clips[names[(place + step) % len(names)]].cut(0.0, 5.0) for step in (1, 2)]
            mix = made.joined(others[0], clip.cut(2.0, 7.0), others[1])
            told[f"{name}-excerpt"] = _printed(made.write_clip(mix, folder / f"{name}-x.mp4"))
            truth[f"{name}-excerpt"] = (name, "excerpt")
    return told, truth


def _small(clip: made.Clip) -> made.Clip:
    height, width = clip.pictures[0].shape[:2]
    scale = min(1.0, SIDE_PX / max(height, width))
    size = (round(width * scale) // 2 * 2, round(height * scale) // 2 * 2)
    return clip.changed(lambda one: made.scaled(one, *size))


def distractors(count: int) -> Printed:
    """Draw prints of strangers, 5 to 40 frames each."""
    rng = np.random.default_rng(1)
    intros = [_drawn(rng, 3) for _ in range(20)]
    prints: list[dict[str, Any]] = []
    probes: list[dict[str, Any]] = []
    for number in range(count):
        frames = _drawn(rng, int(rng.integers(5, 41)))
        quality = np.full(len(frames), 100)
        if number % 10 == 0:
            frames = np.concatenate([intros[number // 10 % 20], frames])
            quality = np.full(len(frames), 100)
        elif number % 10 == 1:
            frames = np.concatenate([np.zeros((2, 4, 32), np.uint8), frames])
            quality = np.r_[0, 0, quality]
        name = f"stranger-{number:06d}"
        prints += [
            {
                "asset_id": name, "frame_index": i, "time_s": float(i), "quality": int(quality[i]),
                "hash": frame[0].tobytes(), "mirror_hash": frame[1].tobytes(),
                "core_hash": frame[2].tobytes(), "core_mirror_hash": frame[3].tobytes(),
            }
            for i, frame in enumerate(frames)
        ]  # fmt: skip
        probes.append({"asset_id": name, "media_kind": "video", "duration_s": float(len(frames))})
    return Printed(
        tables.rows_of("fingerprints", prints),
        tables.rows_of("probes", probes),
        tables.empty("audio_prints"),
    )


def _drawn(rng: np.random.Generator, count: int) -> Hashes:
    """Four hashes a frame, half of whose bits are set; a third drift from the frame before."""
    ranks = rng.random((count, 4, 256)).argsort(axis=2)
    bits = (ranks < 128).astype(np.uint8)
    for frame in range(1, count):
        if rng.random() < 1 / 3:
            bits[frame] = bits[frame - 1]
            for one in bits[frame]:
                one[rng.choice(256, 12, replace=False)] ^= 1
    return np.packbits(bits, axis=2)


def measure_videos(num_distractors: int) -> dict[str, Any]:
    """Precision and recall of whole matches and of spans, by kind of copy."""
    with tempfile.TemporaryDirectory() as folder:
        made_s, (told, truth) = _timed(lambda: derive(Path(folder)))
    known, strangers = _rows(told), distractors(num_distractors)
    match_s, pairs = _timed(lambda: match_prints(known, [strangers]))
    others_s, among = _timed(lambda: match_prints(strangers, []))
    found: dict[tuple[str, str], set[str]] = {}
    for row in pairs.iter_rows(named=True):
        found.setdefault((row["asset_a"], row["asset_b"]), set()).add(row["kind"])
    kinds: dict[str, list[bool]] = {}
    for name, (original, kind) in truth.items():
        seen = found.get((min(name, original), max(name, original)), set())
        wanted = "span" if kind == "excerpt" else "whole"
        kinds.setdefault(kind, []).append(wanted in seen)
    body = {name: truth.get(name, (name, ""))[0] for name in told}
    whole = [pair for pair, seen in found.items() if "whole" in seen]
    right = [
        (a, b)
        for a, b in whole
        if body.get(a, a) == body.get(b, b)
        and "excerpt" not in (truth.get(a, ("", ""))[1], truth.get(b, ("", ""))[1])
    ]
    false_among = among.filter(pl.col("kind") == "whole").height
    hits = sum(sum(one) for one in kinds.values())
    return {
        "num_clips": len(CLIPS),
        "num_copies": len(truth),
        "num_distractors": num_distractors,
        "recall_by_kind": {kind: f"{sum(one)}/{len(one)}" for kind, one in kinds.items()},
        "recall": round(hits / len(truth), 4),
        "whole_pairs": len(whole),
        "precision": round(len(right) / max(1, len(whole)), 4),
        "false_pairs": [pair for pair in whole if pair not in right][:10],
        "false_whole_pairs_among_distractors": false_among,
        "derive_and_print_cpu_s": round(made_s, 1),
        "match_cpu_s": round(match_s, 1),
        "match_distractors_cpu_s": round(others_s, 1),
    }


def main() -> None:
    """Run what is asked for, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hashes", type=float, default=1e6)
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--flat-queries", type=int, default=300)
    parser.add_argument("--distractors", type=int, default=10_000)
    parser.add_argument("--part", choices=("index", "videos", "all"), default="all")
    args = parser.parse_args()
    result: dict[str, Any] = {"faiss": faiss.__version__, "numpy": np.__version__}
    if args.part in ("index", "all"):
        result["index"] = measure_index(int(args.hashes), args.queries, args.flat_queries)
    if args.part in ("videos", "all"):
        result["videos"] = measure_videos(args.distractors)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
