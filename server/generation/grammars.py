"""Compile an answer's grammar, or as much of its schemas as can be enforced. All functions block."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import Request
from pydantic_core import PydanticCustomError

from reprise.engine.interface.cancellation import check_wanted
from reprise.engine.interface.errors import GrammarError
from reprise.engine.interface.request import Grammar, ThinkingBudget, Trigger
from reprise.engine.text.markers import Marker, Markers
from reprise.server.errors import BadRequestError, shortened
from reprise.server.http.request_log import note_relaxed
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.generation_fields import GenerationFields, json_grammar
from reprise.server.requests.json_schema import (
    RelaxedSchema,
    check_schema,
    closed,
    forms,
    takes_nothing,
    with_null_types,
)
from reprise.server.requests.lark import escape_regex, json_rule
from reprise.server.requests.tools import MAX_ENFORCED_BYTES, Tool, of_tool
from reprise.server.tools.formats import CallFormat, JsonFormat, find_format
from reprise.server.tools.grammar import (
    ANY_ARGUMENTS,
    CallGrammar,
    Tools,
    UnenforceableError,
    json_arguments,
    marker_tokens,
)

if TYPE_CHECKING:
    from reprise.engine.generating.generating_engine import GeneratingEngine

_TEXT = "TEXT: /(.|\\n)*/"
_SPACE = "SPACE: /[ \\n]{0,4}/"


def chat_grammar(
    body: ChatRequest,
    markers: Markers,
    is_thinking: bool,
    content: Grammar | None = None,
    *,
    has_schemas: bool = True,
) -> Grammar | None:
    """Return the grammar of the whole output, or None if it is unconstrained.

    is_thinking: the prompt has already opened the reasoning. content: grammar of the content.
    has_schemas: whether arguments of tools that need not be enforced follow their schemas too.
    Raises BadRequestError if the grammar needs tool calls and they cannot be enforced in the model's format.
    """
    tools = body.callable_tools
    if content is None and not body.enforced_tools and all(tool.lark is None for tool in tools):
        return None
    if markers.is_harmony:
        return _grammar(_harmony(body, markers, content, has_schemas))
    rules = [_TEXT, _SPACE, *(_calls(body, markers, content, has_schemas) if tools else [])]
    if markers.is_addressed or markers.is_in_blocks:
        layout = _messages if markers.is_addressed else _blocks
        return _grammar([*layout(body, markers, content is None, is_thinking), *rules, _content(content)])
    if not tools and not markers.can_think:
        return content
    if body.tool_choice.mode == "required":
        output = "calls"
    elif content is None:
        output = "text_and_calls"
        rules += _text_and_calls(markers, body.parallel_tool_calls)
    else:
        output = "(calls | content)" if tools else "content"
        rules.append(_content(content))
    return _grammar([f"start: thinking {output}", _thinking(markers, is_thinking), *rules])


def optional_calls(body: ChatRequest, markers: Markers, *, has_schemas: bool = True) -> Grammar | None:
    """Return the grammar of an optional tool call, from its beginning on.

    None if no call is allowed, or if this model's calls cannot be told from other JSON.
    has_schemas: whether arguments follow their tool's schema; otherwise any are allowed.
    """
    if not (tools := body.callable_tools):
        return None
    schemas = [(tool.name, _enforceable(tool) if has_schemas else ANY_ARGUMENTS) for tool in tools]
    if markers.is_harmony:
        return _optional_harmony_calls(markers, schemas)
    call_format, marker = find_format(markers), markers.call_start
    if call_format is None:
        return None
    assert marker is not None
    calls = CallGrammar(call_format, markers, schemas, _followed(call_format, schemas), set())
    begin, other, trigger = calls.text(marker.text), "", Trigger(marker.tokens)
    if len(marker.tokens) > 1:
        _, token, _ = _split_at_token(marker.text, markers)
        if token is not None:
            # What stands before the token is free text.
            begin = calls.text(marker.text[marker.text.index(token.text) :])
            trigger = Trigger(token.tokens)
            # Kimi K3 begins other blocks with this token too.
            other = f"| {marker_tokens(token)} OTHER {calls.text('<|sep|>')}" if markers.is_in_blocks else ""
        elif marker.text.startswith("{"):
            # Llama's calls begin like any JSON.
            return None
        else:
            begin, trigger = "to_call", Trigger(text=marker.text)
    rules = [
        f"start: {begin} more {other}",
        f"to_call[lazy]: TEXT {json.dumps(marker.text, ensure_ascii=False)}",
        'OTHER: TEXT & ~("tools")',
        _TEXT,
        _SPACE,
        *calls.rules(body.parallel_tool_calls and not markers.is_generic),
    ]
    return replace(_grammar(rules), trigger=trigger)


def _optional_harmony_calls(markers: Markers, schemas: Sequence[tuple[str, dict[str, Any]]]) -> Grammar:
    """Return the grammar of a message's head, and of its body if the head names a function.

    The function's name comes before or after the channel.
    """
    found = {marker.text: marker for marker in markers.inner}
    begin = [found["<|start|>"], found["<|channel|>"]]
    start, channel = map(marker_tokens, begin)
    calls = [f"call_{index}" for index in range(len(schemas))]
    rules = [
        f"start: ({start} | {channel}) (PLAIN {channel})? (PLAIN body | TO_FUNCTION call)",
        f"call: {' | '.join(calls)}",
        f"body: ({marker_tokens(found['<|constrain|>'])} PLAIN)? {marker_tokens(found['<|message|>'])}",
        "TO_FUNCTION: /[^=]*to=functions\\./",
        f'PLAIN: TEXT & ~({_ANY} "to=functions." {_ANY})',
        r"AFTER_NAME: /[\s<][^=]*/",
        _TEXT,
    ]
    for index, (name, schema) in enumerate(schemas):
        head = f"{json.dumps(name, ensure_ascii=False)} AFTER_NAME? ({channel} PLAIN)? body"
        rules.append(f"call_{index}: {head} arguments_{index} {marker_tokens(found['<|end|>'])}?")
        rules += json_arguments(index, schema, None)
    return replace(_grammar(rules), trigger=Trigger(tuple(token for one in begin for token in one.tokens)))


def _enforceable(tool: Tool) -> dict[str, Any]:
    """Return as much of a tool's schema as can be enforced."""
    schema = with_null_types(tool.parameters)
    try:
        form = next(forms(schema))
    except PydanticCustomError:
        return ANY_ARGUMENTS
    return _schema(tool) if form.schema is schema else closed(form.schema)


def _followed(call_format: CallFormat, schemas: Tools) -> set[str]:
    """Return the names of the tools whose optional calls can follow these schemas."""
    # Where every argument has tags of its own, only those that a schema lists can be enforced.
    is_json = isinstance(call_format, JsonFormat)
    return {name for name, schema in schemas if is_json or schema.get("additionalProperties") is False}


def _schemas(body: ChatRequest, has_schemas: bool) -> list[tuple[str, dict[str, Any]]]:
    """Return each callable tool's name and what its arguments follow. has_schemas: see chat_grammar()."""
    enforced = {tool.name for tool in body.enforced_tools}
    other = _enforceable if has_schemas else lambda _: ANY_ARGUMENTS
    return [
        (tool.name, _schema(tool) if tool.name in enforced else other(tool)) for tool in body.callable_tools
    ]


def _grammar(rules: Sequence[str]) -> Grammar:
    return Grammar("lark", "\n".join(rules) + "\n")


def _calls(body: ChatRequest, markers: Markers, content: Grammar | None, has_schemas: bool) -> list[str]:
    """Return the rules of tool calls. Raises BadRequestError."""
    tools = body.callable_tools
    call_format = find_format(markers)
    if call_format is None:
        param, remedy = "tools", "Leave out 'strict'"
        if body.tool_choice.mode == "required":
            param, remedy = "tool_choice", "Leave it at 'auto'"
        elif content is not None:
            remedy = "A required response format together with tools needs this too: leave out one of them"
        raise BadRequestError(
            f"'{param}': tool calls cannot be enforced in this model's format, {markers.call_format}. "
            f"{remedy}.",
            param=param,
            code="unsupported_value",
        )
    schemas = _schemas(body, has_schemas)
    followed = _followed(call_format, schemas) if has_schemas else set()
    try:
        return CallGrammar(
            call_format,
            markers,
            schemas,
            followed | {tool.name for tool in body.enforced_tools},
            {tool.name for tool in tools if tool.strict},
            {tool.name: tool.lark for tool in tools if tool.lark is not None},
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


def _harmony(body: ChatRequest, markers: Markers, content: Grammar | None, has_schemas: bool) -> list[str]:
    """Return the grammar of gpt-oss: any reasoning, then one tool call or the content."""
    token = {marker.text: marker_tokens(marker) for marker in markers.inner}
    channel, message = token["<|channel|>"], token["<|message|>"]
    again = f'{token["<|end|>"]} {token["<|start|>"]} "assistant"'
    rules = [
        f'analysis: {channel} "analysis" {message} TEXT {again}',
        f'preamble: {channel} "commentary" {message} TEXT {again}',
        f'final: {channel} "final" {message} content',
        _TEXT,
        _content(content),
    ]
    tools = body.callable_tools
    for index, (tool, (_, schema)) in enumerate(zip(tools, _schemas(body, has_schemas), strict=True)):
        head = json.dumps(f"commentary to=functions.{tool.name} ")
        rules.append(
            f'call_{index}: {channel} {head} {token["<|constrain|>"]} "json" {message} arguments_{index}'
        )
        rules += json_arguments(index, schema, tool.lark)
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

    between: what separates them. edge: what follows content alone, and precedes calls alone.
    """
    if not body.callable_tools:
        return f"{said} {edge}"
    if body.tool_choice.mode == "required":
        return f"{edge} {calls}"
    both = f" | {said} {between} {calls}" if may_mix else ""
    return f"({said} {edge} | {edge} {calls}{both})"


def _thinking(markers: Markers, is_thinking: bool) -> str:
    """Return the rule for the reasoning that may precede the rest of the output."""
    if markers.think_end is None or (markers.think_start is None and not is_thinking):
        return 'thinking: ""'
    rest = f"TEXT {marker_tokens(markers.think_end)} SPACE"
    if not is_thinking:
        rest = f"(SPACE {marker_tokens(markers.think_start)} {rest})?"
    return f"thinking: {rest}"


def _content(grammar: Grammar | None) -> str:
    """Return the rule for the content. grammar: None if it may be any text."""
    match grammar:
        case Grammar(kind="json_schema"):
            return f"content: {json_rule(json.loads(grammar.text))}"
        case Grammar(kind="lark"):
            return f"content: %lark {{\n{grammar.text}\n}}"
        case Grammar(kind="regex"):
            return f"content: %lark {{\nstart: /{escape_regex(grammar.text)}/\n}}"
    return "content: TEXT"


MAX_RELAXED = 128
"""Maximum tools whose schemas are relaxed one by one, each compiled alone; of more, all become any object."""
MAX_UNUSABLE = 64
"""Maximum grammars that are known to be unusable; the oldest is forgotten first."""


class GrammarCompiler:
    """Compiles grammars for one model. Any thread may use it."""

    def __init__(self, engine: "GeneratingEngine") -> None:
        self._engine = engine
        self._unusable: dict[Grammar, None] = {}

    def constrain_chat(
        self, request: Request, body: ChatRequest, *, is_thinking: bool
    ) -> tuple[Grammar | None, bool, list[Tool]]:
        """Compile the grammar of a chat's answer: its content, its calls, and its budget of reasoning.

        Returns the grammar, None if any text is allowed; whether the answer's schema was relaxed; and the
        tools whose schemas were.

        is_thinking: the prompt has already opened the reasoning. Parts of schemas that are not strict and
            cannot be enforced are left out, and noted.
        Raises BadRequestError if what must be enforced cannot be.
        """
        markers = self._engine.tokenizer.markers
        content, is_relaxed = self.compile_requested(request, body)

        def compile_whole(asked: ChatRequest) -> Grammar | None:
            with suppress(BadRequestError):
                grammar = chat_grammar(asked, markers, is_thinking, content)
                if grammar is None or grammar is content:
                    return grammar
                if compiled := self._try_to_compile(grammar):
                    return compiled
            grammar = chat_grammar(asked, markers, is_thinking, content, has_schemas=False)
            assert grammar
            return self.compile(grammar, "tools")

        grammar, relaxed_tools = self._compile_tools(request, body, compile_whole)
        if grammar is None:
            grammar = self._compile_optional_calls(body)
        num_tokens = body.thinking_budget_tokens
        if num_tokens is not None and markers.think_end is not None:
            start, end = markers.think_start, markers.think_end.tokens
            budget = ThinkingBudget(
                num_tokens, start.tokens if start else (), end, is_thinking, markers.is_harmony
            )
            grammar = replace(grammar or Grammar("any", ""), thinking=budget)
        return grammar, is_relaxed, relaxed_tools

    def compile_requested(self, request: Request, body: GenerationFields) -> tuple[Grammar | None, bool]:
        """Compile the grammar that a request demands, if any; also return whether its schema was relaxed.

        If a schema is not strict, parts that cannot be enforced are left out, and noted.
        Raises BadRequestError if the grammar cannot be used.
        """
        if body.requested_grammar is None:
            return None, False
        grammar, param = body.requested_grammar
        schema = body.relaxable_schema
        if schema is None:
            return self.compile(grammar, param), False
        grammar, form = self._compile_some(schema, param)
        if form.schema is schema:
            return grammar, False
        note_relaxed(request, form.paths(param))
        return grammar, True

    def compile(self, grammar: Grammar, param: str, whose: str = "") -> Grammar:
        """Return the compiled grammar, for the engine's requests.

        param: the request's field with the grammar. whose: what the field belongs to, for the error.
        Raises BadRequestError if the grammar cannot be used.
        """
        check_wanted()
        try:
            compiled: Grammar = self._engine.compile_grammar(grammar)
            return compiled
        except GrammarError as fault:
            message = f"'{param}' {whose}{whose and ' '}{_explain(str(fault))}."
            raise BadRequestError(message, param=param, code="unsupported_grammar") from fault

    def _compile_some(
        self, schema: dict[str, Any], param: str, *, is_closed: bool = True
    ) -> tuple[Grammar, RelaxedSchema]:
        """Compile a schema, or else its first relaxation that compiles; return it with its grammar.

        is_closed: whether to close the schema itself; its relaxations always are.
        """
        refused: dict[Grammar, BadRequestError] = {}
        for form in forms(schema):
            is_open = form.schema is schema and not is_closed
            grammar = json_grammar(schema if is_open else closed(form.schema))
            try:
                if grammar not in refused:
                    return self.compile(grammar, param), form
            except BadRequestError as fault:
                refused[grammar] = fault
        raise next(reversed(refused.values()))

    def _compile_tools(
        self, request: Request, body: ChatRequest, compile_whole: Callable[[ChatRequest], Grammar | None]
    ) -> tuple[Grammar | None, list[Tool]]:
        """Return the compiled grammar, and the tools whose schemas were relaxed.

        Raises BadRequestError if even the relaxed schemas cannot be enforced.
        """
        try:
            for tool in body.enforced_tools:
                check_schema(with_null_types(tool.parameters))
            return compile_whole(body), []
        except (BadRequestError, PydanticCustomError):
            for tool in body.enforced_tools:
                if tool.strict:
                    self.compile(json_grammar(with_null_types(tool.parameters)), tool.at, of_tool(tool))
            for tool in body.callable_tools:
                if tool.lark is not None:
                    self.compile(Grammar("lark", tool.lark), tool.at, of_tool(tool))
            flexible = [tool for tool in body.enforced_tools if not tool.strict]
            parameters: dict[str, dict[str, Any]] = {}
            if len(flexible) > MAX_RELAXED:
                parameters = {tool.name: {"type": "object"} for tool in flexible}
                note_relaxed(request, ["tools"])
            for tool in flexible if not parameters else ():
                schema = with_null_types(tool.parameters)
                _, form = self._compile_some(schema, tool.at, is_closed=False)
                if form.schema is not schema:
                    parameters[tool.name] = form.schema
                    note_relaxed(request, form.paths(tool.at))
            if not parameters:
                raise
            grammar = compile_whole(body.with_parameters(parameters))
            return grammar, [tool for tool in body.tools if tool.name in parameters]

    def _compile_optional_calls(self, body: ChatRequest) -> Grammar | None:
        """Return the compiled grammar of optional calls: with schemas, or else with known names only.

        None if there is no such grammar. Optional calls need not be enforced, so no request is rejected here.
        """
        for has_schemas in (True, False):
            try:
                grammar = optional_calls(body, self._engine.tokenizer.markers, has_schemas=has_schemas)
            except UnenforceableError:
                continue
            if grammar is None:
                return None
            if (compiled := self._try_to_compile(grammar)) is not None:
                return compiled
        return None

    def _try_to_compile(self, grammar: Grammar) -> Grammar | None:
        """Return the compiled grammar, or None if it is too long or cannot be used, which is remembered."""
        if len(grammar.text) > MAX_ENFORCED_BYTES or grammar in self._unusable:
            return None
        try:
            return self.compile(grammar, "tools")
        except BadRequestError:
            self._unusable[grammar] = None
            if len(self._unusable) > MAX_UNUSABLE:
                self._unusable.pop(next(iter(self._unusable)), None)
            return None


_MAX_ERROR_CHARACTERS = 500

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])", re.DOTALL)
_STATE = re.compile(r"\s*<state>.*", re.DOTALL)
_KNOWN = {
    "oneOf constraints are not supported": "uses 'oneOf' with alternatives that may overlap; use 'anyOf', "
    "or give each alternative a distinguishing 'const'",
    "retrieving it failed": "refers to an external schema, and nothing is fetched; put it under '$defs'",
}


def _explain(message: str) -> str:
    """Convert the grammar library's message into a phrase that can follow the field's name."""
    if match := _UNIMPLEMENTED.search(message):
        keys = ", ".join(f"'{key}'" for key in json.loads(match[1]))
        return f"uses {keys}, which cannot be enforced; leave it out"
    for known, phrase in _KNOWN.items():
        if known in message:
            return phrase
    detail = shortened(_STATE.sub("", message).strip(), _MAX_ERROR_CHARACTERS).rstrip(".")
    return f"cannot be enforced: {detail}"
