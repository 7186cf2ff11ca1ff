"""Notice that the client of a request has hung up, so that nothing is computed that nobody will read."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.types import Receive

from reprise.server.errors import ClientGoneError


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_unless_gone(
    future: asyncio.Future[Any], receive: Receive, timeout_s: float | None = None
) -> None:
    """Wait for a future, at most timeout_s seconds. Raises ClientGoneError if the client leaves first."""
    left = asyncio.ensure_future(_disconnected(receive))
    try:
        either: set[asyncio.Future[Any]] = {future, left}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if left.done() and not future.done():
            raise ClientGoneError
    finally:
        left.cancel()


class ClientWatch:
    """Whether a request's client has disconnected. on_left: called on the event loop when it has."""

    def __init__(self, on_left: Callable[[], None]) -> None:
        self._left = asyncio.get_running_loop().create_future()
        self._on_left = on_left

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected."""
        return self._left.done()

    async def wait_for(self, task: asyncio.Future[Any], deadline: float | None) -> bool:
        """Wait for a task; return whether it is done. Raises ClientGoneError if the client has left.

        deadline: time.monotonic() at which to stop waiting.
        """
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        await asyncio.wait({task, self._left}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.has_left:
            raise ClientGoneError
        return task.done()

    @contextlib.asynccontextmanager
    async def watching(self, receive: Receive) -> AsyncIterator[None]:
        """Notice within this context when the client disconnects."""

        async def watch() -> None:
            await _disconnected(receive)
            if not self.has_left:
                self._left.set_result(None)
            self._on_left()

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
