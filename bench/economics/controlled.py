"""Drafts with a chosen acceptance rate, and step costs that make the engine verify every draft."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass
class _Sequence:
    """An answer and the progress through it. is_right: whether each token will be drafted correctly."""

    answer: tuple[int, ...]
    is_right: list[bool]
    num_committed: int = 0


class ControlledDrafter:
    """Knows the answer from the request's prediction, and drafts each token correctly with a given chance.

    chance: of a drafted token being right; may be set between requests.
    vocab_size: wrong tokens are below it. seed: makes the choice at each position reproducible.

    Sequences without a prediction get no drafts.
    """

    name = "controlled"

    def __init__(self, vocab_size: int, seed: int = 1) -> None:
        self.chance = 1.0
        self.vocab_size = vocab_size
        self.seed = seed
        self._sequences: dict[int, _Sequence] = {}

    def open(self, start: SequenceStart) -> None:
        """Store the answer and decide for each of its tokens whether it will be drafted correctly."""
        rng = random.Random(self.seed)
        drawn = [rng.random() < self.chance for _ in start.prediction]
        self._sequences[start.seq] = _Sequence(tuple(start.prediction), drawn)

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the next tokens of the answer, some of them changed to wrong ones."""
        state = self._sequences[query.seq]
        place = slice(state.num_committed, state.num_committed + query.limit)
        tokens = [
            token if is_right else (token + 1) % self.vocab_size
            for token, is_right in zip(state.answer[place], state.is_right[place], strict=True)
        ]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Advance past committed tokens."""
        self._sequences[seq].num_committed += len(tokens)

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: this drafter does not learn."""

    def close(self, seq: int) -> None:
        """Drop the sequence."""
        del self._sequences[seq]
