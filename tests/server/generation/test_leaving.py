"""A client that disconnects is noticed at once, whatever state its request is in.

The server sends nothing meanwhile, so that it cannot notice by a write that fails.
"""

import asyncio
import json
import socket
import threading
from concurrent.futures import Future
from dataclasses import replace

import httpx
import psutil
import pytest

from reprise.engine.interface.events import Delta, Finished, Usage
from reprise.engine.interface.models import ModelUse
from reprise.server.generation import answer
from tests.server import fake_engine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def settings(settings, monkeypatch):
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 3600)
    return replace(settings, allow_load=True)


def _leave(url, engine, num_sequences, **fields):
    """Send a request, wait until the engine has all its sequences, and disconnect."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(BODY | fields)
    head = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        assert engine.wait_until(lambda: len(engine.requests) == num_sequences)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("n", [1, 3])
def test_before_the_first_token(url, engine, stream, n):
    engine.script = fake_engine.wait_first
    _leave(url, engine, n, stream=stream, n=n)
    engine.wait_until_cancelled(n)
    assert sorted(engine.cancelled_ids) == sorted(request.id for request in engine.requests)
    assert engine.wait_until(lambda: engine.num_live == 0)


@pytest.mark.parametrize("n", [1, 3])
def test_in_mid_stream(url, engine, n):
    engine.script = fake_engine.wait_midway
    with (
        httpx.Client() as http,
        http.stream("POST", url + CHAT, json=BODY | {"stream": True, "n": n}) as response,
    ):
        assert next(response.iter_lines()).startswith("data: ")
    engine.wait_until_cancelled(n)
    assert engine.wait_until(lambda: engine.num_live == 0)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_nothing_is_expected_to_follow_an_answer_that_ends_as_its_client_leaves(
    url, engine, monkeypatch, stream
):
    def say(_, job):
        job.sink(Delta("Well,"))
        assert job.cancelled.wait(fake_engine.NEVER_S)
        job.sink(Delta(" here."))
        return Finished("stop", Usage())

    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)
    engine.has_prefix_cache, engine.script = True, say
    _leave(url, engine, 1, stream=stream)
    assert engine.wait_until(lambda: engine.num_live == 0)
    # Its next prompt is rendered after that of the first, if there were one.
    engine.script = fake_engine.says("Well.")
    assert httpx.post(url + CHAT, json=BODY).status_code == 200
    assert engine.wait_until(lambda: engine.expected)
    assert [bytes(one.prompt) for one in engine.expected] == [b"user: hello\nassistant: Well.\nuser: "]


def test_while_generating_without_streaming(url, engine):
    engine.script = fake_engine.wait_midway
    _leave(url, engine, 1, stream=False)
    engine.wait_until_cancelled(1)


def test_other_clients_are_not_disturbed(url, engine):
    engine.script = fake_engine.wait_midway
    with httpx.Client() as http, http.stream("POST", url + CHAT, json=BODY | {"stream": True}) as staying:
        lines = staying.iter_lines()
        assert next(lines).startswith("data: ")
        _leave(url, engine, 2)
        engine.wait_until_cancelled(1)
        engine.release()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert engine.cancelled_ids == [engine.requests[1].id]


def test_nothing_is_cancelled_when_all_goes_well(url, engine):
    for stream in (True, False):
        assert httpx.post(url + CHAT, json=BODY | {"stream": stream, "n": 2}).status_code == 200
    assert engine.cancelled_ids == []


@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "not loaded"])
async def test_a_request_that_is_cancelled_while_it_asks_for_a_model_keeps_none(
    client, engine, monkeypatch, is_loaded
):
    has_asked, may_go_on, has_ended = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loading: Future[ModelUse] = Future()
    if is_loaded:
        loading.set_result(ModelUse(engine, lambda _: has_ended.set()))
    else:
        loading.add_done_callback(lambda done: has_ended.set() if done.cancelled() else None)

    def acquire(_name):
        loop.call_soon_threadsafe(has_asked.set)
        assert may_go_on.wait(fake_engine.NEVER_S)
        return loading

    monkeypatch.setattr(engine, "find", lambda name: replace(engine.entries()[0], name=name))
    monkeypatch.setattr(engine, "use_loaded", lambda _: None)
    monkeypatch.setattr(engine, "acquire", acquire, raising=False)
    asking = asyncio.ensure_future(client.post(CHAT, json=BODY | {"model": "other"}))
    await asyncio.wait_for(has_asked.wait(), fake_engine.NEVER_S)
    asking.cancel()
    await asyncio.wait({asking})
    may_go_on.set()
    await asyncio.wait_for(has_ended.wait(), 10)


@pytest.mark.parametrize("path", ["/v1/models/unload", "/api/generate"])
def test_while_a_model_is_unloaded(url, engine, monkeypatch, path):
    unloading, has_ended = Future(), threading.Event()
    unloading.add_done_callback(lambda _: has_ended.set())
    monkeypatch.setattr(engine, "may_unload", True)
    monkeypatch.setattr(engine, "unload", lambda _name: unloading, raising=False)
    body = {"model": engine.info.name} | ({"keep_alive": 0} if path == "/api/generate" else {})
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + path, json=body, timeout=0.5)
    assert has_ended.wait(10)
    assert unloading.cancelled()
