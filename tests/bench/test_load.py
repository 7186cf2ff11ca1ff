import socket

import pytest

from bench.serving import traffic
from bench.serving.servers import PromptMaker
from bench.serving.traffic import RequestOptions, Server

OPTIONS = RequestOptions(max_tokens=4, forbidden_ids=(1, 7))


def questions(maker, count):
    return [maker.make() for _ in range(count)]


@pytest.fixture
def measure(server, tokenizer):
    """Return a function that asks the scripted server."""
    maker = PromptMaker(tokenizer, 64, seed=3)

    def measured(num_requests=1, concurrency=1, options=OPTIONS, idle_limit_s=60.0):
        load = Server("it", server.url, "tiny", lambda text: len(text.split()), idle_limit_s)
        return load.ask(questions(maker, num_requests), options, concurrency)

    return measured


def test_every_request_is_sent_once_and_every_token_counted(server, measure, full_answer):
    server.play(*full_answer)
    seen = measure(num_requests=7, concurrency=3)
    assert len(server.bodies) == 7
    assert len({body["messages"][0]["content"] for body in server.bodies}) == 7
    assert [row["request"] for row in seen] == list(range(7))
    for row in seen:
        assert (row["error"], row["finish_reason"], row["text"]) == (None, "length", "one two three four")
        assert (row["num_prompt_tokens"], row["tokens"], row["num_chunks"]) == (64, 4, 4)
        assert sum(tokens for _, tokens in row["arrivals"]) == 4
    wall_s = max(row["started_s"] + row["duration_s"] for row in seen)
    assert traffic.throughput(seen) == pytest.approx(28 / wall_s)


def test_never_more_streams_are_open_than_asked(server, measure, full_answer):
    server.play(*full_answer)
    server.wait_for = 3
    measure(num_requests=8, concurrency=3)
    assert server.most_at_once == 3


def test_what_is_sent_is_what_any_openai_server_takes(server, measure, full_answer):
    server.play(*full_answer)
    measure()
    (body,) = server.bodies
    assert body == {
        "model": "tiny",
        "messages": body["messages"],
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {"1": -100, "7": -100},
    }


def test_an_early_end_is_no_failure_and_counts_what_came(server, measure, events):
    server.play(events.frame("one"), events.frame(finish_reason="stop"), events.usage(1), events.done)
    (row,) = measure()
    assert (row["error"], row["tokens"], row["finish_reason"]) == (None, 1, "stop")


def test_without_usage_tokens_are_counted_from_the_text(server, measure, events):
    server.play(
        events.frame("one two"), events.frame(" three"), events.frame(finish_reason="length"), events.done
    )
    (row,) = measure()
    assert (row["counted_by"], row["tokens"]) == ("text", 3)


def test_failures_of_every_kind_are_kept_beside_what_succeeded(server, measure, full_answer, events):
    server.play(b'{"error": {"message": "too busy"}}', status=429)
    server.play(events.frame("one"), b'data: {"error": {"message": "engine died"}}\n\n')
    server.play(events.frame("one"))
    server.play(*full_answer)
    seen = measure(num_requests=5)
    assert [row["error"] for row in seen] == [
        "status 429: too busy",
        "error in the stream: engine died",
        "the stream ended without [DONE]",
        None,
        None,
    ]
    assert [row["tokens"] for row in seen] == [0, 0, 0, 4, 4]
    assert [row["is_refused"] for row in seen] == [True, False, False, False, False]
    assert len(traffic.good(seen)) == 2
    assert traffic.request_speed(seen) == pytest.approx(8 / sum(row["duration_s"] for row in seen[3:]))


def test_a_server_that_is_not_there_fails_each_request(tokenizer):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    load = Server("it", f"http://127.0.0.1:{port}", "tiny", len)
    seen = load.ask(questions(PromptMaker(tokenizer, 64, seed=3), 2), OPTIONS, 2)
    assert all("cannot connect" in (row["error"] or "") for row in seen)
    assert traffic.throughput(seen) is None


def test_a_request_to_a_silent_server_fails_after_the_idle_limit(server, measure):
    server.silent = True
    (row,) = measure(idle_limit_s=0.01)
    assert row["error"] == "no data for 0.01 s"


def answered(*arrivals, error=None):
    return [{"arrivals": list(arrivals), "error": error}]


def test_a_gap_is_shared_by_the_tokens_that_end_it():
    rows = answered((1.0, 1), (2.0, 1), (5.0, 6))
    assert traffic.inter_tokens_s(rows) == [(1.0, 1), (0.5, 6)]
    assert traffic.first_tokens_s(rows) == [(1.0, 1.0)]
    assert traffic.decode_speed(rows) == 7 / 4


def test_an_answer_without_text_has_no_times():
    rows = answered(error="gone")
    assert traffic.first_tokens_s(rows) == traffic.inter_tokens_s(rows) == []
    assert traffic.decode_speed(rows) is None
