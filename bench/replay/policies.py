"""Replay a known answer: drafters draft, a rule chooses how much is verified, and costs are added up."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.cost_curves import Curve
from drafters.base import Draft, Drafter, DraftQuery, SequenceStart, finish
from drafters.ngram_mod import NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.ngram_simple import NgramSimpleDrafter
from drafters.suffix import SuffixDrafter
from engine.speculative.acceptance import count_accepted
from engine.speculative.costs.step_costs import StepCosts

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
    slowest: the lowest speedup of an answer. drafter_ns, open_ns: processor time of the drafters, for answers
    and for prompts.
    """

    num_tokens: int = 0
    num_forwards: int = 0
    cost: float = 0.0
    num_drafting: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_pairs: int = 0
    num_prompt_tokens: int = 0
    drafter_ns: int = 0
    open_ns: int = 0
    slowest: float = float("inf")
    widths: Counter[int] = field(default_factory=Counter)
    by_position: list[list[int]] = field(default_factory=list)

    def add_step(self, num_verified: int, num_accepted: int, num_committed: int, cost: float) -> None:
        """Count one forward pass."""
        self.num_tokens += num_committed
        self.num_forwards += 1
        self.cost += cost
        self.widths[1 + num_verified] += 1
        if num_verified:
            self.num_drafting += 1
            self.num_drafted += num_verified
            self.num_accepted += num_accepted
        self.by_position += [[0, 0] for _ in range(num_verified - len(self.by_position))]
        for at in range(num_verified):
            self.by_position[at][0] += 1
            self.by_position[at][1] += at < num_accepted

    def add(self, other: "Outcome") -> None:
        """Add the counts of another answer."""
        for name, count in vars(other).items():
            if isinstance(count, int | float) and name != "slowest":
                setattr(self, name, getattr(self, name) + count)
        self.slowest = min(self.slowest, other.slowest)
        self.widths.update(other.widths)
        self.by_position += [[0, 0] for _ in range(len(other.by_position) - len(self.by_position))]
        for mine, theirs in zip(self.by_position, other.by_position, strict=False):
            mine[:] = [mine[0] + theirs[0], mine[1] + theirs[1]]

    def cost_on(self, costs: Costs) -> float:
        """Return what these forward passes would cost with other step costs."""
        return sum(count * costs.cost(width) for width, count in self.widths.items())


Choose = Callable[[Draft, Callable[[int], float], Sequence[int]], int]
"""Returns how many tokens of a draft to verify.

Takes the draft, the cost of a step by its width, and, for use in hindsight, the next tokens of the answer.
"""


def everything(draft: Draft, _cost: Callable[[int], float], _follows: Sequence[int]) -> int:
    """Choose the whole draft."""
    return len(draft.tokens)


def two_widths(draft: Draft, _cost: Callable[[int], float], _follows: Sequence[int]) -> int:
    """Choose a whole tile for matches of 12 tokens or more, else two tokens. A bucket is a match's length."""
    return min(len(draft.tokens), LIMIT if draft.bucket >= 12 else 2)


def in_hindsight(draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:
    """Choose the width with the most tokens per cost, knowing the answer."""
    right = count_accepted(draft.tokens, follows)
    return max(range(right + 1), key=lambda k: (k + 1) / cost(k + 1))


def replay(
    drafters: Sequence[Drafter],
    choose: Choose,
    limit: int,
    curve: Costs,
    start: SequenceStart,
    answer: Sequence[int],
) -> Outcome:
    """Replay a known answer step by step, as the engine would: propose, verify, observe, record_verified.

    limit: maximum draft length; 0 replays plain decoding.
    """
    outcome = Outcome()
    costs = [curve.cost(width) for width in range(limit + 2)]
    for drafter in drafters:
        finish(drafter.open(start))
    at = 0
    while at < len(answer):
        drafts = (drafter.propose(DraftQuery(start.seq, limit)) for drafter in drafters if limit)
        draft = next((one for one in drafts if one.tokens), Draft())
        follows = answer[at : at + limit]
        num_verified = choose(draft, costs.__getitem__, follows)
        num_accepted = count_accepted(draft.tokens[:num_verified], follows)
        committed = answer[at : at + num_accepted + 1]
        outcome.add_step(num_verified, num_accepted, len(committed), costs[1 + num_verified])
        at += len(committed)
        for drafter in drafters:
            drafter.observe(start.seq, committed)
            if num_verified and drafter.name == draft.source:
                drafter.record_verified(start.seq, num_verified, num_accepted)
    for drafter in drafters:
        finish(drafter.close(start.seq))
    return outcome


def measured_curve(costs: StepCosts, name: str = "measured") -> Curve:
    """Return an engine's step costs for one row as they are now, relative to a plain step."""
    plain_s = costs.seconds(1, 1)
    points = tuple((width, costs.seconds(1, width) / plain_s) for width in costs.widths)
    return Curve(name, points, source="measured when the model was loaded")


def speedups(
    costs: StepCosts, draft_type: str, prompt: Sequence[int], answer: Sequence[int], widest: int
) -> tuple[float, float]:
    """Return the speedups of an answer if all steps used the best single width, and if each used its best."""
    made: dict[str, Callable[[], Drafter]] = {
        "ngram-simple": NgramSimpleDrafter,
        "ngram-mod": lambda: NgramModDrafter(NgramModTables("hindsight")),
    }
    curve = measured_curve(costs)

    def speedup(choose: Choose, limit: int) -> float:
        drafters = [made.get(draft_type, SuffixDrafter)()]
        outcome = replay(drafters, choose, limit, curve, SequenceStart(0, prompt), answer)
        return outcome.num_tokens / outcome.cost

    widths = {width for width in costs.widths if width < widest} | {widest}
    return max(speedup(everything, width - 1) for width in widths), speedup(in_hindsight, widest - 1)
