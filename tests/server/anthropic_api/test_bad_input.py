"""Bad input gets Anthropic's error object and never reaches the engine."""

import json
from dataclasses import replace

import pytest

from reprise.server.anthropic_api.schemas import CountTokensRequest
from tests.server.anthropic_api.anthropic_shapes import assert_anthropic_error

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hello"}]
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
CALLED = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": [1, 2]}}


def _turn(*blocks, role="user"):
    return {"messages": [{"role": role, "content": list(blocks)}]}


TOO_LONG = {"messages": [{"role": "user", "content": "x" * 5000}]}
RESULT = {"type": "tool_result", "tool_use_id": "t1"}
ANSWERED = [*HELLO, {"role": "assistant", "content": [CALLED]}]
BAD = [
    # (fields, part of the message)
    ({"max_tokens": "5"}, "'max_tokens' must be an integer, not a string"),
    ({"messages": []}, "'messages' must have at least 1 item"),
    ({"messages": [{}] * 4097}, "'messages' has 4097 entries; at most 4096 are allowed"),
    (_turn(*[{}] * 8193), "'messages' has 8193 parts in all; at most 8192 are allowed."),
    (_turn({"content": [{}] * 8192}), "'messages' has 8193 parts in all; at most 8192 are allowed."),
    ({"messages": "hi"}, "'messages' must be an array, not a string"),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "'messages[0].role' must be 'user', 'assistant' or 'system'",
    ),
    ({"messages": [{"role": "user"}]}, "'messages[0].content' is empty."),
    ({"messages": [{"role": "user", "content": []}]}, "'messages[0].content' is empty"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "'messages[0].content' is not supported: the model is shown text",
    ),
    (_turn(5), "'messages[0].content[0]' is not supported: the model is shown text"),
    (_turn({"type": 5}), "Unknown parameter: 'messages[0].content[0]'."),
    (_turn({"type": "text", "text": 5}), "Unknown parameter: 'messages[0].content[0]'."),
    (_turn({"type": "text", "text": "x", "colour": 1}), "Unknown parameter: 'messages[0].content[0].colour'"),
    (
        _turn({"type": "text", "text": "x", "citations": [{}]}),
        "Unknown parameter: 'messages[0].content[0].citations'.",
    ),
    (
        _turn({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x"}}),
        "'messages[0].content[0]' is not supported: the model is shown text",
    ),
    (
        _turn({"type": "document", "source": {}}),
        "'messages[0].content[0]' is not supported: the model is shown text",
    ),
    (
        _turn({"type": "server_tool_use"}),
        "Unknown parameter: 'messages[0].content[0]'.",
    ),
    (
        _turn(CALLED),
        "'messages[0].content[0]' is not supported: the model is shown text",
    ),
    (_turn(RESULT), "'messages[0].content[0]' answers no call of an earlier message."),
    (
        {"messages": [*ANSWERED, *_turn(RESULT | {"content": [{"type": "image"}]})["messages"]]},
        "'messages[2].content[0].content[0]' is not supported: the model is shown text",
    ),
    (
        {
            "messages": [
                *HELLO,
                *_turn({"type": "redacted_thinking", "data": "x"}, role="assistant")["messages"],
            ]
        },
        "Unknown parameter: 'messages[1].content[0]'.",
    ),
    (
        {"messages": [*HELLO, *_turn(CALLED | {"input": "x"}, role="assistant")["messages"]]},
        "'messages[1].content[0].input' must be an object",
    ),
    (TOO_LONG, "tokens; the limit is 1000"),
    ({"messages": [{"role": "user", "content": "refuse me"}]}, "roles must alternate"),
    ({"system": [{}] * 8193}, "'system' has 8193 parts in all; at most 8192 are allowed"),
    ({"system": 5}, "'system' is not supported: the model is shown text"),
    ({"system": [{"type": "image"}]}, "'system[0]' is not supported: the model is shown text"),
    (
        {"model": "claude-opus"},
        "The model 'claude-opus' does not exist; this server serves 'org/fake-model' or 'alias'",
    ),
    ({"top_p": 2}, "'top_p' must be at most 1"),
    ({"stop_sequences": [""]}, "'stop_sequences[0]' is empty, which ends no answer."),
    ({"stop_sequences": ["x"] * 65}, "'stop_sequences' has 65 entries; at most 64 are allowed."),
    ({"stream": 1}, "'stream' must be a boolean"),
    (
        {"container": "c1"},
        "'container' is not supported: this server has no containers and connects to no other server",
    ),
    ({"mcp_servers": [{"url": "http://127.0.0.1:1"}]}, "'mcp_servers' is not supported"),
    (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "'context_management' is not supported",
    ),
    ({"compaction": {}}, "'compaction' is not supported; leave it out."),
    ({"fallbacks": ["x"]}, "'fallbacks' is not supported; leave it out."),
    ({"n": 2}, "'n' is supported only by chats"),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "'thinking.budget_tokens' is 1024, but must be less than max_tokens, 50",
    ),
    ({"output_config": {"effort": "huge"}}, "'output_config.effort' must be 'low', 'medium'"),
    (
        {"output_config": {"format": {"type": "json_schema"}}},
        "Missing required parameter: 'output_config.format.schema'",
    ),
    ({"output_config": {"task_budget": {}}}, "'output_config.task_budget' is not supported; leave it out."),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "Unknown parameter: 'tools[0].web_search_20250305'.",
    ),
    (
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        "Unknown parameter: 'tools[0].bash_20250124'.",
    ),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"enum": ["x" * 70_000]}}}},
        "'output_config.format.schema' is too large; a schema may have at most 65536 bytes as JSON",
    ),
    (
        {"tools": [LOOK | {"strict": True, "input_schema": {"type": "object", "extends": {}}}]},
        "'tools[0].input_schema.extends' of the tool 'look' is not supported",
    ),
    (
        {"tools": [LOOK | {"input_schema": {"type": "string"}}]},
        "'tools[0].input_schema.type' must be 'object'",
    ),
    ({"tools": [LOOK | {"name": "look here"}]}, "'tools[0].name'"),
    ({"tools": [LOOK] * 1025}, "'tools' has 1025 entries; at most 1024 are allowed"),
    ({"tools": [LOOK, LOOK]}, "Unknown parameter: 'tools[1]'."),
    ({"tools": [LOOK | {"defer_loading": True}]}, "Unknown parameter: 'tools[0].defer_loading'."),
    ({"tool_choice": {"type": "any"}}, "'tool_choice' is allowed only with tools"),
    (
        {"tools": [LOOK], "tool_choice": {"type": "tool", "name": "go"}},
        "'tool_choice' names the tool 'go', which is not among the tools.",
    ),
]


OF_THE_PROMPT = [
    (fields, phrase)
    for fields, phrase in BAD
    if fields.keys() <= CountTokensRequest.model_fields.keys() and "max_tokens" not in phrase
]


def _named(rows):
    return pytest.mark.parametrize(
        ("fields", "phrase"), rows, ids=[json.dumps(fields)[:60] for fields, _ in rows]
    )


async def _assert_refused(client, engine, path, body, phrase):
    response = await client.post(path, json={key: value for key, value in body.items() if value is not None})
    status, kind = (404, "not_found_error") if "model" in body else (400, "invalid_request_error")
    assert response.status_code == status, response.text
    assert phrase in assert_anthropic_error(response.json(), kind)
    assert not engine.requests


@_named(BAD)
async def test_bad_input_gets_anthropics_error_object(client, engine, fields, phrase):
    await _assert_refused(client, engine, PATH, {"max_tokens": 50, "messages": HELLO, **fields}, phrase)


@_named(OF_THE_PROMPT)
async def test_count_tokens_refuses_the_same_bad_prompts(client, engine, fields, phrase):
    await _assert_refused(client, engine, COUNT, {"messages": HELLO, **fields}, phrase)


@pytest.fixture
def settings(settings):
    return replace(settings, unknown_fields="refuse")


async def test_count_tokens_has_no_sampling_fields(client, engine):
    body = {"messages": HELLO, "temperature": 1}
    await _assert_refused(client, engine, COUNT, body, "Unknown parameter: 'temperature'")
