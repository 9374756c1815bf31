"""The step that plans a dataset version, proves the plan, and publishes it for training.

What a plan is belongs to `plan`; the index that trainers read, to `training_index`; the
pointer by which a trainer finds both, to `publish`.
"""

import dataclasses
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from wsdata.digest import canonical_json, digest
from wsdata.errors import StepFailed
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.shard.plan import StepPlan
from wsdata.shard.plan_mixture import PhaseMix
from wsdata.shard.plan_rows import AtomsAlone, SortedRows, sort_tables
from wsdata.shard.publish import dataset_key, index_key, publish_dataset
from wsdata.shard.training_index import TrainingIndex
from wsdata.shard.training_index_write import Written, write_training_index
from wsdata.tables import rows_of

CODE_VERSION = "step-plan-4"
NUM_PROOF_STEPS = 50
MAX_WALKED = 200_000  # draws of each pool that the proof walks in an epoch


def plan_params(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe decides the plan, as plain dicts."""
    return {
        "seed": recipe.seed,
        "phases": [dataclasses.asdict(phase) for phase in recipe.phases],
        "streams": {name: dataclasses.asdict(stream) for name, stream in recipe.streams.items()},
        "samples": dataclasses.asdict(recipe.samples),
        "shuffle": dataclasses.asdict(recipe.shuffle),
    }


STEP = Step(
    stage="shard",
    name="step_plan",
    function="wsdata.shard.plan_step:run",
    code_version=CODE_VERSION,
    partition="dataset_version",
    assets={"step_plan": ("step_plans", "training_index_parts")},
    inputs=(Input(table="dataset_index"), Input(table="manifests")),
    params_of=plan_params,
    description="Which samples every training step gets: a pure function of index, seed and step.",
)


def plan_key(plan_id: str) -> str:
    """Object key of a step plan."""
    return f"training/plans/{plan_id}.json"


def run(run: StepRun) -> StepResult:
    """Compile, prove and publish the plan of a dataset version.

    Raises:
        PlanError: The recipe's mixture cannot be planned over what the index holds.
        StepFailed: The plan breaks one of its promises.
    """
    with tempfile.TemporaryDirectory(prefix="wsdata-plan-") as folder:
        (index,), (manifest,) = run.order.inputs["dataset_index"], run.order.inputs["manifests"]
        rows = sort_tables(run.store, index, manifest, Path(folder))
        # Before the index is written, which takes longest: a mixture may be impossible.
        plan = StepPlan.compile(AtomsAlone(rows.atoms), **run.params, lost=rows.lost)
        written = write_training_index(run.store, rows.chunks(), rows.widths)
        if written.root.atoms != rows.atoms:
            raise StepFailed(
                f"the training index of {run.order.partition} is not of the planned rows"
            )
        plan = plan.replaced(index=TrainingIndex(written.root, run.store.get_range))
        proof = _proven(run, plan)
        keys = _publish(run, plan, written, rows)
    return _result(plan, written, keys, proof)


def _proven(run: StepRun, plan: StepPlan) -> dict[str, Any]:
    """Prove a plan over the index that trainers read."""
    proof = prove_plan(plan)
    if failed := sorted(name for name, check in proof["checks"].items() if not check["passed"]):
        raise StepFailed(
            f"step plan {plan.plan_id[:12]} of {run.order.partition} breaks {failed}: "
            f"{canonical_json({name: proof['checks'][name] for name in failed})}"
        )
    return proof


def _result(
    plan: StepPlan, written: Written, keys: dict[str, str], proof: dict[str, Any]
) -> StepResult:
    row = {
        "plan_id": plan.plan_id,
        **keys,
        "num_samples": plan.num_samples,
        "num_steps": plan.num_steps,
        "num_pools": len(plan.pools),
        "proof_json": canonical_json(proof),
    }
    return StepResult(
        tables={
            "step_plans": rows_of("step_plans", [row]),
            "training_index_parts": rows_of(
                "training_index_parts", [part._asdict() for part in written.parts]
            ),
        },
        metrics={"num_pools": len(plan.pools), "num_samples": plan.num_samples},
        display={"step_plan": _display(plan, proof)},
    )


def _publish(run: StepRun, plan: StepPlan, written: Written, rows: SortedRows) -> dict[str, str]:
    """Put plan, indexes and pointer where a trainer finds them; the pointer goes last."""
    (index_ref,) = run.order.inputs["dataset_index"]
    keys = {
        "key": plan_key(plan.plan_id),
        "index_key": index_key(index_ref.sha256),
        "training_index_key": written.key,
    }
    run.store.put(keys["key"], canonical_json(plan.to_json()).encode())
    if run.store.size(keys["index_key"]) is None:
        run.store.put_file(keys["index_key"], rows.index_path)
    body = {
        "index_key": keys["index_key"],
        "index_sha256": index_ref.sha256,
        "training_index_key": written.key,
        "training_index_sha256": written.sha256,
        "manifest_digest": rows.manifest_digest,
        "plan_key": keys["key"],
        "plan_id": plan.plan_id,
    }
    publish_dataset(run.store, run.order.partition, body)
    return {**keys, "pointer_key": dataset_key(run.order.partition)}


def prove_plan(plan: StepPlan) -> dict[str, Any]:
    """Check a plan's promises by asking it, and say what was found, as JSON."""
    steps = [plan.samples(step) for step in range(NUM_PROOF_STEPS)]
    return {
        "checks": {
            "stream_shares": _check_shares(plan),
            "once_per_epoch": _check_epochs(plan),
            "inverse": _check_inverse(plan),
        },
        "phases": [_phase_report(plan, number) for number in range(len(plan.phases))],
        "first_steps_digest": digest([[s.sample_id for s in step] for step in steps]),
        "num_first_steps": NUM_PROOF_STEPS,
    }


def token_shares(plan: StepPlan, phase: int, num_steps: int) -> dict[str, Fraction]:
    """Share of latent tokens that each stream gets in the first steps of a phase, exactly."""
    tokens = _tokens(plan, phase, num_steps)
    total = sum(tokens.values(), Fraction(0))
    return {stream: taken / total for stream, taken in sorted(tokens.items())}


def share_bound(plan: StepPlan, phase: int, num_steps: int) -> dict[str, Fraction]:
    """How far `token_shares` may be from what is due to each stream, for any number of steps.

    In n steps a bucket comes within one turn, plus n / period from apportioning, of its due; a
    pool within one draw, plus draws / period, of its part of those turns. What that is in tokens
    is set against the tokens served.
    """
    content = plan.phases[phase]
    period = _period(content)
    off = dict.fromkeys(content.due, Fraction(0))
    for bucket in content.buckets:
        letters = sum(bucket.draws)
        turns_off = 1 + Fraction(num_steps, period)
        turns = Fraction(bucket.num_turns * num_steps, period) + 1
        for index, count in zip(bucket.pools, bucket.draws, strict=True):
            pool = plan.pools[index]
            draws_off = turns_off * bucket.batch_size * Fraction(count + 1, letters)
            draws_off += 1 + turns * bucket.batch_size / letters
            off[pool.stream] += draws_off * Fraction(pool.num_tokens, pool.num_samples)
    total = sum(_tokens(plan, phase, num_steps).values(), Fraction(0))
    all_off = sum(off.values(), Fraction(0))
    return {
        stream: (value + Fraction(content.due[stream]) * all_off) / total
        for stream, value in off.items()
    }


def _tokens(plan: StepPlan, phase: int, num_steps: int) -> dict[str, Fraction]:
    tokens: dict[str, Fraction] = {}
    for bucket in plan.phases[phase].buckets:
        for index in bucket.pools:
            pool = plan.pools[index]
            drawn = plan.schedule.num_drawn(phase, index, num_steps)
            taken = Fraction(pool.num_tokens, pool.num_samples) * drawn
            tokens[pool.stream] = tokens.get(pool.stream, Fraction(0)) + taken
    return tokens


def _period(phase: PhaseMix) -> int:
    return sum(bucket.num_turns for bucket in phase.buckets)


def _check_shares(plan: StepPlan) -> dict[str, Any]:
    worst: dict[str, Any] = {"passed": True, "largest_deviation": 0.0}
    for number, phase in enumerate(plan.phases):
        period = _period(phase)
        bounds = share_bound(plan, number, period)
        for stream, share in token_shares(plan, number, period).items():
            deviation = abs(share - Fraction(phase.due[stream]))
            worst["passed"] &= deviation <= bounds[stream]
            worst["largest_deviation"] = max(worst["largest_deviation"], float(deviation))
    return worst


def _check_epochs(plan: StepPlan) -> dict[str, Any]:
    """Walk whole epochs of every pool: positions map one to one onto places, and back."""
    num_walked = 0
    for index, pool in enumerate(plan.pools):
        length = min(pool.num_samples, MAX_WALKED)
        for epoch in (0, 1):
            places = plan.epoch_order(index, epoch, length)
            num_walked += len(places)
            if not np.array_equal(np.unique(places), np.sort(places)) or (
                length == pool.num_samples
                and not np.array_equal(np.sort(places), np.arange(length, dtype=np.int64))
            ):
                return {"passed": False, "pool": pool.name, "epoch": epoch}
    return {"passed": True, "num_walked": num_walked}


def _check_inverse(plan: StepPlan) -> dict[str, Any]:
    """Ask back where each clip of the first steps is served, and compare with going forward."""
    served: dict[str, list[tuple[int, int, int]]] = {}
    for step in range(NUM_PROOF_STEPS):
        for sample in plan.samples(step):
            served.setdefault(sample.clip_id, []).append((step, sample.slot, sample.epoch))
    wrong = [
        clip_id
        for clip_id, expected in sorted(served.items())[:NUM_PROOF_STEPS]
        if [tuple(found) for found in plan.where(clip_id, NUM_PROOF_STEPS)] != sorted(expected)
    ]
    return {"passed": not wrong, "num_clips": min(len(served), NUM_PROOF_STEPS), "wrong": wrong}


def _phase_report(plan: StepPlan, number: int) -> dict[str, Any]:
    phase = plan.phases[number]
    period = _period(phase)
    over_period, over_phase = (
        token_shares(plan, number, steps) for steps in (period, phase.num_steps)
    )
    return {
        "name": phase.name,
        "num_steps": phase.num_steps,
        "period": period,
        "streams": {
            stream: {
                "due_share": round(float(Fraction(due)), 6),
                "period_share": round(float(over_period[stream]), 6),
                "phase_share": round(float(over_phase[stream]), 6),
            }
            for stream, due in phase.due.items()
        },
        "step_shares": {
            bucket.bucket: round(bucket.num_turns / period, 6) for bucket in phase.buckets
        },
        "absent_streams": list(phase.absent),
        "capped_streams": list(phase.capped),
        "short_buckets": list(phase.short),
    }


def _display(plan: StepPlan, proof: dict[str, Any]) -> dict[str, Any]:
    shares = ["| phase | steps | stream | due | served |", "|---|---|---|---|---|"]
    buckets = ["| phase | bucket | share of steps | global batch |", "|---|---|---|---|"]
    for phase in proof["phases"]:
        name = phase["name"]
        for stream, row in phase["streams"].items():
            shares.append(
                f"| {name} | {phase['num_steps']} | {stream} | {row['due_share']:.1%} "
                f"| {row['phase_share']:.1%} |"
            )
        shares += [f"| {name} | | {stream} | no sample | |" for stream in phase["absent_streams"]]
        buckets += [
            f"| {name} | {bucket} | {share:.1%} | {plan.batch_sizes[bucket]} |"
            for bucket, share in phase["step_shares"].items()
        ]
        buckets += [
            f"| {name} | {b} | left out: too few encoded | |" for b in phase["short_buckets"]
        ]
    return {
        "plan": {"type": "text", "raw_value": plan.plan_id},
        "steps": {"type": "int", "raw_value": plan.num_steps},
        "samples": {"type": "int", "raw_value": plan.num_samples},
        "streams": {"type": "md", "raw_value": "\n".join(shares)},
        "buckets": {"type": "md", "raw_value": "\n".join(buckets)},
        "proof": {"type": "json", "raw_value": proof["checks"]},
    }
