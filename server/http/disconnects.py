"""Notice that the client of a request has hung up, so that nothing is computed that nobody will read."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.types import Receive

from reprise.server.errors import ClientGoneError


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_unless_gone(
    future: asyncio.Future[Any], receive: Receive, timeout_s: float | None = None
) -> None:
    """Wait until a future is done, or for timeout_s seconds.

    Raises ClientGoneError if the client disconnects first.
    """
    left = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        either: set[asyncio.Future[Any]] = {future, left}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if left.done() and not future.done():
            raise ClientGoneError
    finally:
        left.cancel()


class ClientWatch:
    """Whether the client of one request has disconnected. Create it on the event loop.

    on_left: called on the event loop when the client has disconnected.
    """

    def __init__(self, on_left: Callable[[], None]) -> None:
        self._left = asyncio.get_running_loop().create_future()
        self._on_left = on_left

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected."""
        return self._left.done()

    async def wait_for(self, task: asyncio.Future[Any], deadline: float | None) -> bool:
        """Wait for a task that is part of the response; return whether it is done.

        deadline: time.monotonic() at which to stop waiting. Raises ClientGoneError if the client has left.
        """
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        either = {task, self._left}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.has_left:
            raise ClientGoneError
        return task.done()

    @contextlib.asynccontextmanager
    async def watching(self, receive: Receive) -> AsyncIterator[None]:
        """Within this context, notice when the client disconnects; wait_for() then raises ClientGoneError."""
        watch = asyncio.create_task(self._watch(receive))
        try:
            yield
        finally:
            watch.cancel()

    async def _watch(self, receive: Receive) -> None:
        await wait_for_disconnect(receive)
        if not self.has_left:
            self._left.set_result(None)
        self._on_left()
