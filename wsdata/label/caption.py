"""Captions of a drop: which clips get which variants, in which order, and what is kept.

The words come from an engine behind `engine.Captioner`, from facts that `facts` gathers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from wsdata import tables
from wsdata.deployment import Deployment
from wsdata.digest import digest, short_digest
from wsdata.label.engine import (
    CaptionAnswer,
    Captioner,
    CaptionRequest,
    build_captioner,
)
from wsdata.label.facts import FACT_INPUTS, gather_facts
from wsdata.label.packs import kept_clips, read_colors
from wsdata.label.sheet import MAX_CELLS, contact_sheet, sheet_markdown
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe

MODEL_VERSION = "captions-1"
_MAX_BATCH_CLIPS = 64  # also bounds how many packs' frames are in memory
_MAX_SAMPLES = 12


class _NotAskedError(Exception):
    """No earlier run of this step has this clip's captions."""


def run(run: StepRun) -> StepResult:
    """Caption every clip of a drop that passed the gates, best provisional tier first.

    Raises:
        CaptionerUnavailable: The engine as a whole does not answer; answers so far are kept.
        RecipeError: The recipe's captions section names no usable engine.
    """
    section = run.params["captions"]
    captioner = build_captioner(section, run.settings)
    requests = build_requests(run, section)
    answers = _answer_all(run, captioner, requests)
    records = [
        record
        for request in requests
        for record in _records(request, answers[request.facts.clip_id], captioner.version)
    ]
    return StepResult(
        tables={"captions": tables.rows_of("captions", records)},
        metrics={
            "captions": len(records),
            "failed": sum(record["status"] == "failed" for record in records),
        },
        display={"captions": _display(run, requests, records)},
    )


def build_requests(run: StepRun, section: Mapping[str, Any]) -> list[CaptionRequest]:
    """What to ask, best provisional tier first.

    Tiers that `dense_tiers` leaves out get short captions alone, until they are promoted.
    """
    clips = kept_clips(run)
    facts = gather_facts(run, clips)
    requests: list[CaptionRequest] = []
    for clip in clips:
        is_dense = clip["provisional_tier"] in section["dense_tiers"]
        variants = [name for name in section["variants"] if is_dense or name != "dense"]
        if variants:
            requests.append(
                CaptionRequest(
                    facts=facts[clip["clip_id"]],
                    variants=tuple(sorted(variants)),
                    pack_sha256=clip["pack_sha256"],
                    frames=lambda clip=clip: read_colors(run, clip),
                )
            )
    return requests


def batches(
    requests: Sequence[CaptionRequest], captioner: Captioner
) -> Iterator[list[CaptionRequest]]:
    """Cut requests, in their order, into batches within the engine's token bound.

    A request that is above the bound by itself is a batch of its own.
    """
    batch: list[CaptionRequest] = []
    tokens = 0
    for request in requests:
        wanted = captioner.request_tokens(request)
        if batch and (tokens + wanted > captioner.batch_tokens or len(batch) == _MAX_BATCH_CLIPS):
            yield batch
            batch, tokens = [], 0
        batch.append(request)
        tokens += wanted
    if batch:
        yield batch


def _answer_all(
    run: StepRun, captioner: Captioner, requests: Sequence[CaptionRequest]
) -> dict[str, CaptionAnswer]:
    answers: dict[str, CaptionAnswer] = {}
    waiting: list[CaptionRequest] = []
    for request in requests:
        kept = _kept_answer(run, captioner, request)
        if kept is None:
            waiting.append(request)
        else:
            answers[request.facts.clip_id] = kept
    with run.at_work():
        for batch in batches(waiting, captioner):
            for request, answer in zip(batch, captioner.caption(batch), strict=True):
                answers[request.facts.clip_id] = _keep(run, captioner, request, answer)
                run.progress(len(answers), len(requests), request.facts.clip_id)
    return answers


def _subject(captioner: Captioner, request: CaptionRequest) -> str:
    facts = digest(asdict(request.facts))
    return f"{request.pack_sha256}/{facts}/{captioner.version}/{'+'.join(request.variants)}"


def _kept_answer(
    run: StepRun, captioner: Captioner, request: CaptionRequest
) -> CaptionAnswer | None:
    def not_asked() -> dict[str, Any]:
        raise _NotAskedError

    try:
        return CaptionAnswer(texts=run.unit(_subject(captioner, request), not_asked))
    except _NotAskedError:
        return None


def _keep(
    run: StepRun, captioner: Captioner, request: CaptionRequest, answer: CaptionAnswer
) -> CaptionAnswer:
    """Keep an answer for a killed step to resume with; a failure is not kept but asked again."""
    if answer.reason is not None:
        return answer
    # the first result under the key wins, also where two workers asked at once
    return CaptionAnswer(texts=run.unit(_subject(captioner, request), lambda: answer.texts))


def _records(
    request: CaptionRequest, answer: CaptionAnswer, version: str
) -> Iterator[dict[str, Any]]:
    for variant in request.variants:
        text = None if answer.reason is not None else answer.texts[variant]
        yield {
            "clip_id": request.facts.clip_id,
            "captioner_version": version,
            "variant": variant,
            "text": text,
            "status": "failed" if text is None else "ok",
            "reason": answer.reason,
            "num_words": None if text is None else len(text.split()),
        }


def _display(
    run: StepRun, requests: Sequence[CaptionRequest], records: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    made = {(row["clip_id"], row["variant"]): row for row in records if row["status"] == "ok"}
    shown: dict[str, dict[str, Any]] = {
        "clips": {"type": "int", "raw_value": len(requests)},
        "captions": {"type": "int", "raw_value": len(made)},
        "failed": {"type": "int", "raw_value": len(records) - len(made)},
        "samples": {"type": "md", "raw_value": _samples_table(list(made.values()))},
    }
    frames, texts = [], []
    for request in requests[:MAX_CELLS]:
        clip_id = request.facts.clip_id
        row = made.get((clip_id, "short")) or made.get((clip_id, "dense"))
        pictures = request.frames()
        if row is not None and pictures:
            frames.append(pictures[len(pictures) // 2])
            texts.append(row["text"])
    if frames:
        jpeg = contact_sheet(frames, texts)
        # the rows are in the name: a drop whose clips changed gets a new sheet
        subject = f"contact-sheet-{run.order.partition}-{short_digest(list(records))}"
        blob = run.put_blob(run.blob_key("captions", subject, ".jpg"), jpeg)
        shown["contact_sheet"] = {"type": "md", "raw_value": sheet_markdown(jpeg)}
        shown["contact_sheet_blob"] = {"type": "text", "raw_value": blob["key"]}
    return shown


def _samples_table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| clip | variant | words | caption |", "|---|---|---|---|"]
    for row in rows[:_MAX_SAMPLES]:
        text = row["text"].replace("|", "/")
        lines.append(f"| `{row['clip_id']}` | {row['variant']} | {row['num_words']} | {text} |")
    return "\n".join(lines)


def _params(recipe: Recipe) -> dict[str, Any]:
    # where the server is reached cannot change what its model says, so it is a setting
    section = asdict(recipe.captions)
    del section["endpoint"]
    return {"captions": section}


def _settings(deployment: Deployment, recipe: Recipe) -> dict[str, Any]:
    return {"num_threads": deployment.num_threads, "endpoint": recipe.captions.endpoint}


STEP = Step(
    stage="label",
    name="captions",
    function="wsdata.label.caption:run",
    code_version=MODEL_VERSION,
    partition="drop",
    assets={"captions": ("captions",)},
    inputs=(
        Input(table="gates"),
        Input(table="clips"),
        Input(table="frame_packs"),
        *(Input(table=name) for name in FACT_INPUTS),
    ),
    pool="vlm",
    units_of="clips",
    params_of=_params,
    settings_of=_settings,
    version_of=lambda recipe: "-".join(
        part.replace("/", "_") for part in (recipe.captions.engine, recipe.captions.model) if part
    ),
    description=(
        "Dense and short captions of every clip that passed the gates, best tier first, by the "
        "engine that the recipe names; each row says which captioner wrote it."
    ),
)
