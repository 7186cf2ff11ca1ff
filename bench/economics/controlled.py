"""Drafts with a chosen acceptance rate, and step costs that make the engine verify every draft."""

import random
from bisect import bisect_left
from collections.abc import Sequence

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from engine.speculative.costs.step_costs import StepCosts

PLACE = "prediction"
"""The drafter that a ControlledDrafter replaces: only this one receives a request's prediction."""

_PLAIN_S = 1000.0
_STEPS = 1000


def forced_costs(max_drafted: int) -> StepCosts:
    """Return costs under which the longest draft is always the best choice.

    A step of width w seems to cost 1/w of a plain step. Then even rejected drafts pay, the slowdown budget is
    never exceeded, and a draft model's own steps cost next to nothing.
    """
    table = {(1, width): _PLAIN_S / width for width in range(1, max_drafted + 2)}
    return StepCosts(table, is_learned=False)


def acceptance(chance: float, num_drafted: int) -> float:
    """Return the expected share of accepted tokens if each drafted token is right with this chance.

    Tokens after a wrong one count as rejected.
    """
    return sum(chance**place for place in range(1, num_drafted + 1)) / num_drafted


def chance_for(share: float, num_drafted: int) -> float:
    """Return the chance that gives this acceptance, to a thousandth: the inverse of acceptance()."""
    chances = [step / _STEPS for step in range(_STEPS + 1)]
    return chances[bisect_left(chances, share, key=lambda chance: acceptance(chance, num_drafted))]


class ControlledDrafter:
    """Knows the answer from the request's prediction, and drafts each token correctly with a given chance.

    chance: may be set between requests. vocab_size: wrong tokens are below it.
    Which tokens are right depends on the answer alone. Sequences without a prediction get no drafts.
    """

    name = "controlled"

    def __init__(self, vocab_size: int) -> None:
        self.chance = 1.0
        self.vocab_size = vocab_size
        self._drafts: dict[int, list[int]] = {}

    def open(self, start: SequenceStart) -> None:
        """Decide for each token of the answer whether it will be drafted correctly."""
        rng = random.Random(repr(tuple(start.prediction)))
        self._drafts[start.seq] = [
            token if rng.random() < self.chance else (token + 1) % self.vocab_size
            for token in start.prediction
        ]

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the next tokens of the answer, some of them changed to wrong ones."""
        tokens = self._drafts[query.seq][: query.limit]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Advance past committed tokens."""
        del self._drafts[seq][: len(tokens)]

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: this drafter does not learn."""

    def close(self, seq: int) -> None:
        """Drop the sequence."""
        del self._drafts[seq]
