"""A generation as a stream of server-sent events."""

from collections.abc import AsyncIterator, Awaitable, Callable

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from server.errors import ApiError
from server.generation.request_output import RequestOutput
from server.output.presenter import KEEP_ALIVE, Events, Presenter


class TokenStream(EventSourceResponse):
    """The response that streams.

    at_end: awaited once, however the stream ends. The frames' own clean-up is no place for that:
    if the client leaves early enough, the frames are never begun.
    """

    def __init__(self, frames: AsyncIterator[bytes], at_end: Callable[[], Awaitable[None]]) -> None:
        # No pings: those go by the clock alone, the frames know when there was silence.
        super().__init__(frames, headers={"Cache-Control": "no-cache"}, ping=0)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See starlette.responses.Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._at_end()


async def write_frames(output: RequestOutput, presenter: Presenter, first: Events) -> AsyncIterator[bytes]:
    """Write a stream from its first parts to its end, or to an error in its midst.

    first: what was received before the headers went out; empty if that was silence.
    """
    events = first
    try:
        frame = presenter.format_opening(output.usage())
        while not output.is_complete:
            yield frame + (presenter.format_parts(events) if events else KEEP_ALIVE)
            frame = b""
            events = await output.receive()
        frame += presenter.format_end(events, output.usage(), output.timings())
    except ApiError as fault:
        output.note(fault)
        frame = presenter.format_error(fault)
    # A fault of the server's own: the status is out, but the client must not wait for the rest.
    except Exception:  # noqa: BLE001 - logged by record_internal_error
        frame = presenter.format_error(output.record_internal_error())
    yield frame
