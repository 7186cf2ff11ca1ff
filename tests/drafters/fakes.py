"""Fake drafters for tests of code that uses drafters: always right, always wrong, and right at random.

They are given the true answers in advance, by prompt. They also check how they are called: `observe` fails
the test if the tokens are not those of the answer, and `note_verified` if the counts are impossible.
"""

import random
from collections.abc import Callable, Generator, Mapping, Sequence

from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart

Answers = Mapping[tuple[int, ...], Sequence[int]]
"""Prompt -> the whole answer to it."""


class Coin:
    """A drafter whose tokens are right at random, independently of each other.

    answers: the true answers. chance: that a token is right, in [0, 1]. num_ids: wrong tokens are below it.
    seed: of the random numbers; a position always has the same outcome. name: the drafter's name.

    num_open: open sequences. num_verified, num_accepted: totals given to note_verified.
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

    def open(self, start: SequenceStart) -> None:
        assert start.seq not in self._open
        self._open[start.seq] = self.answers[tuple(start.prompt)], 0

    def propose(self, query: DraftQuery) -> Draft:
        answer, start = self._open[query.seq]
        tokens = [
            token if self._is_right(at) else (token + 1) % self.num_ids
            for at, token in enumerate(answer[start : start + query.limit], start)
        ]
        return Draft(tokens, self.name, 0, 0.9) if tokens else NO_DRAFT

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        answer, start = self._open[seq]
        assert list(tokens) == list(answer[start : start + len(tokens)]), "the answer was changed"
        self._open[seq] = answer, start + len(tokens)

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        assert seq in self._open
        assert 0 <= num_accepted <= num_verified >= 1
        self.num_verified += num_verified
        self.num_accepted += num_accepted

    def close(self, seq: int) -> None:
        del self._open[seq]

    def _is_right(self, at: int) -> bool:
        return random.Random(f"{self.seed} {at}").random() < self.chance


class Oracle(Coin):
    """A drafter that is always right. num_known: tokens of each answer that it drafts; None for all."""

    def __init__(self, answers: Answers, name: str = "oracle", num_known: int | None = None) -> None:
        super().__init__(answers, 1.0, name=name)
        self.num_known = num_known

    def propose(self, query: DraftQuery) -> Draft:
        draft = super().propose(query)
        if self.num_known is not None and draft.tokens:
            draft.tokens = draft.tokens[: max(0, self.num_known - self._open[query.seq][1])]
        return draft


class Liar(Coin):
    """A drafter that is always wrong."""

    def __init__(self, answers: Answers, num_ids: int = 256, name: str = "liar") -> None:
        super().__init__(answers, 0.0, num_ids=num_ids, name=name)


def scored(score: float) -> Callable[[Sequence[int]], Generator[int, None, float]]:
    """Make a score for the gate that is the same for every prompt, and known at once."""

    def work(_: Sequence[int]) -> Generator[int, None, float]:
        yield from ()
        return score

    return work
