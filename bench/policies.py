"""Whole policies for a replay: who drafts, and how wide a step is, against a given cost of steps."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drafters.base import Ask, Draft, Drafter, Opening
from engine.gate import GLOBAL_DECAY, Acceptance, Tally, choose_width
from engine.ledger import Ledger

LIMIT = 31
"""Tokens of the longest draft: a full tile of 32 with the token before it."""

OVERHEAD = 0.02
"""The ledger's share, as the server's default."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a step costs by its width, a plain one being 1. points: (width, cost), widths rising from 1."""

    name: str
    points: tuple[tuple[int, float], ...]

    def cost(self, width: int) -> float:
        """Between points by straight lines, beyond the last by the last slope."""
        widths = [w for w, _ in self.points]
        at = min(max(bisect_right(widths, width), 1), len(widths) - 1)
        (low, a), (high, b) = self.points[at - 1], self.points[at]
        return a + (width - low) * (b - a) / (high - low)


M4_PRO = Curve(
    "M4 Pro 4-bit",
    ((1, 1.0), (2, 0.99), (3, 1.13), (4, 1.43), (5, 1.75), (8, 2.84), (10, 4.5), (32, 4.5)),
)
CPU_BF16 = Curve("CPU bf16", ((1, 1.0), (2, 1.3), (4, 1.75), (8, 2.8)))
FLAT = Curve("flat", ((1, 1.0), (32, 1.0)))
"""No machine: it shows tokens per forward where width costs nothing."""

WIDTHS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


def count_accepted(draft: Sequence[int], follows: Sequence[int]) -> int:
    """Leading tokens of a draft that are what follows."""
    for at, (drafted, said) in enumerate(zip(draft, follows, strict=False)):
        if drafted != said:
            return at
    return min(len(draft), len(follows))


class Costs(Protocol):
    """What a step costs by its width."""

    def cost(self, width: int) -> float:
        """In plain steps, or any other unit."""


@dataclass
class Outcome:
    """What a replay of one answer took. cost: in plain steps."""

    num_tokens: int = 0
    num_forwards: int = 0
    cost: float = 0.0


@dataclass
class Calibration:
    """Drafted tokens that were compared, and those that were right, by bucket. For the priors."""

    compared: dict[int, int] = field(default_factory=dict)
    right: dict[int, int] = field(default_factory=dict)

    def add(self, bucket: int, offered: int, accepted: int) -> None:
        """Count the tokens up to the first wrong one."""
        self.compared[bucket] = self.compared.get(bucket, 0) + min(accepted + 1, offered)
        self.right[bucket] = self.right.get(bucket, 0) + accepted


class Chooser(Protocol):
    """Decides how many tokens of a draft to have verified, and learns from what came."""

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


class Gate(Always):
    """The server's gate and ledger: engine/gate.py and engine/ledger.py.

    line_ends: tokens that end a line.
    """

    def __init__(self, line_ends: Collection[int] = ()) -> None:
        super().__init__(LIMIT)
        self.line_ends = line_ends
        self.everyone = Tally(GLOBAL_DECAY)
        self.begin()

    def begin(self) -> None:
        """A new ledger; what all requests taught stays."""
        self.acceptance = Acceptance(self.everyone, line_ends=self.line_ends)
        self.ledger = Ledger(OVERHEAD)

    def choose(self, draft: Draft, cost: Callable[[int], float], follows: Sequence[int]) -> int:  # noqa: ARG002
        """The width that promises most tokens per cost, if the ledger allows it."""
        if not draft.tokens:
            return 0
        offer = self.acceptance.offer(draft, self.acceptance.rate(draft))
        widest = len(draft.tokens) + 1
        widths = sorted(
            {w for w in (*WIDTHS, *(1 + stop for stop in offer.stops)) if 1 < w <= widest} | {widest}
        )
        plain = cost(1)
        return (
            choose_width([offer], widths, cost, lambda w: self.ledger.allows(cost(w), plain, has_draft=True))
            - 1
        )

    def learn(self, draft: Draft, offered: int, said: Sequence[int], cost: Callable[[int], float]) -> None:
        """Learn from what was verified, or from one token in shadow where nothing was offered."""
        if draft.tokens:
            compared = draft.tokens[: max(offered, 1)]
            self.acceptance.learn(draft, len(compared), count_accepted(compared, said))
        self.acceptance.pass_over(said)
        self.ledger.charge(cost(1 + offered), cost(1), len(said))


def replay(
    drafters: Sequence[Drafter],
    chooser: Chooser,
    curve: Costs,
    opening: Opening,
    answer: Sequence[int],
    calibration: Calibration | None = None,
) -> Outcome:
    """Say a known answer step by step, as the engine would: propose, verify, observe, settle."""
    outcome = Outcome()
    costs = [curve.cost(width) for width in range(LIMIT + 2)]
    chooser.begin()
    for drafter in drafters:
        drafter.open(opening)
    at = 0
    while at < len(answer):
        draft = Draft()
        for drafter in drafters:
            draft = drafter.propose(Ask(opening.seq, LIMIT))
            if draft.tokens:
                break
        follows = answer[at : at + LIMIT]
        offered = chooser.choose(draft, costs.__getitem__, follows)
        accepted = count_accepted(draft.tokens[: max(offered, 1)], follows)
        said = answer[at : at + (accepted + 1 if offered else 1)]
        if calibration and draft.tokens:
            calibration.add(draft.bucket, len(draft.tokens), count_accepted(draft.tokens, follows))
        outcome.cost += costs[1 + offered]
        outcome.num_forwards += 1
        outcome.num_tokens += len(said)
        at += len(said)
        for drafter in drafters:
            drafter.observe(opening.seq, said)
            if offered and drafter.name == draft.source:
                drafter.settle(opening.seq, offered, accepted)
        chooser.learn(draft, offered, said, costs.__getitem__)
    for drafter in drafters:
        drafter.close(opening.seq)
    return outcome


class FixedLookup:
    """The common prompt lookup: the newest earlier match of n tokens, n from longest to shortest."""

    name = "fixed"

    def __init__(self, longest: int, shortest: int) -> None:
        self.sizes = range(longest, shortest - 1, -1)
        self.texts: dict[int, list[int]] = {}
        self.places: dict[int, dict[tuple[int, ...], int]] = {}

    def open(self, opening: Opening) -> None:
        """Index the prompt."""
        self.texts[opening.seq] = []
        self.places[opening.seq] = {}
        self.observe(opening.seq, opening.prompt)

    def propose(self, ask: Ask) -> Draft:
        """What followed the match. Its bucket is n."""
        text, places = self.texts[ask.seq], self.places[ask.seq]
        for size in self.sizes:
            place = places.get(tuple(text[-size:]))
            if place is not None and len(text) >= size:
                return Draft(text[place : place + ask.limit], self.name, size, 0.5)
        return Draft()

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Index the ends before these tokens: never the very last, lest it matches itself."""
        text, places = self.texts[seq], self.places[seq]
        for token in tokens:
            for size in self.sizes:
                if len(text) >= size:
                    places[tuple(text[-size:])] = len(text)
            text.append(token)

    def settle(self, seq: int, offered: int, accepted: int) -> None:
        """Nothing to learn."""

    def close(self, seq: int) -> None:
        """Forget the sequence."""
        del self.texts[seq], self.places[seq]
