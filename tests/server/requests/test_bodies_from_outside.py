"""Bodies as clients of other servers, and of our own other APIs, send them. Ids say where each was seen."""

import json

import pytest

from reprise.engine.interface.request import Grammar
from tests.server.fake_engine import says
from tests.server.openai_shapes import assert_error

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
BODIES = {
    CHAT: {"messages": HELLO},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": HELLO, "max_tokens": 9},
    COMPLETIONS: {"prompt": "hello"},
}
IGNORED = "x-reprise-ignored"


async def ask(client, path, **fields):
    return await client.post(path, json=BODIES[path] | fields)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
COUNT = Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")))
OBJECT = Grammar("json_schema", '{"type":"object"}')
OF_CHATS = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
FLAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("path", "fields", "grammar"),
    [
        pytest.param(
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            COUNT,
            id="json-schema-no-name",
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": SCHEMA}}},
            COUNT,
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": SCHEMA}}},
            COUNT,
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": 5, "schema": SCHEMA}}},
            COUNT,
        ),
        (RESPONSES, {"text": {"format": FLAT}}, COUNT),
        (RESPONSES, {"text": {"format": FLAT | {"name": ""}}}, COUNT),
        (RESPONSES, {"text": {"format": FLAT | {"name": 5}}}, COUNT),
        pytest.param(RESPONSES, {"response_format": OF_CHATS}, COUNT, id="responses-response-format"),
        (RESPONSES, {"response_format": OF_CHATS, "text": {"verbosity": "low"}}, COUNT),
        (RESPONSES, {"response_format": {"type": "json_object"}}, OBJECT),
        (RESPONSES, {"response_format": {"type": "json_object", "schema": SCHEMA}}, COUNT),
        (RESPONSES, {"output_format": FLAT}, COUNT),
        (RESPONSES, {"output_config": {"format": FLAT}}, COUNT),
        (RESPONSES, {"format": "json"}, OBJECT),
        (RESPONSES, {"format": SCHEMA}, COUNT),
        (MESSAGES, {"response_format": OF_CHATS}, COUNT),
        (MESSAGES, {"response_format": {"type": "json_object"}}, OBJECT),
        (MESSAGES, {"text": {"format": FLAT | {"name": "it"}}}, COUNT),
        (MESSAGES, {"guided_json": SCHEMA}, COUNT),
        (MESSAGES, {"guided_regex": "a+"}, Grammar("regex", "a+")),
        (MESSAGES, {"structured_outputs": {"json_object": True}}, OBJECT),
        (CHAT, {"text": {"format": FLAT | {"name": "it"}}}, COUNT),
        (CHAT, {"text": {"format": {"type": "json_object"}, "verbosity": "low"}}, OBJECT),
        (CHAT, {"output_format": FLAT}, COUNT),
        (CHAT, {"output_config": {"format": FLAT, "effort": "low"}}, COUNT),
        (CHAT, {"extra_body": {"text": {"format": FLAT}}}, COUNT),
        (COMPLETIONS, {"text": {"format": FLAT}}, COUNT),
        pytest.param(CHAT, {"regex": "[0-9]{2}"}, Grammar("regex", "[0-9]{2}"), id="C1-regex"),
        (RESPONSES, {"regex": "[0-9]{2}"}, Grammar("regex", "[0-9]{2}")),
        (MESSAGES, {"regex": "[0-9]{2}"}, Grammar("regex", "[0-9]{2}")),
    ],
)
async def test_a_constraint_holds_whichever_api_or_server_it_is_of(client, engine, path, fields, grammar):
    response = await ask(client, path, **fields)
    assert response.status_code == 200, response.text
    assert [json_text(one) for one in engine.compiled_grammars] == [json_text(grammar)]
    assert engine.requests[0].grammar == engine.compiled_grammars[0]


def json_text(grammar):
    """Return a grammar's text, with the JSON of a schema written in one way."""
    return json.loads(grammar.text) if grammar.kind == "json_schema" else grammar.text


async def test_sglangs_ebnf_is_enforced_as_a_grammar(client, engine):
    """C1-ebnf."""
    assert (await ask(client, CHAT, ebnf='root ::= "ab"')).status_code == 200
    assert (await ask(client, CHAT, grammar='root ::= "ab"')).status_code == 200
    first, second = engine.compiled_grammars
    assert first == second
    assert first.kind == "lark"


@pytest.mark.parametrize(
    ("path", "fields", "what", "value"),
    [
        pytest.param(RESPONSES, {"max_tokens": 8}, "max_tokens", 8, id="responses-max-tokens"),
        (RESPONSES, {"max_completion_tokens": 8}, "max_tokens", 8),
        (RESPONSES, {"n_predict": 8}, "max_tokens", 8),
        (MESSAGES, {"max_tokens": None, "max_completion_tokens": 8}, "max_tokens", 8),
        (MESSAGES, {"max_tokens": None, "max_output_tokens": 8}, "max_tokens", 8),
        (CHAT, {"max_output_tokens": 8}, "max_tokens", 8),
        (COMPLETIONS, {"max_output_tokens": 8}, "max_tokens", 8),
        (MESSAGES, {"stop": "and"}, "stop", ("and",)),
        (MESSAGES, {"stop": ["and", "or"]}, "stop", ("and", "or")),
        (CHAT, {"stop_sequences": ["and"]}, "stop", ("and",)),
        (RESPONSES, {"stop_sequences": ["and"]}, "stop", ("and",)),
        (RESPONSES, {"n": 1}, "stop", ()),
        (MESSAGES, {"n": 1, "stop": None}, "stop", ()),
        (RESPONSES, {"logprobs": True}, "top_logprobs", 0),
        (CHAT, {"stop_regex": ""}, "stop", ()),
    ],
)
async def test_a_limit_holds_whichever_api_it_is_of(client, engine, path, fields, what, value):
    response = await ask(client, path, **fields)
    assert response.status_code == 200, response.text
    assert IGNORED not in response.headers
    (request,) = engine.requests
    assert getattr(request, what) == value


async def test_sampling_of_chats_holds_for_messages_too(client, engine):
    response = await ask(client, MESSAGES, seed=5, min_p=0.25, presence_penalty=0.5, repeat_penalty=1.5)
    assert response.status_code == 200, response.text
    assert IGNORED not in response.headers
    sampling = engine.requests[0].sampling
    assert (sampling.min_p, sampling.presence_penalty, sampling.repetition_penalty) == (0.25, 0.5, 1.5)
    again = await ask(client, CHAT, seed=5)
    assert again.status_code == 200
    assert engine.requests[1].sampling.seed == sampling.seed


@pytest.mark.parametrize(
    ("path", "fields", "rendered"),
    [
        (CHAT, {"system": "Be brief."}, [("system", "Be brief."), ("user", "hello")]),
        (
            CHAT,
            {"system": [{"type": "text", "text": "Be brief."}]},
            [("system", "Be brief."), ("user", "hello")],
        ),
        (CHAT, {"instructions": "Be brief."}, [("system", "Be brief."), ("user", "hello")]),
        (RESPONSES, {"system": "Be brief."}, [("system", "Be brief."), ("user", "hello")]),
        (MESSAGES, {"instructions": "Be brief."}, [("system", "Be brief."), ("user", "hello")]),
    ],
)
async def test_a_system_prompt_is_shown_whichever_api_it_is_of(client, engine, path, fields, rendered):
    assert (await ask(client, path, **fields)).status_code == 200
    messages, _ = engine.tokenizer.rendered[-1]
    assert [(one["role"], one["content"]) for one in messages] == rendered


F = {"name": "f", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": F}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(CHAT, {"tool_choice": {"function": {"name": "f"}}}, id="tool-choice-no-type"),
        (CHAT, {"tool_choice": {"name": "f"}}),
        (CHAT, {"tool_choice": {"custom": {"name": "f"}}}),
        (CHAT, {"tool_choice": {"allowed_tools": {"mode": "required", "tools": [TOOLS[0]]}}}),
        (RESPONSES, {"tool_choice": {"function": {"name": "f"}}}),
        (MESSAGES, {"tool_choice": {"function": {"name": "f"}}}),
        (MESSAGES, {"functions": [F], "tools": None, "function_call": {"name": "f"}}),
    ],
)
async def test_a_choice_of_a_tool_needs_no_type(client, engine, path, fields):
    response = await ask(client, path, **{"tools": TOOLS, **fields})
    assert response.status_code == 200, response.text
    (grammar,) = engine.compiled_grammars
    assert "start: thinking calls" in grammar.text


async def test_chats_wish_for_a_single_call_holds_for_messages(client, engine):
    choice = {"tools": TOOLS, "tool_choice": {"type": "any"}}
    assert (await ask(client, MESSAGES, parallel_tool_calls=False, **choice)).status_code == 200
    one = {"type": "any", "disable_parallel_tool_use": True}
    assert (await ask(client, MESSAGES, tools=TOOLS, tool_choice=one)).status_code == 200
    assert (await ask(client, MESSAGES, parallel_tool_calls=True, **choice)).status_code == 200
    single, same, several = engine.compiled_grammars
    assert single == same != several


@pytest.mark.parametrize(
    ("path", "fields", "arguments"),
    [
        pytest.param(
            CHAT,
            {"chat_template_kwargs": {"enable_thinking": "false"}},
            {"enable_thinking": False},
            id="enable-thinking-string",
        ),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": 0}}, {"enable_thinking": False}),
        (CHAT, {"chat_template_kwargs": {"thinking": "False", "n": 0}}, {"thinking": False, "n": 0}),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": "auto"}}, {"enable_thinking": "auto"}),
        (CHAT, {"enable_thinking": "false"}, {"enable_thinking": False}),
        (CHAT, {"enable_thinking": "True"}, {"enable_thinking": True}),
        (CHAT, {"enable_thinking": 0}, {"enable_thinking": False}),
        (CHAT, {"think": "false"}, {"enable_thinking": False}),
        (CHAT, {"reasoning": {"enabled": "false"}}, {"enable_thinking": False}),
        (CHAT, {"thinking": {"type": "disabled", "budget_tokens": 0}}, {"enable_thinking": False}),
        (CHAT, {"enable_thinking": False, "thinking_budget_tokens": 0}, {"enable_thinking": False}),
        (RESPONSES, {"enable_thinking": 0}, {"enable_thinking": False}),
        (RESPONSES, {"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (RESPONSES, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (RESPONSES, {"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (CHAT, {"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (MESSAGES, {"thinking": {"type": "disabled", "budget_tokens": 0}}, {"enable_thinking": False}),
        (MESSAGES, {"thinking": {"type": "disabled", "budget_tokens": 9999}}, {"enable_thinking": False}),
        (MESSAGES, {"reasoning_effort": "low"}, {"enable_thinking": False, "reasoning_effort": "low"}),
        (MESSAGES, {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (MESSAGES, {"chat_template_kwargs": {"enable_thinking": "true"}}, {"enable_thinking": True}),
    ],
)
async def test_thinking_is_switched_by_any_apis_words(client, engine, path, fields, arguments):
    response = await ask(client, path, **fields)
    assert response.status_code == 200, response.text
    assert engine.tokenizer.rendered[-1][1] == arguments


NULLABLE = {"type": "object", "properties": {"a": {"type": "string", "nullable": True}}, "required": ["a"]}
ALLOWED = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}


@pytest.mark.parametrize("budget", [False, 0.5, -2])
async def test_what_is_no_budget_of_thinking_is_refused_even_where_thinking_is_off(client, budget):
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 8,
        "thinking_budget_tokens": budget,
    }
    assert (await client.post(MESSAGES, json=body)).status_code == 400
    assert (await client.post(MESSAGES, json=body | {"thinking_budget_tokens": 0})).status_code == 200


async def test_openapis_nullable_allows_null(client, engine):
    """nullable-strict."""
    for schema in (NULLABLE, ALLOWED):
        function = {"name": "f", "parameters": schema, "strict": True}
        tools = [{"type": "function", "function": function}]
        response = await ask(client, CHAT, tools=tools, tool_choice="required")
        assert response.status_code == 200, response.text
        named = {"name": "x", "schema": schema, "strict": True}
        response_format = {"type": "json_schema", "json_schema": named}
        assert (await ask(client, CHAT, response_format=response_format)).status_code == 200
    tool, answer, same_tool, same_answer = (one.text for one in engine.compiled_grammars)
    assert (tool, answer) == (same_tool, same_answer)
    shown = engine.tokenizer.rendered_tools[0][0]["function"]["parameters"]
    assert shown == NULLABLE


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        pytest.param(CHAT, {"logprobs": 2}, "logprobs", "invalid_type", id="logprobs-integer"),
        pytest.param(CHAT, {"structural_tag": "{}"}, "structural_tag", "unsupported_parameter", id="C1-tag"),
        pytest.param(CHAT, {"stop_regex": "and|or"}, "stop_regex", "unsupported_parameter", id="C1-stop"),
        (RESPONSES, {"structural_tag": "{}"}, "structural_tag", "unsupported_parameter"),
        (CHAT, {"structured_outputs": {"structural_tag": "{}"}}, "structural_tag", "unsupported_parameter"),
        pytest.param(CHAT, {"messages": [None]}, "messages[0]", "invalid_type", id="C10-null"),
        pytest.param(CHAT, {"messages": [123]}, "messages[0]", "invalid_type", id="C10-number"),
        pytest.param(CHAT, {"messages": [{}]}, "messages[0]", "missing_required_parameter", id="C10-empty"),
        pytest.param(CHAT, {"messages": [{"role": 123}]}, "messages[0].role", "invalid_type", id="C10-role"),
        (CHAT, {"messages": [*HELLO, []]}, "messages[1]", "invalid_type"),
        (CHAT, {"messages": [{"role": 1, "content": "x"}]}, "messages[0].role", "invalid_type"),
        (CHAT, {"max_output_tokens": 8, "max_tokens": 9}, "max_output_tokens", "invalid_value"),
        (RESPONSES, {"max_output_tokens": 8, "max_tokens": 9}, "max_tokens", "invalid_value"),
        (
            RESPONSES,
            {"response_format": OF_CHATS, "text": {"format": {"type": "json_object"}}},
            "response_format",
            "invalid_value",
        ),
        (RESPONSES, {"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (RESPONSES, {"response_format": OF_CHATS, "guided_regex": "a"}, "response_format", "invalid_value"),
        (RESPONSES, {"n": 2}, "n", "unsupported_parameter"),
        (CHAT, {"text": "json"}, "text", "invalid_type"),
        (CHAT, {"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        (CHAT, {"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        (CHAT, {"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ],
)
async def test_what_would_change_the_answer_unseen_is_refused(client, engine, path, fields, param, code):
    response = await ask(client, path, **fields)
    assert response.status_code == 400, response.text
    assert_error(response.json(), param, code)
    assert engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [None]},
        {"messages": [123]},
        {"messages": [{}]},
        {"n": 2},
        {"stop": [5]},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"guided_regex": 5},
        {"previous_response_id": "resp_1"},
        {"structural_tag": "{}"},
    ],
)
async def test_the_same_is_refused_of_messages(client, engine, fields):
    response = await ask(client, MESSAGES, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["type"] == "error"
    assert engine.requests == []


async def test_a_refused_strict_tool_is_named(client, engine):
    """strict-names-tool."""
    engine.grammar_fault = 'Unimplemented keys: ["propertyNames"]'
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "object", "propertyNames": {"pattern": "x"}}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    response = await ask(client, CHAT, tools=[tool])
    param = "tools[0].function.parameters"
    message = assert_error(response.json(), param, "unsupported_grammar")
    assert message.startswith(f"'{param}' of the tool 'f' uses 'propertyNames'")


async def test_a_strict_tool_that_is_refused_before_it_is_compiled_is_named_too(client):
    parameters = {"type": "object", "properties": {"a": {"items": [{}]}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    response = await ask(client, CHAT, tools=[tool])
    param = "tools[0].function.parameters.properties.a.items"
    message = assert_error(response.json(), param, "unsupported_schema")
    assert message.startswith(f"'{param}' of the tool 'f' is an array")


async def test_a_tool_that_lists_no_properties_is_called_without_arguments(client, engine):
    """C4."""
    function = {"name": "f", "parameters": {"properties": {}, "type": "object"}}
    await ask(client, CHAT, tools=[{"type": "function", "function": function}], tool_choice="required")
    await ask(client, CHAT, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required")
    empty, absent = (json.loads(schema_in(one.text)) for one in engine.compiled_grammars)
    assert empty == absent
    assert empty["additionalProperties"] is False


def schema_in(lark):
    """Return the schema of the first tool's arguments in a grammar of calls."""
    return lark.partition("arguments_0: %json ")[2].partition("\n")[0]


async def test_a_suffix_may_be_echoed_with_its_prompt(client, engine):
    """C7: a model without tokens to fill in continues the prompt."""
    engine.script = says("!")
    body = {"suffix": "test.", "echo": True, "max_tokens": 16, "logprobs": 0}
    response = await ask(client, COMPLETIONS, **body)
    assert response.status_code == 200, response.text
    assert response.headers[IGNORED] == "suffix"
    assert response.json()["choices"][0]["text"] == "hello!"
