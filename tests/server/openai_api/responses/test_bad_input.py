"""Errors about requests to /v1/responses name the field as the client wrote it."""

import json
import time
from dataclasses import replace

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.server.app import create_app
from tests.machine import allowed_s
from tests.server.fake_engine import FakeEngine
from tests.server.openai_api.responses.test_responses import PATH, WEATHER
from tests.server.openai_shapes import assert_error

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "o"}
HI = {"role": "user", "content": "hi"}
INCLUDED = "is not supported; send message.output_text"


def items(*given):
    return {"input": list(given)}


def content(*parts):
    return items({"role": "user", "content": list(parts)})


def tool(**fields):
    return {"tools": [{"type": "function", "name": "f", **fields}]}


def text_format(**given):
    return {"text": {"format": given}}


BAD = [
    # (fields, param, code, part of the message)
    ({"input": None}, "input", "missing_required_parameter", "send input"),
    ({"input": []}, "input", "missing_required_parameter", "send input"),
    ({"input": 5}, "input", "invalid_type", "must be a string or an array"),
    ({"input": {}}, "input[0].role", "invalid_value", "must be 'system'"),
    (items(5), "input[0]", "unsupported_content_part", "the model is shown text"),
    (items(HI, {"type": 5}), "input[1].role", "invalid_value", "must be 'system'"),
    (items({"type": "web_search_call", "id": "x"}), "input[0]", "unknown_parameter", "Unknown parameter"),
    (items({}), "input[0].role", "invalid_value", "must be 'system'"),
    (items({"role": "tool", "content": "x"}), "input[0]", "invalid_value", "answers no call"),
    (items({"role": "user"}), "input[0].content", "invalid_value", "is missing"),
    (
        items({"role": "user", "content": 5}),
        "input[0].content",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (content("x"), "input[0].content[0]", "invalid_value", "is not in the form"),
    (
        content({"type": "input_image", "image_url": "http://localhost/x.png"}),
        "input[0].content[0]",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        content(
            {"type": "input_text", "text": "x"}, {"type": "input_file", "file_url": "file:///etc/passwd"}
        ),
        "input[0].content[1]",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        content({"type": "input_text", "text": 5}),
        "input[0].content[0]",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (
        items(HI, {**CALL, "arguments": "{"}),
        "input[1].arguments",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        items(HI, {**CALL, "arguments": "[]"}),
        "input[1].arguments",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (items(HI, OUTPUT), "input[1]", "invalid_value", "answers no call"),
    (
        items(HI, CALL, {**OUTPUT, "call_id": "c2"}),
        "input[2]",
        "invalid_value",
        "answers no call",
    ),
    (
        items(HI, CALL, {**OUTPUT, "output": [{"type": "input_image"}]}),
        "input[2].output[0]",
        "unsupported_content_part",
        "the model is shown text",
    ),
    (
        items({"type": "reasoning", "encrypted_content": "reprise:?"}),
        "input[0].encrypted_content",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (items({"role": "user", "content": "refuse me"}), "input", "template_error", "roles must alternate"),
    ({"input": "x" * 1200}, "input", "context_length_exceeded", "the limit is 1000"),
    ({"input": "x" * 3000}, "input", "context_length_exceeded", "the limit is 1000"),
    ({"instructions": 5}, "instructions", "invalid_type", "must be a string"),
    ({"previous_response_id": 5}, "previous_response_id", "invalid_type", "must be a string"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value", "at least 1"),
    ({"max_output_tokens": "5"}, "max_output_tokens", "invalid_type", "not a string"),
    ({"messages": []}, "messages", "unknown_parameter", "Unknown"),
    ({"n": 2}, "n", "unsupported_parameter", "as many requests"),
    ({"temperature": 2.1}, "temperature", "invalid_value", "at most 2"),
    ({"top_p": "1"}, "top_p", "invalid_type", "not a string"),
    ({"top_k": -2}, "top_k", "invalid_value", "at least -1"),
    ({"seed": 1.5}, "seed", "invalid_type", "must be an integer"),
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value", "'stop[1]' is empty, which ends no answer."),
    ({"logit_bias": {"999": 1}}, "logit_bias", "invalid_token_id", "outside the vocabulary"),
    ({"draft": {"type": "magic"}}, "draft.type", "invalid_value", "must be"),
    (
        {"chat_template_kwargs": {"tools": 1}},
        "chat_template_kwargs.tools",
        "invalid_value",
        "is reserved",
    ),
    ({"stream": "yes"}, "stream", "invalid_type", "must be a boolean"),
    ({"stream_options": {}}, "stream_options", "invalid_value", "only with stream: true"),
    (
        {"stream": True, "stream_options": {"include_usage": True}},
        "stream_options.include_usage",
        "unknown_parameter",
        "Unknown",
    ),
    ({"store": 1}, "store", "invalid_type", "must be a boolean"),
    ({"tools": {}}, "tools", "invalid_value", "must be an array"),
    ({"tools": [5]}, "tools[0]", "unknown_parameter", "Unknown parameter"),
    ({"tools": [{"type": "web_surf"}]}, "tools[0].web_surf", "unknown_parameter", "Unknown parameter"),
    ({"tools": [WEATHER, {"type": "custom"}]}, "tools[1].custom", "unknown_parameter", "Unknown parameter"),
    (tool(name="a b"), "tools[0].name", "invalid_value", "must have 1 to 128 letters"),
    (tool(function={}), "tools[0].function", "unknown_parameter", "Unknown"),
    (tool(parameters={"type": "string"}), "tools[0].parameters.type", "invalid_value", "'object'"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1]", "unknown_parameter", "Unknown parameter"),
    ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value", "'required'"),
    ({"tool_choice": 5}, "tool_choice", "invalid_type", "must be 'none'"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "invalid_value", "must be 'auto'"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name", "invalid_type", "must be the name"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "only with tools"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "time"}},
        "tool_choice",
        "invalid_value",
        "not among the tools",
    ),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "none", "tools": []}},
        "tool_choice.mode",
        "invalid_value",
        "must be",
    ),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        "tool_choice.tools",
        "invalid_value",
        "must be an array of 1 to 1024",
    ),
    (text_format(type="xml"), "text.format.type", "invalid_value", "'json_schema'"),
    (text_format(type="json_schema"), "text.format.schema", "missing_required_parameter", "Missing"),
    (
        text_format(type="json_schema", name="a b", schema={}),
        "text.format.name",
        "invalid_value",
        "pattern",
    ),
    (
        text_format(type="json_schema", name="n", strict=True, schema={"items": [{}]}),
        "text.format.schema.items",
        "unsupported_schema",
        "use prefixItems",
    ),
    (
        text_format(type="json_schema", name="n", schema=[]),
        "text.format.schema",
        "invalid_type",
        "not an array",
    ),
    ({"guided_regex": ""}, "guided_regex", "invalid_type", "regular expression"),
    ({"text": {"colour": 1}}, "text.colour", "unknown_parameter", "Unknown"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value", "must be"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "unsupported_parameter", "leave it out"),
    (
        {"include": ["file_search_call.results"]},
        "include[0]",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (
        {"include": ["reasoning.encrypted_content", "x"]},
        "include[1]",
        "unknown_parameter",
        "Unknown parameter",
    ),
    ({"include": "x"}, "include", "invalid_type", "not a string"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value", "at most 20"),
    ({"truncation": "middle"}, "truncation", "invalid_value", "disabled"),
    ({"background": True}, "background", "unsupported_parameter", "stream it"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter", "previous_response_id"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter", "no prompt templates"),
    ({"moderation": {"model": "m"}}, "moderation", "unsupported_parameter", "leave it out"),
    ({"context_management": [{"type": "x"}]}, "context_management", "unsupported_parameter", "leave it out"),
    ({"access_programs": {"cyber": "standard"}}, "access_programs", "unsupported_parameter", "leave it out"),
    ({"image": {"context_compression": "auto"}}, "image", "unsupported_parameter", "leave it out"),
    ({"modle": "x"}, "modle", "unknown_parameter", "Unknown"),
]


@pytest.fixture
def settings(settings):
    return replace(settings, unknown_fields="refuse")


@pytest.mark.parametrize(
    ("fields", "param", "code", "phrase"), BAD, ids=[f"{i}-{b[1]}"[:40] for i, b in enumerate(BAD)]
)
async def test_bad_input_is_named_and_never_reaches_the_engine(client, engine, fields, param, code, phrase):
    response = await client.post(PATH, json={"input": "hello", **fields})
    assert response.status_code == 400, response.text
    message = assert_error(response.json(), param, code)
    assert phrase in message
    assert f"'{param}'" in message or param == "input"
    assert engine.requests == []


async def test_an_unsupported_schema_is_named(client, engine):
    engine.grammar_fault = 'Unimplemented keys: ["not"]'
    schema = text_format(type="json_schema", name="n", schema={"not": {}})
    response = await client.post(PATH, json={"input": "hello", **schema})
    assert response.status_code == 400
    assert "'text.format.schema' uses 'not'" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "text.format.schema"
    tools = {"tools": [{**WEATHER, "strict": True}], "tool_choice": "required"}
    response = await client.post(PATH, json={"input": "hello", **tools})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].parameters"
    assert engine.requests == []


@pytest.mark.parametrize("is_streaming", [True, False], ids=["streaming", "not streaming"])
async def test_an_unknown_response_cannot_be_continued(client, engine, is_streaming):
    asked = {"input": "x", "previous_response_id": "resp_0", "stream": is_streaming}
    response = await client.post(PATH, json=asked)
    assert response.status_code == 404
    message = assert_error(response.json(), "previous_response_id", "previous_response_not_found")
    assert "'resp_0'" in message
    assert "kept until evicted" in message
    assert engine.requests == []


async def test_an_unknown_item_cannot_be_referred_to(client, engine):
    response = await client.post(PATH, json=items(HI, {"type": "item_reference", "id": "msg_0"}))
    assert response.status_code == 404
    assert "send the item itself" in assert_error(response.json(), "input[1].id", "item_not_found")
    assert engine.requests == []


async def test_an_unknown_model_is_a_404(client):
    response = await client.post(PATH, json={"input": "x", "model": "gpt"})
    assert response.status_code == 404
    assert_error(response.json(), "model", "model_not_found")


async def test_an_error_in_stored_items_names_previous_response_id(client):
    one = (await client.post(PATH, json={"input": "x" * 400})).json()
    response = await client.post(PATH, json={"input": "x" * 400, "previous_response_id": one["id"]})
    assert response.status_code == 400
    assert_error(response.json(), "input", "context_length_exceeded")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?stream=yes", "stream"),
        ("?starting_after=-1", "starting_after"),
        ("?starting_after=9999999999", "starting_after"),
        ("?colour=red", "colour"),
        ("/input_items?limit=-1", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?limit=ten", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?before=x", "before"),
    ],
)
async def test_an_invalid_query_is_refused(client, query, param):
    one = (await client.post(PATH, json={"input": "x"})).json()
    response = await client.get(f"{PATH}/{one['id']}{query}")
    assert response.status_code == (200 if param == "" else 400)
    assert param == "" or response.json()["error"]["param"] == param


PART = {"type": "input_text", "text": ""}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"input": ' + "[" * 200_000 + "]" * 200_000 + "}", None),
        (json.dumps(items(*[HI] * 9000)), "input"),
        (json.dumps(items(*[{"role": "user", "content": [PART] * 100}] * 100)), "input"),
        (json.dumps({"input": "x", "tools": [WEATHER] * 3000}), "tools"),
        (json.dumps({"input": "x", "include": ["x"] * 100_000}), ""),
        (json.dumps({"input": "x", "metadata": {str(i): "" for i in range(50_000)}}), ""),
        (json.dumps({"input": "x" * 700_000}), "input"),
    ],
    ids=["deep", "items", "parts", "tools", "include", "metadata", "text"],
)
async def test_a_far_too_large_input_is_refused_or_answered_quickly(body, param):
    app = create_app(FakeEngine(), Settings())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://reprise") as http,
    ):
        started_s = time.process_time()
        response = await http.post(PATH, content=body, headers={"Content-Type": "application/json"})
        assert time.process_time() - started_s < allowed_s(1)
    assert response.status_code == (200 if param == "" else 400)
    assert param == "" or response.json()["error"]["param"] == param
