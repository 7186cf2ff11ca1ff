"""POST /v1/chat/completions and /v1/completions: the routes, and how answers are formatted."""

import secrets
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.errors import ApiError
from reprise.server.generation.lease import lease_for
from reprise.server.generation.prepare import prepare_chat, prepare_completion
from reprise.server.generation.stream import answer, response_head
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.output.openai_objects import (
    AssistantMessage,
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    Choice,
    CompletionChoice,
    CompletionLogprobs,
    ContinuedToolCall,
    Delta,
    Envelope,
    MessageToolCall,
    MoreArguments,
    MoreInput,
    Timings,
    TracedText,
    UsageBlock,
    chat_logprobs,
    finite,
)
from reprise.server.output.parts import (
    CallArgumentsPart,
    CallStartPart,
    ChoiceOutput,
    ChoiceTokens,
    EndPart,
    Mergeable,
    Part,
    PromptPart,
    ReasoningPart,
    ReportPart,
    StreamedText,
    TextPart,
    ToolCallPart,
    merge,
    merge_runs,
)
from reprise.server.output.presenter import KEEP_ALIVE, Events, ResponseHead
from reprise.server.output.text_parser import PromptPositions, TokenPositions
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.tools import InputDecoder


class CompletionLogprobsBuilder:
    """Log probabilities of one choice of /v1/completions, formatted as its tokens arrive.

    text_offset counts characters from the start of the choice's text, over all chunks.
    """

    def __init__(self) -> None:
        self._positions = TokenPositions()
        self._prompt = PromptPositions("")
        self._has_started = False

    def add(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Format the next tokens.

        text: the part of these tokens' text that can be sent already.
        """
        return _format(entries, [self._advance(entry, text) for entry in entries])

    def add_prompt(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """Format the next tokens of an echoed prompt.

        text: the whole prompt in the first call, "" in later ones.
        """
        if not self._has_started:
            self._prompt, self._positions = PromptPositions(text), TokenPositions(len(text))
            self._has_started = True
        return _format(entries, [self._prompt.add(entry.token_bytes) for entry in entries])

    def _advance(self, entry: TokenLogprob, text: str) -> int:
        """Return the next token's offset and move past the token."""
        token_bytes = entry.token_bytes
        if not self._has_started and text and not text.startswith(" "):
            # Some tokenizers start every word with a space, which is dropped at the start of a text.
            token_bytes = token_bytes.removeprefix(b" ")
        self._has_started = True
        return self._positions.add(token_bytes)


def _format(entries: Sequence[TokenLogprob], offsets: list[int]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[_token_string(entry.token_bytes) for entry in entries],
        token_logprobs=[None if entry.logprob is None else finite(entry.logprob) for entry in entries],
        top_logprobs=[None if entry.logprob is None else _top_logprobs(entry) for entry in entries],
        text_offset=offsets,
    )


def _top_logprobs(entry: TokenLogprob) -> dict[str, float]:
    """Return the most likely tokens, and the sampled token if it is not among them."""
    found: dict[str, float] = {}
    for _, token_bytes, logprob in entry.top:
        found.setdefault(_token_string(token_bytes), finite(logprob))
    found.setdefault(_token_string(entry.token_bytes), finite(entry.logprob))
    return found


def _token_string(token_bytes: bytes) -> str:
    r"""Return a token as text, or in OpenAI's notation bytes:\xff if it is not valid UTF-8."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


class ResponseFormat(Protocol):
    """The object names and choice objects of one endpoint."""

    id_prefix: str
    response_object: str
    chunk_object: str

    def choice(self, index: int, output: ChoiceOutput) -> Choice:
        """Return a choice of a response that is not streamed."""

    def opening_choice(self, index: int) -> Choice | None:
        """Return the content of the chunk that precedes a choice's first part, or None for no such chunk."""

    def chunk_choice(self, index: int, part: Part) -> Choice:
        """Return the content of the chunk for a part."""


class ChatFormat:
    """Format of /v1/chat/completions. Use a new one for each request.

    opens_with: content of a stream's first chunk: OpenAI sends null if there may be tool calls, else "".
    wants_logprobs: the response then has a logprobs object, even if it has no tokens.
    custom_tools: names of the tools that are free-form.
    """

    id_prefix = "chatcmpl"
    response_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        opens_with: str | None = "",
        wants_logprobs: bool = False,
        custom_tools: Collection[str] = (),
    ) -> None:
        self._opens_with = opens_with
        self._wants_logprobs = wants_logprobs
        self._custom_tools = custom_tools
        self._decoders: dict[tuple[int, int], InputDecoder] = {}

    def choice(self, index: int, output: ChoiceOutput) -> Choice:
        """See ResponseFormat."""
        content = output.text if output.text or not output.tool_calls else None
        message = AssistantMessage(role="assistant", content=content, refusal=None)
        if output.reasoning:
            message.reasoning_content = output.reasoning
        if output.tool_calls:
            message.tool_calls = [self._start_call(index, call) for call in output.tool_calls]
        logprobs = chat_logprobs(output.logprobs) if self._wants_logprobs else None
        choice = ChatChoice(
            index=index, message=message, logprobs=logprobs, finish_reason=output.finish_reason
        )
        if output.schema_valid is not None:
            choice.schema_valid = output.schema_valid
        add_reports(choice, output.trace, output.tokens)
        return choice

    def opening_choice(self, index: int) -> Choice:
        """See ResponseFormat."""
        delta = Delta(role="assistant", content=self._opens_with, refusal=None)
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)

    def chunk_choice(self, index: int, part: Part) -> Choice:
        """See ResponseFormat."""
        delta, finish_reason, logprobs = Delta(), None, None
        match part:
            case TextPart():
                delta = Delta(content=part.text)
                logprobs = chat_logprobs(part.logprobs) if part.logprobs else None
            case ReasoningPart():
                delta = Delta(reasoning_content=part.text)
            case ToolCallPart() | CallStartPart():
                call = self._start_call(index, part)
                call.index = part.index
                delta = Delta(tool_calls=[call])
            case CallArgumentsPart():
                delta = Delta(tool_calls=[self._continue_call(index, part)])
            case EndPart():
                finish_reason = part.finish_reason
        chunk = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        if isinstance(part, EndPart) and part.schema_valid is not None:
            chunk.schema_valid = part.schema_valid
        return chunk

    def _start_call(self, index: int, call: ToolCallPart | CallStartPart) -> MessageToolCall:
        arguments = call.arguments if isinstance(call, ToolCallPart) else ""
        if call.name not in self._custom_tools:
            function = CalledFunction(name=call.name, arguments=arguments)
            return MessageToolCall(id=call.id, type="function", function=function)
        decoder = self._decoders[index, call.index] = InputDecoder()
        custom = CalledCustom(name=call.name, input=decoder.feed(arguments))
        return MessageToolCall(id=call.id, type="custom", custom=custom)

    def _continue_call(self, index: int, part: CallArgumentsPart) -> ContinuedToolCall:
        decoder = self._decoders.get((index, part.index))
        if decoder is None:
            return ContinuedToolCall(index=part.index, function=MoreArguments(arguments=part.text))
        return ContinuedToolCall(index=part.index, custom=MoreInput(input=decoder.feed(part.text)))


class CompletionFormat:
    """Format of /v1/completions, where chunks have the shape of responses. Use a new one for each request.

    wants_logprobs: the response then has a logprobs object, even if it has no tokens.
    """

    id_prefix = "cmpl"
    response_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, wants_logprobs: bool = False) -> None:
        self._wants_logprobs = wants_logprobs
        self._builders: defaultdict[int, CompletionLogprobsBuilder] = defaultdict(CompletionLogprobsBuilder)

    def choice(self, index: int, output: ChoiceOutput) -> Choice:
        """See ResponseFormat."""
        parts = [TextPart(output.text, tuple(output.logprobs))]
        if output.prompt is not None:
            parts.insert(0, output.prompt)
        text, logprobs = "".join(part.text for part in parts), self._logprobs(index, *parts)
        choice = CompletionChoice(
            text=text, index=index, logprobs=logprobs, finish_reason=output.finish_reason
        )
        if output.schema_valid is not None:
            choice.schema_valid = output.schema_valid
        add_reports(choice, output.trace, output.tokens)
        return choice

    def opening_choice(self, _index: int) -> None:
        """See ResponseFormat."""
        return

    def chunk_choice(self, index: int, part: Part) -> Choice:
        """See ResponseFormat. The parts are text or the end: completions are not parsed for anything else."""
        text = part.text if isinstance(part, TextPart) else ""
        finish_reason = part.finish_reason if isinstance(part, EndPart) else None
        logprobs = self._logprobs(index, part) if isinstance(part, TextPart) and part.logprobs else None
        return CompletionChoice(text=text, index=index, logprobs=logprobs, finish_reason=finish_reason)

    def _logprobs(self, index: int, *parts: TextPart) -> CompletionLogprobs | None:
        """Return the log probabilities of consecutive parts."""
        if not self._wants_logprobs:
            return None
        builder = self._builders[index]
        logprobs = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for part in parts:
            add = builder.add_prompt if isinstance(part, PromptPart) else builder.add
            more = add(part.logprobs, part.text)
            for name in CompletionLogprobs.model_fields:
                getattr(logprobs, name).extend(getattr(more, name))
        return logprobs


def add_reports(choice: Choice, trace: Sequence[tuple[str, str]], tokens: ChoiceTokens | None) -> None:
    """Add the sources of a choice's text, such as drafters, and its token ids. See ReportPart.

    A chat's prompt ids are not in its choices but beside them, as vLLM has it; see prompt_ids().
    """
    if trace:
        choice.draft_trace = [TracedText(text=text, source=source) for text, source in trace]
    if tokens is not None:
        choice.token_ids = list(tokens.answer)
        if isinstance(choice, CompletionChoice):
            choice.prompt_token_ids = list(tokens.prompt)


def prompt_ids(choice: Choice, tokens: ChoiceTokens | None) -> dict[str, list[int]]:
    """Return the fields that a response, or the chunk with a choice, has for the ids of a chat's prompt."""
    if tokens is None or isinstance(choice, CompletionChoice):
        return {}
    return {"prompt_token_ids": list(tokens.prompt)}


DONE = b"data: [DONE]\n\n"


def envelope(head: ResponseHead, response_format: ResponseFormat, name: str, **fields: Any) -> bytes:
    """Return a response or a chunk as JSON. name: of the kind of object.

    fields: its further fields: usage, if requested, null in all chunks of a stream but the last; timings in
        the last chunk; the fields of a ReportPart.
    """
    if head.service_tier is not None:
        fields["service_tier"] = head.service_tier
    return Envelope(
        id=f"{response_format.id_prefix}-{head.id}",
        object=name,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        **fields,
    ).to_json()


class OpenAIPresenter:
    """Presenter for /v1/chat/completions and /v1/completions.

    wants_usage: every chunk then has a usage field, null except in the last one, as in OpenAI's API.
    """

    def __init__(
        self, head: ResponseHead, response_format: ResponseFormat, num_choices: int, wants_usage: bool
    ) -> None:
        self._head = head
        self._format = response_format
        self._num_choices = num_choices
        self._wants_usage = wants_usage
        self._no_usage: dict[str, None] = {"usage": None} if wants_usage else {}
        self._around_text: dict[tuple[int, type[StreamedText]], tuple[bytes, bytes]] = {}

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        choices = [self._format.choice(index, output) for index, output in enumerate(outputs)]
        more = prompt_ids(choices[0], outputs[0].tokens)
        return envelope(
            self._head,
            self._format,
            self._format.response_object,
            choices=choices,
            usage=usage,
            timings=timings,
            **more,
        )

    def format_opening(self, _usage: UsageBlock) -> bytes:
        """See Presenter. Each choice of a chat starts with a chunk that has the role."""
        choices = [self._format.opening_choice(index) for index in range(self._num_choices)]
        return b"".join(self._chunk(choice) for choice in choices if choice is not None)

    def format_parts(self, events: Events) -> bytes:
        """See Presenter."""
        return b"".join(self._parts(events))

    def format_silence(self) -> bytes:
        """See Presenter."""
        return KEEP_ALIVE

    def format_end(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter. The last chunk carries the timings."""
        *earlier, (index, end) = events
        frames = self._parts(earlier)
        if self._wants_usage:
            closing = envelope(
                self._head, self._format, self._format.chunk_object, choices=[], usage=usage, timings=timings
            )
            frames += [self._part(index, end), _frame(closing)]
        else:
            frames.append(self._part(index, end, ReportPart({"timings": timings})))
        return b"".join(frames) + DONE

    def format_error(self, fault: ApiError) -> bytes:
        """See Presenter."""
        return _frame(to_json(fault.body()))

    def format_text(self, index: int, text: str, kind: type[StreamedText] = TextPart) -> bytes:
        """Return the chunk for a text or reasoning part.

        Called for every token, so only the text is serialized; the JSON around it is made once per choice.
        """
        if (index, kind) not in self._around_text:
            self._around_text[index, kind] = self._split_at_text(index, kind)
        before, after = self._around_text[index, kind]
        return before + to_json(text) + after

    def _parts(self, events: Events) -> list[bytes]:
        """Return the chunks of parts. What was reported with a choice's parts is in each of its chunks."""
        reports: dict[int, ReportPart] = {}
        for index, part in events:
            if isinstance(part, ReportPart):
                before = reports.get(index, ReportPart())
                fields, tokens = {**before.fields, **part.fields}, part.tokens or before.tokens
                reports[index] = ReportPart(fields, before.trace + part.trace, tokens)
        merged = _merge_by_choice([event for event in events if not isinstance(event[1], ReportPart)])
        silent = reports.keys() - {index for index, _ in merged}
        merged += [(index, reports[index]) for index in sorted(silent)]
        frames = []
        for index, part in merged:
            report = reports.get(index)
            frames.append(self._part(index, part, report))
            if report and (report.trace or report.tokens):
                # Only once, in the first of the choice's chunks.
                reports[index] = ReportPart(report.fields)
        return frames

    def _part(self, index: int, part: Part, report: ReportPart | None = None) -> bytes:
        """Return the chunk of a part. report: what is in the chunk as well."""
        if isinstance(part, TextPart) and not part.logprobs and not report:
            return self.format_text(index, part.text)
        if isinstance(part, ReasoningPart) and not report:
            return self.format_text(index, part.text, ReasoningPart)
        choice = self._format.chunk_choice(index, part)
        if report is None:
            return self._chunk(choice)
        add_reports(choice, merge_runs(report.trace), report.tokens)
        return self._chunk(choice, {**report.fields, **prompt_ids(choice, report.tokens)})

    def _chunk(self, choice: Choice, more: Mapping[str, Any] | None = None) -> bytes:
        return _frame(
            envelope(
                self._head,
                self._format,
                self._format.chunk_object,
                choices=[choice],
                **self._no_usage,
                **(more or {}),
            )
        )

    def _split_at_text(self, index: int, kind: type[StreamedText]) -> tuple[bytes, bytes]:
        """Return a chunk's JSON before and after its text, found with a random placeholder."""
        placeholder = secrets.token_hex(16)
        chunk = self._chunk(self._format.chunk_choice(index, kind(placeholder)))
        before, _, after = chunk.partition(to_json(placeholder))
        return before, after


def _merge_by_choice(events: Events) -> list[tuple[int, Part]]:
    """Merge each choice's text into as few parts as possible, even if other choices' parts came in between.

    The order of parts within a choice is kept.
    """
    merged: list[tuple[int, Part]] = []
    texts: dict[int, list[Mergeable]] = {}
    for index, part in events:
        if index in texts and not isinstance(part, type(texts[index][0])):
            merged.append((index, merge(texts.pop(index))))
        if isinstance(part, Mergeable):
            texts.setdefault(index, []).append(part)
        else:
            merged.append((index, part))
    return merged + [(index, merge(parts)) for index, parts in texts.items()]


def _frame(json: bytes) -> bytes:
    return b"data: " + json + b"\n\n"


router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Generate the next message of a conversation."""
    body = await read_body(request, ChatRequest)
    leased = await lease_for(request, body)
    # There is only one tier, whichever was requested.
    head = response_head(request, leased, body.model, "default" if body.service_tier else None)
    # OpenAI's streams begin with null content if there are tools, else with an empty string.
    response_format = ChatFormat(
        None if body.shown_tools else "",
        body.logprobs,
        {tool.name for tool in body.shown_tools if tool.is_custom},
    )
    presenter = OpenAIPresenter(head, response_format, body.n, body.wants_usage_chunk)
    return await answer(request, leased, partial(prepare_chat, request, leased, body), presenter)


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    body = await read_body(request, CompletionRequest)
    leased = await lease_for(request, body)
    head = response_head(request, leased, body.model)
    response_format = CompletionFormat(body.num_top_logprobs is not None)
    num_choices = body.n * len(body.prompt)
    presenter = OpenAIPresenter(head, response_format, num_choices, body.wants_usage_chunk)
    prepare = partial(prepare_completion, request, leased, body, head.model)
    return await answer(request, leased, prepare, presenter)
