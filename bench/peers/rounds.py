"""Send every question to all peers, starting with a different peer each time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.clients import Peer, Question, Reply

MAX_FAILURES_IN_A_ROW = 3
"""A peer that fails this often in a row gets no more questions: each timeout may take minutes."""


@dataclass(frozen=True, slots=True)
class Record:
    """A peer's reply to one question. round_number: 0 is the warm-up. question: its number in all rounds."""

    peer: str
    round_number: int
    question: int
    workload: str
    has_tools: bool
    is_measured: bool
    reply: Reply


def ask_all(
    peers: Sequence[Peer],
    rounds: Sequence[Sequence[Question]],
    max_tokens: int,
    on_record: Callable[[Record], None],
) -> list[Record]:
    """Ask every peer every question. on_record: called after each reply.

    rounds: the questions of each round; the first round is a warm-up.
    """
    found: list[Record] = []
    failed_in_a_row = {peer.name: 0 for peer in peers}
    number = 0
    for round_number, questions in enumerate(rounds):
        for question in questions:
            first = number % len(peers)
            for peer in (*peers[first:], *peers[:first]):
                if failed_in_a_row[peer.name] < MAX_FAILURES_IN_A_ROW:
                    reply = peer.ask(question, max_tokens)
                else:
                    reply = Reply(error=f"skipped after {MAX_FAILURES_IN_A_ROW} failures in a row")
                failed_in_a_row[peer.name] = failed_in_a_row[peer.name] + 1 if reply.error else 0
                found.append(
                    Record(
                        peer.name, round_number, number, question.workload, bool(question.turn.tools),
                        round_number > 0 and question.turn.is_measured, reply,
                    )
                )  # fmt: skip
                on_record(found[-1])
            number += 1
    return found
