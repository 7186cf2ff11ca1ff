"""The common parts of output parsers: how a choice ends (finish_reason), and log probabilities of texts.

The parsers of plain text are here too.
"""

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from reprise.engine.interface.events import Delta, Finished, TokenLogprob
from reprise.engine.text.markers import Markers
from reprise.server.output.parts import EndPart, Part, PromptPart, TextPart
from reprise.server.tools.readers import BareCalls, Reader, count_partial_marker, find_first_marker


class TokenPositions:
    """Finds the positions of tokens in their text, which has a U+FFFD wherever the detokenizer puts one.

    num_characters: complete characters so far.
    """

    def __init__(self, num_characters: int = 0) -> None:
        self.num_characters = num_characters
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_bytes: bytes) -> int:
        """Move past the next token. Returns the index of the character in which its first byte lies."""
        begun = self._decoder.getstate()[0]
        # Two characters if the first byte does not continue the one that has begun.
        num_touched = len((begun + token_bytes[:1]).decode(errors="replace"))
        position = self.num_characters + max(0, num_touched - 1)
        self.num_characters += len(self._decoder.decode(token_bytes))
        return position


class LogprobAlignment:
    """Assigns log probabilities to consecutive stretches of text by counting characters.

    A token belongs to the stretch in which its first byte lies.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._num_characters = 0
        self._positions = TokenPositions()

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the log probabilities of the next tokens."""
        for entry in logprobs:
            self._waiting.append((self._positions.add(entry.token_bytes), entry))

    def take(self, text: str) -> tuple[TokenLogprob, ...]:
        """Return the tokens that start in the next stretch of text. Call it for every stretch, in order."""
        if not self._waiting:
            return ()
        self._num_characters += len(text)
        taken = []
        while self._waiting and self._waiting[0][0] < self._num_characters:
            taken.append(self._waiting.popleft()[1])
        if not self._waiting:
            # Tokens without text must not shift what follows.
            self._positions.num_characters = self._num_characters = 0
        return tuple(taken)

    def skip(self, text: str) -> None:
        """Drop the tokens of the next stretch of text."""
        self.take(text)

    def take_rest(self) -> tuple[TokenLogprob, ...]:
        """Return the tokens that never produced text."""
        waiting, self._waiting = self._waiting, deque()
        return tuple(entry for _, entry in waiting)


class OutputParser(ABC):
    """Splits the text of one choice into parts.

    num_reasoning_tokens: how many of the choice's tokens are reasoning; set with the EndPart.
    make_end: set by end() if making the EndPart takes long, to check a schema; the caller awaits it.
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
    make_reader: returns a reader for one section's calls; None for harmony or an unknown format.
    is_streamed: whether arguments are emitted while they are read. Otherwise a complete section is emitted,
        as calls or, if it has none, as text.
    note: called with the outcome of each complete section.
    bare_calls: the form of calls without a start marker; None if they cannot be told from text.
    """

    is_parallel: bool = True
    make_reader: Callable[[], Reader] | None = None
    is_streamed: bool = False
    note: Callable[[Literal["parsed", "malformed"]], None] = lambda _: None
    bare_calls: BareCalls | None = None


class MarkedText(OutputParser):
    """Base of parsers for text in which markers separate the parts of a choice. See OutputParser.

    rules: how to parse tool calls; None if the request has no tools.
    """

    def __init__(self, markers: Markers, rules: ToolCallRules | None) -> None:
        self._markers = markers
        self._takes_calls, self._rules = rules is not None, rules or ToolCallRules()
        self._text = ""
        self._parts: list[Part] = []
        self._num_calls = 0
        # Whether the last call was sent without its end, so that clients must not run it.
        self._is_cut = False
        self._num_reasoning_blocks = 0
        self._alignment = LogprobAlignment()

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        self._alignment.add(delta.logprobs)
        self._text += delta.text
        while self._advance():
            pass
        return self._take_parts()

    def _advance(self) -> bool:
        """Process the text up to the next marker, or all that is certain. Return False to wait for more."""
        raise NotImplementedError

    def _take_until(self, texts: Sequence[str]) -> tuple[str, str | None]:
        """Take the text before the first of these markers, and the marker; None if there is none yet."""
        found = find_first_marker(self._text, texts)
        if found is None:
            end = len(self._text) - count_partial_marker(self._text, texts)
            text, self._text = self._text[:end], self._text[end:]
            return text, None
        at, marker = found
        before, self._text = self._text[:at], self._text[at + len(marker) :]
        return before, marker

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _finish(self, finished: Finished, *, starts_in_reasoning: bool, ends_in_content: bool) -> list[Part]:
        """Return the last parts, once everything has been emitted."""
        if ends_in_content and (rest := self._alignment.take_rest()):
            self._parts.append(TextPart("", rest))
        self.num_reasoning_tokens = self._markers.count_reasoning_tokens(
            finished.tokens, starts_in_reasoning, self._num_reasoning_blocks
        )
        has_called = self._num_calls > 0 and finished.reason == "stop" and not self._is_cut
        return [*self._take_parts(), EndPart("tool_calls" if has_called else finished.reason, finished.stop)]


class PlainParser(OutputParser):
    """Parser that treats all text as content."""

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        return [TextPart(delta.text, delta.logprobs)]

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        return [EndPart(finished.reason, finished.stop)]


class EchoParser(PlainParser):
    """Parser of a choice that echoes its prompt. The first part has all of the prompt's text.

    prompt: the prompt's text. is_alone: whether the response has only the prompt, and no answer.
    """

    def __init__(self, prompt: str, is_alone: bool = False) -> None:
        self._waiting = [PromptPart(prompt)]
        self._is_alone = is_alone

    def read(self, delta: Delta) -> list[Part]:
        """See OutputParser."""
        if delta.is_prompt:
            text = "".join(part.text for part in self._start())
            return [PromptPart(text, delta.logprobs)]
        return [*self._start(), *([] if self._is_alone else super().read(delta))]

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        return [*self._start(), *([EndPart("length")] if self._is_alone else super().end(finished))]

    def _start(self) -> list[PromptPart]:
        """Return the prompt, unless it was returned before."""
        waiting, self._waiting = self._waiting, []
        return waiting


def echo_parsers(prompts: Sequence[str], n: int, is_alone: bool = False) -> MakeParser:
    """Return a function that makes the choices' parsers in order, n for each prompt. See EchoParser."""
    texts = iter([prompt for prompt in prompts for _ in range(n)])
    return lambda: EchoParser(next(texts), is_alone)
