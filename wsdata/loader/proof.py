"""The step that proves a dataset version can be trained on: order, resumption, latents, mixing.

Every rank is a process of its own, killed ones are killed for real, and latents are compared
with an encoding made without the loader. Nothing here decodes media: that is done by
`shard.latent_check`, in its own process.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wsdata import tables
from wsdata.deployment import Deployment
from wsdata.digest import canonical_json, digest
from wsdata.errors import StepFailed
from wsdata.loader.fetch import Fetcher
from wsdata.loader.ranks import world_sizes
from wsdata.loader.realised import off_lags, trait_autocorrelation
from wsdata.loader.sample_reader import SampleReader
from wsdata.loader.version import OpenVersion, open_version
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.shard.plan_atoms import sort_rows

NUM_STEPS = 50
KILL_STEP = 17
NUM_WORLDS = 3
MAX_ENCODED = 8  # samples encoded again, of as many buckets as there are
MAX_MIXING_STEPS = 2000
MAX_WAIT_S = 900.0
_POLL_S = 0.02
_MAX_NAMED = 5

Line = dict[str, Any]
Check = tuple[str, bool, dict[str, Any]]


def _settings(deployment: Deployment, recipe: Recipe) -> dict[str, Any]:
    return {"weights": recipe.tokenizer.weights, "num_threads": deployment.num_threads}


def _params(recipe: Recipe) -> dict[str, Any]:
    return {"engine": recipe.tokenizer.engine}


STEP = Step(
    stage="loader",
    name="loader_proof",
    function="wsdata.loader.proof:run",
    code_version="loader-proof-2",
    partition="dataset_version",
    assets={"loader_proof": ("loader_proofs",)},
    inputs=(Input(table="dataset_index"), Input(table="step_plans"), Input(table="manifests")),
    pool="cpu",
    params_of=_params,
    settings_of=_settings,
    description=(
        "Reads the version as training would: one order for every world size, exact resumption "
        "after a kill, latents equal to an encoding of the stored clip, a well mixed order."
    ),
)


def run(run: StepRun) -> StepResult:
    """Run all checks of one dataset version; each is a row, passed or not.

    Raises:
        StepFailed: A rank, or the encoding, ended with an error; its words are quoted.
    """
    opened = open_version(run.store, run.order.partition)
    worlds = world_sizes(opened.plan.batch_sizes)[:NUM_WORLDS]
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="wsdata-proof-") as folder:
        ranks = _Ranks(run.store.address, run.order.partition, Path(folder))
        stages: list[Callable[[], list[Check]]] = [
            lambda: _check_worlds(opened, ranks, worlds),
            lambda: _check_resumption(opened, ranks, worlds),
            lambda: _check_latents(run, opened, Path(folder)),
            lambda: [_check_mixing(run, opened)],
        ]
        for number, stage in enumerate(stages):
            checks += stage()
            run.progress(number + 1, len(stages), checks[-1][0])
    rows = [
        {"check": name, "passed": passed, "detail_json": canonical_json(detail)}
        for name, passed, detail in checks
    ]
    return StepResult(
        tables={"loader_proofs": tables.rows_of("loader_proofs", rows)},
        metrics={"num_failed": float(sum(not passed for _, passed, _ in checks))},
        display={"loader_proof": _display(checks)},
    )


class _Ranks:
    """Starts sets of ranks as processes, and reads what they wrote."""

    def __init__(self, store: str, version: str, folder: Path) -> None:
        self._store, self._version, self._folder = store, version, folder
        self._count = itertools.count()

    def read(
        self, world_size: int, *, cursors: Sequence[Path] = (), is_torch: bool = False
    ) -> list[list[Line]]:
        """Let all ranks run to the end; return each one's lines."""
        extra = ["--torch"] if is_torch else []
        outs = self._outs(world_size)
        processes = [
            self._start(rank, outs, [*extra, *_cursor_args(cursors, rank)])
            for rank in range(world_size)
        ]
        try:
            for rank, process in enumerate(processes):
                _, told = process.communicate(timeout=MAX_WAIT_S)
                if process.returncode:
                    raise StepFailed(_quote(rank, world_size, process.returncode, told))
        finally:
            _kill(processes)
        return [_read_lines(out) for out in outs]

    def kill_at(self, world_size: int, step: int) -> list[Path]:
        """Start ranks, SIGKILL them once all have delivered a step; return their cursors."""
        outs = self._outs(world_size)
        cursors = [out.with_suffix(".cursor") for out in outs]
        hold = ["--hold-after", str(step)]
        processes = [
            self._start(rank, outs, [*hold, *_cursor_args(cursors, rank)])
            for rank in range(world_size)
        ]
        deadline = time.monotonic() + MAX_WAIT_S
        try:
            while not all(_next_step(cursor) == step + 1 for cursor in cursors):
                for rank, process in enumerate(processes):
                    if process.poll() is not None:
                        told = process.communicate()[1]
                        raise StepFailed(_quote(rank, world_size, process.returncode, told))
                if time.monotonic() > deadline:
                    raise StepFailed(
                        f"{world_size} ranks did not reach step {step} in {MAX_WAIT_S:g} s"
                    )
                time.sleep(_POLL_S)
        finally:
            _kill(processes)
        return cursors

    def _outs(self, world_size: int) -> list[Path]:
        number = next(self._count)
        return [self._folder / f"ranks-{number}-{rank}.jsonl" for rank in range(world_size)]

    def _start(self, rank: int, outs: Sequence[Path], extra: list[str]) -> subprocess.Popen[str]:
        words = {
            "--store": self._store,
            "--version": self._version,
            "--rank": rank,
            "--world-size": len(outs),
            "--end-step": NUM_STEPS,
            "--out": outs[rank],
        }
        command = [str(part) for pair in words.items() for part in pair]
        return _start_module("wsdata.loader.rank_process", [*command, *extra])


def _start_module(module: str, arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own module, our own arguments
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _kill(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()


def _cursor_args(cursors: Sequence[Path], rank: int) -> list[str]:
    """Ranks beyond those that were killed resume from the first one's cursor: all are alike."""
    return ["--cursor", str(cursors[min(rank, len(cursors) - 1)])] if cursors else []


def _next_step(cursor: Path) -> int | None:
    return json.loads(cursor.read_text())["step"] if cursor.is_file() else None


def _read_lines(out: Path) -> list[Line]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def _quote(rank: int, world_size: int, code: int, told: str) -> str:
    tail = "\n".join(told.strip().splitlines()[-_MAX_NAMED:])
    return f"rank {rank} of {world_size} ended with exit code {code}:\n{tail}"


def _merge(ranks: list[list[Line]]) -> list[Line]:
    """Join the ranks' parts of each step, in rank order: the global batches."""
    merged: list[Line] = []
    for parts in zip(*ranks, strict=True):
        (step,), (bucket,) = {part["step"] for part in parts}, {part["bucket"] for part in parts}
        lists = {
            name: [item for part in parts for item in part[name]]
            for name in ("sample_ids", "clip_ids", "epochs", "latents_digests")
        }
        merged.append({"step": step, "bucket": bucket, **lists})
    return merged


def _order(lines: list[Line]) -> list[list[Any]]:
    return [[line["step"], line["bucket"], line["sample_ids"], line["epochs"]] for line in lines]


def _latents(lines: list[Line]) -> list[list[str]]:
    return [line["latents_digests"] for line in lines]


def _check_worlds(opened: OpenVersion, ranks: _Ranks, worlds: list[int]) -> list[Check]:
    read = {world: _merge(ranks.read(world)) for world in worlds}
    through_torch = _merge(ranks.read(worlds[0], is_torch=True))
    planned = [
        [
            step,
            opened.plan.bucket(step),
            [sample.sample_id for sample in opened.plan.samples(step)],
            [sample.epoch for sample in opened.plan.samples(step)],
        ]
        for step in range(NUM_STEPS)
    ]
    first = read[worlds[0]]
    detail = {"num_steps": NUM_STEPS, "world_sizes": worlds, "order_digest": digest(planned)}
    return [
        ("order_is_the_plans", all(_order(lines) == planned for lines in read.values()), detail),
        (
            "same_latents_at_every_world_size",
            all(_latents(lines) == _latents(first) for lines in read.values()),
            {**detail, "latents_digest": digest(_latents(first))},
        ),
        (
            "torch_dataset_gives_the_same",
            _order(through_torch) == planned and _latents(through_torch) == _latents(first),
            detail,
        ),
    ]


def _check_resumption(opened: OpenVersion, ranks: _Ranks, worlds: list[int]) -> list[Check]:
    cursors = ranks.kill_at(worlds[-1], KILL_STEP)
    kept = json.loads(cursors[0].read_text())
    planned = [
        [sample.sample_id for sample in opened.plan.samples(step)]
        for step in range(KILL_STEP + 1, NUM_STEPS)
    ]
    checks: list[Check] = []
    for name, world in (("same", worlds[-1]), ("another", worlds[0])):
        copies = _copies(cursors, name)
        lines = _merge(ranks.read(world, cursors=copies))
        tail = [line["sample_ids"] for line in lines]
        detail = {
            "killed_after_step": KILL_STEP,
            "killed_world_size": worlds[-1],
            "resumed_world_size": world,
            "first_step": lines[0]["step"],
            "num_steps": len(lines),
            "cursor_bytes": len(canonical_json(kept)),
        }
        checks.append((f"resumes_exactly_at_{name}_world_size", tail == planned, detail))
    return checks


def _copies(cursors: Sequence[Path], name: str) -> list[Path]:
    copies = [cursor.with_suffix(f".{name}.cursor") for cursor in cursors]
    for cursor, copy in zip(cursors, copies, strict=True):
        copy.write_bytes(cursor.read_bytes())
    return copies


def _check_latents(run: StepRun, opened: OpenVersion, folder: Path) -> list[Check]:
    """Read samples through the loader, and have their clips encoded again by someone else."""
    manifest = {row["sample_id"]: row for row in run.read("manifests").to_dicts()}
    reader = SampleReader(Fetcher(run.store))
    names = ("sample_id", "latent_dtype", "psnr_db")
    recorded = {row["sample_id"]: row for row in run.read("dataset_index").select(names).to_dicts()}
    samples: list[dict[str, Any]] = []
    for placement in opened.placements(_rows_to_encode(opened)):
        path = folder / f"latents-{placement.sample_id}.npy"
        np.save(path, reader.latents(placement))
        told = {**manifest[placement.sample_id], **recorded[placement.sample_id]}
        samples.append({**told, "latents_path": str(path)})
    request = folder / "latent-check.json"
    tokenizer = {"engine": run.params["engine"], "weights": run.settings.get("weights", "")}
    body = {
        "store": run.store.address,
        "tokenizer": tokenizer,
        "num_threads": run.settings.get("num_threads", 1),
        "samples": samples,
    }
    request.write_text(canonical_json(body))
    process = _start_module("wsdata.shard.latent_check", [str(request)])
    try:
        answer, told = process.communicate(timeout=MAX_WAIT_S)
    finally:
        _kill([process])
    if process.returncode:
        raise StepFailed(f"encoding the clips again failed:\n{told.strip()[-2000:]}")
    found = json.loads(answer)
    return [
        (
            "latents_equal_an_independent_encoding",
            all(sample["is_equal"] for sample in found),
            {"num_samples": len(found), "samples": found},
        ),
        (
            "psnr_is_as_recorded",
            all(sample["is_psnr_right"] for sample in found),
            {"num_samples": len(found)},
        ),
    ]


def _rows_to_encode(opened: OpenVersion) -> list[int]:
    """Rows of the first served sample of each bucket, then of the first others, up to a bound."""
    served = [
        (opened.plan.bucket(step), sample.row)
        for step in range(NUM_STEPS)
        for sample in opened.plan.samples(step)
    ]
    first_of_bucket = dict(reversed(served))
    others = [row for _, row in served if row not in first_of_bucket.values()]
    return list(dict.fromkeys([*sorted(first_of_bucket.values()), *others]))[:MAX_ENCODED]


def _check_mixing(run: StepRun, opened: OpenVersion) -> Check:
    """Autocorrelation of source over what is served, beyond what pools lead one to expect."""
    plan = opened.plan
    num_steps = max(NUM_STEPS, min(plan.num_steps, MAX_MIXING_STEPS))
    draws = [plan.draws(step) for step in range(num_steps)]
    rows = np.concatenate([plan.rows_of(each) for each in draws])
    pools = np.concatenate([each.pools for each in draws])
    indexed = sort_rows(run.read("dataset_index"))["source"]  # rows as the plan counts them
    sources = indexed.rank("dense").to_numpy().astype(np.int64)[rows]
    batch = max(plan.batch_sizes.values())
    lags = [lag for lag in (1, 2, *(batch * k + 1 for k in range(1, 9))) if lag < len(rows) // 2]
    found = trait_autocorrelation(pools, sources, lags)
    detail = {
        "trait": "source",
        "num_traits": int(np.unique(sources).size),
        "num_steps": num_steps,
        "num_samples": len(rows),
        "global_batch": batch,
        "autocorrelation": {str(lag): round(each.value, 4) for lag, each in found.items()},
    }
    return "order_is_mixed", not off_lags(found, beyond=batch), detail


def _display(checks: list[Check]) -> dict[str, Any]:
    lines = ["| check | passed | what was seen |", "|---|---|---|"]
    for name, passed, detail in checks:
        seen = {key: value for key, value in detail.items() if key != "samples"}
        lines.append(f"| {name} | {'yes' if passed else 'NO'} | {_told(seen)} |")
    failed = [name for name, passed, _ in checks if not passed]
    return {
        "passed": {"type": "int", "raw_value": len(checks) - len(failed)},
        "failed": {"type": "int", "raw_value": len(failed)},
        "checks": {"type": "md", "raw_value": "\n".join(lines)},
        "latents": {
            "type": "json",
            "raw_value": [each for _, _, detail in checks for each in detail.get("samples", [])],
        },
    }


def _told(seen: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value[:12] if key.endswith('_digest') else value}" for key, value in seen.items()
    )
