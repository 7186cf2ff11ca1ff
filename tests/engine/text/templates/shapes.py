"""Shapes of conversations that clients send, for tests of chat templates.

Every text that a model must be shown is a word of its own, so that a test can look for it.
"""

from typing import Any

Json = dict[str, Any]
Shape = tuple[list[Json], list[Json] | None]


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def call(call_id: str, arguments: Json | None = None) -> Json:
    given = {"path": call_id} if arguments is None else arguments
    return {"id": call_id, "type": "function", "function": {"name": "read", "arguments": given}}


def said(text: str | None, *calls: str | Json, thought: str = "") -> Json:
    message: Json = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [one if isinstance(one, dict) else call(one) for one in calls]
    return message


def result(call_id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def tool(name: str = "read", *, description: str | None = "Read.", **parameters: Any) -> Json:
    function: Json = {"name": name} if description is None else {"name": name, "description": description}
    return {"type": "function", "function": {**function, "parameters": {"type": "object", **parameters}}}


def of(**properties: Any) -> list[Json]:
    return [tool(properties=properties)]


TOOLS = of(path={"type": "string"})
CALLED = [user("one"), said(None, "a1"), result("a1", "found"), user("two")]

SHAPES: dict[str, Shape] = {
    "plain": ([system("be-brief"), user("one")], None),
    "two of the user": ([system("be-brief"), user("one"), user("two")], None),
    "late system": ([system("be-brief"), user("one"), said("two"), system("hurry"), user("three")], None),
    "system last": ([user("one"), said("two"), system("hurry")], None),
    "two of the system": ([system("be-brief"), system("hurry"), user("one")], None),
    "only system": ([system("say-one")], None),
    "empty system": ([system(""), user("one")], None),
    "assistant first": ([system("be-brief"), said("two"), user("three")], None),
    "assistant alone first": ([said("two"), user("three")], None),
    "two of the assistant": ([user("one"), said("two"), said("more"), user("three")], None),
    "empty user": ([user("one"), said("two"), user("")], None),
    "null": ([user("one"), said(None), user("three")], None),
    "empty answer": ([user("one"), said(""), user("three")], None),
    "empty answer last but one": ([user("one"), said("two"), user("three"), said(""), user("four")], None),
    "empty answers in a row": ([user("one"), said(""), said(""), user("three")], None),
    "only thoughts": ([user("one"), said("", thought="hm"), user("three")], None),
    "null beside thoughts": ([user("one"), said(None, thought="hm"), user("three")], None),
    "thoughts and an answer": ([user("one"), said("two", thought="hm"), user("three")], None),
    "empty answer, with tools": ([system("be-brief"), user("one"), said(""), user("three")], TOOLS),
    "calls": ([system("be-brief"), user("one"), said(None, "toolu_1"), result("toolu_1", "found")], TOOLS),
    "calls, then the user": (
        [user("one"), said("", "toolu_1"), result("toolu_1", "found"), user("two")],
        TOOLS,
    ),
    "calls, then system": (
        [user("one"), said(None, "toolu_1"), result("toolu_1", "found"), system("hurry"), user("two")],
        TOOLS,
    ),
    "two calls": (
        [user("one"), said(None, "a1", "b2"), result("b2", "second"), result("a1", "first"), said("done")],
        TOOLS,
    ),
    "calls in a row": (
        [user("one"), said("", "a1"), result("a1", "first"), said("", "b2"), result("b2", "second")],
        TOOLS,
    ),
    "words beside calls": (
        [user("one"), said("aloud", "a1"), result("a1", "first"), said("done"), user("two")],
        TOOLS,
    ),
    "words beside calls, after an answer": (
        [user("one"), said("before"), said("aloud", "a1"), result("a1", "first"), user("two")],
        TOOLS,
    ),
    "words beside two calls": (
        [user("one"), said("aloud", "a1", "b2"), result("a1", "first"), result("b2", "second")],
        TOOLS,
    ),
    "thoughts beside calls": (
        [user("one"), said("", "a1", thought="hm"), result("a1", "first"), said("done"), user("two")],
        TOOLS,
    ),
    "system, and a result last": (
        [system("be-brief"), user("one"), said("aloud", "a1"), result("a1", "first")],
        TOOLS,
    ),
    "calls of the past": ([user("one"), said(None, "a1"), result("a1", "first"), said("done")], None),
    "an empty answer after a result": (
        [user("one"), said(None, "a1"), result("a1", "first"), said(""), user("two")],
        TOOLS,
    ),
    "empty result": ([user("one"), said("", "a1"), result("a1", ""), user("two")], TOOLS),
    "empty arguments": ([user("one"), said("", call("a1", {})), result("a1", "found"), user("two")], TOOLS),
    "nested arguments": (
        [user("one"), said("", call("a1", {"path": {"deep": ["inner", None, True, 1.5]}})), user("two")],
        TOOLS,
    ),
    "call without result": ([user("one"), said(None, "a1"), user("two")], TOOLS),
    "tool without description": (CALLED, [tool(description=None, properties={"path": {"type": "string"}})]),
    "tool without properties": (CALLED, [tool()]),
    "tool with no properties": (CALLED, [tool(properties={}, additionalProperties=False)]),
    "two tools": ([user("one")], [*TOOLS, tool("write", properties={"text": {"type": "string"}})]),
    "parameter without type": (CALLED, of(path={"description": "Where."})),
    "parameter of type null": (CALLED, of(path={"type": "null"})),
    "parameter of several types": (CALLED, of(path={"type": ["string", "null"]})),
    "parameter of any of two": (CALLED, of(path={"anyOf": [{"type": "string"}, {"type": "null"}]})),
    "parameter that is an array": (
        CALLED,
        of(path={"type": "array"}, others={"type": "array", "items": {"type": "string"}}),
    ),
    "parameter that is an object": (
        CALLED,
        of(path={"type": "object"}, options={"type": "object", "properties": {"deep": {"type": "string"}}}),
    ),
    "parameter that is an enum": (CALLED, of(path={"enum": ["a", None, 5]}, other={"const": 5})),
    "parameter that is true": (CALLED, of(path=True)),
    "parameter that refers": (
        CALLED,
        [
            tool(
                properties={"path": {"$ref": "#/$defs/p"}},
                required=["path"],
                **{"$defs": {"p": {"type": "string"}}},
            )
        ],
    ),
}


def lost(messages: list[Json], tools: list[Json] | None, text: str) -> list[str]:
    """Return the words of messages, calls and tools that a prompt's text does not have."""
    words = [one["content"] or "" for one in messages]
    for one in messages:
        for call in one.get("tool_calls", ()):
            words += [call["function"]["name"], *_words_of(call["function"]["arguments"])]
    for one in tools or ():
        function = one["function"]
        words += [function["name"], function.get("description", "")]
        words += function["parameters"].get("properties", ())
    return [word for word in words if word not in text]


def _words_of(arguments: Any) -> list[str]:
    """Return the strings and the keys in the arguments of a call."""
    if isinstance(arguments, dict):
        return [word for key, one in arguments.items() for word in (key, *_words_of(one))]
    if isinstance(arguments, list):
        return [word for one in arguments for word in _words_of(one)]
    return [arguments] if isinstance(arguments, str) else []
