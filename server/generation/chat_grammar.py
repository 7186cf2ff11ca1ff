"""Make one grammar for the whole output of a chat: reasoning, then tool calls, content, or both.

The grammar is in llguidance's dialect of Lark: <[7]> is the token 7, %json a schema, %lark a nested grammar.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticCustomError

from reprise.engine.interface.request import Grammar, ThinkingBudget
from reprise.engine.text.markers import Marker, Markers
from reprise.server.conversation.model import Tool
from reprise.server.conversation.tools import of_tool
from reprise.server.errors import BadRequestError
from reprise.server.requests.chat import ChatRequest
from reprise.server.tools.formats import JsonFormat, find_format
from reprise.server.tools.grammar import (
    ANY_ARGUMENTS,
    CallGrammar,
    UnenforceableError,
    json_arguments,
    marker_tokens,
)
from reprise.server.tools.lark import escape_regex, json_rule
from reprise.server.validation.json_schema import check_schema, with_null_types
from reprise.server.validation.relaxed_schema import closed, relaxations, takes_nothing

_TEXT = "TEXT: /(.|\\n)*/"
_SPACE = "SPACE: /[ \\n]{0,4}/"


def chat_grammar(
    body: ChatRequest,
    markers: Markers,
    is_thinking: bool,
    content: Grammar | None = None,
) -> Grammar | None:
    """Return the grammar of the whole output, or None if it is unconstrained.

    is_thinking: the prompt has already opened the reasoning. content: grammar of the content.
    Raises BadRequestError if the grammar needs tool calls and they cannot be enforced in the model's format.
    """
    tools = body.callable_tools
    larks = {tool.name: tool.lark for tool in tools if tool.lark is not None}
    if content is None and not body.enforced_tools and not larks:
        return None
    if markers.is_harmony:
        return _grammar(_harmony(body, markers, content, larks))
    if markers.is_addressed or markers.is_in_blocks:
        layout = _messages if markers.is_addressed else _blocks
        rules = [_TEXT, _SPACE, "content: TEXT" if content is None else _content(content)]
        rules += _calls(body, markers, content, larks) if tools else []
        return _grammar([*layout(body, markers, content is None, is_thinking), *rules])
    if not tools and not markers.can_think:
        return content
    rules = [*_thinking(markers, is_thinking), _TEXT, _SPACE]
    if tools:
        rules += _calls(body, markers, content, larks)
    if body.tool_choice.mode == "required":
        output = "calls"
    elif content is None:
        output = "text_and_calls"
        rules += _text_and_calls(markers, body.parallel_tool_calls)
    else:
        output = "(calls | content)" if tools else "content"
        rules.append(_content(content))
    return _grammar([f"start: thinking {output}", *rules])


def optional_calls(body: ChatRequest, markers: Markers, *, has_schemas: bool = True) -> Grammar | None:
    """Return the grammar of a tool call that the answer may have, from the token that begins one.

    None if no call is allowed, or if calls of this model do not begin with a token of their own.
    has_schemas: whether arguments follow their tool's schema; otherwise any are allowed.
    """
    tools, start, call_format = body.callable_tools, markers.call_start, find_format(markers)
    if not tools or call_format is None or start is None or len(start.tokens) != 1:
        return None
    if markers.is_addressed or markers.is_in_blocks:
        return None
    schemas = [(tool.name, _enforceable(tool) if has_schemas else ANY_ARGUMENTS) for tool in tools]
    # Where every argument has tags of its own, only those that a schema lists can be enforced.
    is_json = isinstance(call_format, JsonFormat)
    enforced = {name for name, schema in schemas if is_json or schema.get("additionalProperties") is False}
    calls = CallGrammar(call_format, markers, schemas, enforced, set())
    rules = calls.rules(body.parallel_tool_calls and not markers.is_generic)
    return replace(_grammar(["start: more", _SPACE, *rules]), trigger=start.tokens[0])


def _enforceable(tool: Tool) -> dict[str, Any]:
    """Return as much of a tool's schema as can be enforced."""
    try:
        check_schema(with_null_types(tool.parameters))
        return _schema(tool)
    except PydanticCustomError:
        pass
    try:
        return closed(next(relaxations(tool.parameters)).schema)
    except (PydanticCustomError, StopIteration):
        return ANY_ARGUMENTS


def with_budget(
    grammar: Grammar | None, markers: Markers, num_tokens: int | None, is_thinking: bool
) -> Grammar | None:
    """Limit the reasoning to num_tokens in a grammar; return the grammar unchanged if num_tokens is None.

    is_thinking: the prompt has already opened the reasoning.
    """
    if num_tokens is None or markers.think_end is None:
        return grammar
    start = () if markers.think_start is None else markers.think_start.tokens
    budget = ThinkingBudget(num_tokens, start, markers.think_end.tokens, is_thinking, markers.is_harmony)
    return replace(grammar or Grammar("any", ""), thinking=budget)


def _grammar(rules: Sequence[str]) -> Grammar:
    return Grammar("lark", "\n".join(rules) + "\n")


def _calls(
    body: ChatRequest, markers: Markers, content: Grammar | None, larks: Mapping[str, str]
) -> list[str]:
    """Return the rules of tool calls. Raises BadRequestError."""
    tools = body.callable_tools
    call_format = find_format(markers)
    if call_format is None:
        raise _no_format(body, markers, content)
    try:
        return CallGrammar(
            call_format,
            markers,
            [(tool.name, _schema(tool)) for tool in tools],
            {tool.name for tool in body.enforced_tools},
            {tool.name for tool in tools if tool.strict},
            larks,
            # A model that was not trained to call tools does not know when to stop.
        ).rules(body.parallel_tool_calls and not markers.is_generic)
    except UnenforceableError as fault:
        tool = tools[fault.tool]
        param = tool.at
        raise BadRequestError(
            f"'{param}' {of_tool(tool)} {fault}, which is {markers.call_format}. Leave out 'strict', or "
            "change the schema.",
            param=param,
            code="unsupported_schema",
        ) from fault


def _schema(tool: Tool) -> dict[str, Any]:
    """Return the schema that a tool's arguments follow: closed, unless the tool is strict."""
    schema = with_null_types(tool.parameters)
    if tool.strict:
        return schema
    # Only here does an empty list of properties say that there are none: further in, it may stand for any.
    return {**schema, "additionalProperties": False} if takes_nothing(schema) else closed(schema)


def _no_format(body: ChatRequest, markers: Markers, content: Grammar | None) -> BadRequestError:
    """Make the error for a request that demands what no grammar can enforce for this model."""
    if body.tool_choice.mode == "required":
        param, remedy = "tool_choice", "Leave it at 'auto'"
    elif content is not None:
        param, remedy = (
            "tools",
            "A required response format together with tools needs this too: leave out one of them",
        )
    else:
        param, remedy = "tools", "Leave out 'strict'"
    return BadRequestError(
        f"'{param}': tool calls cannot be enforced in this model's format, {markers.call_format}. {remedy}.",
        param=param,
        code="unsupported_value",
    )


def _text_and_calls(markers: Markers, is_parallel: bool) -> list[str]:
    """Return the rules for text with calls in it."""
    start = markers.call_start
    assert start is not None
    both = "(to_call more)* {0}" if is_parallel else "to_call more | {0}"
    if len(start.tokens) == 1:
        return [f"text_and_calls: {both.format('TEXT')}", f"to_call: TEXT {marker_tokens(start)}"]
    # The text of the marker begins a call, whichever tokens it is written with.
    text = json.dumps(start.text, ensure_ascii=False)
    rules = [f"text_and_calls: {both.format('LAST')}", f"LAST: TEXT & ~({_ANY} {text} {_ANY})"]
    before, token, after = _split_at_token(start.text, markers)
    if token is None:
        return [*rules, f"to_call[lazy]: TEXT {text}"]
    return [*rules, f"BEFORE: {_ANY} {before}", f"to_call: BEFORE {marker_tokens(token)} {after}"]


def _split_at_token(text: str, markers: Markers) -> tuple[str, Marker | None, str]:
    """Split a text at its special token: the text before, the token if there is one, and the text after."""
    token = next((m for m in markers.inner if len(m.tokens) == 1 and m.text in text), None)
    before, _, after = (text, "", "") if token is None else text.partition(token.text)
    return json.dumps(before, ensure_ascii=False), token, json.dumps(after, ensure_ascii=False)


_ANY = "/(.|\\n)*/"


def _harmony(
    body: ChatRequest, markers: Markers, content: Grammar | None, larks: Mapping[str, str]
) -> list[str]:
    """Return the grammar of gpt-oss: any reasoning, then one tool call or the content."""
    token = {marker.text: marker_tokens(marker) for marker in markers.inner}
    channel, message = token["<|channel|>"], token["<|message|>"]
    again = f'{token["<|end|>"]} {token["<|start|>"]} "assistant"'
    rules = [
        f'analysis: {channel} "analysis" {message} TEXT {again}',
        f'preamble: {channel} "commentary" {message} TEXT {again}',
        f'final: {channel} "final" {message} content',
        _TEXT,
        "content: TEXT" if content is None else _content(content),
    ]
    tools = body.callable_tools
    enforced = {tool.name for tool in body.enforced_tools}
    for index, tool in enumerate(tools):
        head = json.dumps(f"commentary to=functions.{tool.name} ")
        schema = _schema(tool) if tool.name in enforced else ANY_ARGUMENTS
        rules.append(
            f'call_{index}: {channel} {head} {token["<|constrain|>"]} "json" {message} arguments_{index}'
        )
        rules += json_arguments(index, schema, larks.get(tool.name))
    calls = " | ".join(f"call_{index}" for index in range(len(tools)))
    if body.tool_choice.mode == "required":
        output = f"({calls})"
    else:
        output = f"({calls} | final)" if tools else "final"
    before = "(analysis | preamble)*" if content is None else "analysis*"
    return [f"start: {before} {output}", *rules]


def _messages(body: ChatRequest, markers: Markers, may_mix: bool, is_thinking: bool) -> list[str]:
    """Return the grammar of Muse Spark: reasoning, then tool calls, content or both, in messages.

    may_mix: the answer may have content before tool calls.
    """
    token = {marker.text: marker_tokens(marker) for marker in markers.inner}
    body_start, again = token["<|message|>"], f'{token["<|eom|>"]} {token["<|start|>"]} "assistant"'
    names = " | ".join(json.dumps(tool.name) for tool in body.callable_tools)
    several = f"({again} call_message)*" if body.parallel_tool_calls else ""
    rules = [
        f'thought: " to=self" {body_start} TEXT {again}',
        f'said: " to=user" {body_start} content',
    ]
    if names:
        rules += [
            f'call_message: " to=" ({names}) {body_start} section',
            f"all_calls: call_message {several}",
        ]
    before = f"(TEXT {again})? thought*" if is_thinking else "thought*"
    return [f"start: {before} {_said_or_called(body, may_mix, 'said', again, 'all_calls')}", *rules]


def _blocks(body: ChatRequest, markers: Markers, may_mix: bool, is_thinking: bool) -> list[str]:
    """Return the grammar of Kimi K3: reasoning, content and tool calls, each in a block of its own.

    may_mix: the answer may have content before tool calls.
    """
    opened, closed, end = map(marker_tokens, markers.separators)
    thought = f"TEXT {marker_tokens(markers.think_end)} SPACE"
    start = marker_tokens(markers.think_start)
    # Without reasoning the prompt has already opened the content.
    before = f"{thought} {opened}" if is_thinking else f"(({start} {thought})? {opened})?"
    output = _said_or_called(body, may_mix, "content", closed, "calls", closed)
    return [f"start: {before} {output} {end}"]


def _said_or_called(
    body: ChatRequest, may_mix: bool, said: str, between: str, calls: str, edge: str = ""
) -> str:
    """Return the expression for content, tool calls, or both.

    between: what separates them. edge: what stands after content alone, and before calls alone.
    """
    if not body.callable_tools:
        return f"{said} {edge}"
    if body.tool_choice.mode == "required":
        return f"{edge} {calls}"
    both = f" | {said} {between} {calls}" if may_mix else ""
    return f"({said} {edge} | {edge} {calls}{both})"


def _thinking(markers: Markers, is_thinking: bool) -> list[str]:
    """Return the rule for the reasoning that may precede the rest of the output."""
    if markers.think_end is None:
        return ['thinking: ""']
    rest = f"TEXT {marker_tokens(markers.think_end)} SPACE"
    if is_thinking:
        return [f"thinking: {rest}"]
    if markers.think_start is None:
        return ['thinking: ""']
    return [f"thinking: (SPACE {marker_tokens(markers.think_start)} {rest})?"]


def _content(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return f"content: {json_rule(json.loads(grammar.text))}"
        case "lark":
            return f"content: %lark {{\n{grammar.text}\n}}"
        case "any":
            return "content: TEXT"
        case "regex":
            return f"content: %lark {{\nstart: /{escape_regex(grammar.text)}/\n}}"
