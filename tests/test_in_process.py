"""Requests to an app in this process end, however it is closed."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from fastapi import FastAPI

from reprise.in_process import Call, InProcess
from reprise.server.errors import UnavailableError

WAIT_S = 60.0


def test_requests_posted_while_it_closes_end_or_are_refused() -> None:
    app, has_begun = FastAPI(), threading.Event()
    may_end: Future[None] = Future()

    @app.post("/wait")
    async def wait() -> dict[str, str]:
        has_begun.set()
        await asyncio.wrap_future(may_end)
        return {}

    server = InProcess(app, max_requests=1)
    calls = [server.post("/wait", {})]
    assert has_begun.wait(WAIT_S)
    closing = threading.Thread(target=server.close)
    closing.start()
    code = _post_until_refused(server, calls, closing)
    may_end.set_result(None)
    closing.join(WAIT_S)
    assert code == "closed"
    assert {call.whole.result(WAIT_S) for call in calls} == {b"{}"}
    with pytest.raises(UnavailableError, match="closed"):
        server.post("/wait", {})


def _post_until_refused(server: InProcess, calls: list[Call], closing: threading.Thread) -> str | None:
    """Post requests while a server closes, until one is refused; return why."""
    for _ in range(1000):
        try:
            calls.append(server.post("/wait", {}))
        except UnavailableError as fault:
            return fault.code
        closing.join(0.001)
    return None


def test_a_cancelled_task_ends_its_request() -> None:
    app = FastAPI()

    @app.post("/lost")
    async def lost() -> None:
        raise asyncio.CancelledError

    server = InProcess(app, max_requests=1)
    call = server.post("/lost", {})
    with pytest.raises(UnavailableError):
        call.whole.result(WAIT_S)
    with pytest.raises(UnavailableError):
        call.parts.get().result(WAIT_S)
    server.close()
