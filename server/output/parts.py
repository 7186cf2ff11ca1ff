"""The parts of an answer, and what formats them for an API."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypeVar

from reprise.engine.interface.events import Delta, Finished, TokenLogprob
from reprise.server.tools.readers import BareCalls, Reader

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of the answer's content.

    logprobs: log probabilities of the part's tokens, if requested.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptPart(TextPart):
    """A part of the prompt, which the start of the choice echoes.

    The first such part has all of the prompt's text; the others have only log probabilities of more tokens.
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
class CallStartPart:
    """The beginning of a tool call whose arguments follow in parts. index: see ToolCallPart."""

    id: str
    name: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class CallArgumentsPart:
    """The next bit of the arguments of the call that began last. index: see ToolCallPart."""

    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class EndPart:
    """The end of a choice that finished normally; no part follows.

    stop: the stop string that ended the choice, if any. schema_valid: whether the answer satisfies schemas
        that were not enforced in full, "unknown" if the check cannot tell; None if it was not checked.
    """

    finish_reason: FinishReason
    stop: str | None = None
    schema_valid: bool | Literal["unknown"] | None = None


@dataclass(frozen=True, slots=True)
class ReportPart:
    """What a delta reports besides its text.

    fields: further fields of a stream's next chunk: the progress of the prompt, or the timings so far.
    trace: (text, source) of the next runs of the model's text; see reprise.engine.interface.events.Delta.
    tokens: ids of the whole answer and of its prompt, at the end, if the request asks for them.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    trace: tuple[tuple[str, str], ...] = ()
    tokens: "ChoiceTokens | None" = None


@dataclass(frozen=True, slots=True)
class ChoiceTokens:
    """The token ids of a choice. answer: with the token that ended it, if one did. prompt: as encoded."""

    answer: tuple[int, ...]
    prompt: tuple[int, ...]


StreamedText = TextPart | ReasoningPart
Mergeable = StreamedText | CallArgumentsPart
MergeableT = TypeVar("MergeableT", bound=Mergeable)
Part = Mergeable | ToolCallPart | CallStartPart | ReportPart | EndPart


class OutputParser(ABC):
    """Splits the text of one choice into parts.

    num_reasoning_tokens: how many of the choice's tokens are reasoning; set with the EndPart.
    make_end: set by end() if making the EndPart takes long (a schema to check); the caller awaits it.
    """

    num_reasoning_tokens = 0
    make_end: Callable[[], Awaitable[EndPart]] | None = None

    @abstractmethod
    def read(self, delta: Delta) -> list[Part]:
        """Return the parts that are certain after this delta; possibly none."""

    @abstractmethod
    def end(self, finished: Finished) -> list[Part]:
        """Return the remaining parts; the last is an EndPart, unless make_end is set."""


MakeParser = Callable[[], OutputParser]


@dataclass(frozen=True, slots=True)
class ToolCallRules:
    """How to parse tool calls.

    is_parallel: whether a choice may have several tool calls; if not, it ends with the first.
    make_reader: returns a reader for the calls of one section; None if the format is not known, or harmony.
    is_streamed: whether arguments are emitted while the reader reads them. Otherwise a section's text is
        emitted once it is complete: as calls, or as text if it has none.
    note: called with the outcome of each complete section.
    bare_calls: the form of calls without the marker before them; None if it cannot be told from text.
    """

    is_parallel: bool = True
    make_reader: Callable[[], Reader] | None = None
    is_streamed: bool = False
    note: Callable[[Literal["parsed", "malformed"]], None] = lambda _: None
    bare_calls: BareCalls | None = None


@dataclass
class ChoiceOutput:
    """The whole output of one choice, collected from its parts.

    prompt: the prompt's text if it is echoed; text does not include it.
    """

    prompt: PromptPart | None = None
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPart] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: EndPart = EndPart("stop")
    trace: list[tuple[str, str]] = field(default_factory=list)
    tokens: ChoiceTokens | None = None

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "ChoiceOutput":
        """Collect the parts of a choice."""
        output = cls()
        prompt: list[PromptPart] = []
        texts: list[str] = []
        reasoning: list[str] = []
        begun: list[tuple[CallStartPart, list[str]]] = []
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
                case CallStartPart():
                    begun.append((part, []))
                case CallArgumentsPart():
                    begun[-1][1].append(part.text)
                case ReportPart():
                    output.trace += part.trace
                    output.tokens = part.tokens or output.tokens
                case EndPart():
                    output.end = part
        output.tool_calls += [
            ToolCallPart(start.id, start.name, "".join(arguments), start.index) for start, arguments in begun
        ]
        output.tool_calls.sort(key=lambda call: call.index)
        output.prompt = merge(prompt) if prompt else None
        output.trace = merge_runs(output.trace)
        output.text, output.reasoning = "".join(texts), "".join(reasoning)
        return output


def merge_runs(runs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return runs of text with neighbours of the same source merged."""
    grouped = groupby(runs, key=lambda run: run[1])
    return [("".join(text for text, _ in same), source) for source, same in grouped]


def merge_adjacent(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts, with each run of text, of reasoning, or of a call's arguments merged into one."""
    run: list[Mergeable] = []
    for part in parts:
        if run and type(part) is not type(run[0]):
            yield merge(run)
            run = []
        if isinstance(part, Mergeable):
            run.append(part)
        else:
            yield part
    if run:
        yield merge(run)


def merge(parts: Sequence[MergeableT]) -> MergeableT:
    """Merge several parts of the same kind, at least one, into one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    text = "".join(part.text for part in parts)
    if isinstance(first, TextPart):
        logprobs = tuple(e for part in parts if isinstance(part, TextPart) for e in part.logprobs)
        return replace(first, text=text, logprobs=logprobs)
    return replace(first, text=text)
