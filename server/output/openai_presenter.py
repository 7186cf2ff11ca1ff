"""Format completions and chat completions for OpenAI's API, whole or as a stream of chunks."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from reprise.server.errors import ApiError
from reprise.server.output.openai_format import ResponseFormat, ResponseHead, add_reports, prompt_ids
from reprise.server.output.openai_objects import Choice, Timings, UsageBlock
from reprise.server.output.parsing.parts import (
    ChoiceOutput,
    Mergeable,
    Part,
    ReasoningPart,
    ReportPart,
    StreamedText,
    TextPart,
    merge,
    merge_runs,
)
from reprise.server.output.presenter import KEEP_ALIVE, Events

DONE = b"data: [DONE]\n\n"


class OpenAIPresenter:
    """Presenter for /v1/chat/completions and /v1/completions.

    wants_usage: every chunk then has a usage field, null except in the last one, as in OpenAI's API.
    """

    def __init__(
        self, head: ResponseHead, response_format: ResponseFormat, num_choices: int, wants_usage: bool
    ) -> None:
        self._head = head
        self._format = response_format
        self._num_choices = num_choices
        self._wants_usage = wants_usage
        self._no_usage: dict[str, None] = {"usage": None} if wants_usage else {}
        self._around_text: dict[tuple[int, type[StreamedText]], tuple[bytes, bytes]] = {}

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        choices = [self._format.choice(index, output) for index, output in enumerate(outputs)]
        more = prompt_ids(choices[0], outputs[0].tokens)
        return self._head.response(self._format, choices, usage=usage, timings=timings, **more).to_json()

    def format_opening(self, _usage: UsageBlock) -> bytes:
        """See Presenter. Each choice of a chat starts with a chunk that has the role."""
        choices = [self._format.opening_choice(index) for index in range(self._num_choices)]
        return b"".join(self._chunk(choice) for choice in choices if choice is not None)

    def format_parts(self, events: Events) -> bytes:
        """See Presenter."""
        return b"".join(self._parts(events))

    def format_silence(self) -> bytes:
        """See Presenter."""
        return KEEP_ALIVE

    def format_end(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter. The last chunk carries the timings."""
        *earlier, (index, end) = events
        frames = self._parts(earlier)
        if self._wants_usage:
            closing = self._head.chunk(self._format, [], usage=usage, timings=timings)
            frames += [self._part(index, end), _frame(closing.to_json())]
        else:
            frames.append(self._part(index, end, ReportPart({"timings": timings})))
        return b"".join(frames) + DONE

    def format_error(self, fault: ApiError) -> bytes:
        """See Presenter."""
        return _frame(to_json(fault.body()))

    def format_text(self, index: int, text: str, kind: type[StreamedText] = TextPart) -> bytes:
        """Return the chunk for a text or reasoning part.

        Called for every token, so only the text is serialized; the JSON around it is made once per choice.
        """
        if (index, kind) not in self._around_text:
            self._around_text[index, kind] = self._split_at_text(index, kind)
        before, after = self._around_text[index, kind]
        return before + to_json(text) + after

    def _parts(self, events: Events) -> list[bytes]:
        """Return the chunks of parts. What was reported with a choice's parts is in each of its chunks."""
        reports: dict[int, ReportPart] = {}
        for index, part in events:
            if isinstance(part, ReportPart):
                before = reports.get(index, ReportPart())
                fields, tokens = {**before.fields, **part.fields}, part.tokens or before.tokens
                reports[index] = ReportPart(fields, before.trace + part.trace, tokens)
        merged = _merge_by_choice([event for event in events if not isinstance(event[1], ReportPart)])
        silent = reports.keys() - {index for index, _ in merged}
        merged += [(index, reports[index]) for index in sorted(silent)]
        frames = []
        for index, part in merged:
            report = reports.get(index)
            frames.append(self._part(index, part, report))
            if report and (report.trace or report.tokens):
                # Only once, in the first of the choice's chunks.
                reports[index] = ReportPart(report.fields)
        return frames

    def _part(self, index: int, part: Part, report: ReportPart | None = None) -> bytes:
        """Return the chunk of a part. report: what is in the chunk as well."""
        if isinstance(part, TextPart) and not part.logprobs and not report:
            return self.format_text(index, part.text)
        if isinstance(part, ReasoningPart) and not report:
            return self.format_text(index, part.text, ReasoningPart)
        choice = self._format.chunk_choice(index, part)
        if report is None:
            return self._chunk(choice)
        add_reports(choice, merge_runs(report.trace), report.tokens)
        return self._chunk(choice, {**report.fields, **prompt_ids(choice, report.tokens)})

    def _chunk(self, choice: Choice, more: Mapping[str, Any] | None = None) -> bytes:
        return _frame(self._head.chunk(self._format, [choice], **self._no_usage, **(more or {})).to_json())

    def _split_at_text(self, index: int, kind: type[StreamedText]) -> tuple[bytes, bytes]:
        """Return a chunk's JSON before and after its text, found with a random placeholder."""
        placeholder = secrets.token_hex(16)
        chunk = self._chunk(self._format.chunk_choice(index, kind(placeholder)))
        before, _, after = chunk.partition(to_json(placeholder))
        return before, after


def _merge_by_choice(events: Events) -> list[tuple[int, Part]]:
    """Merge each choice's text into as few parts as possible, even if other choices' parts came in between.

    The order of parts within a choice is kept.
    """
    merged: list[tuple[int, Part]] = []
    texts: dict[int, list[Mergeable]] = {}
    for index, part in events:
        if index in texts and not isinstance(part, type(texts[index][0])):
            merged.append((index, merge(texts.pop(index))))
        if isinstance(part, Mergeable):
            texts.setdefault(index, []).append(part)
        else:
            merged.append((index, part))
    return merged + [(index, merge(parts)) for index, parts in texts.items()]


def _frame(json: bytes) -> bytes:
    return b"data: " + json + b"\n\n"
