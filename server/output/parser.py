"""Reads a model's text: what it thought, what it said, and which tools it called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Literal

from engine.model.markers import Marker, Markers
from engine.model.tool_calls import WrittenCall
from engine.request import Delta, Finished
from server.output.logprob_alignment import Alignment
from server.output.partial_text import JsonStrings, count_undecided, find_first
from server.output.parts import CallPart, EndPart, MakeParser, Part, PlainParser, ReasoningPart, TextPart

SELF_CONTAINED_FORMATS = frozenset({"json_tools"})
"""How calls may be written so that one that was cut short cannot be read as a whole one."""


@dataclass(frozen=True, slots=True)
class ToolCallRules:
    """How calls are read. parse: those in a text, none if it is no call. is_parallel: several count."""

    parse: Callable[[str], Sequence[WrittenCall]]
    is_parallel: bool = True


def parser_factory(markers: Markers, is_thinking: bool, rules: ToolCallRules | None) -> MakeParser:
    """What makes the readers of a request's choices.

    is_thinking: the prompt has begun the thinking. rules: None where nothing is taken for a call.
    """
    if not markers.can_think and (rules is None or not markers.can_call):
        return PlainParser
    return lambda: MarkerParser(markers, is_thinking, rules)


class MarkerParser:
    """Tells thinking and calls from content by the model's markers.

    Thinking stands before content or after a call; a marker in the midst of content is only spoken of.
    A call counts once its end has come and it can be read; otherwise its text is what it looks like: text.
    White space between the markers is nobody's.
    """

    def __init__(
        self, markers: Markers, is_thinking: bool = False, rules: ToolCallRules | None = None
    ) -> None:
        self.num_reasoning_tokens = 0
        self._markers = markers
        self._begins_thinking = is_thinking
        self._rules = rules if markers.can_call else None
        self._state: Literal["content", "reasoning", "call", "done"] = (
            "reasoning" if is_thinking else "content"
        )
        self._text = ""
        self._parts: list[Part] = []
        self._num_calls = 0
        self._num_thoughts = 1 if is_thinking else 0
        self._has_content = False
        self._has_thought = False
        self._drops_space = False
        self._is_thinking_open = is_thinking
        self._blank = ""
        self._call = ""
        self._strings = JsonStrings()
        self._call_is_in: Literal["content", "reasoning"] = "content"
        self._alignment = Alignment()

    def read(self, delta: Delta) -> list[Part]:
        """See Reader."""
        self._alignment.add(delta.logprobs)
        self._text += delta.text
        while self._advance():
            pass
        return self._taken()

    def end(self, finished: Finished) -> list[Part]:
        """See Reader."""
        text, self._text = self._text, ""
        match self._state:
            case "content" if self._has_content or text.strip():
                self._say(text.lstrip() if self._drops_space and not self._has_content else text)
            case "content" if not self._has_thought and not self._num_calls:
                self._say(text)
            case "reasoning":
                self._think(text)
            case "call":
                self._call += text
                is_whole = self._markers.call_end is None or (
                    finished.reason == "stop" and self._markers.call_format in SELF_CONTAINED_FORMATS
                )
                if not is_whole or not self._make_calls():
                    self._take_back("")
        if self._state == "content" and (rest := self._alignment.rest()):
            self._parts.append(TextPart("", rest))
        self.num_reasoning_tokens = self._markers.count_reasoning_tokens(
            finished.tokens, self._begins_thinking, self._num_thoughts
        )
        has_called = self._num_calls > 0 and finished.reason == "stop"
        return [*self._taken(), EndPart("tool_calls" if has_called else finished.reason, finished.stop)]

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _advance(self) -> bool:
        """Read on to the next marker; False if more text is needed first."""
        match self._state:
            case "content" if not self._has_content:
                return self._begin_content()
            case "content":
                return self._read_to(self._texts(self._calls_start, *self._markers.separators), self._say)
            case "reasoning":
                return self._read_to(self._texts(self._markers.think_end, self._calls_start), self._think)
            case "call":
                inner = self._markers.think_end if self._call_is_in == "reasoning" else None
                again = self._calls_start if self._markers.call_end else None
                return self._read_to(self._texts(self._markers.call_end, inner, again), self._collect)
            case "done":
                self._alignment.skip(self._text)
                self._text = ""
                return False

    @property
    def _calls_start(self) -> Marker | None:
        return None if self._rules is None else self._markers.call_start

    @staticmethod
    def _texts(*markers: Marker | None) -> list[str]:
        return [marker.text for marker in markers if marker is not None]

    def _begin_content(self) -> bool:
        """Before content: white space waits for what follows it."""
        markers = self._markers
        end = markers.think_end if self._is_thinking_open else None
        texts = self._texts(markers.think_start, end, self._calls_start, *markers.separators)
        begun = self._text.lstrip()
        complete = [text for text in texts if begun.startswith(text)]
        if complete:
            marker = min(complete, key=len)
            self._alignment.skip(self._text[: len(self._text) - len(begun)])
            self._text = begun[len(marker) :]
            self._cross(marker)
            return True
        if not begun or any(text.startswith(begun) for text in texts):
            return False
        if self._drops_space:
            self._alignment.skip(self._text[: len(self._text) - len(begun)])
            self._text = begun
        self._has_content = True
        return True

    def _read_to(self, texts: Sequence[str], take: Callable[[str], None]) -> bool:
        found = find_first(self._text, texts)
        if found is None:
            end = len(self._text) - count_undecided(self._text, texts)
            text, self._text = self._text[:end], self._text[end:]
            take(text)
            return False
        at, marker = found
        before, self._text = self._text[:at], self._text[at + len(marker) :]
        take(before)
        self._cross(marker)
        return True

    def _cross(self, text: str) -> None:
        """Go where a marker leads."""
        markers = self._markers
        if self._state == "call":
            self._cross_in_call(text)
        elif self._calls_start and text == self._calls_start.text:
            self._call_is_in = "reasoning" if self._state == "reasoning" else "content"
            self._begin_call()
        elif self._state == "content" and markers.think_start and text == markers.think_start.text:
            self._alignment.skip(text)
            self._state, self._is_thinking_open = "reasoning", True
            self._num_thoughts += 1
            self._blank = "\n" if self._has_thought else ""
        else:
            self._alignment.skip(text)
            if markers.think_end and text == markers.think_end.text:
                self._is_thinking_open, self._drops_space = False, True
            self._state, self._has_content = "content", False

    def _begin_call(self) -> None:
        self._state, self._call, self._strings = "call", "", JsonStrings()

    def _collect(self, text: str) -> None:
        self._call += text
        if self._markers.call_format == "json_tools":
            self._strings.feed(text)

    def _cross_in_call(self, text: str) -> None:
        end, start = self._markers.call_end, self._calls_start
        if self._strings.is_open:
            self._collect(text)
        elif end and text == end.text:
            if not self._make_calls(end.text):
                self._take_back(end.text)
        elif start and text == start.text:
            # The last one was only spoken of.
            self._take_back("")
            self._begin_call()
        else:
            self._take_back("")
            self._cross(text)

    def _make_calls(self, end: str = "") -> bool:
        """Take what was collected for calls, if it can be read."""
        rules = self._rules
        calls = [] if rules is None else rules.parse(self._call)
        if rules is None or not calls:
            return False
        self._alignment.skip(self._written(end))
        for call in calls if rules.is_parallel else calls[:1]:
            call_id = call.id or f"call_{token_hex(12)}"
            self._parts.append(CallPart(call_id, call.name, call.arguments, self._num_calls))
            self._num_calls += 1
        self._state = "content" if rules.is_parallel else "done"
        self._has_content = self._drops_space = False
        return True

    def _take_back(self, end: str) -> None:
        """What was collected is no call but text."""
        text = self._written(end)
        self._state = self._call_is_in
        if self._state == "reasoning":
            self._think(text)
        else:
            self._has_content = True
            self._say(text)

    def _written(self, end: str) -> str:
        start = self._calls_start
        return ("" if start is None else start.text) + self._call + end

    def _say(self, text: str) -> None:
        logprobs = self._alignment.take(text)
        if text or logprobs:
            self._parts.append(TextPart(text, logprobs))

    def _think(self, text: str) -> None:
        """Thinking goes without the white space around it."""
        self._alignment.skip(text)
        text = self._blank + text if self._has_thought else text.lstrip()
        said = text.rstrip()
        self._blank = text[len(said) :]
        if said:
            self._has_thought = True
            self._parts.append(ReasoningPart(said))
