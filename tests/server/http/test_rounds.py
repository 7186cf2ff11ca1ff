"""However many connections send something, the event loop does a little of it, then serves everyone."""

import asyncio
from collections import Counter

from uvicorn.server import ServerState

from reprise.server.http.connection_limits import REQUEST_S, ROUND_S, Rounds, uvicorn_config
from tests.server.http.nobody import Transport

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
NUM_CONNECTIONS = 40


async def test_of_connections_that_all_send_requests_few_begin_in_a_round():
    round_of, begun = [0], []

    async def note(_scope, _receive, _send):
        begun.append(round_of[0])

    config, state = uvicorn_config(note, 60), ServerState()
    config.load()
    for _ in range(NUM_CONNECTIONS):
        made = config.http_protocol_class(config=config, server_state=state, app_state={})
        made.connection_made(Transport())
        made.get_buffer(-1)[: len(REQUEST)] = REQUEST
        made.buffer_updated(len(REQUEST))
    while len(begun) < NUM_CONNECTIONS:
        round_of[0] += 1
        await asyncio.sleep(0)
    # One more, as the last may begin just before the time is over.
    assert max(Counter(begun).values()) <= ROUND_S / REQUEST_S + 1


async def test_addresses_are_served_in_rotation_and_a_round_ends_when_its_time_is_over():
    now_s, done = [0.0], []

    def work(name):
        now_s[0] += 0.6 * ROUND_S
        done.append(name)

    rounds = Rounds(lambda: now_s[0])
    rounds.do(lambda: work("first"))
    assert rounds.has_time
    for name in ("a1", "a2", "a3", "b1"):
        rounds.wait(name[0], lambda name=name: work(name))
    assert not rounds.has_time
    seen = []
    while len(done) < 5:
        await asyncio.sleep(0)
        seen.append(list(done))
    assert done == ["first", "a1", "b1", "a2", "a3"]
    assert ["first", "a1", "b1"] in seen
