"""Replay a known answer: drafters draft, a chooser decides how much is verified, and costs are added up."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drafters.base import Draft, Drafter, DraftQuery, SequenceStart, finish
from engine.speculative.acceptance import count_accepted

LIMIT = 31
"""Maximum draft length in tokens: with the token before it, a full tile of 32."""


class Costs(Protocol):
    """The cost of a step by its width."""

    def cost(self, width: int) -> float:
        """Return the cost of a step of this width, in plain steps or any other unit."""


@dataclass
class Outcome:
    """The counts of a replay of one answer or several.

    cost: in plain steps. num_drafting: forward passes that verified a draft.
    num_drafted: drafted tokens that were verified. num_accepted: those of them that were accepted.
    widths: number of forward passes by width.
    by_position: for each position in a draft, [times verified, times accepted].
    """

    num_tokens: int = 0
    num_forwards: int = 0
    cost: float = 0.0
    num_drafting: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    by_position: list[list[int]] = field(default_factory=list)

    def add_step(self, num_verified: int, num_accepted: int, num_committed: int, cost: float) -> None:
        """Count one forward pass."""
        self.num_tokens += num_committed
        self.num_forwards += 1
        self.cost += cost
        self.widths[1 + num_verified] += 1
        if not num_verified:
            return
        self.num_drafting += 1
        self.num_drafted += num_verified
        self.num_accepted += num_accepted
        while len(self.by_position) < num_verified:
            self.by_position.append([0, 0])
        for at in range(num_verified):
            self.by_position[at][0] += 1
            self.by_position[at][1] += at < num_accepted

    def add(self, other: "Outcome") -> None:
        """Add the counts of another answer."""
        for name in ("num_tokens", "num_forwards", "cost", "num_drafting", "num_drafted", "num_accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.widths.update(other.widths)
        self.by_position += [[0, 0] for _ in range(len(other.by_position) - len(self.by_position))]
        for mine, theirs in zip(self.by_position, other.by_position, strict=False):
            mine[:] = [mine[0] + theirs[0], mine[1] + theirs[1]]

    def cost_on(self, costs: Costs) -> float:
        """Return what these forward passes would cost with other step costs."""
        return sum(count * costs.cost(width) for width, count in self.widths.items())


class Chooser(Protocol):
    """A rule that decides how many tokens of a draft are verified, and may learn from the results.

    limit: maximum draft length to ask drafters for.
    """

    limit: int

    def begin(self) -> None:
        """Start a request."""

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:
        """Return how many tokens of the draft to verify, in [0, len(draft)].

        cost: of a step, by width. follows: the answer's next tokens, for use in hindsight only.
        """

    def learn(
        self, draft: Draft, num_verified: int, committed: Sequence[int], cost: Callable[[int], float]
    ) -> None:
        """Learn from a step that verified num_verified tokens of the draft and committed these tokens."""


class Always:
    """Verifies up to a fixed number of tokens, whatever they are worth."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def begin(self) -> None:
        """Do nothing."""

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:  # noqa: ARG002
        """Choose the whole draft, up to the limit."""
        return min(self.limit, len(draft.tokens))

    def learn(
        self, draft: Draft, num_verified: int, committed: Sequence[int], cost: Callable[[int], float]
    ) -> None:
        """Do nothing."""


class TwoWidths(Always):
    """Verifies a whole tile for matches of 12 tokens or more, else two tokens.

    A draft's bucket must be the length of its match.
    """

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:  # noqa: ARG002
        """Choose by the length of the match alone."""
        return min(len(draft.tokens), LIMIT if draft.bucket >= 12 else 2)


class Hindsight(Always):
    """Knows the answer, and chooses the width with the most tokens per cost."""

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:
        """Choose the best of all widths."""
        right = count_accepted(draft.tokens, follows)
        return max(range(right + 1), key=lambda k: (k + 1) / cost(k + 1))


def replay(
    drafters: Sequence[Drafter],
    chooser: Chooser,
    curve: Costs,
    start: SequenceStart,
    answer: Sequence[int],
) -> Outcome:
    """Replay a known answer step by step, as the engine would: propose, verify, observe, record_verified."""
    outcome = Outcome()
    limit = max(1, chooser.limit)
    costs = [curve.cost(width) for width in range(limit + 2)]
    chooser.begin()
    for drafter in drafters:
        finish(drafter.open(start))
    at = 0
    while at < len(answer):
        draft = Draft()
        for drafter in drafters:
            draft = drafter.propose(DraftQuery(start.seq, limit))
            if draft.tokens:
                break
        follows = answer[at : at + limit]
        num_verified = chooser.choose(draft, costs.__getitem__, follows)
        num_accepted = count_accepted(draft.tokens[: max(num_verified, 1)], follows)
        committed = answer[at : at + (num_accepted + 1 if num_verified else 1)]
        outcome.add_step(num_verified, num_accepted, len(committed), costs[1 + num_verified])
        at += len(committed)
        for drafter in drafters:
            drafter.observe(start.seq, committed)
            if num_verified and drafter.name == draft.source:
                drafter.record_verified(start.seq, num_verified, num_accepted)
        chooser.learn(draft, num_verified, committed, costs.__getitem__)
    for drafter in drafters:
        finish(drafter.close(start.seq))
    return outcome
