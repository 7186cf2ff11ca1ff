"""Rows summarize replies, and failures have rows too."""

import pytest

from bench.peers.clients import Question, Reply
from bench.peers.comparison import compared
from bench.peers.rounds import MAX_FAILURES_IN_A_ROW, ask_all
from bench.workloads import Turn

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


class Scripted:
    """A peer with one answer to everything, except for the given replies by question number."""

    def __init__(self, name, text="yes", num_tokens=4, duration_s=2.0, others=None):
        self.name, self.others = name, others or {}
        arrivals = tuple((duration_s * (n + 1) / num_tokens, 1.0) for n in range(num_tokens))
        self.usual = Reply(text, num_tokens, duration_s, arrivals)
        self.asked = []

    def ask(self, question, max_tokens):
        self.asked.append((question, max_tokens))
        return self.others.get(len(self.asked) - 1, self.usual)


def questions(count, workload="edits", **more):
    return [
        Question(workload, Turn(({"role": "user", "content": str(n)},), None, **more), (n,))
        for n in range(count)
    ]


def rows_of(peers, rounds):
    records = ask_all(peers, rounds, 8, lambda _: None)
    names = [peer.name for peer in peers]
    return {row["name"]: row for row in compared(records, names, names[0])}


def test_every_peer_gets_every_question_and_each_begins_in_turn():
    peers = [Scripted("a"), Scripted("b"), Scripted("c")]
    order = []
    ask_all(peers, [questions(3)], 8, lambda record: order.append(record.peer))
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert peers[0].asked == peers[1].asked == peers[2].asked


def test_ratios_are_to_the_first_peer_of_the_same_rounds():
    slow = Scripted("plain", duration_s=2.0)
    fast = Scripted("fast", duration_s=1.0, others={3: Reply("yes", 4, 0.5, ((0.1, 1.0), (0.5, 3.0)))})
    rows = rows_of([slow, fast], [questions(1)] * 4)
    assert rows["plain"]["tokens_per_s"] == 2.0
    assert rows["fast"]["tokens_per_s"] == 4.0
    assert rows["fast"]["tokens_per_s_high"] == 8.0
    assert [rows["fast"][name] for name in ("speedup", "speedup_low", "speedup_high")] == [2.0, 2.0, 4.0]
    assert rows["plain"]["speedup"] == 1.0
    assert rows["fast"]["requests"] == 3
    assert rows["plain"]["ttft_ms"] == 500.0
    assert rows["plain"]["inter_token_ms"] == pytest.approx(500.0)


def test_the_warm_up_is_not_counted_but_its_error_is_reported():
    peer = Scripted("s", others={0: Reply(error="cold")})
    row = rows_of([peer], [questions(1)] * 2)["s"]
    assert (row["requests"], row["failed"], row["error"]) == (1, 0, "cold")


def test_texts_are_compared_with_the_plain_ones_but_not_calls_of_tools():
    plain, same, other = Scripted("plain"), Scripted("same", text="yes\ufffd"), Scripted("other", text="no")
    rows = rows_of([plain, same, other], [questions(2)] * 2)
    assert rows["plain"]["parity"] is None
    assert (rows["same"]["parity"], rows["same"]["equal"]) == ("PASS", 2)
    assert (rows["other"]["parity"], rows["other"]["equal"], rows["other"]["judged"]) == ("FAIL", 0, 2)
    with_tools = rows_of([Scripted("plain"), Scripted("other", text="no")], [questions(1, tools=(TOOL,))] * 2)
    assert with_tools["other"]["parity"] is None


def test_a_turn_that_is_not_measured_is_asked_but_not_counted():
    row = rows_of([Scripted("s")], [questions(2, is_measured=False)] * 2)["s"]
    assert (row["requests"], row["tokens_per_s"]) == (0, None)


def test_a_peer_that_keeps_failing_is_skipped_and_the_others_are_not():
    gone = Scripted("gone", others={n: Reply(error="nothing listens") for n in range(100)})
    rows = rows_of([Scripted("plain"), gone], [questions(3)] * 3)
    assert len(gone.asked) == MAX_FAILURES_IN_A_ROW
    assert (rows["gone"]["failed"], rows["gone"]["requests"]) == (6, 6)
    assert rows["gone"]["error"] == "nothing listens"
    assert rows["gone"]["speedup"] is rows["gone"]["ttft_ms"] is None
    assert rows["plain"]["failed"] == 0


def test_a_round_with_a_failed_request_has_no_speed():
    half = Scripted("half", others={1: Reply(error="late")})
    row = rows_of([Scripted("plain"), half], [questions(1)] * 3)["half"]
    assert (row["requests"], row["failed"]) == (2, 1)
    assert row["speedup"] == 1.0
