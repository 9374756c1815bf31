"""Captions from any OpenAI-compatible server, vLLM's own above all.

Speaks plain HTTP with JSON, one connection per request, a bounded number at once: the server
does the batching. Two kinds of failure are told apart: a clip that the server cannot caption is
an answer with a reason; a server that answers nobody is `CaptionerUnavailable`, because a drop
full of failed captions would pass for done.
"""

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wsdata.errors import CaptionerUnavailable, RecipeError
from wsdata.label import prompt
from wsdata.label.engine import CaptionAnswer, CaptionRequest

log = logging.getLogger(__name__)

KEY_VARIABLE = "WSDATA_CAPTIONER_KEY"  # bearer token; a server inside the cluster needs none
_REFUSED = (401, 403, 404)  # the client or the model is wrong, for every clip alike


class _TransientError(Exception):
    """Worth another try: 429, 5xx, a timeout, a dropped connection. `after_s` may be stated."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class _RejectedError(Exception):
    """The server will never answer this request: too long, an image that it cannot read."""


class OpenAIServer:
    """Client of one model on one server.

    Args:
        endpoint: Address up to and including ``/v1``.
        model: Name under which the server serves the model.
        concurrency: Requests under way at once.
        tries: Times one clip is asked about, malformed answers and transport errors together.
        backoff_s: Pause before the second try; doubles each time, at most 30 s.
        sleep: Does the waiting.

    Raises:
        RecipeError: The endpoint is no HTTP address.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        model: str,
        concurrency: int = 16,
        tries: int = 4,
        timeout_s: float = 120.0,
        backoff_s: float = 1.0,
        batch_tokens: int = 131_072,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise RecipeError(
                f"captions.endpoint: {endpoint!r}, expected an address as http://host:8000/v1"
            )
        self.version = f"openai-{model}-{prompt.prompt_version()}"
        self.batch_tokens = batch_tokens
        self._endpoint = endpoint.rstrip("/")
        self._model = model
        self._concurrency = concurrency
        self._tries = tries
        self._timeout_s = timeout_s
        self._backoff_s = backoff_s
        self._sleep = sleep

    def request_tokens(self, request: CaptionRequest) -> int:
        """Estimate the prompt tokens of one request."""
        return prompt.request_tokens(request.facts)

    def caption(self, requests: Sequence[CaptionRequest]) -> Iterator[CaptionAnswer]:
        """Ask about every clip of a batch.

        Raises:
            CaptionerUnavailable: The server is down, or refuses this client or model.
        """
        with ThreadPoolExecutor(max_workers=self._concurrency) as threads:
            yield from threads.map(self._caption_one, requests)

    def _caption_one(self, request: CaptionRequest) -> CaptionAnswer:
        question = self._question(request)
        pause_s = self._backoff_s
        answer = CaptionAnswer(reason="never asked")
        num_malformed = 0
        for attempt in range(self._tries):
            # a second greedy try would repeat the first one's fault
            question |= {"temperature": 0.4 if num_malformed else 0, "seed": num_malformed}
            wanted_pause_s: float | None = None
            try:
                answer = prompt.read_answer(self._ask(question), request.variants)
                num_malformed += 1
            except _RejectedError as error:
                return CaptionAnswer(reason=f"refused: {error}")
            except _TransientError as error:
                answer = CaptionAnswer(reason=f"transport: {error}")
                wanted_pause_s = error.after_s
            if answer.reason is None:
                return answer
            log.info("clip %s, try %d: %s", request.facts.clip_id, attempt + 1, answer.reason)
            if attempt + 1 < self._tries:
                self._sleep(min(wanted_pause_s or pause_s, 30.0))
                pause_s *= 2
        if answer.reason is not None and answer.reason.startswith("transport"):
            self._demand_life(answer.reason)
        return answer

    def _question(self, request: CaptionRequest) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": prompt.chat_messages(request),
            "max_tokens": prompt.MAX_ANSWER_TOKENS,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "clip_captions",
                    "strict": True,
                    "schema": prompt.answer_schema(request.variants),
                },
            },
        }

    def _ask(self, question: Mapping[str, Any]) -> str:
        """Return the text of the answer; "" where there is none, which reads as malformed."""
        reply = self._send("/chat/completions", json.dumps(question).encode())
        try:
            return json.loads(reply)["choices"][0]["message"]["content"] or ""
        except (json.JSONDecodeError, KeyError, IndexError, TypeError):
            return ""

    def _send(self, path: str, body: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked above
            self._endpoint + path, data=body, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:  # noqa: S310
                return reply.read()
        except urllib.error.HTTPError as error:
            return self._refusal(error)
        except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors
            raise _TransientError(f"{type(error).__name__}: {error}") from error

    def _refusal(self, error: urllib.error.HTTPError) -> bytes:
        said = error.read(500).decode(errors="replace")
        if error.code in _REFUSED:
            raise CaptionerUnavailable(
                f"{self._endpoint} refused model {self._model!r} with {error.code}: {said}. Check "
                f"captions.endpoint, captions.model and {KEY_VARIABLE}"
            ) from error
        if error.code in (408, 409, 429) or error.code >= 500:
            raise _TransientError(
                f"{error.code}: {said}", _retry_after_s(error.headers.get("Retry-After"))
            ) from error
        raise _RejectedError(f"{error.code}: {said}") from error

    def _demand_life(self, reason: str) -> None:
        """Raise unless the server still answers: then only this one clip is to blame."""
        try:
            self._send("/models", None)
        except _RejectedError:
            return
        except _TransientError as error:
            raise CaptionerUnavailable(
                f"{self._endpoint} does not answer ({reason}): start the server, or set "
                "captions.engine to another; captions made so far are kept"
            ) from error


def _retry_after_s(value: str | None) -> float | None:
    """Read the header; a date, the other form that it may have, counts as not stated."""
    return float(value) if value is not None and value.isdigit() else None
