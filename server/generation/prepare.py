"""From a validated body and a leased model to the engine's requests: conversation, prompt, grammar, parser.

prepare_chat() and prepare_completion() block, and run on a thread; see Service.prepare().
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import get_args

from fastapi import Request
from pydantic_core import to_json

from reprise.config.settings import Settings
from reprise.engine.interface.models import ModelInfo
from reprise.engine.interface.request import DraftType, GenerationRequest
from reprise.engine.interface.wanted import check_wanted
from reprise.server.errors import BadRequestError, bad_field
from reprise.server.generation.choices import Prompts, make_engine_requests
from reprise.server.generation.service import LeasedModel
from reprise.server.http.access import key_digest, tenant_of
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.output.checked import WholeSchemas, checked
from reprise.server.output.parser import parser_factory
from reprise.server.output.parts import MakeParser, ToolCallRules
from reprise.server.output.text_parser import PlainParser, echo_parsers
from reprise.server.prompt.encoder import (
    ChatPrompt,
    Hole,
    TokenIds,
    decode_prompts,
    encode_chat,
    encode_holes,
    encode_prompts,
    fim_of,
)
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.generation_fields import GenerationFields, WindowFields
from reprise.server.tools.formats import find_format
from reprise.server.tools.readers import bare_calls, make_reader
from reprise.server.validation.json_schema import modern

_OF_MODELS = ("draft-model", "mtp", "dflash", "wedlm")
"""Draft types that depend on the models served."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready for the engine.

    body: the request, without what is not here and would only be faster.
    engine_requests: one for each choice. make_parser: called once for each of them, in order.
    view_slices: makes the views that the engine's requests share, slice by slice; None if nothing reads them.
    """

    body: GenerationFields
    engine_requests: list[GenerationRequest]
    make_parser: MakeParser
    view_slices: Iterator[None] | None = None


def prepare_chat(
    request: Request, leased: LeasedModel, body: ChatRequest, *, streams_calls: bool = True
) -> Prepared:
    """Prepare a chat. Raises BadRequestError.

    streams_calls: whether a stream has the arguments of a tool call as the model writes them, or each call
        whole once it is complete.
    """
    engine = leased.engine
    prompt = encode_prompt(request, leased, body)
    if prompt.num_dropped:
        note_ignored(request, [f"truncation: the {prompt.num_dropped} oldest messages"])
    constraint = leased.grammars.constrain_chat(request, body, is_thinking=prompt.is_thinking)
    if body.is_scoring:
        make_parser = echo_parsers([""], body.n, is_alone=True)
    else:
        rules = _call_rules(leased, body, is_streamed=body.stream and streams_calls)
        make_parser = parser_factory(engine.tokenizer.markers, prompt.is_thinking, rules)
        content = to_json(modern(body.relaxable_schema or {})).decode() if constraint.is_relaxed else None
        calls = {tool.name: to_json(modern(tool.parameters)).decode() for tool in constraint.relaxed_tools}
        make_parser = checked(make_parser, WholeSchemas(content, calls))
    views, slices = leased.views.begin(body, key_digest(request))
    prompts = Prompts(
        [prompt.tokens], constraint.grammar, prompt.prediction, prompt.head_tokens, views, prompt.images
    )
    return _prepared(request, leased, body, prompts, make_parser, slices)


def encode_prompt(request: Request, leased: LeasedModel, body: ChatRequest) -> ChatPrompt:
    """Return the prompt of a chat. Raises BadRequestError."""
    check_tools(leased, body)
    vision = leased.engine.info.vision
    seen = leased.images.read(request, body.messages, vision.processor if vision else None)
    return encode_chat(leased.engine, body, seen)


def check_tools(leased: LeasedModel, body: ChatRequest) -> None:
    """Raise BadRequestError if the request has tools but the chat template has no known tool call format."""
    if body.shown_tools and not leased.engine.tokenizer.markers.can_call:
        raise BadRequestError(
            f"'tools': the chat template of {leased.engine.info.name} has no tool call format that this "
            "server knows. Leave out tools, or serve a model that was trained to call them.",
            param="tools",
            code="tools_not_supported",
        )


def _call_rules(leased: LeasedModel, body: ChatRequest, *, is_streamed: bool) -> ToolCallRules | None:
    if not body.shown_tools:
        return None
    markers = leased.engine.tokenizer.markers
    call_format = find_format(markers)
    schemas = {tool.name: tool.parameters for tool in body.shown_tools}
    # What must be enforced is only where a call has its marker.
    names = {tool.name for tool in body.callable_tools if not tool.strict and tool.lark is None}
    return ToolCallRules(
        body.parallel_tool_calls,
        None if call_format is None else partial(make_reader, call_format, schemas),
        is_streamed=is_streamed,
        note=leased.app.metrics.count_parse,
        bare_calls=bare_calls(markers, names),
    )


def prepare_completion(
    request: Request, leased: LeasedModel, body: CompletionRequest, model: str
) -> Prepared:
    """Prepare to continue prompts, or to fill in the text between a prompt and a suffix.

    model: the model's name, for errors. Raises BadRequestError.
    """
    engine = leased.engine
    is_liberal = leased.settings.unknown_fields != "refuse"
    if body.suffix and body.echo and engine.tokenizer.fim is None and is_liberal:
        # Who wants the prompt repeated wants it continued, and this model can do that.
        note_ignored(request, ["suffix"])
        body = body.model_copy(update={"suffix": None})
    if body.suffix:
        holes = [Hole(str(prompt), body.suffix) for prompt in body.prompt]
        return prepare_infill(request, leased, body, holes, model, "suffix")
    return _prepare_texts(request, leased, body, encode_prompts(engine, body))


def prepare_infill(
    request: Request, leased: LeasedModel, body: CompletionRequest, holes: list[Hole], model: str, param: str
) -> Prepared:
    """Prepare to fill in holes. model, param: the model's name and the request's field, for errors.

    Raises BadRequestError.
    """
    fim = fim_of(leased.engine.tokenizer, model, param)
    prompts = encode_holes(leased.engine, fim, holes, has_special=body.add_special_tokens)
    return _prepare_texts(request, leased, body.with_stops(fim.ends), prompts)


def _prepare_texts(
    request: Request, leased: LeasedModel, body: CompletionRequest, prompts: list[TokenIds]
) -> Prepared:
    grammar, is_relaxed = leased.grammars.compile_requested(request, body)
    make_parser: MakeParser = PlainParser
    if body.echo or body.is_scoring:
        texts = decode_prompts(leased.engine, body) if body.echo else [""] * len(prompts)
        make_parser = echo_parsers(texts, body.n, body.is_scoring)
    schema = to_json(modern(body.relaxable_schema or {})).decode() if is_relaxed else None
    make_parser = checked(make_parser, WholeSchemas(schema))
    return _prepared(request, leased, body, Prompts(prompts, grammar), make_parser)


def _prepared(
    request: Request,
    leased: LeasedModel,
    body: GenerationFields,
    prompts: Prompts,
    make_parser: MakeParser,
    view_slices: Iterator[None] | None = None,
) -> Prepared:
    check_wanted()
    body = _without_what_is_not_here(request, leased, body)
    info, settings = leased.engine.info, leased.settings
    request_id, tenant = record_of(request).engine_request_id, tenant_of(request, settings)
    engine_requests = make_engine_requests(request_id, body, prompts, info, settings, tenant)
    return Prepared(body, engine_requests, make_parser, view_slices)


def _without_what_is_not_here(
    request: Request, leased: LeasedModel, body: GenerationFields
) -> GenerationFields:
    """Leave out a source of drafts, or a kind of decoding, that is not here and would only be faster."""
    info, is_strict = leased.engine.info, leased.settings.unknown_fields == "refuse"
    if (fault := _draft_fault(body, leased.settings, info)) is not None:
        if is_strict:
            raise fault
        note_ignored(request, ["draft.type"])
        body = body.model_copy(update={"draft": body.draft.model_copy(update={"type": None})})
    of_wedlm = [name for name in WindowFields.model_fields if getattr(body, name) is not None]
    if of_wedlm and info.mask_token_id is None and not is_strict:
        note_ignored(request, of_wedlm)
        body = body.model_copy(update=dict.fromkeys(of_wedlm))
    return body


def _draft_fault(body: GenerationFields, settings: Settings, info: ModelInfo) -> BadRequestError | None:
    """Return the fault of the source of drafts that a request names; None if the server has that source."""
    kind, missing, remedy = body.draft.type, "", ""
    if kind == "draft-model" and (settings.draft_model is None or info.head):
        missing, remedy = "has no draft model", ", or start the server with --draft-model"
    if kind in ("mtp", "dflash") and info.head != kind:
        missing = "serves no model with an MTP head" if kind == "mtp" else "has no DFlash drafter"
        remedy = ", or start the server with --draft-model and the folder of one"
    if kind == "wedlm" and info.mask_token_id is None:
        missing = "serves no WeDLM model"
    if not missing:
        return None
    drafters = ", ".join(one for one in get_args(DraftType) if one not in _OF_MODELS)
    phrase = f"is '{kind}', but this server {missing}; use one of {drafters}{remedy}"
    return bad_field("draft.type", phrase, "no_draft_model")
