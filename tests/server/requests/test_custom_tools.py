"""Free-form tools in chats: their input is text, with or without a grammar."""

import json

import pytest

from reprise.engine.interface.request import Grammar
from tests.server.fake_engine import says
from tests.server.openai_shapes import assert_error, valid_chat

DEFINITION = "tools[0].custom.format.grammar.definition"
PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
TEXT = '*** Begin\nsay "ż😀"\n+x\\n\n'


def custom(syntax=None, definition="", **fields):
    format_ = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    shown = {"name": "edit", "description": "Edits.", **({"format": format_} if syntax else {}), **fields}
    return {"type": "custom", "custom": shown}


RESPONSES_TOOL = {
    "type": "custom",
    "name": "edit",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
}
NOW = {"type": "function", "function": {"name": "now"}}


def call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def ask(client, **fields):
    return await client.post(PATH, json={"messages": HELLO, "tools": [custom(), NOW], **fields})


async def test_the_model_is_shown_a_function_with_one_text(client, engine):
    await ask(client, tools=[custom("lark", 'start: "a"'), NOW])
    ((shown, _),) = engine.tokenizer.rendered_tools
    assert shown["type"] == "function"
    assert shown["function"]["parameters"]["required"] == ["input"]
    assert 'start: "a"' in shown["function"]["description"]
    assert "input_0: %lark" in engine.compiled_grammars[-1].text


async def test_the_call_has_its_own_shape(client, engine):
    engine.script = says(call("edit", {"input": TEXT}), call("now", {}))
    response = (await ask(client)).json()
    valid_chat(response)
    (choice,) = response["choices"]
    assert choice["finish_reason"] == "tool_calls"
    edit, now = choice["message"]["tool_calls"]
    assert (edit["type"], edit["custom"]) == ("custom", {"name": "edit", "input": TEXT})
    assert "function" not in edit
    assert (now["type"], now["function"]) == ("function", {"name": "now", "arguments": "{}"})


@pytest.mark.parametrize("n", [1, 2])
async def test_the_input_is_streamed_as_it_is_written(client, engine, n):
    engine.script = says(*(call("now", {}) + call("edit", {"input": TEXT})))
    response = await ask(client, stream=True, n=n)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    for index in range(n):
        deltas = [
            call
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["index"] == index
            for call in choice["delta"].get("tool_calls", [])
        ]
        edits = [one for one in deltas if one["index"] == 1]
        assert (edits[0]["type"], edits[0]["custom"]) == ("custom", {"name": "edit", "input": ""})
        assert "".join(one["custom"]["input"] for one in edits) == TEXT
        assert all("function" not in one for one in edits)
        assert next(one["function"] for one in deltas if one["index"] == 0)["name"] == "now"


@pytest.mark.parametrize("cut", [1, 30, 40, 47, 60])
async def test_a_call_that_is_cut_short_keeps_what_was_written(client, engine, cut):
    engine.script = says(*call("edit", {"input": TEXT})[:cut], reason="length")
    response = await ask(client, stream=True)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    calls = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert TEXT.startswith("".join(one["custom"]["input"] for one in calls))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_calls_can_be_sent_back(client, engine):
    made = {"id": "c1", "type": "custom", "custom": {"name": "edit", "input": TEXT}}
    said = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    assert (await ask(client, messages=said)).status_code == 200
    (shown,) = engine.tokenizer.rendered[-1][0][1]["tool_calls"]
    assert shown["type"] == "function"
    assert shown["function"] == {"name": "edit", "arguments": {"input": TEXT}}


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "edit"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "edit"}}]},
        },
    ],
    ids=["named", "allowed"],
)
async def test_a_tool_can_be_named(client, engine, choice):
    assert (await ask(client, tools=[custom("regex", "[ab]+"), NOW], tool_choice=choice)).status_code == 200
    (grammar,) = engine.compiled_grammars
    assert isinstance(grammar, Grammar)
    assert "^(?:[ab]+)$" in grammar.text
    assert "now" not in grammar.text


@pytest.mark.parametrize(
    ("tools", "param", "code"),
    [
        ([{"type": "custom"}], "tools[0].custom", "unknown_parameter"),
        ([custom(name="a b")], "tools[0].custom.name", "invalid_value"),
        ([NOW, custom(name="now")], "tools[1]", "unknown_parameter"),
        ([custom(format={"type": "json"})], "tools[0].custom.format.type", "invalid_value"),
        ([custom("ebnf", "x")], "tools[0].custom.format.grammar.syntax", "invalid_value"),
        ([custom("lark", "")], DEFINITION, "invalid_type"),
        (
            [custom("lark", "start: %json {}")],
            DEFINITION,
            "unsupported_value",
        ),
        ([custom("regex", "a" * 4097)], DEFINITION, "invalid_value"),
    ],
)
async def test_a_malformed_tool_is_refused_by_its_path(strict_client, engine, tools, param, code):
    response = await ask(strict_client, tools=tools)
    assert response.status_code == 400
    assert_error(response.json(), param, code)
    assert not engine.requests


@pytest.mark.parametrize(
    ("path", "tool", "param"),
    [
        (PATH, custom("lark", "start: x"), DEFINITION),
        (PATH, custom("regex", "[ab]+"), DEFINITION),
        ("/v1/responses", RESPONSES_TOOL, "tools[0].format.definition"),
    ],
)
async def test_a_grammar_that_cannot_be_compiled_is_named_with_its_tool(client, engine, path, tool, param):
    engine.grammar_fault = "unknown name: x"
    asked = {"input": "hello"} if path == "/v1/responses" else {"messages": HELLO}
    response = await client.post(path, json={**asked, "tools": [tool]})
    assert response.status_code == 400
    message = assert_error(response.json(), param, "unsupported_grammar")
    assert message == f"'{param}' of the tool 'edit' cannot be enforced: unknown name: x."
