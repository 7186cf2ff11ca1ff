"""Tool calls and structured answers hold what they promise, on the real server and the bundled model."""

import json

import httpx
import pytest

INTEGER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
NAME = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def ask(server_url, content, path="/v1/chat/completions", **fields):
    body = {"temperature": 0, **fields}
    body |= {"input": content} if path == "/v1/responses" else {}
    body |= {"messages": [{"role": "user", "content": content}]} if path != "/v1/responses" else {}
    response = httpx.post(f"{server_url}{path}", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_call_that_a_model_may_make_is_of_a_declared_tool(server_url):
    """C9: the bundled model calls what it is told to call, with whichever arguments."""
    (choice,) = ask(server_url, 'CALL "nope", {"z": 1}', tools=[tool("f", INTEGER)])["choices"]
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        assert call["function"]["name"] == "f"
        arguments = json.loads(call["function"]["arguments"])
        assert [(name, type(value)) for name, value in arguments.items()] == [("a", int)]


@pytest.mark.parametrize("draft", ["none", "suffix"])
def test_text_is_the_same_with_tools_that_are_not_called(server_url, draft):
    fields = {"draft": {"type": draft}, "max_tokens": 40, "temperature": 0.7, "seed": 3}
    fields["tools"] = [tool("f", INTEGER)]
    (free,) = ask(server_url, "Hello!", **fields, tool_choice="auto")["choices"]
    (alone,) = ask(server_url, "Hello!", **fields | {"draft": {"type": "none"}})["choices"]
    assert free == alone


def test_a_tool_without_properties_is_called_without_arguments(server_url):
    """C4."""
    tools = [tool("magic_function_no_args", {"properties": {}, "type": "object"})]
    answer = ask(server_url, "What is magic?", tools=tools, tool_choice="required", max_tokens=100)
    for call in answer["choices"][0]["message"]["tool_calls"]:
        assert call["function"]["arguments"] == "{}"


FOR_EVER = {"logit_bias": {"5": 100}, "loop_guard_tokens": 64}
"""The same token again and again, wherever the grammar of a string allows it."""
SCHEMA = {"name": "p", "strict": True, "schema": NAME}


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
            lambda answer: answer["choices"][0]["finish_reason"] == "length",
        ),
        (
            "/v1/chat/completions",
            {"tools": [tool("f", NAME)], "tool_choice": "required"},
            lambda answer: answer["choices"][0]["finish_reason"] == "length",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", **SCHEMA}}},
            lambda answer: (
                (answer["status"], answer["incomplete_details"])
                == ("incomplete", {"reason": "max_output_tokens"})
            ),
        ),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": NAME}}, "max_tokens": 4000},
            lambda answer: answer["stop_reason"] == "max_tokens",
        ),
    ],
    ids=["answer", "call", "response", "message"],
)
def test_a_loop_that_is_stopped_within_a_structure_is_cut_off(server_url, path, fields, reason):
    """C3."""
    answer = ask(server_url, "hi", path, **FOR_EVER, **fields)
    assert reason(answer), answer


def test_a_loop_of_free_text_beside_tools_ends_as_text_does(server_url):
    answer = ask(server_url, "hi", **FOR_EVER, tools=[tool("f", NAME)])
    assert answer["timings"]["stopped"] == "loop"
    assert answer["choices"][0]["finish_reason"] == "stop"
