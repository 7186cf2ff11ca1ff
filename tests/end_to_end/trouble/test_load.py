"""64 clients at once: all are served or get a Retry-After, and none hangs."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.conftest import serving

NUM_CLIENTS = 64
NUM_PLACES = 16
WITHIN_S = 200
"""Time for all of them together; generous, because the machine may be busy."""


@pytest.fixture(scope="module")
def small_url(server_folder: Path) -> Iterator[str]:
    """A server with few places and little memory: eight rows and a queue of eight, and a short context."""
    flags = ("--max-queue", str(NUM_PLACES - 8), "--memory-bytes", str(64 * 2**20))
    flags += ("--max-context-tokens", "none")
    with serving(server_folder, *flags) as (address, printed):
        assert any("hold a context of" in line for line in printed)
        yield address


async def test_64_clients_at_once_all_get_their_answers(server_url: str) -> None:
    answers = await _all_at_once(server_url)
    assert [answer.status_code for answer in answers] == [200] * NUM_CLIENTS
    assert [_num_tokens(answer) for answer in answers] == [8 + number % 5 for number in range(NUM_CLIENTS)]
    await _assert_idle(server_url)


async def test_64_clients_of_a_small_server_are_served_or_told_when_to_come_again(small_url: str) -> None:
    answers = await _all_at_once(small_url)
    served = [number for number, answer in enumerate(answers) if answer.status_code == 200]
    assert len(served) >= NUM_PLACES
    assert all(_num_tokens(answers[number]) == 8 + number % 5 for number in served)
    for answer in answers:
        if answer.status_code != 200:
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "queue_full"
            assert int(answer.headers["retry-after"]) >= 1
    await _assert_idle(small_url)


def test_a_prompt_that_memory_cannot_hold_is_told_both_sizes(small_url: str) -> None:
    body = {"model": "demo", "prompt": [5] * 8000, "max_tokens": 4}
    refused = httpx.post(f"{small_url}/v1/completions", json=body, timeout=WITHIN_S)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert error["message"].count(" MiB") == 2


async def _all_at_once(url: str) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=WITHIN_S) as client:
        async with asyncio.timeout(WITHIN_S):
            return await asyncio.gather(*(_ask(client, number) for number in range(NUM_CLIENTS)))


async def _ask(client: httpx.AsyncClient, number: int) -> httpx.Response:
    """Send a chat of ten to over a hundred tokens; every other one streams."""
    said = f"{number}: " + "tell me more about it. " * (1 + 3 * (number % 7))
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": said}],
        "max_tokens": 8 + number % 5,
        "logit_bias": {"2": -100},
        "stream": number % 2 == 1,
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    return await client.post("/v1/chat/completions", json=body)


def _num_tokens(answer: httpx.Response) -> int:
    """Return the completion tokens in the usage; check that a stream is complete."""
    if answer.headers["content-type"].startswith("application/json"):
        return int(answer.json()["usage"]["completion_tokens"])
    *_, last, done, _ = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    return int(json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"])


async def _assert_idle(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=WITHIN_S) as client:
        health = (await client.get("/health")).json()
    assert health["status"] == "ready"
    assert (health["running"], health["waiting"]) == (0, 0)
