"""The fake drafters are right as often as they claim."""

import pytest

from reprise.drafters.base import Drafter, DraftQuery, SequenceStart
from tests.drafters.fakes import Coin, Liar, Oracle

ANSWER = [n % 256 for n in range(0, 30_000, 7)]
ANSWERS = {(1, 2): ANSWER}


def share_right(drafter: Drafter) -> float:
    drafter.open(SequenceStart(1, [1, 2]))
    draft = drafter.propose(DraftQuery(1, len(ANSWER))).tokens
    return sum(a == b for a, b in zip(draft, ANSWER, strict=True)) / len(ANSWER)


def test_an_oracle_is_always_right_and_a_liar_never() -> None:
    assert share_right(Oracle(ANSWERS)) == 1.0
    assert share_right(Liar(ANSWERS)) == 0.0


def test_a_coin_is_right_with_its_chance() -> None:
    assert share_right(Coin(ANSWERS, 0.7)) == pytest.approx(0.7, abs=0.03)


def test_a_changed_answer_is_noticed() -> None:
    drafter = Oracle(ANSWERS)
    drafter.open(SequenceStart(1, [1, 2]))
    drafter.observe(1, ANSWER[:3])
    with pytest.raises(AssertionError, match="the answer was changed"):
        drafter.observe(1, [ANSWER[3] + 1])
