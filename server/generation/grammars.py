"""Compile the grammar of an answer, or as much of its schemas as can be enforced. All of it blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic_core import PydanticCustomError, to_json

from reprise.engine.interface.errors import GrammarError
from reprise.engine.interface.request import Grammar
from reprise.engine.interface.wanted import check_wanted
from reprise.server.conversation.model import Tool
from reprise.server.conversation.tools import MAX_ENFORCED_BYTES, check_enforced_in_full, of_tool
from reprise.server.engine_types import ModelEngine
from reprise.server.errors import BadRequestError
from reprise.server.generation.chat_grammar import chat_grammar, optional_calls, with_budget
from reprise.server.http.request_log import note_relaxed
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.structured_output import StructuredFields
from reprise.server.tools.grammar import UnenforceableError
from reprise.server.validation.json_schema import check_schema, explain_grammar_error, with_null_types
from reprise.server.validation.relaxed_schema import RelaxedSchema, closed, relaxations

MAX_RELAXED = 128
"""Maximum tools whose schemas are relaxed one by one, each compiled alone; of more, all become any object."""
MAX_UNUSABLE = 64
"""Maximum grammars that are known to be unusable; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class ChatConstraint:
    """What a chat's answer must follow.

    grammar: compiled; None if any text may come.
    is_relaxed: whether the grammar does not follow all of the answer's schema.
    relaxed_tools: the tools whose schemas it does not follow in full.
    """

    grammar: Grammar | None
    is_relaxed: bool
    relaxed_tools: list[Tool]


class GrammarCompiler:
    """Compiles grammars for one model. Any thread may use it."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine
        self._unusable: dict[Grammar, None] = {}

    def constrain_chat(self, request: Request, body: ChatRequest, *, is_thinking: bool) -> ChatConstraint:
        """Compile the grammar of a chat's answer: its content, its calls, and its budget of reasoning.

        is_thinking: the prompt has already opened the reasoning. Parts of schemas that are not strict and
            cannot be enforced are left out, and noted.
        Raises BadRequestError if what must be enforced cannot be.
        """
        markers = self._engine.tokenizer.markers
        content, is_relaxed = self.compile_requested(request, body)

        def compile_whole(asked: ChatRequest) -> Grammar | None:
            grammar = chat_grammar(asked, markers, is_thinking, content)
            return grammar if grammar is None or grammar is content else self.compile(grammar, "tools")

        grammar, relaxed_tools = self._compile_tools(request, body, compile_whole)
        if grammar is None:
            grammar = self._compile_optional_calls(body)
        grammar = with_budget(grammar, markers, body.thinking_budget_tokens, is_thinking)
        return ChatConstraint(grammar, is_relaxed, relaxed_tools)

    def compile_requested(self, request: Request, body: StructuredFields) -> tuple[Grammar | None, bool]:
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
        try:
            check_schema(schema)
            return self.compile(json_grammar(closed(schema)), param), False
        except (BadRequestError, PydanticCustomError) as fault:
            grammar, relaxed = self._compile_some(schema, param, fault)
            note_relaxed(request, relaxed.paths(param))
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
            message = f"'{param}' {whose}{whose and ' '}{explain_grammar_error(str(fault))}."
            raise BadRequestError(message, param=param, code="unsupported_grammar") from fault

    def _compile_some(
        self, schema: dict[str, Any], param: str, fault: Exception
    ) -> tuple[Grammar, RelaxedSchema]:
        """Compile the first relaxation of a schema that can be compiled; return it with its grammar.

        fault: raised if there is no relaxation to try; else the last one's error is.
        """
        for relaxed in relaxations(schema):
            if not relaxed.dropped and relaxed.schema == schema:
                continue
            try:
                return self.compile(json_grammar(closed(relaxed.schema)), param), relaxed
            except BadRequestError as refused:
                fault = refused
        raise fault

    def _compile_tools(
        self, request: Request, body: ChatRequest, compile_whole: Callable[[ChatRequest], Grammar | None]
    ) -> tuple[Grammar | None, list[Tool]]:
        """Return the compiled grammar, and the tools whose schemas it does not follow in full.

        Raises BadRequestError if even what can be enforced of the schemas cannot be.
        """
        try:
            check_enforced_in_full(body.enforced_tools)
            return compile_whole(body), []
        except (BadRequestError, PydanticCustomError) as fault:
            for tool in body.enforced_tools:
                if tool.strict:
                    self.compile(json_grammar(with_null_types(tool.parameters)), tool.at, of_tool(tool))
            flexible = [tool for tool in body.enforced_tools if not tool.strict]
            parameters: dict[str, dict[str, Any]] = {}
            if len(flexible) > MAX_RELAXED:
                parameters = {tool.name: {"type": "object"} for tool in flexible}
                note_relaxed(request, ["tools"])
            for tool in flexible if not parameters else ():
                found = self._relax_tool(tool, fault)
                if found is not None:
                    parameters[tool.name] = found.schema
                    note_relaxed(request, found.paths(tool.at))
            if not parameters:
                raise
            grammar = compile_whole(body.with_parameters(parameters))
            return grammar, [tool for tool in body.tools if tool.name in parameters]

    def _relax_tool(self, tool: Tool, fault: Exception) -> RelaxedSchema | None:
        """Return as much of a tool's schema as can be enforced; None if all of it can."""
        schema = with_null_types(tool.parameters)
        try:
            check_schema(schema)
            self.compile(json_grammar(schema), tool.at)
            return None
        except (BadRequestError, PydanticCustomError):
            return self._compile_some(schema, tool.at, fault)[1]

    def _compile_optional_calls(self, body: ChatRequest) -> Grammar | None:
        """Return the compiled grammar of calls that an answer may have: with schemas, or of known names.

        None if there is no such grammar: these calls are not enforced, so none of this refuses a request.
        """
        markers = self._engine.tokenizer.markers
        for has_schemas in (True, False):
            try:
                grammar = optional_calls(body, markers, has_schemas=has_schemas)
            except UnenforceableError:
                continue
            if grammar is None:
                return None
            if len(grammar.text) <= MAX_ENFORCED_BYTES:
                compiled = self._compile_if_possible(grammar)
                if compiled is not None:
                    return compiled
        return None

    def _compile_if_possible(self, grammar: Grammar) -> Grammar | None:
        """Return the compiled grammar; None if it cannot be used, which is found only once."""
        if grammar in self._unusable:
            return None
        try:
            return self.compile(grammar, "tools")
        except BadRequestError:
            self._unusable[grammar] = None
            if len(self._unusable) > MAX_UNUSABLE:
                self._unusable.pop(next(iter(self._unusable)), None)
            return None


def json_grammar(schema: dict[str, Any]) -> Grammar:
    """Return the grammar of JSON that satisfies a schema."""
    return Grammar("json_schema", to_json(schema).decode())
