"""Calls that are not as their tools say come whole, in order with the text around them."""

import json

import pytest

from tests.server.fake_engine import says
from tests.server.openai_shapes import valid_chat, valid_chat_chunks

PATH = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "weather"}}],
}
ROME = '<tool_call>{"arguments": {"city": "Rome"}, "name": "weather"}</tool_call>'
OTHER = '<tool_call>{"name": "other", "arguments": {"city":"Rome"}}</tool_call>'
MALFORMED = "<tool_call>nonsense</tool_call>"


async def parses(client):
    text = (await client.get("/metrics")).text
    name = "reprise_tool_call_parses_total{outcome="
    return {
        line.removeprefix(name).split('"')[1]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith(name)
    }


@pytest.mark.parametrize("written", [ROME, OTHER], ids=["the name last", "another tool"])
async def test_what_precedes_and_follows_a_call_is_streamed_in_order(client, engine, written):
    engine.script = says(*f"a{written}b{written}")
    chunks = valid_chat_chunks((await client.post(PATH, json=BODY | {"stream": True})).text)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    said = (delta.content or ("CALL" if delta.tool_calls else "") for delta in deltas)
    assert "".join(said) == "aCALLbCALL"
    (first, _) = (call for delta in deltas for call in delta.tool_calls or ())
    assert first.function.arguments == '{"city": "Rome"}'


async def test_each_section_counts_by_its_outcome(client, engine):
    engine.script = says(f"{ROME}{MALFORMED}{OTHER}")
    message = valid_chat((await client.post(PATH, json=BODY)).json()).choices[0].message
    assert message.content == MALFORMED
    assert [call.function.name for call in message.tool_calls] == ["weather", "other"]
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"city": "Rome"}] * 2
    assert await parses(client) == {"parsed": 2, "malformed": 1}


@pytest.mark.parametrize("path", [PATH, "/v1/messages", "/api/chat"])
async def test_a_number_that_json_cannot_write_again_makes_a_call_text(client, engine, path):
    written = '<tool_call>{"name": "weather", "arguments": {"city": 1e999}}</tool_call>'
    engine.script = says(written)
    tools = [{"name": "weather", "input_schema": {"type": "object"}}] if "messages" in path else BODY["tools"]
    body = BODY | {"tools": tools, "max_tokens": 99, "stream": False}
    response = await client.post(path, json=body)
    assert response.status_code == 200
    assert "Infinity" not in response.text
    assert json.dumps(written) in response.text
