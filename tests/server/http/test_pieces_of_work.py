"""No piece of the event loop's work is long, whatever a connection sends: it is counted in calls."""

from functools import partial

import pytest
from uvicorn.server import ServerState

from reprise.server.http.connection_limits import READ_BYTES
from reprise.server.llama_server_api.tokens import TOKENS_AT_ONCE, json_of_tokens, with_pieces
from tests.counted_calls import count_calls
from tests.server.http.nobody import Transport, connection

pytestmark = pytest.mark.usefixtures("what_is_loaded_stays")

MOST_CALLS = 50_000
"""About 20 ms of the processor."""
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
READS = {
    "one-byte chunks": (CHUNKED, b"1\r\na\r\n" * READ_BYTES),
    "small chunks": (CHUNKED, (b"40\r\n" + b"a" * 64 + b"\r\n") * READ_BYTES),
    "headers": (HEAD, b"a:\r\n" * READ_BYTES),
    "requests": (b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * READ_BYTES),
    "empty lines": (b"", b"\r\n" * READ_BYTES),
}


@pytest.mark.parametrize("kind", READS)
async def test_what_is_read_at_once(kind):
    state, transport = ServerState(), Transport()
    connected = connection(state, transport)
    first, then = READS[kind]
    num_calls = []
    for start in range(0, 4 * READ_BYTES, READ_BYTES):
        piece = (first if start == 0 else b"") + then[start : start + READ_BYTES]
        piece = piece[:READ_BYTES]
        connected.get_buffer(-1)[: len(piece)] = piece
        if not transport.is_closing():
            num_calls.append(count_calls(partial(connected.buffer_updated, len(piece))))
    connected.connection_lost(None)
    for task in state.tasks:
        task.cancel()
    assert max(num_calls) < MOST_CALLS, kind


def test_what_is_written_of_tokens_at_once():
    def write():
        json_of_tokens(lambda some: with_pieces(lambda _: b"\xf0\x9f", some), tuple(range(TOKENS_AT_ONCE)))

    assert count_calls(write) < MOST_CALLS
