"""The order of questions: all sides get each of them in turn, and another begins every time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.sides import Question, Reply, Side

GIVE_UP_AFTER = 3
"""A side that fails so often in a row is asked no more: each silence may take minutes."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one side said to one question. round_number: 0 warms up. question: its number in all rounds."""

    side: str
    round_number: int
    question: int
    workload: str
    has_tools: bool
    is_measured: bool
    reply: Reply


def ask_all(
    sides: Sequence[Side],
    rounds: Sequence[Sequence[Question]],
    max_tokens: int,
    tell: Callable[[Record], None],
) -> list[Record]:
    """Ask every side every question. tell: called after each.

    rounds: the questions of each; the first round warms up.
    """
    found: list[Record] = []
    failed_in_a_row = {side.name: 0 for side in sides}
    number = 0
    for round_number, questions in enumerate(rounds):
        for question in questions:
            first = number % len(sides)
            for side in (*sides[first:], *sides[:first]):
                if failed_in_a_row[side.name] < GIVE_UP_AFTER:
                    reply = side.ask(question, max_tokens)
                else:
                    reply = Reply(error=f"given up after {GIVE_UP_AFTER} failures in a row")
                failed_in_a_row[side.name] = failed_in_a_row[side.name] + 1 if reply.error else 0
                found.append(
                    Record(
                        side.name, round_number, number, question.workload, bool(question.turn.tools),
                        round_number > 0 and question.turn.is_measured, reply,
                    )
                )  # fmt: skip
                tell(found[-1])
            number += 1
    return found
