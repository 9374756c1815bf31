"""Bytes a second into ready batches: our loader beside Streaming, WebDataset and a bare read.

One run, interleaved, the same samples, page cache warm. Needs an environment with the peers:
``tools/interop.sh DIR``; then ``benchmarks/loader_speed.py --interop DIR``. With ``--seek``, the
time to a first batch and to resume at a late step, beside replaying an epoch sampler.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.loader_made import SIZES, Made, make
from benchmarks.loader_peers import WAYS, measure

STREAMING, PLAIN, BARE = "streaming_dataloader_2_workers", "streaming_plain", "bare_preadv"
OURS = ("ours_stored", "ours_float32")
DEPTH = 2
TARGETS = {STREAMING: 3.0, PLAIN: 1.5, BARE: 0.6}


def ours(args: argparse.Namespace) -> dict:
    """Take batches from a PlanDataset, as a training loop would."""
    from wsdata.loader.dataset import PlanDataset

    data = PlanDataset(
        version=args.version,
        store=str(args.root / "store"),
        latents=args.way.removeprefix("ours_"),
        num_threads=args.threads,
        prefetch_depth=DEPTH,
    )

    def batches():  # noqa: ANN202
        for batch in data:
            yield batch["latents"].numel()

    return measure(batches(), args.bytes)


def run_way(way: str, args: argparse.Namespace, made: Made, ranges: Path) -> dict:
    """Measure one way in a process of its own."""
    python, script = sys.executable, [__file__, "--way", way]
    if way in WAYS:
        python = str(args.interop / "bin" / "python")
        peers = Path(__file__).with_name("loader_peers.py")
        script = [str(peers), way, "--batch", str(made.batch), "--ranges", str(ranges)]
        script += ["--slabs", str(DEPTH + 2)]
    command = [python, "-W", "ignore", *script, "--root", str(args.root), "--version", made.version]
    command += ["--bytes", str(args.bytes), "--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_ranges(root: Path, made: Made, num_bytes: int, path: Path) -> None:
    """Write down which bytes of which files the plan's first steps are."""
    from wsdata.loader.version import open_version
    from wsdata.store import FolderStore

    store = FolderStore(root / "store")
    opened = open_version(store, made.version)
    ranges, wanted = [], num_bytes * 1.3
    for step in itertools.count():
        if sum(length for _, _, length in ranges) > wanted and step > 8:
            break
        draws = opened.plan.draws(step)
        ranges += [
            (str(store.path_of(each.shard_key)), each.offset, each.length)
            for each in opened.placements(opened.plan.rows_of(draws).tolist())
        ]
    path.write_text(json.dumps(ranges))


def compare(args: argparse.Namespace, name: str) -> dict:
    """All ways over one size of samples, in turn, several rounds."""
    made = SIZES[name]
    ranges = args.root / f"{made.version}.ranges.json"
    write_ranges(args.root, made, args.bytes, ranges)
    ways = [*OURS, *WAYS]
    told: dict[str, list[dict]] = {way: [] for way in ways}
    for number in range(args.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            told[way].append(run_way(way, args, made, ranges))
            print(f"{name} {number} {way} {told[way][-1]['MB_per_s']:.0f} MB/s", file=sys.stderr)
    speeds = {way: statistics.median(each["MB_per_s"] for each in told[way]) for way in ways}
    cpu = {
        way: statistics.median(each["cpu_s"] / each["bytes"] * 1e9 for each in told[way])
        for way in ways
    }
    ratios = {own: {way: _ratio(told[own], told[way]) for way in WAYS} for own in OURS}
    return {
        "bucket": made.bucket,
        "batch": made.batch,
        "MB_per_s": {way: round(speed) for way, speed in speeds.items()},
        "cpu_s_per_GB": {way: round(each, 3) for way, each in cpu.items()},
        "ratios": ratios,
        "targets_of_stored": {
            way: [ratios["ours_stored"][way], f">= {least}"] for way, least in TARGETS.items()
        },
    }


def _ratio(ours_told: list[dict], its_told: list[dict]) -> float:
    pairs = zip(ours_told, its_told, strict=True)
    return round(statistics.median(mine["MB_per_s"] / its["MB_per_s"] for mine, its in pairs), 2)


def seek(args: argparse.Namespace) -> dict:
    """Time to the first batch at several steps, opening included; and replaying a sampler."""
    import torch

    from wsdata.loader.dataset import PlanDataset

    made = SIZES["256p"]
    options = {"version": made.version, "store": str(args.root / "store"), "latents": "stored"}
    first_s: dict[int, list[float]] = {}
    next(iter(PlanDataset(**options)))  # modules are loaded, the page cache is warm
    for _, step in itertools.product(range(args.rounds), (0, 1000, 1_000_000)):
        state = PlanDataset(**options, start_step=step).state_dict()
        begun = time.monotonic()
        data = PlanDataset(**options)
        data.load_state_dict(state)
        assert next(iter(data))["step"] == step
        first_s.setdefault(step, []).append(time.monotonic() - begun)
    begun, step, epoch = time.monotonic(), 0, 0
    while step < 1_000_000:  # what a seeded sampler does when it is fast-forwarded
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(made.num_samples, generator=generator).tolist()
        for start in range(0, made.num_samples - made.batch + 1, made.batch):
            _ = order[start : start + made.batch]
            step += 1
        epoch += 1
    replay_s = time.monotonic() - begun
    medians = {at: statistics.median(each) for at, each in first_s.items()}
    return {
        "first_batch_ms": {at: round(each * 1e3, 1) for at, each in medians.items()},
        "replay_of_order_alone_ms": round(replay_s * 1e3, 1),
        "replay_over_resume": round(replay_s / medians[1_000_000], 1),
    }


def main() -> None:
    """Make the samples, run all ways, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--interop", type=Path, help="what tools/interop.sh made")
    parser.add_argument("--root", type=Path, help="where samples are made, or lie already")
    parser.add_argument("--bytes", type=int, default=1_500_000_000, help="read by each way")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seek", action="store_true", help="time to the first batch alone")
    parser.add_argument("--way", choices=OURS, help=argparse.SUPPRESS)
    parser.add_argument("--version", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(ours(args)))
        return
    with tempfile.TemporaryDirectory(prefix="wsdata-loader-speed-") as folder:
        args.root = args.root or Path(folder)
        for name in args.sizes:
            if not (args.root / "tars" / SIZES[name].version).is_dir():
                make(args.root, SIZES[name])
        if args.seek:
            print(json.dumps(seek(args), indent=1))
            return
        print(json.dumps({name: compare(args, name) for name in args.sizes}, indent=1))


if __name__ == "__main__":
    main()
