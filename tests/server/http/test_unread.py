"""What clients leave unread is bounded, in bytes and in time."""

import asyncio

from uvicorn.server import ServerState

from reprise.server.http.connection_limits import MAX_UNREAD_BYTES
from tests.server.http.nobody import Transport, connection


async def test_of_an_address_that_leaves_too_much_the_connection_with_the_most_is_closed():
    state = ServerState()
    transports = [Transport(MAX_UNREAD_BYTES // 2), Transport(MAX_UNREAD_BYTES // 2 + 1), Transport(70_000)]
    connections = [connection(state, transport) for transport in transports]
    connections[2].pause_writing()
    assert [transport.is_closed for transport in transports] == [False, True, False]
    for one in connections:
        one.connection_lost(None)


async def test_a_client_that_reads_nothing_is_left_and_a_slow_one_is_not():
    state, transport = ServerState(), Transport(100_000)
    connected = connection(state, transport, timeout_s=0.02)
    # Its request has come, so only reading counts.
    connected.buffer_updated(_put(connected, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
    connected.pause_writing()
    for _ in range(5):
        transport.num_unread -= 1
        await asyncio.sleep(0.02)
    assert not transport.is_closed
    async with asyncio.timeout(240):
        await transport.closing.wait()
    connected.connection_lost(None)
    for task in state.tasks:
        task.cancel()


def _put(connected, sent):
    connected.get_buffer(-1)[: len(sent)] = sent
    return len(sent)
