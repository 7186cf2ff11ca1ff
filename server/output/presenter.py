"""The interface that formats output for one API: OpenAI's two completions APIs, Responses, or Messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reprise.server.errors import ApiError
from reprise.server.output.openai_objects import Timings, UsageBlock
from reprise.server.output.parts import ChoiceOutput, Part

Events = Sequence[tuple[int, Part]]
"""(index of the choice, part), in order of arrival."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields that the response to a request, or each of its chunks, starts with.

    service_tier: None if the request named no tier; the field is then not sent.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None


KEEP_ALIVE = b": keep-alive\n"
"""A comment, which no client shows. After an empty line, several decoders would see an empty event."""


class Presenter(Protocol):
    """Formats the output of one request, as a whole response or as server-sent events."""

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """Return the JSON body of a response that is not streamed.

        outputs: one for each choice.
        """

    def format_opening(self, usage: UsageBlock) -> bytes:
        """Return the events that precede all parts.

        usage: at this point it has only the prompt's token count.
        """

    def format_parts(self, events: Events) -> bytes:
        """Return the events for parts that arrived together; never empty."""

    def format_silence(self) -> bytes:
        """Return a frame that shows during a silence that the stream is alive; never empty."""

    def format_end(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """Return the events for the last parts, followed by the events that end the stream."""

    def format_error(self, fault: ApiError) -> bytes:
        """Return the events that report an error in a running stream and end it."""
