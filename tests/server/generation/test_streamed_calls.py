"""Tool calls of every format reach the clients of all three APIs, whole and as streams of arguments."""

import json
from dataclasses import replace

import pytest

from reprise.engine.text.markers import HARMONY, Markers
from tests.server.anthropic_api.anthropic_shapes import valid_events
from tests.server.fake_engine import CALLING, marker, says
from tests.server.openai_shapes import valid_chat, valid_chat_chunks
from tests.server.output.test_harmony import ANALYSIS, CALL, CITY, MARKERS, NEXT

SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}}
QWEN = (
    "<think>\nUser greets. Reply.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=location>\n"
    "San Francisco\n</parameter>\n</function>\n</tool_call>"
)
MODELS: dict[str, tuple[Markers, str]] = {
    HARMONY: (MARKERS, ANALYSIS + NEXT + CALL),
    "qwen3_coder": (
        replace(
            CALLING, think_start=marker("<think>"), think_end=marker("</think>"), call_format="qwen3_coder"
        ),
        QWEN,
    ),
}


@pytest.fixture(params=MODELS, autouse=True)
def _model(request, engine):
    engine.tokenizer.markers, text = MODELS[request.param]
    engine.script = says(*text)


def events_of(response):
    lines = (line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


def ask(stream):
    function = {"name": "get_weather", "parameters": SCHEMA}
    return {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": function}],
        "stream": stream,
    }


async def test_a_chat_gets_the_call(client):
    (choice,) = valid_chat((await client.post("/v1/chat/completions", json=ask(False))).json()).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", json.loads(CITY))
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    assert choice.message.reasoning_content == "User greets. Reply."


async def test_a_chat_s_stream_has_the_arguments(client):
    response = await client.post("/v1/chat/completions", json=ask(True))
    choices = [choice for chunk in valid_chat_chunks(response.text) for choice in chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert calls[0].id
    assert calls[0].function.name == "get_weather"
    assert [call.index for call in calls] == [0] * len(calls)
    assert not any(call.id or call.function.name for call in calls[1:])
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == json.loads(CITY)
    assert choices[-1].finish_reason == "tool_calls"


async def test_a_response_s_stream_has_the_arguments(client):
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    response = await client.post("/v1/responses", json={"input": "x", "tools": [tool], "stream": True})
    events = events_of(response)
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == json.loads(CITY)
    (done,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert done["arguments"] == "".join(deltas)
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    assert (items[1]["arguments"], items[1]["status"]) == (done["arguments"], "completed")


async def test_a_message_s_stream_has_the_input(client):
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [tool],
        "max_tokens": 500,
        "stream": True,
    }
    response = await client.post("/v1/messages", json=body)
    events = valid_events(response.text)
    assert events
    deltas = [
        event["delta"]["partial_json"]
        for event in events_of(response)
        if event.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert json.loads("".join(deltas)) == json.loads(CITY)
    whole = (await client.post("/v1/messages", json=body | {"stream": False})).json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "tool_use"]
    assert (whole["content"][1]["input"], whole["stop_reason"]) == (json.loads(CITY), "tool_use")
