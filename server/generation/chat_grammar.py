"""Make one grammar for the whole output of a chat: reasoning, then tool calls, content, or both.

The grammar is in llguidance's dialect of Lark: <[7]> is the token 7, %json a schema, %lark a nested grammar.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from engine.model.markers import Marker, Markers
from engine.request import Grammar
from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.requests.tools import Tool

CALL_FORMAT = "json_tools"
"""The only tool call format that grammars support, by mlx-lm's name."""

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Spacing of JSON, the same as in the prompts that models see."""

_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_TEXT = "TEXT: /(.|\\n)*/"
_SPACE = "SPACE: /[ \\n]{0,4}/"


def chat_grammar(
    body: ChatRequest, markers: Markers, is_thinking: bool, content: Grammar | None = None
) -> Grammar | None:
    """Return the grammar of the whole output, or None if it is unconstrained.

    is_thinking: the prompt has already opened the reasoning. content: grammar of the content.
    Raises BadRequestError if the grammar needs tool calls and the model's tool call format is unsupported.
    """
    must_call = body.tool_choice.mode == "required"
    tools = body.callable_tools
    enforced = {tool.function.name for tool in body.enforced_tools}
    if content is None and not enforced:
        return None
    if not tools and not markers.can_think:
        return content
    rules = [*_thinking(markers, is_thinking), _TEXT, _SPACE]
    if tools:
        _check_format(body, markers, content)
        rules += _calls(tools, enforced, markers, body.parallel_tool_calls)
    if must_call:
        output = "calls"
    elif content is None:
        output = "text_and_calls"
        rules.append(f"text_and_calls: TEXT {'(call TEXT)*' if body.parallel_tool_calls else 'call?'}")
    else:
        output = "(calls | content)" if tools else "content"
        rules.append(_content(content))
    return Grammar("lark", "\n".join([f"start: thinking {output}", *rules]) + "\n")


def _check_format(body: ChatRequest, markers: Markers, content: Grammar | None) -> None:
    """Raise BadRequestError if the request demands what cannot be enforced for this model."""
    start = markers.call_start
    # If text may precede a call, the marker must be a single token. As plain text, the model could generate
    # a marker of several tokens without starting a call.
    may_have_text = body.tool_choice.mode != "required" and content is None
    if markers.call_format == CALL_FORMAT and start and (len(start.tokens) == 1 or not may_have_text):
        return
    if body.tool_choice.mode == "required":
        param, remedy = "tool_choice", "Leave it at 'auto'"
    elif content is not None:
        param, remedy = (
            "tools",
            "A required response format together with tools needs this too: leave out one of them",
        )
    else:
        param, remedy = "tools", "Leave out 'strict'"
    raise BadRequestError(
        f"'{param}': tool calls can be enforced only for models that write them as JSON after the token "
        f"<tool_call>; this model's format is {markers.call_format}. {remedy}.",
        param=param,
        code="unsupported_value",
    )


def _thinking(markers: Markers, is_thinking: bool) -> list[str]:
    """Return the rule for the reasoning that may precede the rest of the output."""
    if markers.think_end is None:
        return ['thinking: ""']
    rest = f"TEXT {_tokens(markers.think_end)} SPACE"
    if is_thinking:
        return [f"thinking: {rest}"]
    if markers.think_start is None:
        return ['thinking: ""']
    return [f"thinking: (SPACE {_tokens(markers.think_start)} {rest})?"]


def _calls(
    tools: Sequence[Tool], enforced: Collection[str], markers: Markers, is_parallel: bool
) -> list[str]:
    """Return the rules for tool calls.

    enforced: names of the tools whose arguments must follow their schemas.
    """
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    start = "" if markers.call_start is None else _tokens(markers.call_start)
    end = "" if markers.call_end is None else _tokens(markers.call_end)
    rules = [
        "calls: call (SPACE call)*" if is_parallel else "calls: call",
        f"call: {start} ({names}) {end}",
    ]
    for index, tool in enumerate(tools):
        function = tool.function
        head = json.dumps(f'\n{{"name": {json.dumps(function.name)}, "arguments": ')
        schema = function.parameters if function.name in enforced else _ANY_ARGUMENTS
        rules += [
            f'call_{index}: {head} arguments_{index} "}}\\n"',
            f"arguments_{index}: {_json(schema)}",
        ]
    return rules


def _content(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return f"content: {_json(json.loads(grammar.text))}"
        case "lark":
            return f"content: %lark {{\n{grammar.text}\n}}"
        case "regex":
            return f"content: %lark {{\nstart: /{_escaped(grammar.text)}/\n}}"


def _json(schema: object) -> str:
    styled = {**schema, "x-guidance": JSON_STYLE} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(styled)}"


def _escaped(regex: str) -> str:
    r"""Escape the slashes and line breaks of a regular expression, so that it can stand between slashes."""
    escaped, is_escaped = "", False
    for character in regex:
        if character == "\n":
            character = "n" if is_escaped else "\\n"
        elif character == "/" and not is_escaped:
            character = "\\/"
        is_escaped = character == "\\" and not is_escaped
        escaped += character
    return escaped


def _tokens(marker: Marker) -> str:
    return " ".join(f"<[{token}]>" for token in marker.tokens)
