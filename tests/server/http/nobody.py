"""Connections without a network."""

import asyncio

from uvicorn.server import ServerState

from reprise.server.http.connection_limits import Connection, uvicorn_config


class Transport(asyncio.Transport):
    """A connection to nobody. num_unread: bytes that nobody has read."""

    def __init__(self, num_unread: int = 0) -> None:
        super().__init__({"peername": ("10.0.0.1", 5)})
        self.num_unread = num_unread
        self.closing = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.closing.is_set()

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.closing.set()

    def abort(self):
        self.closing.set()

    def get_write_buffer_size(self):
        return self.num_unread

    def write(self, data):
        self.num_unread += len(data)

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


async def answer_nothing(_scope, _receive, _send):
    await asyncio.get_running_loop().create_future()


def connection(state: ServerState, transport: Transport, timeout_s: float = 60) -> Connection:
    """A connection that has just been made, to an app that never answers."""
    config = uvicorn_config(answer_nothing, timeout_s)
    config.load()
    made = config.http_protocol_class(config=config, server_state=state, app_state={})
    made.connection_made(transport)
    return made
