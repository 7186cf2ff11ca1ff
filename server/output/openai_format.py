"""How /v1/chat/completions and /v1/completions each say the same things."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

from server.output.logprobs import CompletionTokens, chat_logprobs
from server.output.openai_objects import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    Choice,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    Envelope,
    MessageToolCall,
    Timings,
    UsageBlock,
)
from server.output.parts import Answer, CallPart, EndPart, Part, PromptPart, ReasoningPart, TextPart


class ResponseFormat(Protocol):
    """The names and shapes of one endpoint."""

    id_prefix: str
    answer_object: str
    chunk_object: str

    def answer(self, index: int, answer: Answer) -> Choice:
        """A choice of a response that does not stream."""

    def opening(self, index: int) -> Choice | None:
        """What a chunk says before a choice's first part, if anything."""

    def part(self, index: int, part: Part) -> Choice:
        """What a chunk says of a part."""


class ChatFormat:
    """The shapes of /v1/chat/completions.

    opens_with: the content before a stream's first part; None where there may be none at all, as OpenAI does.
    wants_logprobs: whether the answer tells them, though it may have no tokens.
    """

    id_prefix = "chatcmpl"
    answer_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, opens_with: str | None = "", wants_logprobs: bool = False) -> None:
        self._opens_with = opens_with
        self._wants_logprobs = wants_logprobs

    def answer(self, index: int, answer: Answer) -> Choice:
        """See Dialect."""
        content = answer.text if answer.text or not answer.calls else None
        message = AssistantMessage(role="assistant", content=content, refusal=None)
        if answer.reasoning:
            message.reasoning_content = answer.reasoning
        if answer.calls:
            message.tool_calls = [_tool_call(call) for call in answer.calls]
        logprobs = chat_logprobs(answer.logprobs) if self._wants_logprobs else None
        return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=answer.reason)

    def opening(self, index: int) -> Choice:
        """See Dialect."""
        delta = Delta(role="assistant", content=self._opens_with, refusal=None)
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)

    def part(self, index: int, part: Part) -> Choice:
        """See Dialect."""
        delta, reason, logprobs = Delta(), None, None
        match part:
            case TextPart():
                delta = Delta(content=part.text)
                logprobs = chat_logprobs(part.logprobs) if part.logprobs else None
            case ReasoningPart():
                delta = Delta(reasoning_content=part.text)
            case CallPart():
                call = _tool_call(part)
                call.index = part.index
                delta = Delta(tool_calls=[call])
            case EndPart():
                reason = part.reason
        return ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)


def _tool_call(call: CallPart) -> MessageToolCall:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return MessageToolCall(id=call.id, type="function", function=function)


class CompletionFormat:
    """The shapes of /v1/completions, where a chunk looks like a response. Used for one request.

    wants_logprobs: whether the answer tells them, though it may have no tokens.
    """

    id_prefix = "cmpl"
    answer_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, wants_logprobs: bool = False) -> None:
        self._wants_logprobs = wants_logprobs
        self._tokens: defaultdict[int, CompletionTokens] = defaultdict(CompletionTokens)

    def answer(self, index: int, answer: Answer) -> Choice:
        """See Dialect."""
        prompt = answer.prompt or PromptPart("")
        text = prompt.text + answer.text
        logprobs = self._logprobs(index, prompt, TextPart(answer.text, tuple(answer.logprobs)))
        return CompletionChoice(text=text, index=index, logprobs=logprobs, finish_reason=answer.reason)

    def opening(self, _index: int) -> None:
        """See Dialect."""
        return

    def part(self, index: int, part: Part) -> Choice:
        """See Dialect. There are only texts and ends: plain text is not read for anything else."""
        text = part.text if isinstance(part, TextPart) else ""
        reason = part.reason if isinstance(part, EndPart) else None
        logprobs = self._logprobs(index, part) if isinstance(part, TextPart) and part.logprobs else None
        return CompletionChoice(text=text, index=index, logprobs=logprobs, finish_reason=reason)

    def _logprobs(self, index: int, *parts: TextPart) -> CompletionLogprobs | None:
        """What is told of parts that follow each other."""
        if not self._wants_logprobs:
            return None
        tokens = self._tokens[index]
        told = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for part in parts:
            add = tokens.add_prompt if isinstance(part, PromptPart) else tokens.add
            more = add(part.logprobs, part.text)
            for name in CompletionLogprobs.model_fields:
                getattr(told, name).extend(getattr(more, name))
        return told


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What the response to one request, or all its chunks, say of themselves.

    service_tier: None where the request named none; then it is not sent.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None

    def answer(
        self, dialect: ResponseFormat, choices: list[Choice], usage: UsageBlock, timings: Timings
    ) -> Envelope:
        """A response that does not stream."""
        return self._envelope(dialect, dialect.answer_object, choices=choices, usage=usage, timings=timings)

    def chunk(
        self, dialect: ResponseFormat, choices: list[Choice], **closing: UsageBlock | Timings | None
    ) -> Envelope:
        """A chunk of a stream.

        closing: usage, where the request wants it, null but in the last one; timings in the last one.
        """
        return self._envelope(dialect, dialect.chunk_object, choices=choices, **closing)

    def _envelope(self, dialect: ResponseFormat, name: str, **fields: Any) -> Envelope:
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return Envelope(
            id=f"{dialect.id_prefix}-{self.id}",
            object=name,
            created=self.created,
            model=self.model,
            system_fingerprint=self.system_fingerprint,
            **fields,
        )
