"""Rows summarize replies, and failures have rows too."""

import pytest

from bench.experiment import Row
from bench.serving.run_peers import MAX_FAILURES_IN_A_ROW, MIXED, ask_all, compared
from bench.serving.traffic import Question, RequestOptions, failure

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
OPTIONS = RequestOptions(8)


class Scripted:
    """A peer with one answer to everything, except for the given changes by question number."""

    def __init__(self, name, text="yes", tokens=4, duration_s=2.0, others=None):
        self.name, self.others = name, others or {}
        arrivals = [[duration_s * (n + 1) / tokens, 1.0] for n in range(tokens)]
        self.usual: Row = {"text": text, "tokens": tokens, "duration_s": duration_s, "arrivals": arrivals}
        self.asked: list = []

    def ask(self, questions, options, streams=1):
        self.asked.append((questions, options, streams))
        change = self.others.get(len(self.asked) - 1, self.usual)
        if isinstance(change, str):
            change = {"error": change}
        return [failure(at, one, options, "") | {"error": None} | change for at, one in enumerate(questions)]


def questions(count, workload="edits", **more):
    return [Question(({"role": "user", "content": str(n)},), (n,), workload, **more) for n in range(count)]


def rows_of(peers, rounds):
    rows = ask_all(peers, rounds, OPTIONS)
    return {row["name"]: row for row in compared(rows, [peer.name for peer in peers])}


def test_every_peer_gets_every_question_and_each_begins_in_turn():
    peers = [Scripted("a"), Scripted("b"), Scripted("c")]
    rows = ask_all(peers, [questions(3)], OPTIONS)
    assert [row["arm"] for row in rows] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert peers[0].asked == peers[1].asked == peers[2].asked
    assert len({row["question"] for row in rows}) == 3


def test_several_streams_get_their_questions_together_and_mixed_ones_are_of_all_workloads():
    peer = Scripted("s")
    ask_all([peer], [questions(4) + questions(4, "quotes")], OPTIONS, streams=3)
    batches = [[(one.workload, one.ids) for one in asked] for asked, _, _ in peer.asked]
    assert [len(batch) for batch in batches] == [3, 1, 3, 1]
    assert {streams for _, _, streams in peer.asked} == {3}
    mixed = Scripted("s")
    rows = ask_all([mixed], [[], questions(2) + questions(2, "quotes")], OPTIONS, streams=4, is_mixed=True)
    ((batch, _, _),) = mixed.asked
    assert [one.ids for one in batch] == [(0,), (0,), (1,), (1,)]
    (row,) = compared(rows, ["s"])
    assert (row["workload"], row["streams"], row["tokens_per_s"]) == (MIXED, 4, 8.0)


QUICK = {"text": "yes", "tokens": 4, "duration_s": 0.5, "arrivals": [[0.1, 1.0], [0.5, 3.0]]}


def test_ratios_are_to_the_first_peer_of_the_same_rounds():
    slow = Scripted("plain", duration_s=2.0)
    fast = Scripted("fast", duration_s=1.0, others={3: QUICK})
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
    peer = Scripted("s", others={0: "cold"})
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
    gone = Scripted("gone", others=dict.fromkeys(range(100), "nothing listens"))
    rows = rows_of([Scripted("plain"), gone], [questions(3)] * 3)
    assert len(gone.asked) == MAX_FAILURES_IN_A_ROW
    assert (rows["gone"]["failed"], rows["gone"]["requests"]) == (6, 6)
    assert rows["gone"]["error"] == "nothing listens"
    assert rows["gone"]["speedup"] is rows["gone"]["ttft_ms"] is None
    assert rows["plain"]["failed"] == 0


def test_a_round_with_a_failed_request_has_no_speed():
    half = Scripted("half", others={1: "late"})
    row = rows_of([Scripted("plain"), half], [questions(1)] * 3)["half"]
    assert (row["requests"], row["failed"]) == (2, 1)
    assert row["speedup"] == 1.0
