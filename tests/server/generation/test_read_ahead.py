"""After an answer the engine is told what the next prompt will begin with, if that is certain."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import httpx
import psutil
import pytest

from reprise.server.app import create_app
from reprise.server.generation.read_ahead import expected_prompts
from reprise.server.output.parts import ChoiceOutput, ToolCallPart
from reprise.server.prompt.images import Seen
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.messages import Call, Message
from tests.server.fake_engine import says

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 3}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
ASKED = {"messages": [{"role": "user", "content": "Look."}], "tools": TOOLS}


@pytest.fixture(autouse=True)
def prefix_cache(engine, monkeypatch):
    engine.has_prefix_cache, engine.script = True, says("Well, ", "here.")
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)


async def ask(app, client, path, body):
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    await asyncio.gather(*app.state.service.background)
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_prompt_is_expected_up_to_the_users_words(app, client, engine, stream):
    await ask(app, client, "/v1/chat/completions", ASKED | {"stream": stream})
    (expected,) = engine.expected
    assert bytes(expected.prompt) == b"user: Look.\nassistant: Well, here.\nuser: "
    assert expected.head_tokens == len("user: ")


@pytest.mark.parametrize("stream", [False, True])
async def test_after_calls_it_is_expected_up_to_their_first_result(app, client, engine, stream):
    engine.script = says("Well. ", CALL, CALL)
    await ask(app, client, "/v1/chat/completions", ASKED | {"stream": stream})
    (expected,) = engine.expected
    assert bytes(expected.prompt) == b"user: Look.\nassistant: Well. \ntool: "
    *_, call, result, second = engine.tokenizer.rendered[-1][0]
    assert [one["function"]["name"] for one in call["tool_calls"]] == ["look", "look"]
    assert call["tool_calls"][0]["function"]["arguments"] == {"at": 3}
    assert [one["tool_call_id"] for one in (result, second)] == [one["id"] for one in call["tool_calls"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Look."}]}),
        ("/v1/responses", {"input": "Look.", "store": False}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Look."}], "max_tokens": 99}),
        ("/api/chat", {"model": "alias", "messages": [{"role": "user", "content": "Look."}]}),
    ],
)
async def test_every_api_for_chats_reads_ahead(app, client, engine, path, body):
    await ask(app, client, path, body)
    (expected,) = engine.expected
    assert bytes(expected.prompt) == b"user: Look.\nassistant: Well, here.\nuser: "


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"max_tokens": 1},
        {"truncation": "auto", "messages": [{"role": "user", "content": "a" * 900}] * 9},
        {"add_generation_prompt": False},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
         "continue_final_message": True},
    ],
)  # fmt: skip
async def test_nothing_is_expected_where_it_would_be_a_guess(app, client, engine, more):
    if "max_tokens" in more:
        engine.script = says("Well", reason="length")
    await ask(app, client, "/v1/chat/completions", ASKED | more)
    await ask(app, client, "/v1/completions", {"prompt": "Look."})
    assert not engine.expected


@pytest.mark.parametrize(
    ("read_ahead", "plugged", "is_expected"),
    [
        ("auto", None, True),
        ("auto", "unknown", True),
        ("auto", True, True),
        ("auto", False, False),
        ("turn", False, True),
        ("off", True, False),
    ],
)
async def test_a_battery_is_spared_unless_set(
    engine, settings, monkeypatch, read_ahead, plugged, is_expected
):
    def look():
        if plugged == "unknown":
            raise FileNotFoundError("/sys/class/power_supply")
        return None if plugged is None else SimpleNamespace(power_plugged=plugged)

    monkeypatch.setattr(psutil, "sensors_battery", look)
    app = create_app(engine, replace(settings, read_ahead=read_ahead))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://reprise") as client:
            await ask(app, client, "/v1/chat/completions", ASKED)
    assert bool(engine.expected) == is_expected


async def test_without_a_prefix_cache_nothing_is_rendered(app, client, engine):
    engine.has_prefix_cache = False
    await ask(app, client, "/v1/chat/completions", ASKED)
    assert len(engine.tokenizer.rendered) == 1


async def test_a_template_that_refuses_the_next_prompt_ends_it_quietly(app, client, engine, caplog):
    engine.script = says("refuse me")
    await ask(app, client, "/v1/chat/completions", ASKED)
    assert not engine.expected
    assert not [one for one in caplog.records if one.levelname in ("ERROR", "WARNING")]


THOUGHT = ChoiceOutput(reasoning="Hm.", tool_calls=[ToolCallPart("call_1", "look", json.dumps({}))])


@pytest.mark.parametrize(
    ("earlier", "shown"),
    [
        # Whether the client returns thoughts is not known before it has returned an answer.
        ((), [True, True, False, False]),
        ((Message("assistant", ("b",), reasoning="Hm."),), [True, True]),
        ((Message("assistant", ("b",)),), [False, False]),
    ],
)
def test_thoughts_are_expected_as_the_client_returned_those_before(engine, settings, earlier, shown):
    messages = (Message("user", ("a",)), *earlier, *([Message("user", ("c",))] if earlier else []))
    body = ChatRequest.model_validate(ASKED)
    expected_prompts(settings, engine, body, Seen(messages), THOUGHT)
    answers = [rendered[len(messages)] for rendered, _ in engine.tokenizer.rendered]
    assert ["reasoning_content" in answer for answer in answers] == shown


def test_the_turn_ahead_ends_with_its_first_result(engine, settings):
    said = Message("assistant", ("b",), reasoning="Hm.", calls=(Call("call_0", "look", {}),))
    history = (Message("user", ("a",)), said, Message("tool", ("It is blue.",), call_id="call_0"))
    body, turn = ChatRequest.model_validate(ASKED), replace(settings, read_ahead="turn")
    next_prompt, user_prompt = expected_prompts(turn, engine, body, Seen(history), THOUGHT)
    assert bytes(next_prompt.prompt).endswith(b"tool: It is blue.\nassistant: \ntool: ")
    assert user_prompt.prompt == next_prompt.prompt
    roles = [message["role"] for message in engine.tokenizer.rendered[-1][0]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
