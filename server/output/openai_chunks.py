"""OpenAI's completions and chat completions, whole and as chunks."""

import secrets
from collections.abc import Sequence

from pydantic_core import to_json

from server.errors import ApiError
from server.output.openai_format import ResponseFormat, ResponseHead
from server.output.openai_objects import Choice, Timings, UsageBlock
from server.output.parts import Answer, Part, ReasoningPart, StreamedText, TextPart, merge
from server.output.presenter import Events

DONE = b"data: [DONE]\n\n"


class ChunkPresenter:
    """Presents one request's answers as OpenAI does.

    wants_usage: as OpenAI does it, every chunk then has a usage field, null but in the last one.
    """

    def __init__(
        self, heading: ResponseHead, dialect: ResponseFormat, num_choices: int, wants_usage: bool
    ) -> None:
        self._heading = heading
        self._dialect = dialect
        self._num_choices = num_choices
        self._wants_usage = wants_usage
        self._no_usage: dict[str, None] = {"usage": None} if wants_usage else {}
        self._around_text: dict[tuple[int, type[StreamedText]], tuple[bytes, bytes]] = {}

    def whole(self, answers: Sequence[Answer], usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        choices = [self._dialect.answer(index, answer) for index, answer in enumerate(answers)]
        return self._heading.answer(self._dialect, choices, usage, timings).to_json()

    def opening(self, _usage: UsageBlock) -> bytes:
        """What stands before all text: the role, for each choice."""
        choices = [self._dialect.opening(index) for index in range(self._num_choices)]
        return b"".join(self._chunk(choice) for choice in choices if choice is not None)

    def parts(self, events: Events) -> bytes:
        """See Presenter."""
        return b"".join(self._part(index, part) for index, part in _joined(events))

    def last(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter. The timings stand in the last chunk."""
        *earlier, (index, end) = _joined(events)
        frames = [self._part(*event) for event in earlier]
        if self._wants_usage:
            closing = self._heading.chunk(self._dialect, [], usage=usage, timings=timings)
            frames += [self._part(index, end), _frame(closing.to_json())]
        else:
            frames.append(self._part(index, end, timings))
        return b"".join(frames) + DONE

    def error(self, fault: ApiError) -> bytes:
        """See Presenter."""
        return _frame(to_json(fault.body()))

    def text(self, index: int, text: str, kind: type[StreamedText] = TextPart) -> bytes:
        """A piece of text. The one thing done for every token, so it serialises nothing but the text."""
        if (index, kind) not in self._around_text:
            self._around_text[index, kind] = self._split_at_text(index, kind)
        before, after = self._around_text[index, kind]
        return before + to_json(text) + after

    def _part(self, index: int, part: Part, timings: Timings | None = None) -> bytes:
        if isinstance(part, TextPart) and not part.logprobs:
            return self.text(index, part.text)
        if isinstance(part, ReasoningPart):
            return self.text(index, part.text, ReasoningPart)
        return self._chunk(self._dialect.part(index, part), timings)

    def _chunk(self, choice: Choice, timings: Timings | None = None) -> bytes:
        closing: dict[str, Timings | None] = {} if timings is None else {"timings": timings}
        return _frame(self._heading.chunk(self._dialect, [choice], **self._no_usage, **closing).to_json())

    def _split_at_text(self, index: int, kind: type[StreamedText]) -> tuple[bytes, bytes]:
        mark = secrets.token_hex(16)
        before, _, after = self._chunk(self._dialect.part(index, kind(mark))).partition(to_json(mark))
        return before, after


def _joined(events: Events) -> list[tuple[int, Part]]:
    """Text of one choice that came while the loop was busy becomes one part; ends come where they came."""
    joined: list[tuple[int, Part]] = []
    texts: dict[int, list[StreamedText]] = {}
    for index, part in events:
        if index in texts and not isinstance(part, type(texts[index][0])):
            joined.append((index, merge(texts.pop(index))))
        if isinstance(part, StreamedText):
            texts.setdefault(index, []).append(part)
        else:
            joined.append((index, part))
    return joined + [(index, merge(parts)) for index, parts in texts.items()]


def _frame(json: bytes) -> bytes:
    return b"data: " + json + b"\n\n"
