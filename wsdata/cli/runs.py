"""``wsdata plan run``: what a declared run is, before a trainer starts it."""

import argparse
from typing import Any

from wsdata.cli.main import Answer
from wsdata.cli.opened import open_deployment, table


def show_run(args: argparse.Namespace) -> Answer:
    """``plan run``: its segments, where its latents change, which world sizes can read it."""
    from wsdata.loader.batch_reader import tokens_of
    from wsdata.loader.run import Segment, Tokens, bind_run, changes_at, read_run
    from wsdata.loader.version import open_version
    from wsdata.shard.plan import StepPlan

    store = open_deployment(args).store

    def open_segment(segment: Segment) -> tuple[StepPlan, Tokens]:
        opened = open_version(store, segment.version, seed=segment.seed)
        return opened.plan, tokens_of(opened)

    run = bind_run(read_run(args.file), open_segment)
    changes = changes_at(run)
    data: dict[str, Any] = {
        "run_id": run.run_id,
        "end_step": run.end_step,
        "is_open": run.is_open,
        "world_sizes": run.world_sizes(),
        "segments": [
            {
                "version": each.version,
                "plan_id": each.plan.plan_id,
                "seed": each.plan.seed,
                "first_step": each.first_step,
                "end_step": each.end_step,
                "plan_step": each.plan_step,
                "plan_steps": each.plan.num_steps,
                **each.tokens._asdict(),
            }
            for each in run.segments
        ],
    }
    lines = table(
        ["steps", "version", "plan", "seed", "plan step", "of", "tokenizer", "dtype"],
        [
            [
                f"{s['first_step']}..{'' if s['end_step'] is None else s['end_step']}",
                s["version"],
                s["plan_id"][:12],
                s["seed"],
                s["plan_step"],
                s["plan_steps"],
                s["tokenizer_version"],
                s["dtype"],
            ]
            for s in data["segments"]
        ],
    )
    lines += [
        f"at step {step} latents change from {old.tokenizer_version} ({old.dtype}) to "
        f"{new.tokenizer_version} ({new.dtype})"
        for step, (old, new) in changes.items()
    ]
    end = f"to step {run.end_step} and on" if run.is_open else f"to step {run.end_step}"
    sizes = ", ".join(str(size) for size in data["world_sizes"])
    return Answer(data, [*lines, f"run {run.run_id} {end}; world sizes that can read it: {sizes}"])
