"""The captioner border: what every engine is given, what it answers, and who is chosen.

The engines themselves lie in `describer`, `openai_server` and `vllm_engine`; which clips are
captioned, and in which order, is `caption`'s business.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import RecipeError

ENGINES = ("describer", "openai", "vllm")
VARIANTS = ("dense", "short")
# Words that a variant may have, both ends included. A describer aims inside; a model is told.
WORD_BOUNDS: Mapping[str, tuple[int, int]] = {"dense": (40, 220), "short": (4, 30)}

Frames = list[NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipFacts:
    """What was measured about a clip. None and empty mean: not measured.

    Attributes:
        tags: (name, share) of the image network's best classes, best first; shares in [0, 1].
        camera: Camera-motion class, or "none" for a still.
        pan_x: Camera travel to the right, in widths per second; pan_y downward likewise.
        zoom: Relative scale change per second, positive inward.
        motion: Mean length of optical flow, in widths per 1/24 s.
        moving_share: Share of the picture that moves, in [0, 1].
        text_words: Words read in the picture, in reading order.
        text_share: Share of the picture that text covers, in [0, 1].
        sharpness: How sharp fine detail is, in [0, 1].
        sound: Label of the sound: speech, music, ambience, silence, none.
    """

    clip_id: str
    media_kind: str
    duration_s: float
    width_px: int
    height_px: int
    aspect: str
    tags: tuple[tuple[str, float], ...] = ()
    camera: str | None = None
    camera_confidence: float = 0.0
    pan_x: float = 0.0
    pan_y: float = 0.0
    zoom: float = 0.0
    motion: float | None = None
    moving_share: float | None = None
    text_words: tuple[str, ...] = ()
    text_share: float | None = None
    num_faces: int | None = None
    sharpness: float | None = None
    sound: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionRequest:
    """One clip to caption. `frames` decodes the pack's colour frames when it is called."""

    facts: ClipFacts
    variants: tuple[str, ...]
    pack_sha256: str
    frames: Callable[[], Frames]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionAnswer:
    """One text per wanted variant, or no text and why."""

    texts: dict[str, str] = field(default_factory=dict[str, str])
    reason: str | None = None


class Captioner(Protocol):
    """Turns clips into words.

    `version` names engine, model and instruction, and goes into every row. `batch_tokens`
    bounds what `caption` is given at once; `request_tokens` estimates one request.
    """

    version: str
    batch_tokens: int

    def request_tokens(self, request: CaptionRequest) -> int:
        """Estimate the prompt tokens of one request."""
        ...

    def caption(self, requests: Sequence[CaptionRequest]) -> Iterator[CaptionAnswer]:
        """Answer a batch, in its order, each answer as soon as it and those before it are there.

        A clip that cannot be captioned is an answer too.

        Raises:
            CaptionerUnavailable: The engine as a whole does not answer.
        """
        ...


def build_captioner(params: Mapping[str, Any], settings: Mapping[str, Any]) -> Captioner:
    """Open the engine that a recipe's captions section names.

    Args:
        params: ``engine`` and ``model``.
        settings: ``endpoint`` of an OpenAI-compatible server, as ``http://host:8000/v1``, and how
            many requests it is sent at once.

    Raises:
        RecipeError: The engine is unknown, or lacks its model or endpoint.
    """
    engine, model = params["engine"], params.get("model", "")
    if engine == "describer":
        from wsdata.label.describer import Describer

        return Describer()
    if engine == "openai":
        if not model or not settings.get("endpoint"):
            raise RecipeError(
                "captions.engine 'openai' needs captions.endpoint (as http://host:8000/v1) and "
                f"captions.model; got endpoint {settings.get('endpoint')!r}, model {model!r}"
            )
        from wsdata.label.openai_server import OpenAIServer

        return OpenAIServer(
            endpoint=settings["endpoint"], model=model, concurrency=settings.get("concurrency", 16)
        )
    if engine == "vllm":
        if not model:
            raise RecipeError("captions.engine 'vllm' needs captions.model: a weights folder")
        from wsdata.label.vllm_engine import VllmEngine

        return VllmEngine(model=model)
    raise RecipeError(f"captions.engine: {engine!r}, expected one of {ENGINES}")
