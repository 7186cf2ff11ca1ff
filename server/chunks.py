"""The frames of a stream, with what they have in common serialised once."""

import secrets

from pydantic_core import to_json

from engine.request import FinishReason
from server.dialects import Dialect, Heading
from server.errors import ApiError
from server.responses import Choice, Timings, UsageBlock

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class ChunkWriter:
    """Writes one response's chunks as server-sent events.

    wants_usage: as OpenAI does it, every chunk then has a usage field, null but in the last one.
    """

    def __init__(self, heading: Heading, dialect: Dialect, num_choices: int, wants_usage: bool) -> None:
        self._heading = heading
        self._dialect = dialect
        self._no_usage: dict[str, None] = {"usage": None} if wants_usage else {}
        self._around_text = [self._split_at_text(index) for index in range(num_choices)]

    def openings(self) -> bytes:
        """What stands before all text: the role, for each choice."""
        choices = [self._dialect.opening(index) for index in range(len(self._around_text))]
        return b"".join(self._chunk(choice) for choice in choices if choice is not None)

    def text(self, index: int, text: str) -> bytes:
        """A piece of text. The one thing done for every token, so it serialises nothing but the text."""
        before, after = self._around_text[index]
        return before + to_json(text) + after

    def ending(self, index: int, reason: FinishReason, timings: Timings | None = None) -> bytes:
        """The end of a choice. timings: given if nothing follows."""
        return self._chunk(self._dialect.ending(index, reason), timings)

    def usage(self, usage: UsageBlock, timings: Timings) -> bytes:
        """The token counts, after which nothing follows."""
        return _frame(self._heading.chunk(self._dialect, [], usage=usage, timings=timings).to_json())

    def _chunk(self, choice: Choice, timings: Timings | None = None) -> bytes:
        closing: dict[str, Timings | None] = {} if timings is None else {"timings": timings}
        return _frame(self._heading.chunk(self._dialect, [choice], **self._no_usage, **closing).to_json())

    def _split_at_text(self, index: int) -> tuple[bytes, bytes]:
        mark = secrets.token_hex(16)
        before, _, after = self._chunk(self._dialect.text(index, mark)).partition(to_json(mark))
        return before, after


def error_frame(fault: ApiError) -> bytes:
    """An error after the stream began; it is the last frame."""
    return _frame(to_json(fault.body()))


def _frame(json: bytes) -> bytes:
    return b"data: " + json + b"\n\n"
