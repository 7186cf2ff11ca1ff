"""A request's id comes back in the response and is in every log line about the request."""

import asyncio
import io
import json
import math

import pytest

from reprise.server.logs import LOGGER, configure_logs
from reprise.server.metrics import loop_lag
from tests.server import fake_engine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}]}
GIVEN = {"X-Request-Id": "order-66/a.b:c"}


@pytest.fixture
def log(monkeypatch):
    """Redirects the log to a string."""
    # A busy machine adds no line.
    monkeypatch.setattr(loop_lag, "HELD_S", math.inf)

    def configure(log_format):
        stream = io.StringIO()
        configure_logs(log_format, "debug", stream)
        return stream

    return configure


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("POST", CHAT, 200),
        ("POST", "/v1/completions", 400),
        ("GET", "/nowhere", 404),
    ],
)
async def test_the_client_s_id_comes_back(client, method, path, status):
    response = await client.request(method, path, headers=GIVEN, json=BODY)
    assert response.status_code == status
    assert response.headers["x-request-id"] == GIVEN["X-Request-Id"]


async def test_without_one_each_request_gets_a_new_id(client):
    ids = {(await client.get("/health")).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


async def test_a_stream_and_anthropic_s_clients_get_it_too(client):
    response = await client.post(CHAT, json=BODY | {"stream": True}, headers=GIVEN)
    assert response.headers["x-request-id"] == GIVEN["X-Request-Id"]
    response = await client.post("/v1/messages", json={}, headers=GIVEN)
    assert response.headers["request-id"] == GIVEN["X-Request-Id"]
    assert response.json()["request_id"] == GIVEN["X-Request-Id"]


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "tab\there", "caf\xe9".encode()])
@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", CHAT)])
async def test_an_invalid_id_is_refused(client, method, path, given):
    response = await client.request(method, path, headers={"X-Request-Id": given}, json=BODY)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("x-request-id", "invalid_request_id")
    assert response.headers["x-request-id"].startswith("req-")


async def test_two_requests_with_the_same_id_do_not_mix(client, engine):
    engine.script = fake_engine.wait_first
    asked = [asyncio.create_task(client.post(CHAT, json=BODY, headers=GIVEN)) for _ in range(2)]
    assert await asyncio.to_thread(engine.wait_until, lambda: len(engine.requests) == 2, 5)  # noqa: TID251
    first, second = (request.id for request in engine.requests)
    assert first != second
    assert all(name.startswith(GIVEN["X-Request-Id"]) for name in (first, second))
    engine.cancel(first)
    engine.release()
    responses = await asyncio.gather(*asked)
    assert sorted(response.status_code for response in responses) == [200, 503]
    (told,) = [response.json()["id"] for response in responses if response.status_code == 200]
    assert GIVEN["X-Request-Id"] not in told


async def test_every_line_about_a_request_has_its_id(client, engine, log):
    def fail():
        LOGGER.warning("on its way")
        raise RuntimeError("out of luck")

    engine.status = fail
    written = log("text")
    assert (await client.post(CHAT, json=BODY, headers=GIVEN)).status_code == 500
    lines = [line for line in written.getvalue().splitlines() if "WARNING" in line or "INFO" in line]
    assert len(lines) == 2
    assert all(GIVEN["X-Request-Id"] in line for line in lines)
    written = log("json")
    await client.post(CHAT, json=BODY, headers=GIVEN)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert len(lines) == 3
    assert {line["id"] for line in lines} == {GIVEN["X-Request-Id"]}


async def test_the_log_names_the_error(client, engine, log):
    written = log("json")
    engine.script = fake_engine.fail_midway
    await client.post(CHAT, json={})
    await client.post(CHAT, json=BODY | {"stream": True})
    await client.post(CHAT, json=BODY)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["error"] for line in lines] == [
        "missing_required_parameter",
        "request_failed",
        "request_failed",
    ]
