"""Captions from vLLM inside this process: for a GPU job that has the card to itself.

vLLM is imported when an engine is built, so nothing else needs it installed. It batches
continuously by itself; what it is given at once is bounded so that decoded frames stay few.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from wsdata.digest import short_digest
from wsdata.errors import CaptionerUnavailable
from wsdata.label import prompt
from wsdata.label.engine import CaptionAnswer, CaptionRequest

log = logging.getLogger(__name__)

_TRIES = 2


class VllmEngine:
    """One vision-language model, loaded from a local weights folder.

    Raises:
        CaptionerUnavailable: vLLM is not installed here.
    """

    def __init__(
        self, *, model: str, max_model_tokens: int = 8192, batch_tokens: int = 262_144
    ) -> None:
        try:
            from vllm import LLM  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise CaptionerUnavailable(
                "captions.engine 'vllm' needs the extra 'vlm' (pip install 'wsdata[vlm]') on a "
                "machine with a GPU; or set captions.engine to 'openai' or 'describer'"
            ) from error
        # the folder may lie anywhere, so its path must not name the version; its end does
        self.version = f"vllm-{model.rstrip('/').rpartition('/')[2]}-{prompt.prompt_version()}"
        self.batch_tokens = batch_tokens
        self._llm: Any = LLM(
            model=model,
            max_model_len=max_model_tokens,
            limit_mm_per_prompt={"image": prompt.MAX_FRAMES},
            enable_prefix_caching=True,
            seed=0,
        )

    def request_tokens(self, request: CaptionRequest) -> int:
        """Estimate the prompt tokens of one request."""
        return prompt.request_tokens(request.facts)

    def caption(self, requests: Sequence[CaptionRequest]) -> Iterator[CaptionAnswer]:
        """Ask about every clip of a batch; malformed answers are asked for once more."""
        answers = [CaptionAnswer(reason="never asked") for _ in requests]
        waiting = list(range(len(requests)))
        for attempt in range(_TRIES):
            texts = self._chat([requests[index] for index in waiting], attempt)
            for index, text in zip(waiting, texts, strict=True):
                answers[index] = prompt.read_answer(text, requests[index].variants)
            waiting = [index for index in waiting if answers[index].reason is not None]
            if not waiting:
                break
            log.info("try %d: %d malformed answers", attempt + 1, len(waiting))
        return iter(answers)

    def _chat(self, requests: Sequence[CaptionRequest], attempt: int) -> list[str]:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import (  # pyright: ignore[reportMissingImports]
            StructuredOutputsParams,
        )

        sampling = [
            SamplingParams(
                # a second greedy try would repeat the first one's fault
                temperature=0.0 if attempt == 0 else 0.4,
                seed=int(short_digest([request.facts.clip_id, attempt])[:8], 16),
                max_tokens=prompt.MAX_ANSWER_TOKENS,
                structured_outputs=StructuredOutputsParams(
                    json=prompt.answer_schema(request.variants)
                ),
            )
            for request in requests
        ]
        conversations = [prompt.chat_messages(request) for request in requests]
        outputs = self._llm.chat(conversations, sampling_params=sampling, use_tqdm=False)
        return [output.outputs[0].text for output in outputs]
