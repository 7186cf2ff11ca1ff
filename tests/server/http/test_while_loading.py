"""Until the server listens, every request gets a 503 that says how far the start is."""

import signal
import socket

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.server import run
from reprise.server.http.while_loading import WhileLoading
from reprise.server.run import bind_address, url_of
from tests.server.fake_engine import FakeEngine

SAID = "The model is still loading: Loading m, 42 %. Try again soon."
OPENAI = {"error": {"message": SAID, "type": "server_error", "param": None, "code": "loading"}}
HEALTH = {"status": "loading", "running": 0, "waiting": 0, "phase": "Loading m", "progress": 0.42}


@pytest.fixture
def bound():
    with bind_address("127.0.0.1", 0) as bound:
        yield bound


def test_each_api_is_told_the_phase_in_its_own_format(bound):
    with WhileLoading(Settings(), bound) as waiting:
        waiting.advance("Loading m", 0.42)
        with httpx.Client(base_url=url_of(bound)) as client:
            asked = [
                client.get("/health"),
                client.post("/v1/chat/completions", content=b" " * 300_000),
                client.post("/chat/completions", json={}),
                client.post("/v1/messages", json={}),
                client.post("/api/chat", json={}),
            ]
    assert {answer.status_code for answer in asked} == {503}
    assert {answer.headers["retry-after"] for answer in asked} == {"5"}
    health, *chats, anthropic, ollama = [answer.json() for answer in asked]
    assert (health, chats, ollama) == (HEALTH, [OPENAI] * 2, {"error": SAID})
    assert anthropic.pop("request_id").startswith("req-")
    assert anthropic == {"type": "error", "error": {"type": "overloaded_error", "message": SAID}}


def test_keys_and_hosts_are_checked_as_later(bound):
    with WhileLoading(Settings(api_key=["secret"]), bound) as waiting:
        waiting.advance("Loading m", 0.42)
        url = f"{url_of(bound)}/v1/models"
        statuses = [
            httpx.get(url, headers=headers).status_code
            for headers in ({}, {"authorization": "Bearer secret"}, {"host": "evil.example"})
        ]
        assert httpx.get(f"{url_of(bound)}/health").json() == HEALTH
    assert statuses == [401, 503, 403]


def test_who_comes_between_waits_for_the_server(bound):
    with WhileLoading(Settings(), bound) as waiting:
        waiting.advance("Loading m", 0.42)
    with socket.create_connection(bound.getsockname()) as client:
        accepted, address = bound.accept()
        accepted.close()
        assert address == client.getsockname()


def test_without_a_phase_nobody_listens(bound):
    with WhileLoading(Settings(), bound), pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname())


def test_a_server_answers_while_its_engine_starts(bound, monkeypatch):
    told = []

    class Slow(FakeEngine):
        def start(self, on_progress=None):
            on_progress("Loading m", 0.42)
            told.append(httpx.get(f"{url_of(bound)}/health").json())

    monkeypatch.setattr(run.HttpServer, "run", lambda *_, **__: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert run.serve(Slow(), Settings(), bound) == 0
    assert told == [HEALTH]


def test_models_are_prepared_once_the_port_is_bound(monkeypatch, capsys):
    told = []

    def prepare(_, tell):
        tell("Loading m", 0.42)
        told.append(httpx.get(f"http://127.0.0.1:{port}/health").json())
        return Settings(model="/no/such/model", port=port)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(run, "configure_logs", lambda *_, **__: None)
    assert run.run(Settings(port=port), prepare=prepare) == 1
    assert told == [HEALTH]
    assert "/no/such/model" in capsys.readouterr().err


def test_without_a_phase_the_port_closes_with_the_socket(bound):
    bound.listen()
    unused = WhileLoading(Settings(), bound)
    address = bound.getsockname()
    bound.close()
    with unused, pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
