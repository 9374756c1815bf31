"""Model captioners at their borders: a real HTTP server, and a stand-in for the vLLM module."""

import base64
import io
import json
import sys
import types

import numpy as np
import pytest
from PIL import Image

from wsdata.errors import CaptionerUnavailable, RecipeError
from wsdata.label.engine import CaptionRequest, ClipFacts, build_captioner
from wsdata.label.openai_server import OpenAIServer
from wsdata.label.prompt import MAX_FRAMES, chosen_frames, prompt_version, read_answer
from wsdata_tests.label.label_support import server

DENSE = "A brown dog runs over a wet beach toward the camera. " * 5
GOOD = json.dumps({"dense": DENSE, "short": "A brown dog runs over a beach."})


def request_of(index: int = 0, variants=("dense", "short"), num_frames: int = 3) -> CaptionRequest:
    facts = ClipFacts(
        clip_id=f"{index:024x}-0-000000000-000004000",
        media_kind="video",
        duration_s=4.0,
        width_px=448,
        height_px=252,
        aspect="16:9",
        sound="speech",
    )
    frames = [np.full((252, 448, 3), 20 * k, np.uint8) for k in range(num_frames)]
    return CaptionRequest(
        facts=facts, variants=variants, pack_sha256="0" * 64, frames=lambda: frames
    )


def client(endpoint, pauses=None, **options) -> OpenAIServer:
    pauses = pauses if pauses is not None else []
    return OpenAIServer(endpoint=endpoint, model="cap-7b", sleep=pauses.append, **options)


def test_a_clip_is_asked_about_with_schema_frames_and_the_fixed_instruction_first():
    with server([(200, GOOD)]) as (endpoint, asked):
        (answer,) = client(endpoint).caption([request_of()])

    assert answer.texts == {"dense": DENSE.strip(), "short": "A brown dog runs over a beach."}
    body = asked[0]["body"]
    assert asked[0]["path"] == "/v1/chat/completions"
    assert body["model"] == "cap-7b"
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["dense", "short"]
    assert schema["additionalProperties"] is False
    system, user = body["messages"]
    assert system["role"] == "system"
    kinds = [part["type"] for part in user["content"]]
    assert kinds == ["image_url"] * 3 + ["text"]
    data = user["content"][1]["image_url"]["url"].partition("base64,")[2]
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (448, 252)


def test_the_prefix_is_the_same_for_every_clip_and_every_set_of_variants():
    short = json.dumps({"short": "A brown dog runs over a beach."})
    with server([(200, short)]) as (endpoint, asked):
        list(client(endpoint).caption([request_of(1, ("short",)), request_of(2, ("short",), 5)]))
    first, second = (entry["body"]["messages"][0] for entry in asked)
    assert first == second


def test_a_busy_server_is_waited_for_as_long_as_it_says():
    pauses: list[float] = []
    answers = [(429, "", {"Retry-After": "7"}), (503, ""), (200, GOOD)]
    with server(answers) as (endpoint, asked):
        (answer,) = client(endpoint, pauses).caption([request_of()])

    assert answer.reason is None
    assert len(asked) == 3
    assert pauses == [7.0, 2.0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("not json", "not JSON"),
        ('["a"]', "a JSON list"),
        ('{"dense": "' + "word " * 60 + '"}', "no text for 'short'"),
        ('{"dense": "too few", "short": "a brown dog runs"}', "'dense' has 2 words"),
    ],
)
def test_a_malformed_answer_is_asked_for_again_and_then_recorded(content, why):
    with server([(200, content)]) as (endpoint, asked):
        (answer,) = client(endpoint, tries=3).caption([request_of()])

    assert len(asked) == 3
    assert answer.texts == {}
    assert answer.reason.startswith("malformed")
    assert why in answer.reason
    # a greedy server would only repeat itself
    assert [entry["body"]["temperature"] for entry in asked] == [0, 0.4, 0.4]
    assert [entry["body"]["seed"] for entry in asked] == [0, 1, 2]


def test_a_malformed_answer_followed_by_a_good_one_is_good():
    with server([(200, "{"), (200, GOOD)]) as (endpoint, _):
        (answer,) = client(endpoint).caption([request_of()])
    assert answer.reason is None


def test_a_clip_that_the_server_rejects_is_recorded_at_once():
    with server([(400, "prompt too long")]) as (endpoint, asked):
        (answer,) = client(endpoint).caption([request_of()])
    assert len(asked) == 1
    assert answer.reason.startswith("refused: 400")


def test_a_clip_on_which_a_living_server_fails_is_that_clips_failure():
    with server([(500, "")], models_status=200) as (endpoint, asked):
        (answer,) = client(endpoint, tries=2).caption([request_of()])
    assert len(asked) == 2
    assert answer.reason.startswith("transport: 500")


def test_a_server_that_fails_altogether_is_unavailable():
    with (
        server([(500, "")], models_status=503) as (endpoint, _),
        pytest.raises(CaptionerUnavailable, match="does not answer"),
    ):
        list(client(endpoint, tries=2).caption([request_of()]))


def test_nobody_listening_is_unavailable():
    with server([(200, GOOD)]) as (endpoint, _):
        pass
    with pytest.raises(CaptionerUnavailable, match="does not answer"):
        list(client(endpoint, tries=2).caption([request_of()]))


def test_a_refused_client_is_not_every_clips_failure():
    with (
        server([(401, "who are you")]) as (endpoint, asked),
        pytest.raises(CaptionerUnavailable, match="401"),
    ):
        list(client(endpoint).caption([request_of()]))
    assert len(asked) == 1


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("WSDATA_CAPTIONER_KEY", "k-123")
    with server([(200, GOOD)]) as (endpoint, asked):
        captioner = client(endpoint)
        list(captioner.caption([request_of()]))
    assert asked[0]["key"] == "Bearer k-123"
    assert "k-123" not in captioner.version
    assert "k-123" not in json.dumps(asked[0]["body"])


def test_answers_keep_the_order_of_the_clips_whatever_the_concurrency():
    with server([(200, GOOD)]) as (endpoint, asked):
        answers = list(client(endpoint, concurrency=4).caption([request_of(k) for k in range(9)]))
    assert len(asked) == 9
    assert all(answer.reason is None for answer in answers)


def test_frames_are_thinned_evenly_with_both_ends():
    frames = [np.full((2, 2, 3), k, np.uint8) for k in range(40)]
    chosen = [int(frame[0, 0, 0]) for frame in chosen_frames(frames)]
    assert len(chosen) == MAX_FRAMES
    assert (chosen[0], chosen[-1]) == (0, 39)
    assert chosen == sorted(set(chosen))
    assert chosen_frames(frames[:3]) == frames[:3]


def test_engines_that_lack_something_say_what():
    with pytest.raises(RecipeError, match=r"captions\.endpoint"):
        build_captioner({"engine": "openai", "model": "m"}, {"endpoint": ""})
    with pytest.raises(RecipeError, match="expected an address"):
        build_captioner({"engine": "openai", "model": "m"}, {"endpoint": "file:///etc"})
    with pytest.raises(RecipeError, match="weights folder"):
        build_captioner({"engine": "vllm", "model": ""}, {})
    with pytest.raises(RecipeError, match="expected one of"):
        build_captioner({"engine": "oracle"}, {})


def test_without_vllm_the_engine_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(CaptionerUnavailable, match="vlm"):
        build_captioner({"engine": "vllm", "model": "/models/cap-7b"}, {})


@pytest.fixture
def fake_vllm(monkeypatch):
    """The part of vLLM that the engine calls; answers are taken from `texts` in turn."""
    made = types.SimpleNamespace(options={}, chats=[], texts=[])

    class LLM:
        def __init__(self, **options):
            made.options = options

        def chat(self, messages, sampling_params, use_tqdm):
            made.chats.append((messages, sampling_params))
            return [
                types.SimpleNamespace(outputs=[types.SimpleNamespace(text=made.texts.pop(0))])
                for _ in messages
            ]

    vllm = types.ModuleType("vllm")
    vllm.LLM, vllm.SamplingParams = LLM, types.SimpleNamespace
    params = types.ModuleType("vllm.sampling_params")
    params.StructuredOutputsParams = types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    return made


def test_the_in_process_engine_asks_again_for_the_malformed_alone(fake_vllm):
    fake_vllm.texts = [GOOD, "{", "still {"]
    captioner = build_captioner({"engine": "vllm", "model": "/models/cap-7b/"}, {})
    good, bad = captioner.caption([request_of(1), request_of(2)])

    assert good.texts["short"].startswith("A brown dog")
    assert bad.reason.startswith("malformed")
    assert [len(messages) for messages, _ in fake_vllm.chats] == [2, 1]
    assert fake_vllm.options["enable_prefix_caching"] is True
    assert captioner.version == f"vllm-cap-7b-{prompt_version()}"
    (first, second) = (sampling[-1] for _, sampling in fake_vllm.chats)
    assert (first.temperature, second.temperature) == (0.0, 0.4)
    assert first.structured_outputs.json["required"] == ["dense", "short"]


def test_answers_are_read_with_their_white_space_folded():
    text = json.dumps({"short": "  A dog\n runs\tfast over  grass. "})
    assert read_answer(text, ("short",)).texts == {"short": "A dog runs fast over grass."}
