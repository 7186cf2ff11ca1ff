"""Answer chats and completions, whichever API they came through; a presenter formats the output."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import Request, Response
from pydantic_core import PydanticCustomError, to_json

from reprise.engine.interface.request import Grammar
from reprise.server.conversation.model import Tool
from reprise.server.conversation.tools import MAX_ENFORCED_BYTES, check_enforced_in_full, of_tool
from reprise.server.errors import BadRequestError
from reprise.server.executor import beside
from reprise.server.generation.chat_grammar import (
    chat_grammar,
    optional_calls,
    with_budget,
)
from reprise.server.generation.choices import Prompts
from reprise.server.generation.grammars import json_grammar
from reprise.server.generation.service import Service
from reprise.server.generation.stream import respond
from reprise.server.http.request_log import note_ignored, note_relaxed
from reprise.server.output.checked import WholeSchemas, checked
from reprise.server.output.parser import parser_factory
from reprise.server.output.parts import MakeParser, ToolCallRules
from reprise.server.output.presenter import Presenter
from reprise.server.output.text_parser import PlainParser, echo_parsers
from reprise.server.prompt.chat_prompt import ChatPrompt
from reprise.server.prompt.infill import Hole, fim_of
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.tools.formats import find_format
from reprise.server.tools.grammar import UnenforceableError
from reprise.server.tools.readers import bare_calls, make_reader
from reprise.server.validation.json_schema import check_schema, with_null_types
from reprise.server.validation.relaxed_schema import RelaxedSchema, modern

MAX_RELAXED = 128
"""Maximum tools whose schemas are relaxed one by one, each compiled alone; of more, all become any object."""


async def answer_chat(
    request: Request,
    service: Service,
    body: ChatRequest,
    presenter: Presenter,
    *,
    streams_calls: bool = True,
) -> Response:
    """Generate the response to a chat request. Raises ApiError before any of the response is sent.

    streams_calls: whether a stream has the arguments of a tool call as the model writes them, or each call
        whole once it is complete.
    """
    check_tools(service, body)
    prompt = await service.prompts.encode_chat(request, body)
    if prompt.num_dropped:
        note_ignored(request, [f"truncation: the {prompt.num_dropped} oldest messages"])
    content, is_relaxed = await service.grammars.compile_requested(request, body)

    async def compile_whole(asked: ChatRequest) -> Grammar | None:
        markers = service.engine.tokenizer.markers
        grammar = await beside(request, partial(chat_grammar, asked, markers, prompt.is_thinking, content))
        if grammar is None or grammar is content:
            return grammar
        return await service.grammars.compile(request, grammar, "tools")

    grammar, relaxed_tools = await _compile_tools(request, service, body, compile_whole)
    if grammar is None:
        grammar = await _compile_optional_calls(request, service, body)
    grammar = with_budget(
        grammar, service.engine.tokenizer.markers, body.thinking_budget_tokens, prompt.is_thinking
    )

    def make_parsers() -> MakeParser:
        if body.is_scoring:
            return echo_parsers([""], body.n, is_alone=True)
        schemas = WholeSchemas(
            to_json(modern(body.relaxable_schema)).decode() if is_relaxed else None,
            {tool.name: to_json(modern(tool.parameters)).decode() for tool in relaxed_tools},
        )
        is_streamed = body.stream and streams_calls
        return checked(_make_parser_factory(service, body, prompt, is_streamed), schemas)

    make_parser = await beside(request, make_parsers)
    of_chat = prompt.prediction, prompt.head_tokens, prompt.views, prompt.images, prompt.make_views
    prompts = Prompts([prompt.tokens], grammar, *of_chat)
    return await respond(request, service, body, prompts, presenter, make_parser)


async def _compile_tools(
    request: Request,
    service: Service,
    body: ChatRequest,
    compile_whole: Callable[[ChatRequest], Awaitable[Grammar | None]],
) -> tuple[Grammar | None, list[Tool]]:
    """Return the compiled grammar, and the tools whose schemas it does not follow in full.

    Raises BadRequestError if even what can be enforced of the schemas cannot be.
    """
    try:
        await beside(request, partial(check_enforced_in_full, body.enforced_tools))
        return await compile_whole(body), []
    except (BadRequestError, PydanticCustomError) as fault:
        for tool in body.enforced_tools:
            if tool.strict:
                alone = json_grammar(with_null_types(tool.parameters))
                await service.grammars.compile(request, alone, tool.at, of_tool(tool))
        flexible = [tool for tool in body.enforced_tools if not tool.strict]
        parameters: dict[str, dict[str, Any]] = {}
        if len(flexible) > MAX_RELAXED:
            parameters = {tool.name: {"type": "object"} for tool in flexible}
            note_relaxed(request, ["tools"])
        for tool in flexible if not parameters else ():
            found = await _relax_tool(request, service, tool.parameters, tool.at, fault)
            if found is not None:
                parameters[tool.name] = found.schema
                note_relaxed(request, found.paths(tool.at))
        if not parameters:
            raise
        grammar = await compile_whole(body.with_parameters(parameters))
        return grammar, [tool for tool in body.tools if tool.name in parameters]


async def _compile_optional_calls(request: Request, service: Service, body: ChatRequest) -> Grammar | None:
    """Return the compiled grammar of calls that an answer may have: with schemas, or else of known names.

    None if there is no such grammar: these calls are not enforced, so none of this refuses a request.
    """
    markers = service.engine.tokenizer.markers
    for has_schemas in (True, False):
        grammar: Grammar | None
        try:
            grammar = await beside(request, partial(optional_calls, body, markers, has_schemas=has_schemas))
        except UnenforceableError:
            continue
        if grammar is None:
            return None
        if len(grammar.text) <= MAX_ENFORCED_BYTES:
            compiled = await service.grammars.compile_if_possible(request, grammar)
            if compiled is not None:
                return compiled
    return None


async def _relax_tool(
    request: Request, service: Service, schema: dict[str, Any], param: str, fault: Exception
) -> RelaxedSchema | None:
    """Return as much of a tool's schema as can be enforced; None if all of it can."""
    try:
        schema = with_null_types(schema)
        await beside(request, partial(check_schema, schema))
        await service.grammars.compile(request, json_grammar(schema), param)
        return None
    except (BadRequestError, PydanticCustomError):
        return (await service.grammars.compile_some(request, schema, param, fault))[1]


def check_tools(service: Service, body: ChatRequest) -> None:
    """Raise BadRequestError if the request has tools but the chat template has no known tool call format."""
    if body.shown_tools and not service.engine.tokenizer.markers.can_call:
        raise BadRequestError(
            f"'tools': the chat template of {service.engine.info.name} has no tool call format that this "
            "server knows. Leave out tools, or serve a model that was trained to call them.",
            param="tools",
            code="tools_not_supported",
        )


def _make_parser_factory(
    service: Service, body: ChatRequest, prompt: ChatPrompt, is_streamed: bool
) -> MakeParser:
    rules = None
    if body.shown_tools:
        call_format = find_format(service.engine.tokenizer.markers)
        schemas = {tool.name: tool.parameters for tool in body.shown_tools}
        # What must be enforced is only where a call has its marker.
        names = {tool.name for tool in body.callable_tools if not tool.strict and tool.lark is None}
        rules = ToolCallRules(
            body.parallel_tool_calls,
            None if call_format is None else partial(make_reader, call_format, schemas),
            is_streamed=is_streamed,
            note=service.metrics.count_parse,
            bare_calls=bare_calls(service.engine.tokenizer.markers, names),
        )
    return parser_factory(service.engine.tokenizer.markers, prompt.is_thinking, rules)


async def answer_completion(
    request: Request, service: Service, body: CompletionRequest, presenter: Presenter, model: str
) -> Response:
    """Continue the prompts of a request, or fill in the text between its prompt and its suffix.

    model: the model's name, for errors. Raises ApiError before any of the response is sent.
    """
    has_fim, is_liberal = (
        service.engine.tokenizer.fim is not None,
        service.settings.unknown_fields != "refuse",
    )
    if body.suffix and body.echo and not has_fim and is_liberal:
        # Who wants the prompt repeated wants it continued, and this model can do that.
        note_ignored(request, ["suffix"])
        body = body.model_copy(update={"suffix": None})
    if body.suffix:
        fim = fim_of(service.engine.tokenizer, model, "suffix")
        holes = [Hole(str(prompt), body.suffix) for prompt in body.prompt]
        prompts, body = (
            await service.prompts.encode_holes(request, fim, holes, body),
            body.with_stops(fim.ends),
        )
    else:
        prompts = await service.prompts.encode_prompts(request, body)
    grammar, is_relaxed = await service.grammars.compile_requested(request, body)
    make_parser: MakeParser = PlainParser
    if body.echo or body.is_scoring:
        texts = await service.prompts.decode_prompts(request, body) if body.echo else [""] * len(prompts)
        make_parser = echo_parsers(texts, body.n, body.is_scoring)
    schema = to_json(modern(body.relaxable_schema)).decode() if is_relaxed else None
    make_parser = checked(make_parser, WholeSchemas(schema))
    return await respond(request, service, body, Prompts(prompts, grammar), presenter, make_parser)
