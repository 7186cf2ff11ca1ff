"""Tools over HTTP: valid and invalid requests, the tools shown to the model, and its calls."""

import itertools
import json
import threading
from dataclasses import replace

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.engine.interface.events import Delta, Finished, Usage
from reprise.engine.interface.request import Trigger
from reprise.engine.text.markers import Marker, Markers
from reprise.server.app import create_app
from reprise.server.errors import BadRequestError
from reprise.server.generation import answer
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.json_body import parse_liberally
from tests.server.fake_engine import CALLING, says
from tests.server.openai_shapes import assert_error, valid_chat, valid_chat_chunks
from tests.server.served import served

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell it.", "parameters": PARAMETERS, "strict": None},
}
TIME = {"type": "function", "function": {"name": "get-time_2"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
ASK = {"messages": HELLO, "tools": [WEATHER, TIME]}
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NOW = '<tool_call>{"name": "get-time_2", "arguments": {}}</tool_call>'


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


def tool(**function):
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


BAD = [
    ({"tools": "f"}, "tools", "invalid_type", "must be an array"),
    ({"tools": {}}, "tools", "invalid_value", "must be an array"),
    ({"tools": [5]}, "tools[0]", "unknown_parameter", "Unknown parameter"),
    (
        {"tools": [{"type": "function"}]},
        "tools[0].function",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (
        {"tools": [{"type": "mcp", "mcp": {}}]},
        "tools[0].mcp",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (
        {"tools": [{"type": "web_search"}]},
        "tools[0].web_search",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (tool(name=None), "tools[0].function", "unknown_parameter", "Unknown parameter"),
    (tool(name=""), "tools[0].function", "unknown_parameter", "Unknown parameter"),
    (tool(name="x" * 129), "tools[0].function.name", "invalid_value", "1 to 128 letters"),
    (
        tool(name="a b"),
        "tools[0].function.name",
        "invalid_value",
        "1 to 128 letters",
    ),
    (
        tool(name="a\n"),
        "tools[0].function.name",
        "invalid_value",
        "1 to 128 letters",
    ),
    (
        tool(name="ż"),
        "tools[0].function.name",
        "invalid_value",
        "1 to 128 letters",
    ),
    (
        tool(name=5),
        "tools[0].function.name",
        "invalid_value",
        "1 to 128 letters",
    ),
    (
        tool(description=5),
        "tools[0].function.description",
        "unknown_parameter",
        "Unknown parameter",
    ),
    (
        tool(parameters=[]),
        "tools[0].function.parameters",
        "invalid_type",
        "'tools[0].function.parameters' must be an object.",
    ),
    (tool(parameters={"type": "string"}), "tools[0].function.parameters.type", "invalid_value", "'object'"),
    (tool(strict="yes"), "tools[0].function.strict", "invalid_type", "must be a boolean"),
    (tool(returns={}), "tools[0].function.returns", "unknown_parameter", "Unknown"),
    ({"tools": [TIME, WEATHER, TIME]}, "tools[2]", "unknown_parameter", "Unknown parameter"),
    (
        {"tools": [named(f"f{i}") for i in range(1025)]},
        "tools",
        "invalid_value",
        "at most 1024",
    ),
    (tool(description="x" * 9_000), "tools", "context_length_exceeded", "the limit is 1000"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "only with tools"),
    ({"tool_choice": named("weather")}, "tool_choice", "invalid_value", "only with tools"),
    ({"tool_choice": allowed("auto", "f")}, "tool_choice", "invalid_value", "only with tools"),
    (
        {**ASK, "tool_choice": named("w")},
        "tool_choice",
        "invalid_value",
        "the tool 'w', which is not among",
    ),
    ({**ASK, "tool_choice": allowed("auto", "weather", "w")}, "tool_choice", "invalid_value", "tool 'w'"),
    (
        {**ASK, "tool_choice": "any"},
        "tool_choice",
        "invalid_value",
        "is not in the form",
    ),
    (
        {**ASK, "tool_choice": 5},
        "tool_choice",
        "invalid_type",
        "an object that names a tool",
    ),
    ({**ASK, "tool_choice": {}}, "tool_choice.type", "invalid_value", "'function', 'custom' or"),
    (
        {**ASK, "tool_choice": {"type": "custom"}},
        "tool_choice.name",
        "invalid_type",
        "must be the name",
    ),
    (
        {**ASK, "tool_choice": {"type": "function"}},
        "tool_choice.name",
        "invalid_type",
        "must be the name",
    ),
    ({**ASK, "tool_choice": named(5)}, "tool_choice.name", "invalid_type", "the name of one"),
    (
        {**ASK, "tool_choice": {"type": "allowed_tools"}},
        "tool_choice.tools",
        "invalid_value",
        "must be an array of 1 to 1024",
    ),
    (
        {**ASK, "tool_choice": allowed("any", "weather")},
        "tool_choice.allowed_tools.mode",
        "invalid_value",
        "'auto' or",
    ),
    (
        {**ASK, "tool_choice": allowed("auto")},
        "tool_choice.allowed_tools.tools",
        "invalid_value",
        "must be an array of 1 to 1024",
    ),
    ({**ASK, "parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type", "must be a boolean"),
]


LOOP = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
ENUM = {"type": "object", "properties": {"a": {"enum": ["x" * 1000] * 80}}}


@pytest.mark.parametrize("schema", [LOOP, ENUM], ids=["endless", "large"])
@pytest.mark.parametrize("choice", ["required", named("g"), allowed("required", "g")])
async def test_a_schema_that_cannot_be_enforced_is_refused(client, engine, schema, choice):
    tools = [named("f"), *tool(name="g", parameters=schema)["tools"]]
    response = await client.post(PATH, json={"messages": HELLO, "tools": tools, "tool_choice": choice})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[1].function.parameters"
    assert engine.requests == []


async def test_a_schema_that_is_not_enforced_is_not_checked(client):
    fields = {"messages": HELLO, **tool(parameters=LOOP)}
    assert (await client.post(PATH, json=fields)).status_code == 200


def test_the_enforced_schemas_have_a_common_limit():
    large = {"type": "object", "properties": {"a": {"description": "x" * 60_000}}}
    tools = [tool(name=f"f{i}", parameters=large, strict=True)["tools"][0] for i in range(3)]
    with pytest.raises(BadRequestError, match="at most 131072 are allowed") as told:
        parse_liberally(
            json.dumps({"messages": HELLO, "tools": tools}).encode(), ChatRequest, {}, Notes(refuses=True)
        )
    assert told.value.param == "tools"


@pytest.mark.parametrize(("fields", "param", "code", "part"), BAD, ids=lambda value: repr(value)[:60])
async def test_a_wrong_tool_is_a_400_that_names_it(strict_client, engine, fields, param, code, part):
    response = await strict_client.post(PATH, json={"messages": HELLO, **fields})
    assert response.status_code == 400, response.text
    assert part in assert_error(response.json(), param, code)
    assert engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"parallel_tool_calls": False},
        {"functions": [], "function_call": "auto"},
    ],
)
async def test_fields_that_request_no_tools_are_fine_without_tools(client, engine, fields):
    response = await client.post(PATH, json={"messages": HELLO, **fields})
    assert valid_chat(response.json()).choices[0].message.content == "user: hello\n"
    assert engine.tokenizer.rendered_tools == [None]


async def test_the_template_gets_the_tools_in_the_form_that_models_know(client, engine):
    await client.post(PATH, json=ASK)
    ((weather, time),) = engine.tokenizer.rendered_tools
    function = {"name": "weather", "description": "Tell it.", "parameters": PARAMETERS}
    assert weather == {"type": "function", "function": function}
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert time == {"type": "function", "function": {"name": "get-time_2", "parameters": nothing}}


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ("auto", ["weather", "get-time_2"]),
        ("required", ["weather", "get-time_2"]),
        (named("weather"), ["weather", "get-time_2"]),
        (allowed("auto", "get-time_2"), ["get-time_2"]),
        (allowed("required", "get-time_2", "weather"), ["weather", "get-time_2"]),
    ],
)
async def test_the_model_is_shown_what_it_may_call(client, engine, choice, shown):
    assert (await client.post(PATH, json={**ASK, "tool_choice": choice})).status_code == 200
    (tools,) = engine.tokenizer.rendered_tools
    assert [tool["function"]["name"] for tool in tools] == shown


async def test_with_none_the_model_is_shown_no_tools_and_nothing_is_parsed_as_a_call(client, engine):
    engine.script = says(ROME)
    response = await client.post(PATH, json={**ASK, "tool_choice": "none"})
    (choice,) = valid_chat(response.json()).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (ROME, None, "stop")
    assert engine.tokenizer.rendered_tools == [None]


async def test_calls_are_answered_as_openai_does(client, engine):
    engine.script = says(*ROME, "\n", NOW)
    response = await client.post(PATH, json=ASK)
    (choice,) = valid_chat(response.json()).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    rome, now = choice.message.tool_calls
    assert (rome.type, rome.function.name, rome.function.arguments) == (
        "function",
        "weather",
        '{"city": "Rome"}',
    )
    assert (now.function.name, now.function.arguments) == ("get-time_2", "{}")
    assert "index" not in response.json()["choices"][0]["message"]["tool_calls"][0]


async def test_a_stream_brings_each_call_s_name_and_then_its_arguments(client, engine):
    engine.script = says("Let me ", "see.", *ROME, NOW)
    response = await client.post(PATH, json={**ASK, "stream": True})
    chunks = [chunk.choices[0] for chunk in valid_chat_chunks(response.text)]
    assert chunks[0].delta.role == "assistant"
    assert chunks[0].delta.content is None
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Let me see."
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    begun = [call for call in calls if call.id]
    assert [(call.index, call.type, call.function.name) for call in begun] == [
        (0, "function", "weather"),
        (1, "function", "get-time_2"),
    ]
    arguments = [
        "".join(call.function.arguments for call in calls if call.index == index) for index in (0, 1)
    ]
    assert arguments == ['{"city": "Rome"}', "{}"]
    assert len({call.id for call in begun}) == 2
    assert [chunk.finish_reason for chunk in chunks[-2:]] == [None, "tool_calls"]


async def test_each_choice_has_calls_of_its_own(client, engine):
    engine.script = says(ROME, NOW)
    response = await client.post(PATH, json={**ASK, "n": 3, "stream": True})
    indexes = {0: [], 1: [], 2: []}
    for chunk in valid_chat_chunks(response.text):
        for choice in chunk.choices:
            indexes[choice.index] += [call.index for call in choice.delta.tool_calls or [] if call.id]
    assert indexes == {0: [0, 1], 1: [0, 1], 2: [0, 1]}


def test_while_a_long_call_is_written_the_connection_is_kept_alive(engine, monkeypatch):
    may_end = threading.Event()

    def write_slowly(_, job):
        job.sink(Delta("<tool_call>"))
        while not may_end.wait(0.005):
            job.sink(Delta(" "))
        job.sink(Delta(ROME.removeprefix("<tool_call>")))
        return Finished("stop", Usage(num_completion_tokens=9))

    engine.script = write_slowly
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 0.05)
    app = create_app(engine, Settings())
    with (
        served(app) as url,
        httpx.Client() as http,
        http.stream("POST", url + PATH, json={**ASK, "stream": True}, timeout=240) as response,
    ):
        lines = response.iter_lines()
        comments = itertools.islice((line for line in lines if line.startswith(":")), 3)
        assert list(comments) == [": keep-alive"] * 3
        may_end.set()
        rest = [line for line in lines if line.startswith("data: ")]
    assert any('"weather"' in line for line in rest)
    assert rest[-1] == "data: [DONE]"


async def test_a_call_that_was_cut_short_is_content_unless_it_was_streamed(client, engine):
    said = ROME[:-20]
    engine.script = says(*said, reason="length")
    (choice,) = valid_chat((await client.post(PATH, json=ASK)).json()).choices
    assert (choice.message.content, choice.finish_reason) == (said, "length")
    response = await client.post(PATH, json={**ASK, "stream": True})
    chunks = [chunk.choices[0] for chunk in valid_chat_chunks(response.text)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert calls[0].function.name == "weather"
    assert '{"city": "Rome"}'.startswith("".join(call.function.arguments for call in calls))
    assert chunks[-1].finish_reason == "length"


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("<tool_call>weather(Rome)</tool_call>", "stop"),
        ("<tool_call></tool_call>", "stop"),
        ("<tool_call>[]</tool_call>", "stop"),
        ('<tool_call>{"name": "weather", "arguments": []}</tool_call>', "stop"),
    ],
)
async def test_a_malformed_call_is_content(client, engine, said, reason, is_streamed):
    engine.script = says(*said, reason=reason)
    response = await client.post(PATH, json={**ASK, "stream": is_streamed})
    if is_streamed:
        chunks = [chunk.choices[0] for chunk in valid_chat_chunks(response.text)]
        text, end = "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason
    else:
        (choice,) = valid_chat(response.json()).choices
        text, end = choice.message.content, choice.finish_reason
    assert (text, end) == (said, reason)


async def test_without_parallel_calls_the_answer_ends_after_the_first(client, engine):
    engine.script = says(ROME, "and", NOW)
    response = await client.post(PATH, json={**ASK, "parallel_tool_calls": False})
    (choice,) = valid_chat(response.json()).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")


async def test_a_model_without_tool_calls_refuses_tools(client, engine):
    engine.tokenizer.markers = Markers()
    response = await client.post(PATH, json=ASK)
    assert "this server knows" in assert_error(response.json(), "tools", "tools_not_supported")
    assert (await client.post(PATH, json={**ASK, "tool_choice": "none"})).status_code == 200


async def test_results_go_back_to_the_model(client, engine):
    engine.script = says(ROME)
    call = (await client.post(PATH, json=ASK)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "sunny"}
    response = await client.post(PATH, json={**ASK, "messages": [*HELLO, call, result]})
    assert response.status_code == 200, response.text
    rendered = engine.tokenizer.rendered[-1][0]
    assert rendered[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert rendered[2]["content"] == "sunny"


async def test_an_optional_call_has_a_grammar_from_its_marker_on(client, engine):
    await client.post(PATH, json=ASK)
    grammar = engine.requests[0].grammar
    assert grammar.trigger == Trigger(CALLING.call_start.tokens)
    assert grammar.text.startswith(f"start: <[{CALLING.call_start.tokens[0]}]> more")
    assert [name for name in ("weather", "get-time_2") if name in grammar.text] == ["weather", "get-time_2"]


async def test_an_optional_call_that_cannot_be_enforced_refuses_no_request_and_is_tried_once(client, engine):
    engine.grammar_fault = "too complex"
    for _ in range(2):
        assert (await client.post(PATH, json=ASK)).status_code == 200
    assert [one.grammar for one in engine.requests] == [None, None]
    # With schemas, and with any arguments.
    assert len(engine.compiled_grammars) == 2


async def test_a_text_of_several_tokens_begins_a_call_too(client, engine):
    engine.tokenizer.markers = replace(CALLING, call_start=Marker("<call", (60, 99)))
    assert (await client.post(PATH, json=ASK)).status_code == 200
    assert engine.requests[0].grammar.trigger == Trigger(text="<call")


@pytest.mark.parametrize(
    "markers",
    [
        replace(CALLING, call_format="unheard_of"),
        replace(CALLING, call_format="llama3", call_start=Marker('{"name": ', (60, 99))),
    ],
)
async def test_calls_that_look_like_text_are_free(client, engine, markers):
    engine.tokenizer.markers = markers
    assert (await client.post(PATH, json=ASK)).status_code == 200
    assert engine.requests[0].grammar is None


ENFORCED = [
    ({"tool_choice": "required"}, ["weather", "get-time_2"]),
    ({"tool_choice": named("weather")}, ["weather"]),
    ({"tool_choice": allowed("required", "get-time_2")}, ["get-time_2"]),
    ({"tools": [STRICT, TIME]}, ["weather", "get-time_2"]),
]


@pytest.mark.parametrize(("fields", "names"), ENFORCED)
async def test_a_required_call_is_enforced_by_a_grammar(client, engine, fields, names):
    assert (await client.post(PATH, json={**ASK, **fields})).status_code == 200
    grammar = engine.requests[0].grammar
    assert grammar.kind == "lark"
    assert [name for name in ("weather", "get-time_2") if name in grammar.text] == names
    assert engine.compiled_grammars == [grammar]
    assert grammar.compiled == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("weather")}, "tool_choice"),
        ({"tools": [STRICT]}, "tools"),
    ],
)
async def test_a_call_format_that_cannot_be_enforced_is_refused(client, engine, fields, param):
    engine.tokenizer.markers = Markers(
        CALLING.call_start, call_start=CALLING.call_start, call_format="unheard_of"
    )
    response = await client.post(PATH, json={**ASK, **fields})
    assert "this model's format, unheard_of" in assert_error(response.json(), param, "unsupported_value")
    assert (await client.post(PATH, json=ASK)).status_code == 200


async def test_a_schema_that_no_grammar_can_express_is_a_400(client, engine):
    engine.grammar_fault = 'Unimplemented keys: ["not"]'
    response = await client.post(PATH, json={**ASK, "tool_choice": "required"})
    param = "tools[0].function.parameters"
    assert "'not'" in assert_error(response.json(), param, "unsupported_grammar")
    assert engine.requests == []
