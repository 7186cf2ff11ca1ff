"""Every peer gets the same questions, and figures summarize their answers, failures included."""

import json

import pytest

from reprise.bench import serve
from reprise.bench.experiment import Progress
from reprise.bench.peers import Answer
from reprise.bench.serve import batches_of, dealt, figures_of
from reprise.bench.workloads import Chat, Turn, read_prompts
from reprise.bench.workloads.chats import user

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


class Scripted:
    """A peer with one answer to everything, except for the given ones by number of the batch."""

    def __init__(self, name, text="yes", tokens=4, duration_s=2.0, others=None):
        self.name, self.others = name, others or {}
        arrivals = [[duration_s * (n + 1) / tokens, 1.0] for n in range(tokens)]
        self.usual = Answer(text=text, tokens=tokens, duration_s=duration_s, arrivals=arrivals)
        self.asked: list = []

    def ask(self, turns, streams):
        self.asked.append((turns, streams))
        return [self.others.get(len(self.asked) - 1, self.usual) for _ in turns]


def chats(number, workload="edits", **more):
    return [
        Chat(workload, (Turn(({"role": "user", "content": f"{workload} {n}"},), None, **more),))
        for n in range(number)
    ]


def ask_all(peers, rounds, streams=1):
    peers_by_name = {peer.name: peer.ask for peer in peers}
    return serve.ask_all(peers_by_name, batches_of(rounds, streams), streams, Progress())


def compared(rows):
    return figures_of(rows, "workload", "streams")


def rows_of(peers, rounds):
    return {row["name"]: row for row in compared(ask_all(peers, rounds))}


def test_every_peer_gets_every_question_and_each_begins_in_turn():
    peers = [Scripted("a"), Scripted("b"), Scripted("c")]
    rows = ask_all(peers, [chats(3)])
    assert [row["arm"] for row in rows] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert peers[0].asked == peers[1].asked == peers[2].asked
    assert len({row["case"] for row in rows}) == 3


def test_several_streams_get_their_questions_together():
    peer = Scripted("s")
    ask_all([peer], [chats(4) + chats(4, "quotes")], streams=3)
    batches = [[one.messages[0]["content"] for one in asked] for asked, _ in peer.asked]
    assert batches == [
        ["edits 0", "edits 1", "edits 2"],
        ["edits 3"],
        ["quotes 0", "quotes 1", "quotes 2"],
        ["quotes 3"],
    ]
    assert {streams for _, streams in peer.asked} == {3}


QUICK = Answer(text="yes", tokens=4, duration_s=0.5, arrivals=[[0.1, 1.0], [0.5, 3.0]])


def test_ratios_are_to_the_first_peer_of_the_same_rounds():
    slow = Scripted("plain", duration_s=2.0)
    fast = Scripted("fast", duration_s=1.0, others={3: QUICK})
    rows = rows_of([slow, fast], [chats(1)] * 4)
    assert rows["plain"]["tokens_per_s"] == 2.0
    assert rows["fast"]["tokens_per_s"] == 4.0
    assert [rows["fast"][name] for name in ("speedup", "speedup_low", "speedup_high")] == [2.0, 2.0, 4.0]
    assert rows["plain"]["speedup"] == 1.0
    assert rows["fast"]["requests"] == 3
    assert rows["plain"]["ttft_ms"] == 500.0
    assert rows["plain"]["inter_token_ms"] == pytest.approx(500.0)


def test_the_first_peer_stays_the_first_where_another_one_was_asked_first():
    peers = [Scripted("plain"), Scripted("fast", duration_s=1.0)]
    rows = compared(ask_all(peers, [chats(1) + chats(1, "quotes")] * 2))
    assert [(row["workload"], row["name"], row["speedup"]) for row in rows] == [
        ("edits", "plain", 1.0), ("edits", "fast", 2.0), ("quotes", "plain", 1.0), ("quotes", "fast", 2.0)
    ]  # fmt: skip


def test_the_warm_up_has_no_figures_but_its_failure_counts():
    peer = Scripted("s", others={0: Answer(error="cold")})
    row = rows_of([peer], [chats(1)] * 2)["s"]
    assert (row["requests"], row["failed"], row["error"], row["tokens_per_s"]) == (1, 1, "cold", 2.0)


def test_texts_are_compared_with_the_plain_ones_but_not_calls_of_tools():
    plain, same, other = Scripted("plain"), Scripted("same", text="yes\ufffd"), Scripted("other", text="no")
    rows = rows_of([plain, same, other], [chats(2)] * 2)
    assert rows["plain"]["parity"] is None
    assert (rows["same"]["parity"], rows["same"]["equal"]) == ("PASS", 2)
    assert (rows["other"]["parity"], rows["other"]["equal"], rows["other"]["judged"]) == ("FAIL", 0, 2)
    with_tools = rows_of([Scripted("plain"), Scripted("other", text="no")], [chats(1, tools=(TOOL,))] * 2)
    assert with_tools["other"]["parity"] is None


def test_a_peer_that_always_fails_has_no_figures_and_others_do():
    gone = Scripted("gone", others=dict.fromkeys(range(9), Answer(error="nothing listens")))
    rows = rows_of([Scripted("plain"), gone], [chats(3)] * 3)
    assert (rows["gone"]["failed"], rows["gone"]["requests"]) == (9, 6)
    assert rows["gone"]["error"] == "nothing listens"
    assert rows["gone"]["speedup"] is rows["gone"]["ttft_ms"] is None
    assert (rows["plain"]["failed"], rows["plain"]["tokens_per_s"]) == (0, 2.0)


def test_a_round_with_a_failed_request_has_no_speed():
    half = Scripted("half", others={1: Answer(error="late")})
    row = rows_of([Scripted("plain"), half], [chats(1)] * 3)["half"]
    assert (row["requests"], row["failed"]) == (2, 1)
    assert row["speedup"] == 1.0


def test_a_gap_is_shared_by_the_tokens_that_end_it():
    rows = [{"arrivals": [[1.0, 1], [2.0, 1], [5.0, 6]]}]
    assert serve.inter_tokens_ms(rows) == [(1000.0, 1), (500.0, 6)]
    assert serve.first_tokens_ms(rows) == [(1000.0, 1.0)]


def test_an_answer_without_text_has_no_times():
    rows = [{"arrivals": []}]
    assert serve.first_tokens_ms(rows) == serve.inter_tokens_ms(rows) == []


def test_prompts_of_a_file_are_dealt_out_so_that_none_is_asked_twice(tmp_path):
    file = tmp_path / "chats.jsonl"
    bodies = [{"workload": kind, "messages": [user(f"{kind} {at}")]} for kind in "ab" for at in range(4)]
    file.write_text("\n".join(map(json.dumps, bodies)))
    rounds = dealt(read_prompts(file), rounds=3, size=2)
    asked = [[chat.turns[0].messages[0]["content"] for chat in chats] for chats in rounds]
    assert asked == [["a 0"], ["a 1", "a 2", "b 0", "b 1"], ["a 3", "b 2", "b 3"]]
