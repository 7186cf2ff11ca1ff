"""A server is asked over HTTP, and whatever goes wrong becomes an answer with an error."""

import socket

import httpx
import pytest

from reprise.bench import peers
from reprise.bench.workloads import Turn

TOOL = {"type": "function", "function": {"name": "f"}}


def turns(count, **more):
    return [Turn(({"role": "user", "content": str(n)},), None, **more) for n in range(count)]


BODY = {"model": "tiny", "max_tokens": 4}


@pytest.fixture
def ask(server):
    """Return a function that asks the scripted server."""

    def asked(count=1, streams=1, idle_limit_s=60.0, **more):
        with httpx.Client(base_url=server.url, timeout=idle_limit_s) as client:
            return peers.ask(client, BODY, (1, 7), turns(count, **more), streams)

    return asked


def test_every_request_is_sent_once_and_every_token_counted(server, ask, full_answer):
    server.play(*full_answer)
    seen = ask(7, streams=3)
    assert len({body["messages"][0]["content"] for body in server.bodies}) == len(server.bodies) == 7
    assert 0.0 < min(answer.started_s for answer in seen) < 1.0
    for answer in seen:
        assert (answer.error, answer.text, answer.tokens) == (None, "one two three four", 4)
        assert answer.num_prompt_tokens == 64
        assert sum(tokens for _, tokens in answer.arrivals) == 4
        assert 0.0 < answer.arrivals[0][0] <= answer.arrivals[-1][0] <= answer.duration_s


def test_never_more_streams_are_open_than_asked(server, ask, full_answer):
    server.play(*full_answer)
    server.wait_for = 3
    ask(8, streams=3)
    assert server.most_at_once == 3


def test_what_is_sent_is_what_any_openai_server_takes(server, ask, full_answer):
    server.play(*full_answer)
    ask(tools=(TOOL,), is_endless=True)
    (body,) = server.bodies
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "0"}],
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [TOOL],
        "logit_bias": {"1": -100, "7": -100},
    }


def test_an_early_end_is_no_failure_and_counts_what_came(server, ask, events):
    server.play(events.frame("one"), events.frame(finish_reason="stop"), events.usage(1), events.done)
    (answer,) = ask()
    assert (answer.error, answer.tokens) == (None, 1)


def test_without_usage_chunks_are_counted(server, ask, events):
    server.play(events.frame("one two"), events.frame(" three"), events.done)
    (answer,) = ask()
    assert answer.tokens == 2


def test_several_tokens_of_one_chunk_are_all_counted(server, ask, events):
    server.play(events.frame("one two three"), events.frame(" four"), events.usage(4), events.done)
    (answer,) = ask()
    assert sum(tokens for _, tokens in answer.arrivals) == pytest.approx(4)


def test_failures_of_every_kind_are_kept_beside_what_succeeded(server, ask, full_answer, events):
    server.play(b"too busy", status=429)
    server.play(events.frame("one"), b'data: {"error": "engine died"}\n\n')
    server.play(events.frame("one"))
    server.play(*full_answer)
    seen = ask(5)
    assert [answer.error for answer in seen] == [
        "status 429: too busy",
        "error in the stream: engine died",
        "the stream ended without [DONE]",
        None,
        None,
    ]
    assert [answer.tokens for answer in seen] == [0, 0, 0, 4, 4]


def test_a_server_that_is_not_there_fails_each_request():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        seen = peers.ask(client, BODY, (), turns(2), 2)
    assert all("cannot connect" in (answer.error or "") for answer in seen)


def test_a_request_to_a_silent_server_fails_after_the_idle_limit(server, ask):
    server.silent = True
    (answer,) = ask(idle_limit_s=0.01)
    assert answer.error == "no data for 0.01 s"
