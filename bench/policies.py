"""A replay of a known answer: who drafts, how much of it is checked, and what that takes."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drafters.base import Draft, Drafter, DraftQuery, SequenceStart
from engine.speculative.acceptance import count_accepted

LIMIT = 31
"""Tokens of the longest draft: a full tile of 32 with the token before it."""


class Costs(Protocol):
    """What a step costs by its width."""

    def cost(self, width: int) -> float:
        """In plain steps, or any other unit."""


@dataclass
class Outcome:
    """What a replay of one answer took, or of many.

    cost: in plain steps. num_drafting: forwards that checked a draft. num_drafted: tokens of drafts that were
    checked; num_accepted: of them, those that came true. widths: how many forwards had which width.
    by_position: for each place in a draft, how often it was checked and how often right.
    """

    num_tokens: int = 0
    num_forwards: int = 0
    cost: float = 0.0
    num_drafting: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    by_position: list[list[int]] = field(default_factory=list)

    def add_step(self, offered: int, accepted: int, said: int, cost: float) -> None:
        """A forward checked so many drafted tokens, accepted so many, committed so many, and cost so much."""
        self.num_tokens += said
        self.num_forwards += 1
        self.cost += cost
        self.widths[1 + offered] += 1
        if not offered:
            return
        self.num_drafting += 1
        self.num_drafted += offered
        self.num_accepted += accepted
        while len(self.by_position) < offered:
            self.by_position.append([0, 0])
        for at in range(offered):
            self.by_position[at][0] += 1
            self.by_position[at][1] += at < accepted

    def add(self, other: "Outcome") -> None:
        """Count another answer in."""
        self.num_tokens += other.num_tokens
        self.num_forwards += other.num_forwards
        self.cost += other.cost
        self.num_drafting += other.num_drafting
        self.num_drafted += other.num_drafted
        self.num_accepted += other.num_accepted
        self.widths.update(other.widths)
        while len(self.by_position) < len(other.by_position):
            self.by_position.append([0, 0])
        for mine, theirs in zip(self.by_position, other.by_position, strict=False):
            mine[0] += theirs[0]
            mine[1] += theirs[1]

    def cost_on(self, costs: Costs) -> float:
        """What the same forwards cost elsewhere."""
        return sum(count * costs.cost(width) for width, count in self.widths.items())


class Chooser(Protocol):
    """Decides how many tokens of a draft to have verified, and learns from what came.

    limit: tokens of the longest draft that it wants.
    """

    limit: int

    def begin(self) -> None:
        """A request begins."""

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:
        """Tokens to offer, in [0, len(draft)]. follows: what the answer says next, for hindsight alone."""

    def learn(self, draft: Draft, offered: int, said: Sequence[int], cost: Callable[[int], float]) -> None:
        """The step is over. said: what it committed."""


class Always:
    """Offers up to a fixed number of tokens, whatever they are worth."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def begin(self) -> None:
        """Nothing to begin."""

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:  # noqa: ARG002
        """As many as there are."""
        return min(self.limit, len(draft.tokens))

    def learn(self, draft: Draft, offered: int, said: Sequence[int], cost: Callable[[int], float]) -> None:
        """Nothing is learned."""


class TwoWidths(Always):
    """The whole tile from 12 matched tokens on, else two tokens. A draft's bucket must be its length."""

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:  # noqa: ARG002
        """By the length alone."""
        return min(len(draft.tokens), LIMIT if draft.bucket >= 12 else 2)


class Hindsight(Always):
    """Knows what comes, and takes the width with most tokens per cost."""

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:
        """The best of all widths."""
        right = count_accepted(draft.tokens, follows)
        return max(range(right + 1), key=lambda k: (k + 1) / cost(k + 1))


def replay(
    drafters: Sequence[Drafter],
    chooser: Chooser,
    curve: Costs,
    opening: SequenceStart,
    answer: Sequence[int],
) -> Outcome:
    """Say a known answer step by step, as the engine would: propose, verify, observe, settle."""
    outcome = Outcome()
    limit = max(1, chooser.limit)
    costs = [curve.cost(width) for width in range(limit + 2)]
    chooser.begin()
    for drafter in drafters:
        drafter.open(opening)
    at = 0
    while at < len(answer):
        draft = Draft()
        for drafter in drafters:
            draft = drafter.propose(DraftQuery(opening.seq, limit))
            if draft.tokens:
                break
        follows = answer[at : at + limit]
        offered = chooser.choose(draft, costs.__getitem__, follows)
        accepted = count_accepted(draft.tokens[: max(offered, 1)], follows)
        said = answer[at : at + (accepted + 1 if offered else 1)]
        outcome.add_step(offered, accepted, len(said), costs[1 + offered])
        at += len(said)
        for drafter in drafters:
            drafter.observe(opening.seq, said)
            if offered and drafter.name == draft.source:
                drafter.record_verified(opening.seq, offered, accepted)
        chooser.learn(draft, offered, said, costs.__getitem__)
    for drafter in drafters:
        drafter.close(opening.seq)
    return outcome
