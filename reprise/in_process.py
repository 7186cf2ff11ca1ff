"""Call the server's ASGI app in this process: a thread with an event loop, and no socket."""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from fastapi import FastAPI

from reprise.server.errors import CLIENT_CLOSED_REQUEST, ApiError, UnavailableError

LEFT = "The request was cancelled before its answer was complete."
CLOSED = "The LLM is closed."
_HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]


class Mailbox:
    """A queue between threads. Its single reader may be a thread or a coroutine of any event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Any] = deque()
        self._waiting: Future[Any] | None = None

    def put(self, item: Any) -> None:
        """Hand an item to the reader. An exception is raised where it is read."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
            # False if the reader has given up.
            if waiting is None or not waiting.set_running_or_notify_cancel():
                self._items.append(item)
                return
        _settle(waiting, item)

    def get(self) -> "Future[Any]":
        """Return a future of the next item."""
        future: Future[Any] = Future()
        with self._lock:
            if not self._items:
                self._waiting = future
                return future
            item = self._items.popleft()
        _settle(future, item)
        return future


def _settle(future: "Future[Any]", item: Any) -> None:
    if isinstance(item, Exception):
        future.set_exception(item)
    else:
        future.set_result(item)


class InProcess:
    """The event loop of an app, on a thread of its own. Any thread may call its methods.

    max_requests: requests passed to the app at once; the others wait here.
    """

    def __init__(self, app: FastAPI, max_requests: int) -> None:
        self._app = app
        self._turns = asyncio.Semaphore(max_requests)
        self._stopping = asyncio.Event()
        self._is_closed = False
        # Reentrant: a signal's handler may close while its thread posts.
        self._lock = threading.RLock()
        self._requests: set[asyncio.Task[None]] = set()
        loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="reprise-llm", daemon=True)
        self._thread.start()
        self._loop = loop.result()

    def post(self, path: str, body: Mapping[str, Any]) -> "Call":
        """Begin a request. Raises UnavailableError once close() has been called."""
        call = Call(self._loop)
        content = json.dumps(body).encode()
        with self._lock:
            if self._is_closed:
                raise UnavailableError(CLOSED, code="closed")
            self._loop.call_soon_threadsafe(self._begin, path, content, call)
        return call

    def close(self) -> None:
        """Stop the loop, once its requests have ended. The engine must have been stopped before."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                # In order: what was posted before has begun by then, and is waited for.
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self, loop: "Future[asyncio.AbstractEventLoop]") -> None:
        try:
            asyncio.run(self._live(loop))
        except Exception as fault:
            if loop.done():
                raise
            loop.set_exception(fault)

    async def _live(self, loop: "Future[asyncio.AbstractEventLoop]") -> None:
        async with self._app.router.lifespan_context(self._app):
            loop.set_result(asyncio.get_running_loop())
            await self._stopping.wait()
            if self._requests:
                await asyncio.wait(self._requests)

    def _begin(self, path: str, content: bytes, call: "Call") -> None:
        task = asyncio.ensure_future(self._serve(path, content, call))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _serve(self, path: str, content: bytes, call: "Call") -> None:
        try:
            async with self._turns:
                if not call.has_left.is_set():
                    await self._app(_scope(path), call.receiver(content), call.send)
            call.end()
        # A bug in the server, after the response has begun: for the caller, who is in this process.
        except Exception as fault:  # noqa: BLE001
            call.end(fault)
        except asyncio.CancelledError:
            call.end(UnavailableError(CLOSED, code="closed"))
            raise


class Call:
    """A request under way.

    whole: the complete response body; an ApiError unless the status is 200. parts: the body in pieces, then
        None. Read one of the two.
    has_left: set once the caller has cancelled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.whole: Future[bytes] = Future()
        self.parts = Mailbox()
        self.has_left = asyncio.Event()
        self._loop = loop
        self._status = CLIENT_CLOSED_REQUEST
        self._body: list[bytes] = []

    def cancel(self) -> None:
        """Cancel like a client that hangs up: nothing more is computed. Thread-safe."""
        # Of no effect once the loop has closed, which another thread may do at any time.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.has_left.set)

    def receiver(self, content: bytes) -> Callable[[], Any]:
        """Return ASGI's receive(): the body, then nothing until the caller leaves."""
        messages = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await self.has_left.wait()
            return {"type": "http.disconnect"}

        return receive

    async def send(self, message: Mapping[str, Any]) -> None:
        """Take a message of the response: ASGI's send()."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif part := message.get("body"):
            self._body.append(part)
            if self._status == 200:
                self.parts.put(part)

    def end(self, fault: Exception | None = None) -> None:
        """Tell the reader that the response is over. Called once, on the loop.

        fault: the app's exception, if any.
        """
        whole = b"".join(self._body)
        if fault is None and self._status != 200:
            left = UnavailableError(LEFT, code="cancelled").body()["error"]
            error = left if self._status == CLIENT_CLOSED_REQUEST else json.loads(whole)["error"]
            fault = ApiError.of(error, self._status)
        if fault is None:
            self.whole.set_result(whole)
        else:
            self.whole.set_exception(fault)
        self.parts.put(fault)


def _scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": _HEADERS,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": {},
    }
