"""Drafts whose acceptance is chosen, and an engine that verifies every draft, whether it pays or not."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from engine.speculative.step_costs import StepCosts

PLACE = "prediction"
"""The drafter whose place a ControlledDrafter takes: it alone is told what the answer will be."""

_PLAIN_S = 1000.0
_STEPS = 1000


def forced_costs(most_drafted: int) -> StepCosts:
    """Costs under which the widest draft is always the best choice, whatever happens.

    A step of width w is said to cost 1/w of a plain one: then even drafts that never come true are worth
    it, no ledger is ever in debt, and a draft model's own steps are nothing beside it.
    """
    return _Forced({(1, width): _PLAIN_S / width for width in range(1, most_drafted + 2)})


class _Forced(StepCosts):
    def observe(self, rows: int, width: int, seconds: float) -> None:
        """What steps really take must not teach them to refuse drafts."""


def acceptance(chance: float, num_drafted: int) -> float:
    """Expected share of drafted tokens that are accepted, where each is right with this chance.

    Tokens behind a wrong one count as not accepted.
    """
    return sum(chance**place for place in range(1, num_drafted + 1)) / num_drafted


def chance_for(share: float, num_drafted: int) -> float:
    """The chance at which that share is accepted, to a thousandth: the inverse of acceptance()."""
    chances = [step / _STEPS for step in range(_STEPS + 1)]
    return chances[bisect_left(chances, share, key=lambda chance: acceptance(chance, num_drafted))]


@dataclass
class _Sequence:
    """An answer and how far it got. is_right: of each token, whether it is drafted as it is."""

    answer: tuple[int, ...]
    is_right: list[bool]
    num_said: int = 0


class ControlledDrafter:
    """Knows the answer, from the request's prediction, and drafts each token rightly by chance.

    chance: of a drafted token being right; may be set between requests.
    vocab_size: wrong tokens are below it. seed: the same position always falls alike.

    Sequences without a prediction get no drafts.
    """

    name = "controlled"

    def __init__(self, vocab_size: int, seed: int = 1) -> None:
        self.chance = 1.0
        self.vocab_size = vocab_size
        self.seed = seed
        self._sequences: dict[int, _Sequence] = {}

    def open(self, opening: SequenceStart) -> None:
        """Take the answer, and draw for each of its tokens."""
        rng = random.Random(self.seed)
        drawn = [rng.random() < self.chance for _ in opening.prediction]
        self._sequences[opening.seq] = _Sequence(tuple(opening.prediction), drawn)

    def propose(self, ask: DraftQuery) -> Draft:
        """The next tokens of the answer, the wrong ones changed."""
        own = self._sequences[ask.seq]
        place = slice(own.num_said, own.num_said + ask.limit)
        tokens = [
            token if is_right else (token + 1) % self.vocab_size
            for token, is_right in zip(own.answer[place], own.is_right[place], strict=True)
        ]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Go on behind these tokens."""
        self._sequences[seq].num_said += len(tokens)

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """Nothing is learned."""

    def close(self, seq: int) -> None:
        """Forget the sequence."""
        del self._sequences[seq]
