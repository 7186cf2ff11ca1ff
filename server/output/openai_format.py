"""Make the objects of /v1/chat/completions and of /v1/completions, for responses and for chunks."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reprise.server.output.logprobs import CompletionLogprobsBuilder, chat_logprobs
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
    TracedText,
)
from reprise.server.output.parsing.parts import (
    CallArgumentsPart,
    CallStartPart,
    ChoiceOutput,
    ChoiceTokens,
    EndPart,
    Part,
    PromptPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.tool_formats.free_text import InputDecoder


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


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that the response to a request, or each of its chunks, starts with.

    service_tier: None if the request named no tier; the field is then not sent.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None

    def response(self, response_format: ResponseFormat, choices: list[Choice], **more: Any) -> Envelope:
        """Return a response that is not streamed. more: its further fields, such as usage and timings."""
        return self._envelope(response_format, response_format.response_object, choices=choices, **more)

    def chunk(self, response_format: ResponseFormat, choices: list[Choice], **more: Any) -> Envelope:
        """Return a chunk of a stream.

        more: the chunk's further fields: usage, if requested, null in all chunks but the last; timings in the
            last chunk; the fields of a ReportPart.
        """
        return self._envelope(response_format, response_format.chunk_object, choices=choices, **more)

    def _envelope(self, response_format: ResponseFormat, name: str, **fields: Any) -> Envelope:
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return Envelope(
            id=f"{response_format.id_prefix}-{self.id}",
            object=name,
            created=self.created,
            model=self.model,
            system_fingerprint=self.system_fingerprint,
            **fields,
        )
