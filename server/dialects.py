"""How /v1/chat/completions and /v1/completions each say the same things."""

from dataclasses import dataclass
from typing import Any, Protocol

from server.parts import Answer, CallPart, EndPart, Part, ReasoningPart, TextPart
from server.responses import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    Choice,
    CompletionChoice,
    Delta,
    Envelope,
    MessageToolCall,
    Timings,
    UsageBlock,
)


class Dialect(Protocol):
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


class ChatDialect:
    """The shapes of /v1/chat/completions.

    opens_with: the content before a stream's first part; None where there may be none at all, as OpenAI does.
    """

    id_prefix = "chatcmpl"
    answer_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, opens_with: str | None = "") -> None:
        self._opens_with = opens_with

    def answer(self, index: int, answer: Answer) -> Choice:
        """See Dialect."""
        content = answer.text if answer.text or not answer.calls else None
        message = AssistantMessage(role="assistant", content=content, refusal=None)
        if answer.reasoning:
            message.reasoning_content = answer.reasoning
        if answer.calls:
            message.tool_calls = [_tool_call(call) for call in answer.calls]
        return ChatChoice(index=index, message=message, logprobs=None, finish_reason=answer.reason)

    def opening(self, index: int) -> Choice:
        """See Dialect."""
        delta = Delta(role="assistant", content=self._opens_with, refusal=None)
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)

    def part(self, index: int, part: Part) -> Choice:
        """See Dialect."""
        delta, reason = Delta(), None
        match part:
            case TextPart():
                delta = Delta(content=part.text)
            case ReasoningPart():
                delta = Delta(reasoning_content=part.text)
            case CallPart():
                call = _tool_call(part)
                call.index = part.index
                delta = Delta(tool_calls=[call])
            case EndPart():
                reason = part.reason
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=reason)


def _tool_call(call: CallPart) -> MessageToolCall:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return MessageToolCall(id=call.id, type="function", function=function)


class CompletionDialect:
    """The shapes of /v1/completions, where a chunk looks like a response."""

    id_prefix = "cmpl"
    answer_object = "text_completion"
    chunk_object = "text_completion"

    def answer(self, index: int, answer: Answer) -> Choice:
        """See Dialect."""
        return CompletionChoice(text=answer.text, index=index, logprobs=None, finish_reason=answer.reason)

    def opening(self, _index: int) -> None:
        """See Dialect."""
        return

    def part(self, index: int, part: Part) -> Choice:
        """See Dialect. There are only texts and ends: plain text is not read for anything else."""
        text = part.text if isinstance(part, TextPart) else ""
        reason = part.reason if isinstance(part, EndPart) else None
        return CompletionChoice(text=text, index=index, logprobs=None, finish_reason=reason)


@dataclass(frozen=True, slots=True)
class Heading:
    """What the response to one request, or all its chunks, say of themselves.

    service_tier: None where the request named none; then it is not sent.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None

    def answer(
        self, dialect: Dialect, choices: list[Choice], usage: UsageBlock, timings: Timings
    ) -> Envelope:
        """A response that does not stream."""
        return self._envelope(dialect, dialect.answer_object, choices=choices, usage=usage, timings=timings)

    def chunk(
        self, dialect: Dialect, choices: list[Choice], **closing: UsageBlock | Timings | None
    ) -> Envelope:
        """A chunk of a stream.

        closing: usage, where the request wants it, null but in the last one; timings in the last one.
        """
        return self._envelope(dialect, dialect.chunk_object, choices=choices, **closing)

    def _envelope(self, dialect: Dialect, name: str, **fields: Any) -> Envelope:
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
