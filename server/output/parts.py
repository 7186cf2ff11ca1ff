"""The parts of a choice: text, reasoning, tool calls and the end.

A parser splits the model's text into parts as it arrives, and a presenter (presenter.py) formats them for one
API. This way the output is split into reasoning, tool calls and content by the same code for all APIs.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

from engine.model.tool_calls import WrittenCall
from engine.request import Delta, Finished, TokenLogprob

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Content.

    logprobs: of the tokens that produced it, if requested.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptPart(TextPart):
    """The prompt, if it is echoed at the start of the choice.

    The first such part has all of its text; others have log probabilities of its further tokens.
    """


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Reasoning of the model, apart from the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A complete tool call.

    arguments: a JSON object as text. index: the number of tool calls before this one.
    """

    id: str
    name: str
    arguments: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class EndPart:
    """The end of a choice that finished normally; no part follows.

    stop: the stop string that ended it, if any.
    """

    finish_reason: FinishReason
    stop: str | None = None


StreamedText = TextPart | ReasoningPart
StreamedTextT = TypeVar("StreamedTextT", bound=StreamedText)
Part = StreamedText | ToolCallPart | EndPart


ParseCalls = Callable[[], Awaitable[Sequence[WrittenCall]]]
"""Parses the text of tool calls; returns no calls if it is malformed. It may take long."""


class OutputParser(Protocol):
    """Splits the text of one choice into parts.

    num_reasoning_tokens: how many of the choice's tokens are reasoning; set with the EndPart.
    parse_pending: set if tool calls must be parsed before the parser can continue. The caller awaits it and
        calls resume() with the result before it calls another method.
    """

    num_reasoning_tokens: int
    parse_pending: ParseCalls | None

    def read(self, delta: Delta) -> list[Part]:
        """Return the parts that are certain after this delta; possibly none."""

    def end(self, finished: Finished) -> list[Part]:
        """Return the remaining parts; the last is an EndPart, or resume() returns it."""

    def resume(self, calls: Sequence[WrittenCall]) -> list[Part]:
        """Continue with the calls that parse_pending returned; return the parts that are then certain."""


MakeParser = Callable[[], OutputParser]


class PlainParser:
    """Parser that treats all text as content."""

    num_reasoning_tokens = 0
    parse_pending: ParseCalls | None = None

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        return [TextPart(delta.text, delta.logprobs)]

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        return [EndPart(finished.reason, finished.stop)]

    def resume(self, calls: Sequence[WrittenCall]) -> list[Part]:
        """See OutputParser. Never called."""
        raise NotImplementedError


@dataclass
class ChoiceOutput:
    """The whole output of one choice, collected from its parts.

    prompt: set if the prompt is echoed; text does not include it.
    """

    prompt: PromptPart | None = None
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPart] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop: str | None = None

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "ChoiceOutput":
        """Collect the parts of a choice."""
        output = cls()
        prompt: list[PromptPart] = []
        texts: list[str] = []
        reasoning: list[str] = []
        for part in parts:
            match part:
                case PromptPart():
                    prompt.append(part)
                case TextPart():
                    texts.append(part.text)
                    output.logprobs += part.logprobs
                case ReasoningPart():
                    reasoning.append(part.text)
                case ToolCallPart():
                    output.tool_calls.append(part)
                case EndPart():
                    output.finish_reason, output.stop = part.finish_reason, part.stop
        output.prompt = merge(prompt) if prompt else None
        output.text, output.reasoning = "".join(texts), "".join(reasoning)
        return output


def merge_adjacent(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts, with each run of text parts, or of reasoning parts, merged into one."""
    run: list[StreamedText] = []
    for part in parts:
        if run and type(part) is not type(run[0]):
            yield merge(run)
            run = []
        if isinstance(part, StreamedText):
            run.append(part)
        else:
            yield part
    if run:
        yield merge(run)


def merge(parts: Sequence[StreamedTextT]) -> StreamedTextT:
    """Return one part in place of several of the same kind, at least one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    text = "".join(part.text for part in parts)
    if isinstance(first, TextPart):
        logprobs = tuple(e for part in parts if isinstance(part, TextPart) for e in part.logprobs)
        return replace(first, text=text, logprobs=logprobs)
    return replace(first, text=text)
