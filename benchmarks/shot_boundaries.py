"""Shot boundaries found in films spliced from real clips: ours beside PySceneDetect's detectors.

    python benchmarks/shot_boundaries.py [--seeds 3] [--clips FOLDER] [--peers NAME] [--transnet]

Sources are split in two. Thresholds are fixed on the tuning half alone: ours are constants in
`wsdata.preprocess`, each of the peers' is the best of a few values there; the default is shown
too. Figures are from the held-out half. A cut counts within one frame; a gradual transition
counts where what was found overlaps it, or is a cut at most one frame off it. Of several found
in one true transition one counts and the others are no error, for all alike.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import shot_boundaries_made as made  # noqa: E402

PEERS = {
    "content": (27.0, (15.0, 20.0, 27.0, 35.0)),
    "adaptive": (3.0, (2.0, 3.0, 4.0)),
    "threshold": (12.0, (12.0, 24.0)),
    "hash": (0.35, (0.25, 0.35, 0.45)),
    "histogram": (0.2, (0.1, 0.2, 0.3)),
}


class Found(NamedTuple):
    """Frames [begin, end) of a transition, or a cut where both are the new shot's first."""

    begin: int
    end: int


def ours(film: made.Film) -> tuple[list[Found], float]:
    """Run our detector over a film; return what it finds and its CPU seconds."""
    from wsdata.preprocess.looks import feature_picture
    from wsdata.preprocess.shots import ShotDetector

    return _run(film, feature_picture, ShotDetector())


def network(film: made.Film) -> tuple[list[Found], float]:
    """Run the engine `transnetv2` over a film, with the threshold of its authors."""
    from wsdata.preprocess.transnet import TransNetDetector, network_picture

    return _run(film, network_picture, TransNetDetector())


def _run(
    film: made.Film, picture: Callable[[Any], Any], detector: Any
) -> tuple[list[Found], float]:
    from wsdata.preprocess.shots import Word

    words, cpu_s = [], 0.0
    for frame, pts in zip(film.frames(), film.pts, strict=True):
        begun = time.process_time()
        words += detector.push(picture(frame), float(pts * made.TICKS))
        cpu_s += time.process_time() - begun
    begun = time.process_time()
    words += detector.finish()
    cpu_s += time.process_time() - begun
    found: list[Found] = []
    for index, word in enumerate(words):
        if word is Word.CUT:
            found.append(Found(index, index))
        elif word.is_between and found and found[-1].end == index > found[-1].begin:
            found[-1] = Found(found[-1].begin, index + 1)
        elif word.is_between:
            found.append(Found(index, index + 1))
    return found, cpu_s


def peer(film: made.Film, name: str, threshold: float) -> tuple[list[Found], float]:
    """Run one of PySceneDetect's detectors with its other settings as they come."""
    from scenedetect import FrameTimecode, detectors

    kind = getattr(detectors, f"{name.capitalize()}Detector")
    key = "adaptive_threshold" if name == "adaptive" else "threshold"
    detector, cuts, cpu_s = kind(**{key: threshold}), [], 0.0
    last = FrameTimecode(0, fps=24.0)
    for index, frame in enumerate(film.frames()):
        picture = frame.to_ndarray(format="bgr24")
        begun = time.process_time()
        last = FrameTimecode(index, fps=24.0)
        cuts += detector.process_frame(last, picture)
        cpu_s += time.process_time() - begun
    cuts += detector.post_process(last)
    return [Found(cut.frame_num, cut.frame_num) for cut in cuts], cpu_s


def count(truths: list[made.Truth], found: list[Found]) -> dict[str, int]:
    """Count hits and misses by kind, and what was found that is not there."""
    counts: dict[str, int] = {}
    used: set[int] = set()
    for truth in truths:
        near = [i for i, one in enumerate(found) if i not in used and _fits(truth, one)]
        used.update(near[:1] if truth.kind == "cut" else near)
        name = f"{'hit' if near else 'miss'} {truth.kind}"
        counts[name] = counts.get(name, 0) + 1
    counts["false"] = len(found) - len(used)
    return counts


def _fits(truth: made.Truth, one: Found) -> bool:
    if truth.kind == "cut":
        return abs(one.end - truth.end) <= 1 and one.end - one.begin <= 2
    if one.begin == one.end:
        return truth.begin - 1 <= one.begin <= truth.end + 1
    return one.begin < truth.end + 1 and one.end > truth.begin - 1


def score(results: Iterable[tuple[made.Film, list[Found], float]]) -> dict[str, Any]:
    """Return precision, recall and F1 over films, recall by kind, and cost."""
    total: dict[str, int] = {}
    cpu_s, frames = 0.0, 0
    for film, found, spent_s in results:
        for name, number in count(film.truths, found).items():
            total[name] = total.get(name, 0) + number
        cpu_s, frames = cpu_s + spent_s, frames + len(film.pts)
    kinds = sorted({name.split(" ")[1] for name in total if " " in name})
    hits = sum(total.get(f"hit {kind}", 0) for kind in kinds)
    misses = sum(total.get(f"miss {kind}", 0) for kind in kinds)
    false = total.get("false", 0)
    recall_of = {
        kind: round(
            total.get(f"hit {kind}", 0)
            / max(1, total.get(f"hit {kind}", 0) + total.get(f"miss {kind}", 0)),
            3,
        )
        for kind in kinds
    }
    return {
        "f1": round(2 * hits / max(1, 2 * hits + false + misses), 4),
        "precision": round(hits / max(1, hits + false), 4),
        "recall": round(hits / max(1, hits + misses), 4),
        "recall_of": recall_of,
        "false": false,
        "cpu_ms_per_frame": round(1000 * cpu_s / max(1, frames), 3),
    }


def measure(
    films: dict[str, list[made.Film]], peers: Iterable[str], *, with_network: bool
) -> dict[str, Any]:
    """Score ours and the peers named, each threshold chosen on the tuning half."""
    engines = {"ours": ours, **({"transnetv2": network} if with_network else {})}
    told: dict[str, Any] = {name: measure_engine(films, run) for name, run in engines.items()}
    for name in peers:
        default, values = PEERS[name]
        tuned = {
            value: score((f, *peer(f, name, value)) for f in films["tune"])["f1"]
            for value in values
        }
        best = max(values, key=lambda value: tuned[value])
        told[name] = {
            "tuned_threshold": best,
            "tune_f1": tuned,
            "held_out": score((f, *peer(f, name, best)) for f in films["held_out"]),
            "held_out_default": score((f, *peer(f, name, default)) for f in films["held_out"]),
        }
    return told


def measure_engine(
    films: dict[str, list[made.Film]], run: Callable[[made.Film], tuple[list[Found], float]]
) -> dict[str, Any]:
    """Score an engine without a threshold to choose, on each half and for each condition."""
    results = {half: [(film, *run(film)) for film in some] for half, some in films.items()}
    by_condition: dict[str, list[tuple[made.Film, list[Found], float]]] = {}
    for result in results["held_out"]:
        by_condition.setdefault(result[0].condition, []).append(result)
    of_condition = {name: score(some)["f1"] for name, some in by_condition.items()}
    return {half: score(some) for half, some in results.items()} | {"f1_of_condition": of_condition}


def main() -> None:
    """Make the films and print the figures as JSON."""
    import cv2

    parser = argparse.ArgumentParser(description="Measure shot boundaries found.")
    parser.add_argument("--seeds", type=int, default=2, help="films per condition and half")
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--clips", type=Path, help="a further folder of the clips named")
    parser.add_argument("--transnet", action="store_true", help="score the extra 'shots' too")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    args = parser.parse_args()
    cv2.setNumThreads(1)
    folders = [ROOT / "samples" / "media", *([args.clips] if args.clips else [])]
    films: dict[str, list[made.Film]] = {}
    for half in ("tune", "held_out"):
        shots = made.load_shots(folders, half)
        films[half] = [
            made.make_film(shots, condition, seed)
            for seed in range(args.first_seed, args.first_seed + args.seeds)
            for condition in made.CONDITIONS
        ]
        print(half, [shot.name for shot in shots], file=sys.stderr)
    told = measure(films, args.peers, with_network=args.transnet)
    told["set"] = {
        half: {
            "films": len(some),
            "frames": int(np.sum([len(film.pts) for film in some])),
            "boundaries": int(np.sum([len(film.truths) for film in some])),
        }
        for half, some in films.items()
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
