"""The parts of a choice: text, reasoning, tool calls and the end.

A parser splits the model's text into parts as it arrives, and a presenter (presenter.py) formats them for one
API. This way the output is split into reasoning, tool calls and content by the same code for all APIs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

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
    """The prompt, if it is echoed at the start of the choice."""


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
Part = StreamedText | ToolCallPart | EndPart


class OutputParser(Protocol):
    """Splits the text of one choice into parts.

    num_reasoning_tokens: how many of the choice's tokens are reasoning; set by end().
    """

    num_reasoning_tokens: int

    def read(self, delta: Delta) -> list[Part]:
        """Return the parts that are certain after this delta; possibly none."""

    def end(self, finished: Finished) -> list[Part]:
        """Return the remaining parts; the last is an EndPart."""


MakeParser = Callable[[], OutputParser]


class PlainParser:
    """Parser that treats all text as content."""

    num_reasoning_tokens = 0

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        return [TextPart(delta.text, delta.logprobs)]

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        return [EndPart(finished.reason, finished.stop)]


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

    def add(self, part: Part) -> None:
        """Add the next part."""
        match part:
            case PromptPart():
                self.prompt = part
            case TextPart():
                self.text += part.text
                self.logprobs += part.logprobs
            case ReasoningPart():
                self.reasoning += part.text
            case ToolCallPart():
                self.tool_calls.append(part)
            case EndPart():
                self.finish_reason, self.stop = part.finish_reason, part.stop


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


def merge(parts: Sequence[StreamedText]) -> StreamedText:
    """Return one part in place of several of the same kind, at least one."""
    if len(parts) == 1:
        return parts[0]
    text = "".join(part.text for part in parts)
    if isinstance(parts[0], ReasoningPart):
        return ReasoningPart(text)
    return TextPart(text, tuple(e for part in parts if isinstance(part, TextPart) for e in part.logprobs))
