"""What an answer is made of, once the server has read the model's text.

A reader turns one choice's text into parts as it comes; presenters (presenter.py) show them in the shapes of
one API. So what is thinking, what is a call and what is content is decided once, for all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.request import Delta, Finished, TokenLogprob

EndReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Content. logprobs: of the tokens that made it, if they were asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptPart(TextPart):
    """The prompt, where the answer begins with it."""


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """What the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A whole call of a tool. arguments: JSON text of an object. index: how many calls came before it."""

    id: str
    name: str
    arguments: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class EndPart:
    """The good end of a choice; nothing follows. stop: the stop string that ended it, if one did."""

    reason: EndReason
    stop: str | None = None


StreamedText = TextPart | ReasoningPart
Part = StreamedText | CallPart | EndPart


class OutputParser(Protocol):
    """Reads one choice. num_reasoning_tokens: of the answer's tokens, known once it has ended."""

    num_reasoning_tokens: int

    def read(self, delta: Delta) -> list[Part]:
        """What can be said of the answer now; perhaps nothing yet."""

    def end(self, finished: Finished) -> list[Part]:
        """The rest, with an EndPart as the last."""


MakeParser = Callable[[], OutputParser]


class PlainParser:
    """Takes all text for content."""

    num_reasoning_tokens = 0

    def read(self, delta: Delta) -> list[Part]:
        """See Reader."""
        return [TextPart(delta.text, delta.logprobs)]

    def end(self, finished: Finished) -> list[Part]:
        """See Reader."""
        return [EndPart(finished.reason, finished.stop)]


@dataclass
class Answer:
    """The parts of one whole choice, put together. prompt: where the answer begins with it; text goes on."""

    prompt: PromptPart | None = None
    text: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: EndReason = "stop"
    stop: str | None = None

    def add(self, part: Part) -> None:
        """Take one more part."""
        match part:
            case PromptPart():
                self.prompt = part
            case TextPart():
                self.text += part.text
                self.logprobs += part.logprobs
            case ReasoningPart():
                self.reasoning += part.text
            case CallPart():
                self.calls.append(part)
            case EndPart():
                self.reason, self.stop = part.reason, part.stop


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
