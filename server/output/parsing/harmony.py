"""Parse harmony, the format of gpt-oss: a sequence of messages, each in a channel.

    <|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>final<|message|>content<|return|>
    <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>

Commentary that is addressed to nobody is a preamble for the user, and so content.
"""

import re
from collections.abc import Sequence
from secrets import token_hex
from typing import Literal

from reprise.engine.foreign.tool_calls import WrittenCall
from reprise.engine.interface.events import Finished
from reprise.engine.text.markers import Markers
from reprise.server.output.parsing.parts import (
    CallArgumentsPart,
    CallStartPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallRules,
)
from reprise.server.output.parsing.text_parser import MarkedText
from reprise.server.tool_formats.reader import is_object

MAX_HEADER_CHARACTERS = 256
"""Text without a channel that is longer than this is content."""

_BODY = "<|message|>"
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w-]+)")
_FUNCTION = "to=functions."

Kind = Literal["header", "reasoning", "content", "call", "done"]


class HarmonyParser(MarkedText):
    """Parser of harmony. See OutputParser.

    rules: how to treat tool calls; None if the request has no tools, so that calls become content.
    """

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

    def resume(self, calls: Sequence[WrittenCall]) -> list[Part]:
        """See OutputParser. Never called: arguments need no parser."""
        raise NotImplementedError

    def _advance(self) -> bool:
        """See MarkedText."""
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
        """Take text of the current part of a message."""
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
                if self._rules is not None and self._rules.is_streamed:
                    self._parts.append(CallArgumentsPart(text, self._num_calls))
            case "done":
                self._alignment.skip(text)

    def _start_body(self, marker: str) -> None:
        self._alignment.skip(self._header + marker)
        channel, recipient = _CHANNEL.search(self._header), _RECIPIENT.search(self._header)
        is_function = _FUNCTION in self._header
        if recipient is not None and is_function and self._rules is not None:
            self._start_call(recipient[1])
        elif (channel is not None and channel[1] == "analysis") or (
            recipient is not None and not is_function
        ):
            # Calls of tools that are built into the model, such as python, are part of its reasoning.
            self._kind = "reasoning"
            self._num_reasoning_blocks += channel is not None and channel[1] == "analysis"
            if self._num_reasoning_blocks > 1:
                self._parts.append(ReasoningPart("\n"))
        else:
            self._kind, self._separator = "content", "\n\n" if self._has_content else ""
        self._header = ""

    def _start_call(self, name: str) -> None:
        self._kind, self._name, self._arguments = "call", name, []
        if self._rules is not None and self._rules.is_streamed:
            self._parts.append(CallStartPart(f"call_{token_hex(12)}", name, self._num_calls))

    def _end_body(self, is_whole: bool) -> None:
        """End the message. is_whole: it was not cut short."""
        if self._kind == "call" and self._rules is not None:
            self._end_call(self._rules, is_whole)
        elif self._kind != "done":
            self._kind = "header"

    def _end_call(self, rules: ToolCallRules, is_whole: bool) -> None:
        text = "".join(self._arguments)
        if not text.strip() and is_whole:
            text = "{}"
            self._parts += [CallArgumentsPart(text, self._num_calls)] if rules.is_streamed else []
        if rules.is_streamed or (is_whole and is_object(text)):
            self._alignment.skip(text)
            if not rules.is_streamed:
                call_id = f"call_{token_hex(12)}"
                self._parts.append(CallStartPart(call_id, self._name, self._num_calls))
                self._parts.append(CallArgumentsPart(text, self._num_calls))
            self._num_calls += 1
            self._kind = "header" if rules.is_parallel else "done"
            rules.note_read()
        else:
            self._kind = "header"
            self._emit_text(text)

    def _emit_text(self, text: str) -> None:
        logprobs = self._alignment.take(text)
        if text or logprobs:
            self._has_content = True
            self._parts.append(TextPart(self._separator + text, logprobs))
            self._separator = ""
