"""The step that proves a dataset version can be trained on: order, resumption, latents, mixing.

Every rank is a process of its own, killed ones are killed for real, and latents are compared
with an encoding made without the loader. Nothing here decodes media: that is done by
`shard.latent_check`, in its own process.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wsdata import tables
from wsdata.deployment import Deployment
from wsdata.digest import canonical_json, digest
from wsdata.errors import StepFailed
from wsdata.loader.fetch import Fetcher
from wsdata.loader.proof_ranks import MAX_WAIT_S, Ask, Line, Ranks
from wsdata.loader.ranks import world_sizes
from wsdata.loader.realised import off_lags, trait_autocorrelation
from wsdata.loader.sample_reader import SampleReader
from wsdata.loader.version import OpenVersion, open_version
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.shard.plan_atoms import sort_rows

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_STEPS = 50
KILL_STEP = 17
NUM_WORLDS = 3
MAX_ENCODED = 8  # samples encoded again, of as many buckets as there are
MAX_MIXING_STEPS = 2000
SP_SIZE = 2
NUM_PART_STEPS = 20  # read as stored, and by sequence-parallel groups

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
        ranks = Ranks(run.store.address, run.order.partition, Path(folder))
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


def _start_module(module: str, arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own module, our own arguments
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _order(lines: list[Line]) -> list[list[Any]]:
    return [[line["step"], line["bucket"], line["sample_ids"], line["epochs"]] for line in lines]


def _latents(lines: list[Line]) -> list[list[list[str]]]:
    return [line["latents_digests"] for line in lines]


def _check_worlds(opened: OpenVersion, ranks: Ranks, worlds: list[int]) -> list[Check]:
    """Let ranks read the first steps in every way that there is; all must read the same."""
    asks = [Ask(world_size=world, end_step=NUM_STEPS) for world in worlds]
    asks += [Ask(world_size=worlds[0], end_step=NUM_STEPS, is_torch=True)]
    asks += [Ask(world_size=worlds[-1], end_step=NUM_PART_STEPS, latents="stored")]
    asks += [Ask(world_size=worlds[0], end_step=NUM_PART_STEPS, sp_size=SP_SIZE)]
    *read, through_torch, stored, in_parts = ranks.read(asks)
    planned = [
        [
            step,
            opened.plan.bucket(step),
            [sample.sample_id for sample in opened.plan.samples(step)],
            [sample.epoch for sample in opened.plan.samples(step)],
        ]
        for step in range(NUM_STEPS)
    ]
    first = read[0]
    detail = {"num_steps": NUM_STEPS, "world_sizes": worlds, "order_digest": digest(planned)}
    in_part = {"num_steps": NUM_PART_STEPS}
    return [
        ("order_is_the_plans", all(_order(lines) == planned for lines in read), detail),
        (
            "same_latents_at_every_world_size",
            all(_latents(lines) == _latents(first) for lines in read),
            {**detail, "latents_digest": digest(_latents(first))},
        ),
        (
            "torch_dataset_gives_the_same",
            _order(through_torch) == planned and _latents(through_torch) == _latents(first),
            detail,
        ),
        (
            "stored_latents_equal_float32",
            _same(stored, first[:NUM_PART_STEPS]),
            {**in_part, "world_size": worlds[-1]},
        ),
        (
            "sequence_parallel_ranges_join",
            _same(in_parts, first[:NUM_PART_STEPS]),
            {**in_part, "ranks_of_a_group": SP_SIZE},
        ),
    ]


def _same(lines: list[Line], others: list[Line]) -> bool:
    return _order(lines) == _order(others) and _latents(lines) == _latents(others)


def _check_resumption(opened: OpenVersion, ranks: Ranks, worlds: list[int]) -> list[Check]:
    """Kill ranks for real, and go on from the cursor that each of them left."""
    killed = Ask(world_size=worlds[-1], end_step=NUM_STEPS)
    cursors = ranks.kill_at(killed, KILL_STEP)
    smallest = min(opened.plan.batch_sizes.values()) // worlds[0]
    ways = {
        "same_world_size": (worlds[-1], None),
        "another_world_size": (worlds[0], None),
        "another_micro_batch": (worlds[0], max(1, smallest - 1)),
    }
    read = ranks.read(
        [
            dataclasses.replace(killed, world_size=world, micro_batch=micro, cursor=cursors[0])
            for world, micro in ways.values()
        ]
    )
    planned = [
        [sample.sample_id for sample in opened.plan.samples(step)]
        for step in range(KILL_STEP + 1, NUM_STEPS)
    ]
    checks: list[Check] = []
    for (name, (world, micro)), lines in zip(ways.items(), read, strict=True):
        is_exact = [line["sample_ids"] for line in lines] == planned
        detail = {
            "killed_after_step": KILL_STEP,
            "killed_world_size": worlds[-1],
            "resumed_world_size": world,
            "resumed_micro_batch": micro,
            "first_step": lines[0]["step"],
            "num_steps": len(lines),
            "cursor_bytes": len(canonical_json(cursors[0])),
            "cursors_are_alike": all(cursor == cursors[0] for cursor in cursors),
        }
        checks.append((f"resumes_exactly_at_{name}", is_exact and detail["cursors_are_alike"],
                       detail))  # fmt: skip
    return checks


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
        process.kill()
        process.communicate()
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
