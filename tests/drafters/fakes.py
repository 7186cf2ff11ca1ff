"""Drafters for tests of whoever uses drafters: one that knows the answer, one that lies, one that is unsure.

All are told the true answers beforehand, by prompt, and check on the way that they hear nothing else:
an `observe` that departs from the answer, or a `settle` that cannot be, fails the test.
"""

import random
from collections.abc import Mapping, Sequence

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart

Answers = Mapping[tuple[int, ...], Sequence[int]]
"""Prompt -> everything that is said to it."""


class Coin:
    """Each drafted token is right with a chance of its own; a draft goes on after a wrong one.

    answers: what will be said. chance: in [0, 1]. seed: of the coin; the same position always falls alike.
    num_ids: wrong tokens are below it. name: under which name to appear.

    num_open: open sequences. num_offered, num_accepted: tokens settled.
    """

    def __init__(
        self, answers: Answers, chance: float, seed: int = 1, num_ids: int = 256, name: str = "coin"
    ) -> None:
        self.answers, self.chance, self.seed, self.num_ids, self.name = answers, chance, seed, num_ids, name
        self.num_verified = 0
        self.num_accepted = 0
        self._open: dict[int, tuple[Sequence[int], int]] = {}

    @property
    def num_open(self) -> int:
        return len(self._open)

    def open(self, opening: SequenceStart) -> None:
        assert opening.seq not in self._open
        self._open[opening.seq] = self.answers[tuple(opening.prompt)], 0

    def propose(self, ask: DraftQuery) -> Draft:
        answer, start = self._open[ask.seq]
        tokens = [
            token if self._is_right(at) else (token + 1) % self.num_ids
            for at, token in enumerate(answer[start : start + ask.limit], start)
        ]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        answer, start = self._open[seq]
        assert list(tokens) == list(answer[start : start + len(tokens)]), "the answer was changed"
        self._open[seq] = answer, start + len(tokens)

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        assert seq in self._open
        assert 0 <= accepted <= offered >= 1
        self.num_verified += offered
        self.num_accepted += accepted

    def close(self, seq: int) -> None:
        del self._open[seq]

    def _is_right(self, at: int) -> bool:
        return random.Random(f"{self.seed} {at}").random() < self.chance


class Oracle(Coin):
    """Always right."""

    def __init__(self, answers: Answers, name: str = "oracle") -> None:
        super().__init__(answers, 1.0, name=name)


class Liar(Coin):
    """Always wrong, whatever the limit."""

    def __init__(self, answers: Answers, num_ids: int = 256, name: str = "liar") -> None:
        super().__init__(answers, 0.0, num_ids=num_ids, name=name)
