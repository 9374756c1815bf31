"""Where to resume: what a run has delivered, and its next step, as a few hundred bytes of JSON.

Nothing in it depends on rank, world size, micro-batch or threads: any of those may differ at
resumption, and the global sequence goes on. Nor does it hold what is still to come: a run may be
given other segments after the step, and patches from the step on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wsdata.digest import canonical_json, digest, sha256_bytes
from wsdata.errors import CursorError
from wsdata.loader.run import ID_DIGITS, Bound, Run, Stretch

FORMAT_VERSION = 2


def run_cursor(run: Run, step: int) -> dict[str, Any]:
    """Describe the state in which `step` of a run is the next one to be delivered."""
    segment = _delivering(run, step)
    return {
        "format_version": FORMAT_VERSION,
        "run_id": run.run_id,
        "delivered": _delivered(run, step),
        "segment": segment.identity(),
        "patches": [dict(summary) for summary in segment.plan.patch_summaries],
        "step": step,
    }


def resume_run(run: Run, cursor: Mapping[str, Any]) -> int:
    """Return the next step to deliver.

    A cursor is taken wherever what was delivered before its step is the same in this run: by the
    run that wrote it, by one that got more segments since, or patches that begin at or after it.

    Raises:
        CursorError: Another format, another run, or a patch that rewrites what was delivered.
    """
    step = cursor.get("step")
    if cursor.get("format_version") != FORMAT_VERSION or not isinstance(step, int) or step < 0:
        raise CursorError(
            f"cursor of format {cursor.get('format_version')!r} at step {step!r}: expected format "
            f"{FORMAT_VERSION} with a step >= 0, as PlanDataset.state_dict() writes it"
        )
    if not run.is_open and step > run.end_step:
        raise CursorError(
            f"cursor at step {step} is past the run's end at {run.end_step}: what was delivered "
            "there is in no segment; resume with the segments that wrote it"
        )
    segment = _delivering(run, step)
    _check_segment(run, segment, cursor, step)
    _check_patches(segment, cursor, step)
    if cursor.get("delivered") != _delivered(run, step):
        raise CursorError(
            f"cursor at step {step} belongs to run {str(cursor.get('run_id'))[:12]}, whose earlier "
            f"segments or their patches were others than those of run {run.run_id[:12]}: "
            f"{'; '.join(run.told())}. Segments may be appended, never changed in hindsight"
        )
    return step


def _delivering(run: Run, step: int) -> Bound:
    """The segment that served the step before: what a border's next segment is may be open."""
    return run.locate(max(step - 1, 0)).segment


def _delivered(run: Run, step: int) -> str:
    """Digest over all that decides which samples steps [0, step) served."""
    parts = list(run.stretches(0, step))
    if not parts:
        return digest([])[:ID_DIGITS]
    key = tuple([_in_effect(part) for part in parts])
    words = run.cursor_words.get(key)
    if words is None:
        words = run.cursor_words[key] = _words([part.segment for part in parts], key)
    before, after = words
    return sha256_bytes(f"{before}{parts[-1].end_step}{after}".encode())[:ID_DIGITS]


def _in_effect(part: Stretch) -> tuple[int, ...]:
    """Numbers of the patches that change what a stretch serves."""
    end, patches = part.segment.to_plan(part.end_step), part.segment.plan.patches
    return tuple([number for number, patch in enumerate(patches) if patch.from_step < end])


def _words(segments: Sequence[Bound], in_effect: Sequence[tuple[int, ...]]) -> tuple[str, str]:
    """Canonical JSON of what was delivered, around the last end: all that a step changes in it.

    A cursor goes with every batch. The end comes first among the names of a part.
    """
    told: list[dict[str, Any]] = [
        {
            **segment.identity(),
            "end_step": segment.end_step,
            "patches": [segment.plan.patch_summaries[number] for number in numbers],
        }
        for segment, numbers in zip(segments, in_effect, strict=True)
    ]
    before = "".join([f"{canonical_json(each)}," for each in told[:-1]])
    del told[-1]["end_step"]
    return f'[{before}{{"end_step":', f",{canonical_json(told[-1])[1:]}]"


def _check_segment(run: Run, segment: Bound, cursor: Mapping[str, Any], step: int) -> None:
    mine, its = segment.identity(), cursor.get("segment")
    if its == mine:
        return
    known = cast("Mapping[str, Any]", its if isinstance(its, Mapping) else {})
    names = [name for name in mine if known.get(name) != mine[name]]
    differing = ", ".join(
        f"{name} {known.get(name)!r} there, {mine[name]!r} here" for name in names
    )
    raise CursorError(
        f"cursor at step {step} belongs to run {str(cursor.get('run_id'))[:12]}, this is run "
        f"{run.run_id[:12]}: its samples would be others ({differing}). Resume with the dataset "
        "versions and seeds that wrote it, append segments from its step on, or start this run "
        "with start_step"
    )


def _check_patches(segment: Bound, cursor: Mapping[str, Any], step: int) -> None:
    log = [patch.summary for patch in segment.plan.patches]
    known = cast("list[dict[str, Any]]", cursor.get("patches") or [])
    if log[: len(known)] != known:
        raise CursorError(
            f"cursor at step {step} was written under {len(known)} patches of {segment.version}, "
            f"of which plan {segment.plan.plan_id[:12]} lacks one or has another: resume with the "
            "patched version that wrote it, or a later patch of it"
        )
    late = [
        patch["from_step"]
        for patch in log[len(known) :]
        if patch["from_step"] < segment.to_plan(step)
    ]
    if late:
        raise CursorError(
            f"cursor at step {step} has passed step {min(late)} of {segment.version}, from which a "
            "later patch changes what is served: resume from a checkpoint at or before that step"
        )
