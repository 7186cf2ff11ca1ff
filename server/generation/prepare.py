"""Turn a validated body and a leased model into engine requests: prompt, grammar, parser, choices.

All functions block, and run on a thread; see LeasedModel.run_in_turn().
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from fastapi import Request
from pydantic_core import to_json

from reprise.config.settings import Settings
from reprise.engine.interface.cancellation import check_wanted
from reprise.engine.interface.events import Delta, Finished
from reprise.engine.interface.images import PromptImage
from reprise.engine.interface.models import AnswerLimits, ModelInfo
from reprise.engine.interface.request import (
    DraftChoice,
    DraftType,
    GenerationRequest,
    Grammar,
    Sampling,
    View,
    WindowSettings,
)
from reprise.engine.interface.spans import span
from reprise.engine.sandbox.child_process import satisfies
from reprise.server.errors import BadRequestError, bad_field
from reprise.server.generation.read_ahead import expected_prompts
from reprise.server.generation.service import LeasedModel
from reprise.server.http.access import key_digest
from reprise.server.http.executor import SCHEMA_CHECKS
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.output.chat_parser import parser_factory
from reprise.server.output.parser_base import (
    MakeParser,
    OutputParser,
    PlainParser,
    ToolCallRules,
    echo_parsers,
)
from reprise.server.output.parts import ChoiceOutput, EndPart, Part
from reprise.server.prompt.encoder import (
    ChatPrompt,
    Hole,
    TokenIds,
    decode_prompts,
    encode_chat,
    encode_holes,
    encode_prompts,
    fim_of,
    shown,
)
from reprise.server.prompt.length import check_ids, check_length, truncate
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.generation_fields import MAX_N, GenerationFields, WindowFields
from reprise.server.requests.json_schema import modern
from reprise.server.requests.tools import Tool
from reprise.server.tools.formats import find_format
from reprise.server.tools.readers import bare_calls, make_reader


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready for the engine.

    body: the request, without draft types that this server lacks.
    engine_requests: one for each choice. make_parser: called once for each of them, in order.
    view_slices: makes the views that the choices share, slice by slice; None if nothing reads them.
    expect: returns requests for the prompts that will follow the answer; it blocks. None if none is expected.
    """

    body: GenerationFields
    engine_requests: list[GenerationRequest]
    make_parser: MakeParser
    view_slices: Iterator[None] | None = None
    expect: Callable[[ChoiceOutput], list[GenerationRequest]] | None = None


@dataclass(frozen=True, slots=True)
class Prompts:
    """A request's prompts, and the inputs that all choices share.

    token_ids: (num_prompts,) the tokens of each prompt. images: those of the only prompt.
    The others: see GenerationRequest.
    """

    token_ids: Sequence[tuple[int, ...]]
    grammar: Grammar | None = None
    prediction: tuple[int, ...] = ()
    head_tokens: int = 0
    views: Sequence[View] = ()
    images: tuple[PromptImage, ...] = ()


@span("submission")
def prepare_chat(
    request: Request, leased: LeasedModel, body: ChatRequest, *, streams_calls: bool = True
) -> Prepared:
    """Prepare a chat. Raises BadRequestError.

    streams_calls: whether a stream sends tool call arguments as they are written, rather than complete calls.
    """
    engine = leased.engine
    body = with_documents(request, leased, body)
    prompt = encode_prompt(request, leased, body)
    if prompt.num_dropped:
        note_ignored(request, [f"truncation: the {prompt.num_dropped} oldest messages"])
    grammar, is_relaxed, relaxed_tools = leased.grammars.constrain_chat(
        request, body, is_thinking=prompt.is_thinking
    )
    if body.is_scoring:
        make_parser = echo_parsers([""], body.n, is_alone=True)
    else:
        rules = _call_rules(leased, body, is_streamed=body.stream and streams_calls)
        make_parser = parser_factory(engine.tokenizer.markers, prompt.is_thinking, rules)
        make_parser = _checked(make_parser, body, is_relaxed, relaxed_tools)
    views, slices = _begin_views(request, leased, body)
    prompts = Prompts([prompt.tokens], grammar, prompt.prediction, prompt.head_tokens, views, prompt.images)
    prepared = _prepared(request, leased, body, prompts, make_parser, slices)
    if prompt.num_dropped or not _is_followed(leased, body):
        return prepared
    followed = body.model_copy(update={"prediction": None})
    return replace(prepared, expect=partial(expected_prompts, leased.settings, engine, followed, prompt.seen))


def _is_followed(leased: LeasedModel, body: ChatRequest) -> bool:
    """Whether the next prompt of a conversation can be told from its answer, and read ahead."""
    return (
        leased.settings.read_ahead != "off"
        and leased.engine.has_prefix_cache
        and len(leased.app.background) < leased.settings.capacity
        and body.n == 1
        and body.prompt_end == "answer"
        and body.truncate_prompt_tokens is None
        and not body.is_scoring
    )


def _begin_views(
    request: Request, leased: LeasedModel, body: ChatRequest
) -> tuple[list[View], Iterator[None] | None]:
    """Return an empty list of views, and the slices of work that fill it.

    There are no slices if no drafter reads views, or if too many conversations' views are being made.
    """
    views: list[View] = []
    draft_type = body.draft.type or leased.settings.draft_type
    looks_up = draft_type in ("auto", "suffix") and body.draft.max_tokens != 0
    if not looks_up or len(leased.app.background) >= leased.settings.capacity:
        return views, None
    owner = key_digest(request)

    def slices() -> Iterator[None]:
        yield from leased.view_maker.make(*shown(body), owner, views)

    return views, slices()


def with_documents(request: Request, leased: LeasedModel, body: ChatRequest) -> ChatRequest:
    """Return a chat with the text of its documents. Raises as DocumentReader.show()."""
    messages = leased.app.documents.show(request, leased.settings, body.messages)
    return body if messages is body.messages else body.model_copy(update={"messages": tuple(messages)})


def encode_prompt(request: Request, leased: LeasedModel, body: ChatRequest) -> ChatPrompt:
    """Return the prompt of a chat. Raises BadRequestError."""
    engine = leased.engine
    if body.shown_tools and not engine.tokenizer.markers.can_call:
        raise BadRequestError(
            f"'tools': the chat template of {engine.info.name} has no tool call format that this server "
            "knows. Leave out tools, or serve a model that was trained to call them.",
            param="tools",
            code="tools_not_supported",
        )
    vision = engine.info.vision
    seen = leased.images.read(request, body.messages, vision.processor if vision else None)
    return encode_chat(engine, body, seen)


def count_prompt_tokens(request: Request, leased: LeasedModel, body: ChatRequest) -> int:
    """Count the tokens of a chat's prompt. Raises BadRequestError."""
    check_ids(body, leased.engine.info)
    return len(encode_prompt(request, leased, with_documents(request, leased, body)).tokens)


def _call_rules(leased: LeasedModel, body: ChatRequest, *, is_streamed: bool) -> ToolCallRules | None:
    if not body.shown_tools:
        return None
    markers = leased.engine.tokenizer.markers
    call_format = find_format(markers)
    schemas = {tool.name: tool.parameters for tool in body.shown_tools}
    # Where arguments are enforced, a call has its marker; only calls of these tools may come without.
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
        # A request to echo the prompt wants it continued, which this model can do.
        note_ignored(request, ["suffix"])
        body = body.model_copy(update={"suffix": None})
    if body.suffix:
        holes = [Hole(str(prompt), body.suffix) for prompt in body.prompt]
        return prepare_infill(request, leased, body, holes, model, "suffix")
    return _prepare_texts(request, leased, body, encode_prompts(engine, body))


def prepare_infill(
    request: Request, leased: LeasedModel, body: CompletionRequest, holes: list[Hole], model: str, param: str
) -> Prepared:
    """Prepare fill-in-the-middle. model, param: the model's name and the request's field, for errors.

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
    make_parser = _checked(make_parser, body, is_relaxed, [])
    return _prepared(request, leased, body, Prompts(prompts, grammar), make_parser)


class CheckedParser(OutputParser):
    """Parser whose EndPart tells whether the answer satisfies schemas that the grammar relaxes.

    content: the schema of the content, as JSON; None if it is not checked. calls: schemas by the tool's name.
    """

    def __init__(self, inner: OutputParser, content: str | None, calls: Mapping[str, str]) -> None:
        self._inner = inner
        self._content, self._calls = content, calls
        self._parts: list[Part] = []

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        parts = self._inner.read(delta)
        self._parts += parts
        return parts

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser. The EndPart is held back until the check is done."""
        parts = self._inner.end(finished)
        self._parts += parts
        self.num_reasoning_tokens = self._inner.num_reasoning_tokens
        self.make_end = self._make_end
        return parts[:-1]

    async def _make_end(self) -> EndPart:
        output = ChoiceOutput.of(self._parts)
        result = await SCHEMA_CHECKS.run(self._check, output)
        return replace(output.end, schema_valid="unknown" if result is None else result)

    def _check(self, output: ChoiceOutput) -> bool | None:
        """Return whether content and tool calls satisfy their schemas; None if that cannot be told."""
        pairs = [(call.arguments, self._calls.get(call.name)) for call in output.tool_calls]
        if output.text or not output.tool_calls:
            pairs.append((output.text, self._content))
        results = [satisfies(text, schema) for text, schema in pairs if schema is not None]
        if not results:
            # A call was demanded, and the answer may have been cut before it was complete.
            return output.end.finish_reason != "length"
        return False if False in results else None if None in results else True


def _checked(
    make_parser: MakeParser, body: GenerationFields, is_relaxed: bool, relaxed_tools: Sequence[Tool]
) -> MakeParser:
    """Make the parsers check answers if the schema of the content or of a tool is relaxed."""
    if not is_relaxed and not relaxed_tools:
        return make_parser
    content = to_json(modern(body.relaxable_schema or {})).decode() if is_relaxed else None
    calls = {tool.name: to_json(modern(tool.parameters)).decode() for tool in relaxed_tools}
    return lambda: CheckedParser(make_parser(), content, calls)


def _prepared(
    request: Request,
    leased: LeasedModel,
    body: GenerationFields,
    prompts: Prompts,
    make_parser: MakeParser,
    view_slices: Iterator[None] | None = None,
) -> Prepared:
    check_wanted()
    body = _drop_unavailable(request, leased, body)
    info, settings = leased.engine.info, leased.settings
    request_id = record_of(request).engine_request_id
    tenant = "" if settings.ngram_scope == "process" else key_digest(request)
    engine_requests = make_engine_requests(request_id, body, prompts, info, settings, tenant)
    return Prepared(body, engine_requests, make_parser, view_slices)


def _drop_unavailable(request: Request, leased: LeasedModel, body: GenerationFields) -> GenerationFields:
    """Drop a draft type or kind of decoding that this server lacks; the answer stays the same."""
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
    """Return the error for a request's draft type; None if the server has that type."""
    of_one = ", or start the server with --draft-model and the folder of one"
    has_no_model = settings.draft_model is None or bool(info.head)
    lacking: dict[str, tuple[bool, str, str]] = {
        "draft-model": (has_no_model, "has no draft model", ", or start the server with --draft-model"),
        "mtp": (info.head != "mtp", "serves no model with an MTP head", of_one),
        "eagle3": (info.head != "eagle3", "has no EAGLE-3 head", of_one),
        "dflash": (info.head != "dflash", "has no DFlash drafter", of_one),
        "wedlm": (info.mask_token_id is None, "serves no WeDLM model", ""),
    }
    kind = body.draft.type or ""
    is_lacking, missing, remedy = lacking.get(kind, (False, "", ""))
    if not is_lacking:
        return None
    # Those that need no model of a kind.
    drafters = ", ".join(one for one in get_args(DraftType) if one not in lacking)
    phrase = f"is '{kind}', but this server {missing}; use one of {drafters}{remedy}"
    return bad_field("draft.type", phrase, "no_draft_model")


_UINT64 = 2**64


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one of n choices, in [0, 2**64).

    The first choice has the request's seed; the others have hashes of it.

    Source: the finalizer of SplitMix64 (Steele et al. 2014).
    """
    if choice == 0:
        return seed % _UINT64
    mixed = (seed + choice * 0x9E3779B97F4A7C15) % _UINT64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % _UINT64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % _UINT64
    return mixed ^ (mixed >> 31)


POS_PENALTY_FACTOR = 0.01
"""Uncertainty that windowed decoding adds for each position ahead, unless the request names another."""


def choose_window(body: WindowFields, info: ModelInfo, settings: Settings) -> WindowSettings | None:
    """Return the window settings of a request, or None if it is not decoded in windows.

    Raises BadRequestError, naming the field, if the model or the settings do not allow one of its values.
    """
    given = [name for name in WindowFields.model_fields if getattr(body, name) is not None]
    decoding = body.wedlm_decoding or settings.wedlm_decoding
    if given and info.mask_token_id is None:
        phrase = f"is for WeDLM models, and this server's model is a {info.architecture}; leave it out"
        raise bad_field(given[0], phrase, "unsupported_parameter")
    if decoding == "off":
        if others := [name for name in given if name != "wedlm_decoding"]:
            raise bad_field(others[0], "is allowed only with wedlm_decoding: streaming")
        return None
    if not info.can_decode_windows or info.mask_token_id is None:
        raise bad_field("wedlm_decoding", "is 'streaming', which this model's caches do not support")
    if settings.exact:
        raise bad_field("wedlm_decoding", "is 'streaming', but this server's answers are exact (--exact)")
    size, most = body.wedlm_window_size or settings.wedlm_window_size, settings.wedlm_window_size
    if size > most:
        raise bad_field("wedlm_window_size", f"is {size}; at most {most} is allowed (--wedlm-window-size)")
    threshold, factor = body.wedlm_entropy_threshold, body.wedlm_pos_penalty_factor
    if threshold is None:
        threshold = "none" if settings.wedlm_entropy_threshold is None else settings.wedlm_entropy_threshold
    return WindowSettings(
        info.mask_token_id,
        size,
        None if threshold == "none" else threshold,
        POS_PENALTY_FACTOR if factor is None else factor,
        bool(body.wedlm_anchor),
    )


GREEDY_BELOW = 1e-5
"""Lower temperatures are sampled as 0: dividing logits by them would overflow."""


def make_engine_requests(
    request_id: str,
    body: GenerationFields,
    prompts: Prompts,
    info: ModelInfo,
    settings: Settings,
    tenant: str = "",
) -> list[GenerationRequest]:
    """Make one engine request for each choice: all choices of the first prompt first, as OpenAI does.

    Raises BadRequestError if the model or the settings do not allow a token id, the prompt's length, n, or
    the fields of windowed decoding.
    """
    if body.n > MAX_N:
        raise bad_field("n", f"is {body.n}; at most {MAX_N} choices are allowed")
    num_sequences = len(prompts.token_ids) * body.n
    if num_sequences > settings.capacity:
        is_of_n = len(prompts.token_ids) == 1 and body.n > 1
        raise BadRequestError(
            f"{len(prompts.token_ids)} prompts with {body.n} choices each are {num_sequences} sequences; "
            f"this server holds at most {settings.capacity} (--max-rows and --max-queue).",
            param="n" if is_of_n else body.prompt_field,
            code="invalid_value",
        )
    if prompts.images and body.truncate_prompt_tokens is not None:
        phrase = "could cut an image in two; send 'truncation': 'auto' with images"
        raise bad_field("truncate_prompt_tokens", phrase)
    check_ids(body, info)
    window_settings = choose_window(body, info, settings)
    seed = secrets.randbits(63) if body.seed is None else body.seed
    defaults = settings.sampling_defaults == "model"
    guard = _loop_guard(body, info, settings)
    limits = _answer_limits(info, settings)
    most = body.requested_max_tokens or settings.default_max_tokens or limits.max_tokens
    samplings = [_sampling(body, choice_seed(seed, choice), info, defaults) for choice in range(body.n)]
    requests: list[GenerationRequest] = []
    for whole in prompts.token_ids:
        prompt = truncate(whole, body, info)
        room = check_length(prompt, body.prompt_field, info)
        # The engine generates at least one token, which is not returned if only the prompt is scored.
        wanted = 1 if body.is_scoring else most or room
        for sampling in samplings:
            requests.append(
                GenerationRequest(
                    id=f"{request_id}-{len(requests)}",
                    prompt=prompt,
                    max_tokens=min(wanted, room),
                    sampling=sampling,
                    stop=body.stop,
                    draft=DraftChoice(body.draft.type, body.draft.max_tokens),
                    prediction=prompts.prediction,
                    views=prompts.views,
                    tenant=tenant,
                    grammar=prompts.grammar,
                    top_logprobs=body.num_top_logprobs,
                    prompt_logprobs=body.wants_prompt_logprobs,
                    stop_tokens=body.stop_token_ids,
                    reports_progress=body.stream and body.return_progress,
                    reports_usage=body.stream and body.timings_per_token,
                    reports_origins=body.draft.trace,
                    window_settings=window_settings,
                    loop_guard_tokens=guard,
                    head_tokens=max(0, prompts.head_tokens - len(whole) + len(prompt)),
                    images=prompts.images,
                )
            )
    return requests


LOOP_GUARD_TOKENS = 2048
"""How many tokens that only repeat one text end an answer, unless its request or the model names another
number: more than a text has that is meant to repeat itself."""


def default_loop_guard(info: ModelInfo, settings: Settings) -> int:
    """Return the loop guard of an answer whose request sets no limit of tokens; 0 for none."""
    of_model = _answer_limits(info, settings).loop_guard_tokens
    return LOOP_GUARD_TOKENS if of_model is None else of_model


def _answer_limits(info: ModelInfo, settings: Settings) -> AnswerLimits:
    return info.answer_limits if settings.sampling_defaults == "model" else AnswerLimits()


def _loop_guard(body: GenerationFields, info: ModelInfo, settings: Settings) -> int:
    """Return after how many looping tokens to end an answer; 0 for never."""
    if body.loop_guard_tokens is not None:
        return body.loop_guard_tokens
    # A client that sets a limit is obeyed.
    return 0 if body.requested_max_tokens is not None else default_loop_guard(info, settings)


def _sampling(body: GenerationFields, seed: int, info: ModelInfo, uses_defaults: bool) -> Sampling:
    """Return a choice's sampling. uses_defaults: missing fields get the model's recommended values."""
    defaults = info.sampling_defaults.known if uses_defaults else {}
    left_out = {name: value for name, value in defaults.items() if name not in body.model_fields_set}
    temperature = float(left_out.get("temperature", body.temperature))
    top_k = int(left_out.get("top_k", body.top_k))
    return Sampling(
        seed=seed,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=left_out.get("top_p", body.top_p),
        top_k=top_k if 0 < top_k < info.vocab_size else 0,
        min_p=left_out.get("min_p", body.min_p),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=left_out.get("repetition_penalty", body.repetition_penalty),
        logit_bias=body.logit_bias,
        allowed=body.allowed_token_ids,
        ignores_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
    )
