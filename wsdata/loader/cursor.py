"""Where to resume: a plan's identity and the next step, as a few hundred bytes of JSON.

Nothing in it depends on rank, world size or threads: any of those may differ at resumption, and
the global sequence goes on.
"""

from collections.abc import Mapping
from typing import Any, cast

from wsdata.errors import CursorError
from wsdata.shard.plan import StepPlan

FORMAT_VERSION = 1


def make_cursor(plan: StepPlan, step: int) -> dict[str, Any]:
    """Describe the state in which `step` is the next one to be delivered."""
    return {
        "format_version": FORMAT_VERSION,
        "plan_id": plan.plan_id,
        "base_plan_id": plan.base_plan_id,
        "patches": [patch.summary for patch in plan.patches],
        "step": step,
    }


def resume_step(plan: StepPlan, cursor: Mapping[str, Any]) -> int:
    """Return the next step to deliver.

    A cursor of the same plan is taken, and so is one with fewer patches, as long as the patches
    that came since begin at or after its step: what was delivered is then the same.

    Raises:
        CursorError: Another format, another plan, or a patch that rewrites what was delivered.
    """
    step = cursor.get("step")
    if cursor.get("format_version") != FORMAT_VERSION or not isinstance(step, int) or step < 0:
        raise CursorError(
            f"cursor of format {cursor.get('format_version')!r} at step {step!r}: expected format "
            f"{FORMAT_VERSION} with a step >= 0, as PlanDataset.state_dict() writes it"
        )
    if cursor.get("plan_id") == plan.plan_id:
        return step
    log = [patch.summary for patch in plan.patches]
    known = cast("list[dict[str, Any]]", cursor.get("patches") or [])
    if cursor.get("base_plan_id") != plan.base_plan_id or log[: len(known)] != known:
        raise CursorError(
            f"cursor at step {step} belongs to plan {str(cursor.get('plan_id'))[:12]}, this is "
            f"plan {plan.plan_id[:12]}: its samples would be others. Resume with the dataset "
            "version and seed that wrote it, or start this plan with start_step"
        )
    late = [patch["from_step"] for patch in log[len(known) :] if patch["from_step"] < step]
    if late:
        raise CursorError(
            f"cursor at step {step} has passed step {min(late)}, from which a later patch changes "
            "what is served: resume from a checkpoint at or before that step"
        )
    return step
