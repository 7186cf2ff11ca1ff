"""How an API shows answers: one implementation for each kind of response."""

from collections.abc import Sequence
from typing import Protocol

from server.errors import ApiError
from server.output.openai_objects import Timings, UsageBlock
from server.output.parts import Answer, Part

Events = Sequence[tuple[int, Part]]
"""(index of the choice, part), in the order in which they came."""

KEEP_ALIVE = b": keep-alive\n\n"


class Presenter(Protocol):
    """Shows the answers to one request, whole or as frames of server-sent events. Used for one request."""

    def whole(self, answers: Sequence[Answer], usage: UsageBlock, timings: Timings) -> bytes:
        """The JSON of a response that does not stream. answers: one for each choice."""

    def opening(self, usage: UsageBlock) -> bytes:
        """The frames before any part. usage: of which only the prompt's tokens are known yet."""

    def parts(self, events: Events) -> bytes:
        """The frames for parts that came together; never empty."""

    def last(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """The frames for the last parts, and those that end the stream."""

    def error(self, fault: ApiError) -> bytes:
        """The frames of an error after the stream began; nothing follows."""
