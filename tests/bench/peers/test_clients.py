"""Whatever goes wrong with a server or a loop becomes a reply with an error."""

import sys

import pytest

from bench.serving.processes import BareLoop
from bench.serving.traffic import Loop, Question, RequestOptions, Server

QUESTION = Question(({"role": "user", "content": "hello"},), (5, 9, 31), "edits")
OPTIONS = RequestOptions(16)


def ask(peer, question=QUESTION):
    (row,) = peer.ask([question], OPTIONS)
    return row


@pytest.fixture
def peer(server):
    return Server("s", server.url, None, lambda text: len(text.split()), idle_limit_s=5.0)


def test_a_chat_is_streamed_greedily_from_the_first_model_listed(peer, server, full_answer):
    server.play(*full_answer)
    row = ask(peer)
    assert (row["text"], row["tokens"], row["error"]) == ("one two three four", 4, None)
    assert sum(tokens for _, tokens in row["arrivals"]) == 4
    (body,) = server.bodies
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("tiny", 0, 16)
    assert "tools" not in body


def test_tools_are_sent_along(peer, server, full_answer):
    server.play(*full_answer)
    tool = {"type": "function", "function": {"name": "f"}}
    ask(peer, Question(QUESTION.messages, (1,), "agent", (tool,)))
    assert server.bodies[0]["tools"] == [tool]


def test_tokens_are_counted_from_the_text_without_usage(peer, server, events):
    server.play(events.frame("one two three"), events.frame(" four"), events.done)
    assert ask(peer)["tokens"] == 4


def test_a_server_that_is_gone_says_so():
    gone = Server("s", "http://127.0.0.1:1", None, len, idle_limit_s=5.0)
    assert ask(gone)["error"] == "no server listens at http://127.0.0.1:1"
    named = Server("s", "http://127.0.0.1:1", "m", len, idle_limit_s=5.0)
    assert ask(named)["error"].startswith("cannot connect")


def test_a_silent_server_is_an_error_after_the_idle_limit(server):
    server.silent = True
    silent = Server("s", server.url, "tiny", len, idle_limit_s=0.1)
    assert ask(silent)["error"] == "no data for 0.1 s"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"data: [1, 2]\n\n",
        b'data: {"choices": [7]}\n\n',
        b'data: {"choices": 7}\n\n',
        b'data: {"choices": [{"delta": "text"}]}\n\n',
        b'data: {"choices": [{"delta": {"content": 7}}]}\n\n',
        b"data: \xff\xfe\n\n",
    ],
)
def test_nonsense_is_an_error(peer, server, events, nonsense):
    server.play(nonsense, events.done)
    row = ask(peer)
    assert row["error"].startswith("a chunk is")
    assert row["tokens"] == 0


def test_usage_that_is_nonsense_is_not_believed(peer, server, events):
    server.play(events.frame("one two"), b'data: {"usage": [3]}\n\n', events.done)
    assert ask(peer)["tokens"] == 2


def test_a_refusal_is_an_error_with_the_servers_message(peer, server):
    server.play(b'{"error": {"message": "too long"}}', status=400)
    assert ask(peer)["error"] == "status 400: too long"


STUB = """
import json
print("{}", flush=True)
for _ in range(2):
    job = json.loads(input())
    print(json.dumps({"token_ids": [7, 8, 1], "arrived_s": [0.1, 0.2, 0.2]}), flush=True)
raise SystemExit("out of memory")
"""


def test_a_loop_answers_until_it_dies_and_then_fails_every_question():
    with BareLoop("any", (sys.executable, "-c", STUB)) as loop:
        peer = Loop("loop", loop, lambda ids: " ".join(map(str, ids)), frozenset({1}))
        row = ask(peer)
        assert (row["text"], row["tokens"], row["duration_s"]) == ("7 8", 3, 0.2)
        assert row["arrivals"] == [[0.1, 1.0], [0.2, 2.0]]
        ask(peer)
        assert "out of memory" in ask(peer)["error"]
        assert "out of memory" in ask(peer)["error"]
