"""Send a request's output as a stream of server-sent events."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from sse_starlette import EventSourceResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reprise.engine.interface.stations import station
from reprise.server.errors import ApiError
from reprise.server.generation.request_output import RequestOutput
from reprise.server.output.parsing.parts import TextPart
from reprise.server.output.presenter import Events, Presenter

LINES_TYPE = "application/x-ndjson"
"""The content type of a stream of JSON lines."""


class TokenStream(EventSourceResponse):
    """A stream of server-sent events that cleans up however it ends.

    at_end: awaited once, however the stream ends. The clean-up cannot be done by the generator of the frames:
        if the client disconnects early enough, the generator never starts.
    """

    def __init__(self, frames: AsyncIterator[bytes], at_end: Callable[[], Awaitable[None]]) -> None:
        # No pings: the library sends them at fixed intervals, write_frames() only after a silence.
        super().__init__(frames, headers={"Cache-Control": "no-cache"}, ping=0)
        self._at_end = at_end

    def send_lines(self) -> None:
        """Declare the content type of JSON lines instead of that of server-sent events."""
        self.headers["content-type"] = LINES_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See starlette.responses.Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._at_end()


def known_stream(frames: bytes) -> Response:
    """Return a stream of events that were all made before it begins. frames: the events."""
    return Response(frames, headers={"Cache-Control": "no-cache"}, media_type="text/event-stream")


async def write_frames(output: RequestOutput, presenter: Presenter, first: Events) -> AsyncIterator[bytes]:
    """Yield the frames of a stream, from the first parts to the end or to an error.

    first: the parts received before the headers were sent; empty if none arrived within keep_alive_s.
    """
    events = first
    try:
        frame = presenter.format_opening(output.usage())
        while not output.is_complete:
            written = await _format_parts(output, presenter, events) if events else presenter.format_silence()
            yield frame + written
            frame = b""
            events = await output.receive()
        frame += await output.format(partial(presenter.format_end, events, output.usage(), output.timings()))
    except ApiError as fault:
        output.record_error(fault)
        frame = presenter.format_error(fault)
    # A bug in the server. The status has been sent already, so the error is sent as the last event.
    except Exception:  # noqa: BLE001 - logged by record_internal_error
        frame = presenter.format_error(output.record_internal_error())
    yield frame


async def _format_parts(output: RequestOutput, presenter: Presenter, events: Events) -> bytes:
    write = partial(presenter.format_parts, events)
    if all(isinstance(part, TextPart) for _, part in events):
        return station("format")(write)()
    # Where a text ends, some APIs repeat all of it with its log probabilities.
    return await output.format(write)
