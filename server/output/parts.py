"""The parts of an answer; collecting and merging them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypeVar

from reprise.engine.interface.events import TokenLogprob

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
    """A part of the prompt, echoed at the start of the choice.

    The first such part has all of the prompt's text; the others have only log probabilities of more tokens.
    """


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Reasoning of the model, apart from the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A tool call, or its beginning if its arguments follow in parts of their own.

    arguments: a JSON object as text; "" if it follows. index: the number of tool calls before this one.
    """

    id: str
    name: str
    arguments: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class CallArgumentsPart:
    """The next bit of the arguments of the call that began last. index: see ToolCallPart."""

    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class EndPart:
    """The end of a choice that finished normally; no part follows.

    stop: the stop string that ended the choice, if any.
    schema_valid: whether the answer satisfies schemas that the grammar did not enforce in full; "unknown" if
        the check failed, None if there was no check.
    """

    finish_reason: FinishReason
    stop: str | None = None
    schema_valid: bool | Literal["unknown"] | None = None

    @property
    def checked(self) -> dict[str, Any]:
        """A dictionary of the response field schema_valid; empty if the answer was not checked."""
        return {} if self.schema_valid is None else {"schema_valid": self.schema_valid}


@dataclass(frozen=True, slots=True)
class ReportPart:
    """A delta's report besides its text.

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
Part = Mergeable | ToolCallPart | ReportPart | EndPart
Events = Sequence[tuple[int, Part]]
"""(index of the choice, part), in order of arrival."""


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
        calls: list[tuple[ToolCallPart, list[str]]] = []
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
                    calls.append((part, [part.arguments]))
                case CallArgumentsPart():
                    calls[-1][1].append(part.text)
                case ReportPart():
                    output.trace += part.trace
                    output.tokens = part.tokens or output.tokens
                case EndPart():
                    output.end = part
        output.tool_calls = [replace(call, arguments="".join(arguments)) for call, arguments in calls]
        output.prompt = merge(prompt) if prompt else None
        output.trace = merge_runs(output.trace)
        output.text, output.reasoning = "".join(texts), "".join(reasoning)
        return output


def merge_runs(runs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return runs of text with neighbours of the same source merged."""
    grouped = groupby(runs, key=lambda run: run[1])
    return [("".join(text for text, _ in same), source) for source, same in grouped]


def merge_events(events: Events) -> list[tuple[int, Part]]:
    """Merge each choice's text into as few parts as possible, even if other choices' parts came in between.

    Reasoning and a call's arguments are merged likewise. The order of parts within a choice stays.
    """
    merged: list[tuple[int, Part]] = []
    runs: dict[int, list[Mergeable]] = {}
    for index, part in events:
        if index in runs and type(part) is not type(runs[index][0]):
            merged.append((index, merge(runs.pop(index))))
        if isinstance(part, Mergeable):
            runs.setdefault(index, []).append(part)
        else:
            merged.append((index, part))
    return merged + [(index, merge(parts)) for index, parts in runs.items()]


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
