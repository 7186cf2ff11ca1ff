import socket

import pytest

from bench.load import RequestOptions, ServerUnderLoad
from bench.measurement import Arrival, Measurement
from bench.prompts import PromptMaker

OPTIONS = RequestOptions(max_tokens=4, forbidden_ids=(1, 7))


@pytest.fixture
def measure(server, tokenizer):
    """Return a function that runs one round of chats on the scripted server."""
    maker = PromptMaker(tokenizer, 64, seed=3)

    def measured(num_requests=1, concurrency=1, options=OPTIONS, idle_limit_s=60.0):
        load = ServerUnderLoad("it", server.url, "tiny", lambda text: len(text.split()), idle_limit_s)
        return load.measure([maker.make() for _ in range(num_requests)], options, concurrency, 1)

    return measured


def test_every_request_is_sent_once_and_every_token_counted(server, measure, full_answer):
    server.play(*full_answer)
    seen = measure(num_requests=7, concurrency=3)
    assert len(server.bodies) == 7
    assert len({body["messages"][0]["content"] for body in server.bodies}) == 7
    assert [m.request for m in seen.measurements] == list(range(7))
    for m in seen.measurements:
        assert (m.error, m.finish_reason, m.ended_early) == (None, "length", False)
        assert (m.num_prompt_tokens, m.num_completion_tokens, m.num_chunks) == (64, 4, 4)
        assert sum(arrival.num_tokens for arrival in m.arrivals) == 4
    assert seen.tokens_per_s == pytest.approx(28 / seen.wall_s)


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


def test_a_seed_is_sent_where_there_is_one(server, measure, full_answer):
    server.play(*full_answer)
    measure(options=RequestOptions(max_tokens=4, temperature=0.5, seed=9))
    assert server.bodies[0]["seed"] == 9
    assert "logit_bias" not in server.bodies[0]


def test_an_early_end_is_no_failure_and_counts_what_came(server, measure, events):
    server.play(events.frame("one"), events.frame(finish_reason="stop"), events.usage(1), events.done)
    (m,) = measure().measurements
    assert m.ended_early
    assert (m.error, m.num_completion_tokens, m.finish_reason) == (None, 1, "stop")


def test_without_usage_tokens_are_counted_from_the_text(server, measure, events):
    server.play(
        events.frame("one two"), events.frame(" three"), events.frame(finish_reason="length"), events.done
    )
    (m,) = measure().measurements
    assert (m.counted_by, m.num_completion_tokens) == ("text", 3)


def test_failures_of_every_kind_are_kept_beside_what_succeeded(server, measure, full_answer, events):
    server.play(b'{"error": {"message": "too busy"}}', status=429)
    server.play(events.frame("one"), b'data: {"error": {"message": "engine died"}}\n\n')
    server.play(events.frame("one"))
    server.play(*full_answer)
    seen = measure(num_requests=5)
    assert [m.error for m in seen.measurements] == [
        "status 429: too busy",
        "error in the stream: engine died",
        "the stream ended without [DONE]",
        None,
        None,
    ]
    assert [m.num_completion_tokens for m in seen.measurements] == [0, 0, 0, 4, 4]
    assert [m.is_refused for m in seen.measurements] == [True, False, False, False, False]
    assert len(seen.succeeded) == 2
    assert seen.tokens_per_s == pytest.approx(8 / seen.wall_s)


def test_a_server_that_is_not_there_fails_each_request(tokenizer):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    load = ServerUnderLoad("it", f"http://127.0.0.1:{port}", "tiny", len)
    maker = PromptMaker(tokenizer, 64, seed=3)
    seen = load.measure([maker.make(), maker.make()], OPTIONS, 2, 1)
    assert all("cannot connect" in (m.error or "") for m in seen.measurements)
    assert seen.tokens_per_s is None


def test_a_request_to_a_silent_server_fails_after_the_idle_limit(server, measure):
    server.silent = True
    (m,) = measure(idle_limit_s=0.01).measurements
    assert m.error == "no data for 0.01 s"


def seen(*arrivals, **fields):
    return Measurement(
        request=0,
        num_prompt_tokens_asked=1,
        max_tokens=9,
        started_s=0.0,
        duration_s=9.0,
        arrivals=tuple(Arrival(*arrival) for arrival in arrivals),
        **fields,
    )


def test_a_gap_is_shared_by_the_tokens_that_end_it():
    measurement = seen((1.0, 1), (2.0, 1), (5.0, 6))
    assert measurement.inter_token_s() == [(1.0, 1), (0.5, 6)]
    assert (measurement.first_token_s, measurement.decode_s, measurement.num_decoded_tokens) == (1.0, 4.0, 7)


def test_an_answer_without_text_has_no_times():
    measurement = seen(error="gone")
    assert measurement.first_token_s is None
    assert measurement.inter_token_s() == []
    assert measurement.decode_s == 0
