"""What a vision-language captioner is asked, and how its answer is read.

The instruction never varies and comes first, so that a server keeps its prefix in cache; what
varies (frames, then measurements) follows. Shared by the server client and the in-process
engine, so both ask the same question.
"""

import base64
import io
import json
from typing import Any

from wsdata.digest import short_digest
from wsdata.label.engine import WORD_BOUNDS, CaptionAnswer, CaptionRequest, ClipFacts, Frames
from wsdata.preprocess.framepack import COLOR_SIDE_PX, MAX_COLOR

INSTRUCTION = (
    "You describe short video clips and still images for the training of a video model. You are "
    "given frames in order of time, and a few measurements. Describe only what is visible or "
    "measured: subjects and what they do, setting, light, colours, composition, camera movement, "
    "and how the scene changes. Quote legible text exactly. Do not guess names of people, "
    "places or causes, do not judge quality, and do not mention frames, measurements or this "
    "instruction. Write plain English. 'dense' is one paragraph of 100 to 200 words; 'short' is "
    "one sentence of 8 to 20 words. Answer with JSON alone."
)
MAX_FRAMES = 12
MAX_ANSWER_TOKENS = 512
_JPEG_QUALITY = 88
_PATCH_PX = 28  # side of the square that common VLMs turn into one token
_CHARS_PER_TOKEN = 3  # errs on the side of more tokens


def prompt_version() -> str:
    """Digest over everything here that can change an answer."""
    return short_digest([INSTRUCTION, MAX_FRAMES, MAX_ANSWER_TOKENS, _JPEG_QUALITY])[:8]


def answer_schema(variants: tuple[str, ...]) -> dict[str, Any]:
    """JSON schema of an answer: one string per variant, nothing else."""
    return {
        "type": "object",
        "properties": {variant: {"type": "string"} for variant in variants},
        "required": list(variants),
        "additionalProperties": False,
    }


def request_tokens(facts: ClipFacts) -> int:
    """Estimate the prompt tokens of a clip from what its pack holds at most."""
    long_side = max(facts.width_px, facts.height_px, 1)
    scale = min(1.0, COLOR_SIDE_PX / long_side)
    per_frame = int(facts.width_px * scale * facts.height_px * scale) // _PATCH_PX**2 + 2
    frames = 1 if facts.media_kind == "image" else min(MAX_FRAMES, MAX_COLOR)
    return frames * per_frame + len(INSTRUCTION) // _CHARS_PER_TOKEN + 80


def chosen_frames(frames: Frames) -> Frames:
    """At most MAX_FRAMES of a clip's frames, evenly spread, first and last among them."""
    if len(frames) <= MAX_FRAMES:
        return frames
    last = len(frames) - 1
    return [frames[index * last // (MAX_FRAMES - 1)] for index in range(MAX_FRAMES)]


def measurements(facts: ClipFacts) -> str:
    """What was measured, as one line for the model to lean on."""
    said = [f"kind: {facts.media_kind}"]
    if facts.media_kind != "image":
        said.append(f"length: {facts.duration_s:.1f} s")
        if facts.camera:
            said.append(f"camera: {facts.camera}")
        if facts.sound:
            said.append(f"sound: {facts.sound}")
    if facts.text_words:
        said.append(f"text read: {' '.join(facts.text_words[:40])}")
    return "Measurements. " + "; ".join(said)


def chat_messages(request: CaptionRequest) -> list[dict[str, Any]]:
    """Build the chat of one clip: the fixed instruction, the frames, the measurements."""
    images = [
        {"type": "image_url", "image_url": {"url": _data_url(frame)}}
        for frame in chosen_frames(request.frames())
    ]
    closing = {"type": "text", "text": measurements(request.facts)}
    return [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": [*images, closing]},
    ]


def _data_url(frame: Any) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def read_answer(text: str, variants: tuple[str, ...]) -> CaptionAnswer:
    """Read a model's answer; what breaks the schema or the length bounds has a reason instead.

    Bounds are twice as lenient as what quality control accepts: that flags, this rejects what
    is no caption at all.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        return CaptionAnswer(reason=f"malformed: not JSON ({error.msg} at {error.pos})")
    if not isinstance(found, dict):
        return CaptionAnswer(reason=f"malformed: a JSON {type(found).__name__}, not an object")
    texts: dict[str, str] = {}
    for variant in variants:
        value = found.get(variant)
        if not isinstance(value, str) or not value.strip():
            return CaptionAnswer(reason=f"malformed: no text for {variant!r}")
        texts[variant] = " ".join(value.split())
        low, high = WORD_BOUNDS[variant]
        if not low // 2 <= len(texts[variant].split()) <= 2 * high:
            return CaptionAnswer(
                reason=f"malformed: {variant!r} has {len(texts[variant].split())} words"
            )
    return CaptionAnswer(texts=texts)
