"""Serve an app with a real uvicorn on a real port, in a thread."""

import contextlib
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from reprise.server.http.connection_limits import uvicorn_config
from reprise.server.run import bind_address, url_of


class _Announcing(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = threading.Event()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.is_listening.set()


@contextlib.contextmanager
def served(app: FastAPI, timeout_s: float = 60.0) -> Iterator[str]:
    """Serve the app while inside the block; yields its URL."""
    bound = bind_address("127.0.0.1", 0)
    server = _Announcing(uvicorn_config(app, timeout_s, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    assert server.is_listening.wait(240)
    try:
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()
