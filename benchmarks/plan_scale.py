"""How plan and training index grow with samples and steps, beside a seeded shuffle sampler.

    PYTHONPATH=. .venv/bin/python benchmarks/plan_scale.py [--large]

Prints JSON. Every measurement is a process of its own, on one core. `--large` adds a version of
10^8 samples, whose index takes some 20 GB of disk while it runs. Parts:

- plan: 10^9 samples in 40 pools, batches of 1,024: time and memory to compile, steps per second.
- rank: what a rank opens of a published version, its memory, and the time to its first samples,
  at several numbers of samples and several steps.
- replay: the same step from a seeded sampler, by replaying all epochs up to it, and by
  shuffling the step's own epoch alone.
- write: samples per second, and memory, of writing the index.
- step: time and memory of the whole step that plans and publishes, at several numbers of samples;
  `--only step` measures it alone.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wsdata.shard.plan import StepPlan

STEPS = (0, 1_000, 1_000_000, 100_000_000)
SHARE = 64  # of a batch of 1,024 samples that a rank reads
PLANNED = 1_000_000_000
NUM_ASKED = 1000
NUM_EXCLUDED = 1_000_000
REPLAYED = 1_000_000
WRITTEN = 300_000
STEP_SIZES = [10**5, 10**6, 3 * 10**6]


def pss_bytes() -> int:
    """Proportional set size of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


@contextlib.contextmanager
def timed(into: dict[str, Any], name: str) -> Iterator[None]:
    """Note how long a block took, in seconds."""
    begun = time.perf_counter()
    yield
    into[name] = time.perf_counter() - begun


def measure_plan(_: argparse.Namespace) -> dict[str, Any]:
    """Compile a plan of 10^9 samples, and ask it for batches all over."""
    import numpy as np

    from benchmarks.plan_scale_made import BATCH, CountedIndex, compile_plan
    from wsdata.shard.plan_patch import apply_patch

    before = pss_bytes()
    told: dict[str, Any] = {"num_samples": PLANNED, "batch": BATCH}
    with timed(told, "compile_s"):
        plan = compile_plan(CountedIndex(PLANNED))
    plan.draws(0)
    told["num_pools"] = len(plan.pools)
    told["json_bytes"] = len(json.dumps(plan.to_json()))
    told["compile_growth_mb"] = (pss_bytes() - before) / 1e6
    told["steps_per_s"] = steps_per_s(plan)
    clip = plan.samples(1_000)[0].clip_id
    with timed(told, "where_s"):
        told["num_served"] = len(plan.where(clip))
    with timed(told, "next_steps_s"):
        plan.steps_of_rows(plan.index.rows_of_clip(clip), 0, 5)
    told["growth_mb"] = (pss_bytes() - before) / 1e6
    # As bad as it can be: no two of the excluded samples stand side by side.
    names = plan.index.names(np.arange(0, PLANNED, PLANNED // NUM_EXCLUDED, dtype=np.int64))
    with timed(told, "patch_s"):
        patched = apply_patch(plan, [sample_id for sample_id, _ in names], 1)
    patched.draws(1)
    told["num_excluded"] = NUM_EXCLUDED
    told["patched_json_mb"] = len(json.dumps(patched.to_json())) / 1e6
    told["patched_steps_per_s"] = steps_per_s(patched)
    return told


def steps_per_s(plan: "StepPlan") -> float:
    """Ask for the rows of whole batches, all over the run and none twice."""
    begun = time.perf_counter()
    for number in range(NUM_ASKED):
        plan.rows_of(plan.draws(number * 1_999 + 1))
    return NUM_ASKED / (time.perf_counter() - begun)


def measure_rank(args: argparse.Namespace) -> dict[str, Any]:
    """Open a published version as a rank does, and ask for its part of some steps."""
    import numpy as np

    from wsdata.loader.version import open_version
    from wsdata.store import open_store

    def ask(step: int) -> int:
        samples = opened.plan.samples(step, first_slot=3 * SHARE, end_slot=4 * SHARE)
        return len(opened.placements([sample.row for sample in samples]))

    told: dict[str, Any] = {"num_samples": args.samples, "imports_mb": pss_bytes() / 1e6}
    with timed(told, "open_s"):
        opened = open_version(open_store(args.store), "v1")
    told["opened_mb"] = pss_bytes() / 1e6
    with timed(told, "first_s"):  # words of the rhythm are built, nothing is in memory yet
        ask(args.step)
    seconds: list[float] = []
    for number in range(1, 40):
        begun = time.perf_counter()
        ask(args.step + number)
        seconds.append(time.perf_counter() - begun)
    told |= {"step": args.step, "next_s": float(np.median(seconds))}
    for number in range(300):  # long enough to fill the bound of what is kept
        ask(args.step + 7 * number)
    told["read_mb"] = pss_bytes() / 1e6
    told["growth_mb"] = told["read_mb"] - told["imports_mb"]
    return told


def measure_replay(args: argparse.Namespace) -> dict[str, Any]:
    """Reach a step with a seeded epoch sampler: all epochs up to it, or its own epoch alone."""
    import torch

    def order(epoch: int) -> Any:
        return torch.randperm(REPLAYED, generator=torch.Generator().manual_seed(epoch))

    batch = 1024
    per_epoch = REPLAYED // batch
    told: dict[str, Any] = {"num_samples": REPLAYED, "step": args.step}
    epoch, inside = divmod(args.step, per_epoch)
    with timed(told, "one_epoch_s"):
        order(epoch)[inside * batch : (inside + 1) * batch].tolist()
    sampled = min(epoch, 20)  # each epoch costs the same; the rest is reckoned
    with timed(told, "sampled_s"):
        for number in range(sampled):
            whole = order(number)
            for first in range(0, per_epoch * batch, batch):
                whole[first : first + batch].tolist()
    told["replay_s"] = told.pop("sampled_s") / max(sampled, 1) * epoch + told["one_epoch_s"]
    told["num_epochs_replayed"], told["num_epochs"] = sampled, epoch
    return told


def measure_write(_: argparse.Namespace) -> dict[str, Any]:
    """Write an index from rows of the catalog."""
    from benchmarks.plan_scale_made import table_rows
    from wsdata.shard.training_index_write import widths_of, write_training_index
    from wsdata.store import FolderStore

    rows = table_rows(WRITTEN)
    told: dict[str, Any] = {"num_samples": WRITTEN, "rows_mb": pss_bytes() / 1e6}
    widths = widths_of(rows["sample_id"], rows["transcode_key"])
    with tempfile.TemporaryDirectory() as folder, timed(told, "write_s"):
        written = write_training_index(FolderStore(Path(folder)), [rows], widths)
    told["samples_per_s"] = WRITTEN / told["write_s"]
    told["bytes_per_sample"] = sum(part.size_bytes for part in written.parts) / WRITTEN
    told["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return told


def measure_step(args: argparse.Namespace) -> dict[str, Any]:
    """Run the step that plans and publishes a version, over tables that are there."""
    from benchmarks.plan_step_made import PARAMS
    from wsdata.records import ObjectRef
    from wsdata.shard.plan_step import STEP
    from wsdata.store import FolderStore
    from wsdata_tests.orders_support import order_of, run_step

    store = FolderStore(Path(args.store))
    refs = [ObjectRef(**ref) for ref in json.loads((store.root / "refs.json").read_text())]
    told: dict[str, Any] = {"num_samples": args.samples, "imports_mb": pss_bytes() / 1e6}
    order = order_of(STEP, "v1", {ref.table: [ref] for ref in refs}, params=PARAMS)
    with timed(told, "step_s"):
        run_step(STEP, order, store)
    told["samples_per_s"] = args.samples / told["step_s"]
    told["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return told


def measure_tables(args: argparse.Namespace) -> dict[str, Any]:
    """Write the tables that `measure_step` reads."""
    from dataclasses import asdict

    from benchmarks.plan_step_made import put_tables

    refs = put_tables(Path(args.store), args.samples)
    (Path(args.store) / "refs.json").write_text(json.dumps([asdict(ref) for ref in refs]))
    return {}


PARTS = {
    "plan": measure_plan,
    "rank": measure_rank,
    "replay": measure_replay,
    "write": measure_write,
    "tables": measure_tables,
    "step": measure_step,
}


def measured(part: str, **options: Any) -> dict[str, Any]:
    """Measure one part in a fresh process on one core."""
    words = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, __file__, "--part", part, *words]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    core = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(  # noqa: S603 - this very script
        ["taskset", "-c", core, *command],  # noqa: S607
        env=os.environ | threads,
        check=True,
        capture_output=True,
    )
    return json.loads(done.stdout)


def measure_ranks(sizes: list[int]) -> list[dict[str, Any]]:
    """Publish versions of some sizes, one after the other, and open each at some steps."""
    from benchmarks.plan_scale_made import publish_made
    from wsdata.store import FolderStore

    found: list[dict[str, Any]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            publish_made(FolderStore(Path(folder)), size)
            disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            for step in STEPS:
                told = measured("rank", store=folder, samples=size, step=step)
                found.append({**told, "index_mb": disk / 1e6})
    return found


def measure_steps(sizes: list[int]) -> list[dict[str, Any]]:
    """Plan versions of some sizes, one after the other."""
    found: list[dict[str, Any]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            measured("tables", store=folder, samples=size)
            found.append(measured("step", store=folder, samples=size))
    first, last = found[0], found[-1]
    grown = last["peak_mb"] - first["peak_mb"]
    last["grown_bytes_a_sample"] = 1e6 * grown / (last["num_samples"] - first["num_samples"])
    return found


def main() -> None:
    """Measure all, and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=sorted(PARTS))
    parser.add_argument("--large", action="store_true", help="also 10^8 samples: 20 GB of disk")
    parser.add_argument("--store", default="")
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--only", choices=["step"])
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure_steps(STEP_SIZES), indent=2))
        return
    if args.part:
        print(json.dumps(PARTS[args.part](args)))
        return
    ranks = measure_ranks([10**5, 10**6, 10**7, *([10**8] if args.large else [])])
    replay = {step: measured("replay", step=step) for step in STEPS[1:3]}
    seek = {rank["step"]: rank["open_s"] + rank["first_s"] for rank in ranks
            if rank["num_samples"] == REPLAYED}  # fmt: skip
    body = {
        "plan": measured("plan"),
        "rank": ranks,
        "replay": list(replay.values()),
        "replay_over_open_and_seek": {s: r["replay_s"] / seek[s] for s, r in replay.items()},
        "one_epoch_over_open_and_seek": {s: r["one_epoch_s"] / seek[s] for s, r in replay.items()},
        "write": measured("write"),
        "step": measure_steps(STEP_SIZES),
        "versions": {name: version(name) for name in ("numpy", "polars", "torch")},
    }
    print(json.dumps(body, indent=2))


if __name__ == "__main__":
    main()
