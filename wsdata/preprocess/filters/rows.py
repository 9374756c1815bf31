"""What all filters share: one unit per clip, failures kept apart, and rows in the long form.

What a score means belongs to the filter's own module; which scores drop or tier a clip belongs
to `preprocess.funnel`. Here a filter is given clips and gives back one row per clip and score.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata import tables
from wsdata.deployment import Deployment
from wsdata.digest import canonical_json, sha256_bytes
from wsdata.errors import IntegrityError, StepFailed, StoreError
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess import funnel
from wsdata.preprocess.filters.showing import show_scores
from wsdata.preprocess.framepack import FramePack, read_framepack
from wsdata.preprocess.savings import GATED_BY
from wsdata.recipe import Gates, Recipe

MAX_ERROR_SHARE = 0.5
MIN_ERRORS = 3
NUM_DIGITS = 6
MAX_REASON_CHARS = 300

# A lost or falsified object, a model that does not load and a machine without memory say
# nothing about the clip at hand: they end the step.
_NOT_THE_CLIPS_FAULT = (StoreError, IntegrityError, StepFailed, MemoryError)

Entry = dict[str, Any]
Entries = dict[str, Entry]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """One filter: its name, its model's version, and the scores that it gives every clip."""

    name: str
    model_version: str
    score_names: tuple[str, ...]

    @property
    def table(self) -> str:
        """The table, and Dagster asset, that its rows go to."""
        return f"{self.name}_scores"


def scored(value: float, detail: Mapping[str, Any] | None = None) -> Entry:
    """A score that was measured, rounded so that its bytes are stable.

    Raises:
        ValueError: The value is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"a score of {value!r} is not a finite number")
    return {
        "score": round(float(value), NUM_DIGITS),
        "status": "ok",
        "reason": None,
        "detail": dict(detail) if detail else None,
    }


def unscored(reason: str) -> Entry:
    """A score that could not be measured, which says nothing about the clip's worth."""
    return {"score": None, "status": "unscored", "reason": reason, "detail": None}


def _failed(error: Exception) -> Entry:
    text = re.sub(r"0x[0-9a-f]+", "0x", f"{type(error).__name__}: {error}")  # no addresses in rows
    return {"score": None, "status": "error", "reason": text[:MAX_REASON_CHARS], "detail": None}


def filter_settings(deployment: Deployment, recipe: Recipe) -> dict[str, Any]:
    """Thresholds of the operating recipe that say which clips are not worth scoring."""
    del deployment
    return {"gates": asdict(recipe.gates)}


def gate_inputs(name: str) -> tuple[Input, ...]:
    """Scores that a filter asks before it spends anything: of the filters that gate before it."""
    before = funnel.GATING[: funnel.GATING.index(name)] if name in funnel.GATING else funnel.GATING
    return tuple(Input(table=f"{each}_scores", is_context=True) for each in before)


def pack_step(spec: Filter, description: str) -> Step:
    """Declare the step of a filter that reads frame packs."""
    return Step(
        stage="preprocess",
        name=spec.table,
        function=f"wsdata.preprocess.filters.{spec.name}:run",
        code_version=spec.model_version,
        partition="drop",
        assets={spec.table: (spec.table,)},
        inputs=(
            Input(table="clips"),
            Input(table="frame_packs"),
            *gate_inputs(spec.name),
        ),
        pool="nvdec",
        units_of="clips",
        settings_of=filter_settings,
        description=description,
    )


def score_packs(
    run: StepRun,
    spec: Filter,
    score: Callable[[FramePack, dict[str, Any]], Entries],
    *,
    load: Callable[[], Any] | None = None,
) -> StepResult:
    """Score every clip of a drop from its frame pack.

    Args:
        run: The step's run.
        spec: Which filter.
        score: Takes a pack and the clip's row, and gives the filter's scores by name.
        load: Makes the model, before the first clip that needs it; what it raises ends the step.

    Raises:
        StepFailed: The model does not load, or more clips failed than the bound allows.
        ObjectMissing: The store has lost a pack.
        IntegrityError: A pack's bytes are not the recorded ones.
    """
    packs = {row["clip_id"]: row for row in run.read("frame_packs").iter_rows(named=True)}

    def compute(clip: dict[str, Any]) -> Entries:
        pack = packs.get(clip["clip_id"])
        if pack is None or pack["key"] is None:
            return dict.fromkeys(spec.score_names, unscored("no frame pack"))
        if load is not None:
            load_model(spec, load)
        return score(read_framepack(read_blob(run, pack)), clip)

    def subject(clip: dict[str, Any]) -> str:
        pack = packs.get(clip["clip_id"])
        return f"{clip['clip_id']}/{pack['sha256'] if pack else None}"

    return score_clips(run, spec, compute, subject=subject)


def color_frames(pack: FramePack) -> list[NDArray[np.uint8]]:
    """The colour pictures of a pack: RGB in [0, 255], (height, width, 3), in the clip's order."""
    return [frame.pixels for frame in pack.colors]


def load_model(spec: Filter, load: Callable[[], Any]) -> None:
    """Make a filter's model now.

    Raises:
        StepFailed: It does not load.
    """
    try:
        load()
    except Exception as error:
        raise StepFailed(
            f"{spec.table}: the model of {spec.model_version} does not load "
            f"({type(error).__name__}: {error}): install the extra 'label', and run again"
        ) from error


def read_blob(run: StepRun, row: Mapping[str, Any]) -> bytes:
    """Read the object that a row names.

    Raises:
        ObjectMissing: The store has lost it.
        IntegrityError: Its bytes are not the recorded ones.
    """
    data = run.store.get(row["key"])
    if (found := sha256_bytes(data)) != row["sha256"]:
        raise IntegrityError(
            f"{row['key']} of clip {row['clip_id']}: bytes have digest {found[:12]}, the row says "
            f"{row['sha256'][:12]}: delete the object and run again"
        )
    return data


def score_clips(
    run: StepRun,
    spec: Filter,
    compute: Callable[[dict[str, Any]], Entries],
    *,
    subject: Callable[[dict[str, Any]], str] | None = None,
) -> StepResult:
    """Score every clip of a drop, one unit each; one clip's failure is that clip's alone.

    Clips that a gate already stops by scores that exist are written as unscored, with the gate
    and its reason, and cost nothing. Failed clips are not remembered as done, so a rerun of an
    unfinished step tries them again.

    Args:
        run: The step's run, with ``clips`` among its inputs.
        spec: Which filter.
        compute: Takes a clip's row and gives the filter's scores by name.
        subject: What a unit's result depends on; without it nothing is kept between runs.

    Raises:
        StepFailed: More than MIN_ERRORS clips and more than MAX_ERROR_SHARE of those tried failed.
    """
    started = time.perf_counter()
    clips = run.mine(run.read("clips"), "clip_id").sort("clip_id")
    gated = _stops_so_far(run, clips)
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for index, clip in enumerate(clips.iter_rows(named=True), start=1):
        clip_id = clip["clip_id"]
        if clip_id in gated:
            entries = dict.fromkeys(spec.score_names, unscored(gated[clip_id]))
        else:
            entries = _one_clip(run, spec, compute, clip, subject)
        if entries[spec.score_names[0]]["status"] == "error":
            failed[clip_id] = entries[spec.score_names[0]]["reason"]
        rows += _rows(spec, clip, entries)
        run.progress(index, clips.height, clip_id)
    _check_errors(spec, failed, num_tried=clips.height - len(gated))
    table = tables.rows_of(spec.table, rows)
    counts = Counter(row["status"] for row in rows if row["score_name"] == spec.score_names[0])
    return StepResult(
        tables={spec.table: table},
        metrics={
            "num_clips": clips.height,
            "num_scored": counts["ok"],
            "num_unscored": counts["unscored"],
            "num_errors": counts["error"],
            "num_spared": len(gated),
            "duration_s": round(time.perf_counter() - started, 3),
        },
        display={spec.table: show_scores(table, spec.score_names)},
    )


def _stops_so_far(run: StepRun, clips: pl.DataFrame) -> dict[str, str]:
    """Why clips are not worth scoring, by clip."""
    tables_read = [
        f"{name}_scores" for name in funnel.GATING if f"{name}_scores" in run.order.context
    ]
    if not tables_read:
        return {}
    scores = pl.concat([run.read_context(table) for table in tables_read])
    stops = funnel.stops_so_far(scores, clips, Gates(**run.settings.get("gates", {})))
    return {
        clip_id: GATED_BY.format(stopped_by, reason)
        for clip_id, stopped_by, reason in stops.select(
            "clip_id", "stopped_by", "reason"
        ).iter_rows()
    }


def _one_clip(
    run: StepRun,
    spec: Filter,
    compute: Callable[[dict[str, Any]], Entries],
    clip: dict[str, Any],
    subject: Callable[[dict[str, Any]], str] | None,
) -> Entries:
    def checked() -> Entries:
        entries = compute(clip)
        if set(entries) != set(spec.score_names):
            raise StepFailed(
                f"{spec.table}: scores {sorted(entries)} of clip {clip['clip_id']}, declared are "
                f"{sorted(spec.score_names)}"
            )
        return entries

    try:
        if subject is None:
            return checked()
        length_s = clip["duration_s"] or 0.0
        return run.unit(subject(clip), checked, amounts=lambda _: {"media_s": length_s})
    except _NOT_THE_CLIPS_FAULT:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a model raises on a clip, the others go on
        return dict.fromkeys(spec.score_names, _failed(error))


def _rows(spec: Filter, clip: dict[str, Any], entries: Entries) -> list[dict[str, Any]]:
    return [
        {
            "clip_id": clip["clip_id"],
            "asset_id": clip["asset_id"],
            "source": clip["source"],
            "filter": spec.name,
            "score_name": name,
            "score": entries[name]["score"],
            "model_version": spec.model_version,
            "status": entries[name]["status"],
            "reason": entries[name]["reason"],
            "detail_json": canonical_json(entries[name]["detail"])
            if entries[name]["detail"]
            else None,
        }
        for name in spec.score_names
    ]


def _check_errors(spec: Filter, failed: Mapping[str, str], *, num_tried: int) -> None:
    if len(failed) <= MIN_ERRORS or len(failed) <= MAX_ERROR_SHARE * num_tried:
        return
    examples = "\n".join(f"  - {clip_id}: {failed[clip_id]}" for clip_id in sorted(failed)[:3])
    raise StepFailed(
        f"{spec.table}: {len(failed)} of {num_tried} clips failed, more than "
        f"{MAX_ERROR_SHARE:.0%}; this is the filter's fault, not the clips', and nothing was "
        f"written:\n{examples}\nRepair {spec.model_version} and run again: clips that were scored "
        "are not scored twice."
    )
