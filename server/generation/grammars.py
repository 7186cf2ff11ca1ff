"""Compile the grammars that requests demand, or as much of a schema as can be enforced."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import Request
from pydantic_core import PydanticCustomError, to_json

from reprise.engine.interface.errors import GrammarError
from reprise.engine.interface.request import Grammar
from reprise.server.engine_types import ModelEngine
from reprise.server.errors import (
    BadRequestError,
)
from reprise.server.executor import Lane, beside
from reprise.server.http.request_log import note_relaxed
from reprise.server.requests.structured_output import StructuredFields
from reprise.server.validation.json_schema import check_schema, explain_grammar_error
from reprise.server.validation.relaxed_schema import RelaxedSchema, closed, relaxations

Run = Callable[..., Awaitable[Any]]
"""Runs a job in a lane, for a request. See PromptEncoder."""


MAX_UNUSABLE = 64
"""Maximum grammars that are known to be unusable; the oldest is forgotten first."""


def json_grammar(schema: dict[str, Any]) -> Grammar:
    """Return the grammar of JSON that satisfies a schema."""
    return Grammar("json_schema", to_json(schema).decode())


def _closed_grammar(schema: dict[str, Any]) -> Grammar:
    return json_grammar(closed(schema))


def _checked_grammar(schema: dict[str, Any]) -> Grammar:
    """Return the grammar of a schema. Raises PydanticCustomError if it cannot be enforced."""
    check_schema(schema)
    return _closed_grammar(schema)


class GrammarCompiler:
    """Compiles grammars on a thread of its own, which serves clients in rotation."""

    def __init__(self, engine: ModelEngine, run: Run) -> None:
        self._engine = engine
        self._run = run
        self._lane = Lane("grammars")
        self._unusable: dict[Grammar, None] = {}

    async def compile(self, request: Request, grammar: Grammar, param: str, whose: str = "") -> Grammar:
        """Return the compiled grammar, for the engine's requests.

        param: the request's field with the grammar. whose: what the field belongs to, for the error.
        Raises BadRequestError if the grammar cannot be used, and the exceptions of PromptEncoder.
        """
        try:
            compiled: Grammar = await self._run(request, self._lane, self._engine.compile_grammar, grammar)
            return compiled
        except GrammarError as fault:
            message = f"'{param}' {whose}{whose and ' '}{explain_grammar_error(str(fault))}."
            raise BadRequestError(message, param=param, code="unsupported_grammar") from fault

    async def compile_if_possible(self, request: Request, grammar: Grammar) -> Grammar | None:
        """Return the compiled grammar; None if it cannot be used, which is found only once."""
        if grammar in self._unusable:
            return None
        try:
            return await self.compile(request, grammar, "tools")
        except BadRequestError:
            self._unusable[grammar] = None
            if len(self._unusable) > MAX_UNUSABLE:
                del self._unusable[next(iter(self._unusable))]
            return None

    async def compile_requested(
        self, request: Request, body: StructuredFields
    ) -> tuple[Grammar | None, bool]:
        """Compile the grammar that a request demands, if any; also return whether its schema was relaxed.

        If a schema is not strict, parts that cannot be enforced are left out, and noted. Raises as compile().
        """
        if body.requested_grammar is None:
            return None, False
        grammar, param = body.requested_grammar
        schema = body.relaxable_schema
        if schema is None:
            return await self.compile(request, grammar, param), False
        return await self.compile_relaxed(request, schema, param)

    async def compile_relaxed(
        self, request: Request, schema: dict[str, Any], param: str
    ) -> tuple[Grammar, bool]:
        """Compile the grammar of a schema that is not strict; return whether the schema had to be relaxed.

        Parts that cannot be enforced are left out, and noted. Raises as compile().
        """
        try:
            grammar = await beside(request, partial(_checked_grammar, schema))
            return await self.compile(request, grammar, param), False
        except (BadRequestError, PydanticCustomError) as fault:
            grammar, relaxed = await self.compile_some(request, schema, param, fault)
            note_relaxed(request, relaxed.paths(param))
            return grammar, True

    async def compile_some(
        self, request: Request, schema: dict[str, Any], param: str, fault: Exception
    ) -> tuple[Grammar, RelaxedSchema]:
        """Compile the first relaxation of a schema that can be compiled; return it with its grammar.

        fault: raised if there is no relaxation to try; else the last one's error is.
        """
        found = relaxations(schema)
        while (relaxed := await beside(request, partial(next, found, None))) is not None:
            if not relaxed.dropped and relaxed.schema == schema:
                continue
            try:
                grammar = await beside(request, partial(_closed_grammar, relaxed.schema))
                return await self.compile(request, grammar, param), relaxed
            except BadRequestError as refused:
                fault = refused
        raise fault

    def close(self) -> None:
        """Stop the thread and drop the jobs that still wait for it."""
        self._lane.close()
