"""A submission as a stream of server-sent events."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from engine.request import Delta, Finished
from server.chunks import DONE, KEEP_ALIVE, ChunkWriter, error_frame
from server.errors import ApiError
from server.responses import Timings, UsageBlock
from server.submission import Submission

Events = Sequence[tuple[int, Delta | Finished]]


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


async def write_frames(
    submission: Submission,
    writer: ChunkWriter,
    first: Events,
    usage: Callable[[], UsageBlock] | None,
    timings: Callable[[], Timings],
) -> AsyncIterator[bytes]:
    """Write a stream from its first events to its end, or to an error in its midst.

    first: what was received before the headers went out; empty if that was silence.
    usage: counts the tokens at the end; None if the client did not ask.
    timings: what the answer took, for the very last chunk.
    """
    frame = writer.openings()
    events = first
    try:
        while not submission.is_complete:
            yield frame + (write_events(writer, events) if events else KEEP_ALIVE)
            frame = b""
            events = await submission.receive()
    except ApiError as fault:
        yield error_frame(fault)
        return
    if usage is not None:
        yield frame + write_events(writer, events) + writer.usage(usage(), timings()) + DONE
    else:
        yield frame + write_events(writer, events, timings()) + DONE


def write_events(writer: ChunkWriter, events: Events, timings: Timings | None = None) -> bytes:
    """Write events as chunks. Text of one choice that came while the loop was busy becomes one chunk.

    timings: for the last event, which is then the end of the last choice.
    """
    chunks: list[bytes] = []
    texts: dict[int, str] = {}
    for number, (index, event) in enumerate(events, 1):
        if isinstance(event, Delta):
            texts[index] = texts[index] + event.text if index in texts else event.text
        else:
            if index in texts:
                chunks.append(writer.text(index, texts.pop(index)))
            chunks.append(writer.ending(index, event.reason, timings if number == len(events) else None))
    chunks += [writer.text(index, text) for index, text in texts.items()]
    return b"".join(chunks)
