"""Conversations are brought into the form that gpt-oss's chat template takes."""

from reprise.server.prompt.encoder import (
    to_harmony_arguments,
    to_harmony_messages,
    to_harmony_tools,
)


def call(name):
    return {"id": name, "type": "function", "function": {"name": name, "arguments": {}}}


def result(name):
    return {"role": "tool", "tool_call_id": name, "content": f"of {name}"}


def test_parallel_calls_stand_each_before_its_result():
    both = {
        "role": "assistant",
        "content": "Plan",
        "reasoning_content": "hm",
        "tool_calls": [call("a"), call("b")],
    }
    assert to_harmony_messages([both, result("b"), result("a")]) == [
        {"role": "assistant", "tool_calls": [call("a")], "thinking": "hm\n\nPlan"},
        {"role": "tool", "content": "of a"},
        {"role": "assistant", "tool_calls": [call("b")]},
        {"role": "tool", "content": "of b"},
    ]


def test_no_message_is_lost():
    said = [
        {"role": "system", "content": "one"},
        {"role": "system", "content": "two"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call("a")]},
        result("a"),
        {"role": "assistant", "content": "done", "reasoning_content": "hm"},
        {"role": "system", "content": "later"},
    ]
    assert to_harmony_messages(said) == [
        {"role": "system", "content": "one\n\ntwo"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [call("a")]},
        {"role": "tool", "content": "of a"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "later"},
    ]


def test_every_tool_has_a_description():
    (tool,) = to_harmony_tools([{"type": "function", "function": {"name": "f"}}])
    assert tool["function"] == {"name": "f", "description": ""}


def test_efforts_that_the_model_does_not_know_become_those_that_it_knows():
    assert to_harmony_arguments({"reasoning_effort": "none"}) == {"reasoning_effort": "low"}
    assert to_harmony_arguments({"reasoning_effort": "high"}) == {"reasoning_effort": "high"}
    assert to_harmony_arguments({}) == {}
