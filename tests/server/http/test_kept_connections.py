"""A connection stays open after every kind of response, so that the client can reuse it."""

import asyncio
import random

import httpx
import pytest

from reprise.server.app import create_app
from tests.server.served import served

NUM_CLIENTS, NUM_ROUNDS = 8, 3
COMPLETIONS = "/v1/completions"
KEPT = [
    # (method, path, what to send, status)
    ("POST", COMPLETIONS, {"json": {"prompt": "hello"}}, 200),
    ("POST", COMPLETIONS, {"json": {"prompt": "hello", "stream": True}}, 200),
    ("POST", COMPLETIONS, {"json": {"prompt": "hello", "n": 3}}, 200),
    ("POST", COMPLETIONS, {"json": {"prompt": {}}}, 400),
    ("POST", COMPLETIONS, {"content": b"x" * 50_000, "headers": {"Content-Type": "text/plain"}}, 415),
    ("POST", COMPLETIONS, {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "/nowhere", {"content": b"x" * 50_000}, 404),
    ("GET", COMPLETIONS, {}, 405),
    ("GET", "/health", {"headers": {"X-Request-Id": "two words"}}, 400),
    ("GET", "/v1/models", {}, 200),
    ("GET", "/metrics", {}, 200),
    ("DELETE", "/v1/responses/none", {}, 404),
    ("POST", "/v1/embeddings", {"json": {"input": "x", "model": "m"}}, 400),
]


@pytest.fixture
def busy_url(engine, settings):
    with served(create_app(engine, settings)) as address:
        yield address


async def _count_connections(url, requests):
    """Send requests one after the other; return how many connections that took. Raises if one is dropped."""
    num_connections = 0

    async def trace(event, _):
        nonlocal num_connections
        num_connections += event == "connection.connect_tcp.complete"

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for method, path, options, status in requests:
            response = await http.request(method, path, extensions={"trace": trace}, **options)
            assert response.status_code == status, (method, path, response.text)
    return num_connections


async def test_no_client_is_dropped_and_each_keeps_its_connection(busy_url):
    chance = random.Random(5)
    plans = [chance.sample(KEPT * NUM_ROUNDS, len(KEPT) * NUM_ROUNDS) for _ in range(NUM_CLIENTS)]
    counts = await asyncio.gather(*(_count_connections(busy_url, plan) for plan in plans))
    assert counts == [1] * NUM_CLIENTS


async def test_a_client_can_send_requests_after_one_that_was_too_large(busy_url):
    too_large = ("POST", COMPLETIONS, {"content": b"x" * 200_000}, 413)
    plans = [[KEPT[0], too_large, *KEPT[:4]] * 2 for _ in range(NUM_CLIENTS)]
    await asyncio.gather(*(_count_connections(busy_url, plan) for plan in plans))


async def test_a_client_that_leaves_costs_no_other_client_its_connection(busy_url, engine):
    async def leave():
        async with httpx.AsyncClient(base_url=busy_url, timeout=60) as http:
            for _ in range(NUM_ROUNDS):
                asked = {"prompt": "hello " * 50, "stream": True}
                async with http.stream("POST", COMPLETIONS, json=asked) as response:
                    assert response.status_code == 200

    staying = [_count_connections(busy_url, KEPT * NUM_ROUNDS) for _ in range(NUM_CLIENTS // 2)]
    counts = await asyncio.gather(*staying, *(leave() for _ in range(NUM_CLIENTS // 2)))
    assert counts[: len(staying)] == [1] * len(staying)
    assert await asyncio.to_thread(engine.wait_until, lambda: engine.num_live == 0, 10)  # noqa: TID251
