"""Split a chat's output into reasoning, content and tool calls, which get their ids here."""

import re
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Literal

from reprise.engine.interface.events import Finished
from reprise.engine.text.markers import Marker, Markers
from reprise.server.output.parser_base import MakeParser, MarkedText, PlainParser, ToolCallRules
from reprise.server.output.parts import (
    CallArgumentsPart,
    ChoiceOutput,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.tools.readers import (
    CallFragment,
    JsonStringTracker,
    OpenedCall,
    Reader,
    WrittenCall,
    is_object,
)

MAX_HEADER_CHARACTERS = 256
"""Text without a channel that is longer than this is content."""

_BODY = "<|message|>"
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.:/-]+)")
_FUNCTION = "to=functions."

Kind = Literal["header", "reasoning", "content", "call", "done"]


class HarmonyParser(MarkedText):
    """Parser of harmony. See OutputParser. Without rules, calls become content."""

    def __init__(self, markers: Markers, rules: ToolCallRules | None = None) -> None:
        super().__init__(markers, rules)
        self._ends = [marker.text for marker in markers.inner if marker.text != _BODY]
        self._kind: Kind = "header"
        self._header = ""
        self._name = ""
        self._arguments: list[str] = []
        self._has_content = False
        self._separator = ""

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        text, self._text = self._text, ""
        if self._kind == "header":
            self._header += text
            if _BODY not in self._header and not any(end in self._header for end in self._ends):
                self._emit_text(self._header)
        else:
            self._consume(text)
            self._end_body(is_whole=finished.reason == "stop")
        is_open = self._kind != "done"
        return self._finish(finished, starts_in_reasoning=False, ends_in_content=is_open)

    def _advance(self) -> bool:
        before, marker = self._take_until([_BODY] if self._kind == "header" else self._ends)
        self._consume(before)
        if marker is None:
            return False
        if self._kind == "header":
            self._start_body(marker)
        else:
            self._end_body(is_whole=True)
            self._header = marker
        return True

    def _consume(self, text: str) -> None:
        match self._kind:
            case "header":
                self._header += text
                is_plain = not any(end in self._header for end in self._ends)
                if len(self._header) > MAX_HEADER_CHARACTERS and is_plain:
                    text, self._header, self._kind = self._header, "", "content"
                    self._emit_text(text)
            case "content":
                self._emit_text(text)
            case "reasoning" if text:
                self._alignment.skip(text)
                self._parts.append(ReasoningPart(text))
            case "call" if text:
                self._arguments.append(text)
                if self._rules.is_streamed:
                    self._parts.append(CallArgumentsPart(text, self._num_calls))
            case "done":
                self._alignment.skip(text)

    def _start_body(self, marker: str) -> None:
        self._alignment.skip(self._header + marker)
        channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
        is_function, is_analysis = _FUNCTION in self._header, channel is not None and channel[1] == "analysis"
        if recipient is not None and is_function and self._takes_calls:
            self._kind, self._name, self._arguments = "call", recipient[1], []
            if self._rules.is_streamed:
                self._parts.append(ToolCallPart(_new_id(), self._name, index=self._num_calls))
        elif is_analysis or (recipient is not None and not is_function):
            # Calls of tools that are built into the model, such as python, are part of its reasoning.
            self._kind = "reasoning"
            self._num_reasoning_blocks += is_analysis
            if self._num_reasoning_blocks > 1:
                self._parts.append(ReasoningPart("\n"))
        else:
            self._kind, self._separator = "content", "\n\n" if self._has_content else ""
        self._header = ""

    def _end_body(self, is_whole: bool) -> None:
        """End the message. is_whole: it was not cut short."""
        if self._kind == "call":
            self._end_call(is_whole)
        elif self._kind != "done":
            self._kind = "header"

    def _end_call(self, is_whole: bool) -> None:
        text, rules = "".join(self._arguments), self._rules
        if not text.strip() and is_whole:
            text = "{}"
            self._parts += [CallArgumentsPart(text, self._num_calls)] if rules.is_streamed else []
        is_call = is_whole and is_object(text)
        if rules.is_streamed or is_call:
            self._alignment.skip(text)
            if not rules.is_streamed:
                self._parts.append(ToolCallPart(_new_id(), self._name, text, self._num_calls))
            self._num_calls += 1
            self._is_cut = not is_call
            self._kind = "header" if rules.is_parallel else "done"
            rules.note("parsed")
        else:
            self._kind = "header"
            self._emit_text(text)

    def _emit_text(self, text: str) -> None:
        logprobs = self._alignment.take(text)
        if text or logprobs:
            self._has_content = True
            self._parts.append(TextPart(self._separator + text, logprobs))
            self._separator = ""


MAX_NAME_CHARACTERS = 128
"""Text that begins like a header of Muse Spark but is longer than this is content."""

_HEADER = re.compile(r"\s*(?:assistant)?\s*(?:to=(?P<to>[^\s<]+))?\s*<\|message\|>")


def parser_factory(markers: Markers, is_thinking: bool, rules: ToolCallRules | None) -> MakeParser:
    """Return a function that makes the parser of a choice.

    is_thinking: the prompt has already opened the reasoning.
    rules: None to leave tool calls in the text.
    """
    if markers.is_harmony:
        return lambda: HarmonyParser(markers, rules)
    if not markers.can_think and (rules is None or not markers.can_call):
        return PlainParser
    return lambda: MarkerParser(markers, is_thinking, rules)


class MarkerParser(MarkedText):
    """Parser that finds reasoning and tool calls by the model's markers.

    Reasoning may come before the content or after a tool call; a reasoning marker within content is text.
    A tool call is emitted once its end marker has arrived and it can be read; otherwise its text, markers
    included, stays in the content or the reasoning. In a stream, a call of a known tool begins with its name,
    and its arguments follow as they are written. Whitespace between markers is dropped. So is whitespace
    before a call if the chat template writes it there itself when the answer is sent back.

    Text without a start marker is a call too, if it stands at the start of a line and names a tool.

    Time is linear in the text, however it is split: no text is searched twice.
    """

    def __init__(
        self, markers: Markers, is_thinking: bool = False, rules: ToolCallRules | None = None
    ) -> None:
        super().__init__(markers, rules if markers.can_call else None)
        self._starts_in_reasoning = is_thinking
        self._state: Literal["content", "reasoning", "call", "done"] = (
            "reasoning" if is_thinking else "content"
        )
        self._leading_whitespace: list[str] = []
        self._num_reasoning_blocks = 1 if is_thinking else 0
        self._has_content = False
        self._has_reasoning = self._is_thought_begun = False
        self._drops_whitespace = False
        self._is_reasoning_open = is_thinking
        self._held_whitespace: list[str] = []
        self._call: list[str] = []
        self._call_opening = ""
        self._json_strings = JsonStringTracker()
        self._reader: Reader | None = None
        self._read_parts: list[Part] = []
        self._num_read = self._num_sent = 0
        self._call_within: Literal["content", "reasoning"] = "content"
        self._bare_calls = self._rules.bare_calls
        self._is_bare = False
        start = self._call_start = markers.call_start if self._takes_calls else None
        # With and without the template's whitespace.
        self._call_starts = [] if start is None else [start.text, markers.call_gap + start.text]

    def end(self, finished: Finished) -> list[Part]:
        """See OutputParser."""
        text = "".join((*self._leading_whitespace, self._text))
        self._text = ""
        match self._state:
            case "content" if self._has_content or text.strip():
                self._emit_text(text.lstrip() if self._drops_whitespace and not self._has_content else text)
            case "content" if not self._has_reasoning and not self._num_calls:
                self._emit_text(text)
            case "reasoning":
                self._emit_reasoning(text)
            case "call":
                self._append_to_call(text)
                # A call in this format that was cut short cannot be mistaken for a complete one.
                is_certain = finished.reason == "stop" and self._markers.call_format == "json_tools"
                if is_certain or self._markers.call_end is None:
                    self._end_call("")
                else:
                    self._cut_call()
        return self._finish(
            finished, starts_in_reasoning=self._starts_in_reasoning, ends_in_content=self._state == "content"
        )

    def _advance(self) -> bool:
        markers = self._markers
        match self._state:
            case "content" if not self._has_content:
                return self._start_content()
            case "content":
                bare = [] if self._bare_calls is None else self._bare_calls.starts_in(self._text)
                ends = [*self._call_starts, *bare, *self._marker_texts(*markers.separators)]
                return self._consume_until(ends, self._emit_text)
            case "reasoning":
                ends = self._marker_texts(markers.think_end, self._call_start)
                return self._consume_until(ends, self._emit_reasoning)
            case "call":
                think_end = markers.think_end if self._call_within == "reasoning" else None
                next_start = self._call_start if markers.call_end else None
                ends = self._marker_texts(markers.call_end, think_end, next_start)
                ends += [self._bare_calls.end] if self._bare_calls and self._is_bare else []
                return self._consume_until(ends, self._append_to_call)
            case "done":
                self._alignment.skip(self._text)
                self._text = ""
                return False

    @staticmethod
    def _marker_texts(*markers: Marker | None) -> list[str]:
        return [marker.text for marker in markers if marker is not None]

    def _start_content(self) -> bool:
        """Start the content, or handle a marker before it; hold back whitespace until that is decided."""
        markers = self._markers
        think_end = markers.think_end if self._is_reasoning_open else None
        texts = self._marker_texts(markers.think_start, think_end, self._call_start, *markers.separators)
        if self._bare_calls is not None:
            # An end marker may follow a call without a start marker.
            texts += [
                *self._bare_calls.starts,
                *self._marker_texts(markers.call_end if self._is_bare else None),
            ]
        if markers.is_addressed and (is_certain := self._skip_header()) is not None:
            return is_certain
        stripped = self._text.lstrip()
        if len(stripped) < len(self._text):
            self._leading_whitespace.append(self._text[: len(self._text) - len(stripped)])
            self._text = stripped
        complete = [text for text in texts if stripped.startswith(text)]
        if not complete and (not stripped or any(text.startswith(stripped) for text in texts)):
            return False
        leading, self._leading_whitespace = "".join(self._leading_whitespace), []
        if complete:
            marker = min(complete, key=len)
            self._alignment.skip(leading)
            self._text = stripped[len(marker) :]
            self._handle_marker(marker)
        else:
            if self._drops_whitespace:
                self._alignment.skip(leading)
            else:
                self._text = leading + stripped
            self._has_content = True
        return True

    def _skip_header(self) -> bool | None:
        """Skip a message's header, which names its recipient; return whether it is complete.

        Returns None if there is none.
        """
        if _BODY not in self._text:
            stripped = self._text.strip()
            is_begun = any(word.startswith(stripped[: len(word)]) for word in ("assistant", "to="))
            return False if is_begun and len(self._text) < MAX_NAME_CHARACTERS else None
        if (match := _HEADER.match(self._text)) is None:
            return None
        self._alignment.skip(match[0])
        self._text = self._text[match.end() :]
        if match["to"] == "self":
            self._start_reasoning()
        return True

    def _consume_until(self, texts: Sequence[str], consume: Callable[[str], None]) -> bool:
        """Pass the text before the first of these markers to `consume`, then handle the marker."""
        before, marker = self._take_until(texts)
        consume(before)
        if marker is None:
            return False
        self._handle_marker(marker)
        return True

    def _handle_marker(self, text: str) -> None:
        markers = self._markers
        if self._state == "call":
            self._handle_marker_in_call(text)
        elif text in self._call_starts:
            self._call_within = "reasoning" if self._state == "reasoning" else "content"
            self._start_call(text)
        elif self._bare_calls is not None and text.removeprefix("\n") in self._bare_calls.starts:
            self._call_within = "content"
            start = text.removeprefix("\n")
            self._start_call(text.removesuffix(start), is_bare=True)
            self._text = start + self._text
        elif self._state == "content" and markers.think_start and text == markers.think_start.text:
            self._alignment.skip(text)
            self._start_reasoning()
        else:
            self._alignment.skip(text)
            if markers.think_end and text == markers.think_end.text:
                if self._state == "reasoning":
                    self._end_reasoning()
                self._is_reasoning_open, self._drops_whitespace = False, True
            self._state, self._has_content = "content", False

    def _start_reasoning(self) -> None:
        self._state, self._is_reasoning_open = "reasoning", True
        self._num_reasoning_blocks += 1
        self._held_whitespace, self._is_thought_begun = ["\n"] if self._has_reasoning else [], False

    def _start_call(self, opening: str, is_bare: bool = False) -> None:
        self._state, self._call, self._json_strings = "call", [], JsonStringTracker()
        self._call_opening, self._is_bare = opening, is_bare
        self._read_parts, self._num_read, self._num_sent = [], 0, 0
        self._reader = self._rules.make_reader() if self._rules.make_reader else None

    def _append_to_call(self, text: str) -> None:
        if text:
            self._call.append(text)
            self._read(text)
        if self._markers.call_format == "json_tools":
            self._json_strings.feed(text)

    def _handle_marker_in_call(self, text: str) -> None:
        end, start = self._markers.call_end, self._call_start
        reader = self._reader
        if self._json_strings.is_open or (reader and reader.is_quoting and not reader.is_broken):
            self._append_to_call(text)
        elif self._is_bare and self._bare_calls and text == self._bare_calls.end:
            self._append_to_call(text)
            self._end_call("")
        elif end and text == end.text:
            self._read(text)
            self._end_call(text)
        else:
            self._cut_call()
            if self._state == "done":
                return
            if start and text == start.text:
                # The earlier start marker was only mentioned in the text.
                self._start_call(text)
            else:
                self._handle_marker(text)

    def _read(self, text: str) -> None:
        if self._reader is not None and not self._reader.is_broken:
            for fragment in self._reader.feed(text):
                self._take_fragment(fragment)

    def _take_fragment(self, fragment: CallFragment) -> None:
        is_opening = not isinstance(fragment, str)
        self._num_read += is_opening
        if self._num_read > 1 and not self._rules.is_parallel:
            return
        index = self._num_calls + self._num_read - 1
        # Text after a call that waits for the section's end waits too.
        is_sent = self._rules.is_streamed and not self._read_parts and not isinstance(fragment, WrittenCall)
        self._num_sent += is_sent and is_opening
        parts = self._parts if is_sent else self._read_parts
        parts.append(
            CallArgumentsPart(fragment, index) if isinstance(fragment, str) else _part_of(fragment, index)
        )

    def _end_call(self, ending: str) -> None:
        """End a section at its marker: emit its calls, or its text if it cannot be read."""
        if self._emit_read_calls(ending):
            return
        calls = [] if self._reader is None else self._reader.read_other_forms("".join(self._call))
        self._rules.note("parsed" if calls else "malformed")
        if not calls:
            self._emit_call_as_text(ending)
            return
        self._leave_call(ending)
        for call in calls if self._rules.is_parallel else calls[:1]:
            self._parts.append(_part_of(call, self._num_calls))
            self._num_calls += 1
        self._is_cut = False

    def _cut_call(self) -> None:
        """End a section without its marker: whole calls and what was sent are calls, all else is text."""
        if not self._emit_read_calls(""):
            self._emit_call_as_text("")

    def _emit_read_calls(self, ending: str) -> bool:
        """Emit the calls that the reader found in the section; return whether it could read all of it.

        ending: the section's end marker, which the reader has read too; "" if it is missing.
        """
        reader, rules = self._reader, self._rules
        if reader is None:
            return False
        rest = reader.rest.removesuffix(ending)
        has_end = self._markers.call_end is not None
        is_whole = bool(reader.num_closed) and not reader.is_open and not reader.is_broken
        is_whole = is_whole and (not has_end or rest.strip(" \n]") == "")
        if not is_whole and not self._num_sent:
            return False
        num_calls = self._num_sent
        if is_whole:
            rules.note("parsed")
            self._parts += (
                self._read_parts if rules.is_streamed else ChoiceOutput.of(self._read_parts).tool_calls
            )
            num_calls = self._num_read
        self._is_cut = reader.num_closed < self._num_sent
        self._num_calls += num_calls if rules.is_parallel else min(1, num_calls)
        self._leave_call(ending)
        if not has_end and rest.strip() and rules.is_parallel:
            self._emit_text(rest)
        return True

    def _leave_call(self, ending: str) -> None:
        """Go on after a section that was read."""
        self._alignment.skip(self._call_text(ending))
        self._state = "content" if self._rules.is_parallel else "done"
        self._has_content = self._drops_whitespace = False

    def _emit_call_as_text(self, end: str) -> None:
        """Emit the collected text as content or reasoning, since it is not a tool call."""
        text = self._call_text(end)
        self._state = self._call_within
        if self._state == "reasoning":
            self._emit_reasoning(text)
        else:
            self._has_content = True
            self._emit_text(text)

    def _call_text(self, end: str) -> str:
        return "".join((self._call_opening, *self._call, end))

    def _emit_text(self, text: str) -> None:
        logprobs = self._alignment.take(text)
        if text or logprobs:
            self._parts.append(TextPart(text, logprobs))

    def _emit_reasoning(self, text: str) -> None:
        """Emit reasoning. Outer whitespace is held back: it counts only if the template would show it."""
        self._alignment.skip(text)
        stripped = text.rstrip()
        self._held_whitespace.append(text[: len(text) - len(text.lstrip())] if stripped else text)
        if not stripped:
            return
        held, gap = "".join(self._held_whitespace), self._markers.thought_gap
        if not self._has_reasoning:
            held = "" if gap is None else held.removeprefix(gap[0])
        self._parts.append(ReasoningPart(held + stripped.lstrip()))
        self._held_whitespace = [text[len(stripped) :]]
        self._has_reasoning = self._is_thought_begun = True

    def _end_reasoning(self) -> None:
        """Emit the whitespace at the end of a thought that the template does not write itself."""
        gap = self._markers.thought_gap
        rest = "" if gap is None else "".join(self._held_whitespace).removesuffix(gap[1])
        if rest and self._is_thought_begun:
            self._parts.append(ReasoningPart(rest))


def _new_id() -> str:
    return f"call_{token_hex(12)}"


def _part_of(call: OpenedCall | WrittenCall, index: int) -> ToolCallPart:
    arguments = call.arguments if isinstance(call, WrittenCall) else ""
    return ToolCallPart(call.id or _new_id(), call.name, arguments, index)
