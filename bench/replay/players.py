"""Players: a rule with its drafters and its memory, through which pairs go one after the other."""

from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Protocol

from bench.pairs import TokenPair
from bench.policies import Chooser, Costs, Outcome, replay
from config.settings import Settings
from drafters.base import NO_DRAFT, Draft, Drafter, DraftQuery, SequenceStart, SharedTable
from drafters.repetition import repetition_score
from engine.request import GenerationRequest, Sampling
from engine.speculative.acceptance import count_accepted
from engine.speculative.draft_length import MIN_GAIN, DraftEstimate, choose_width
from engine.speculative.proposers import DraftSources, Proposers

WIDTHS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""What the gate weighs, beside where a draft stops being sure: as many as a server measures, and 10."""


class Player(Protocol):
    """Says known answers as a server with one rule would."""

    def play(self, pair: TokenPair) -> Outcome:
        """Say one answer."""

    def forget(self) -> None:
        """Forget what drafters remember of earlier pairs."""

    @property
    def drafter_ns(self) -> int:
        """Processor time that the drafters took for all answers so far, prompts not counted."""

    @property
    def open_ns(self) -> int:
        """Processor time that they took for all prompts."""


class TimedDrafter:
    """A drafter whose processor time is taken."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.name = drafter.name
        self.drafter_ns = self.open_ns = 0

    def open(self, opening: SequenceStart) -> None:
        """As the drafter does."""
        start = thread_time_ns()
        self.drafter.open(opening)
        self.open_ns += thread_time_ns() - start

    def propose(self, ask: DraftQuery) -> Draft:
        """As the drafter does."""
        start = thread_time_ns()
        draft = self.drafter.propose(ask)
        self.drafter_ns += thread_time_ns() - start
        return draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """As the drafter does."""
        start = thread_time_ns()
        self.drafter.observe(seq, tokens)
        self.drafter_ns += thread_time_ns() - start

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """As the drafter does."""
        start = thread_time_ns()
        self.drafter.record_verified(seq, offered, accepted)
        self.drafter_ns += thread_time_ns() - start

    def close(self, seq: int) -> None:
        """As the drafter does. Not counted: no token waits for it."""
        self.drafter.close(seq)


class _Timed:
    """What the two kinds of player share: drafters, their time, their memory."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = [TimedDrafter(drafter) for drafter in drafters]

    def forget(self) -> None:
        """Forget what drafters remember of earlier pairs."""
        for timed in self.drafters:
            if isinstance(timed.drafter, SharedTable):
                timed.drafter.reset()

    @property
    def drafter_ns(self) -> int:
        """Processor time for all answers so far."""
        return sum(timed.drafter_ns for timed in self.drafters)

    @property
    def open_ns(self) -> int:
        """Processor time for all prompts so far."""
        return sum(timed.open_ns for timed in self.drafters)


class FixedPlayer(_Timed):
    """One drafter and a chooser that does without the server's gate."""

    def __init__(self, drafter: Drafter, chooser: Chooser, costs: Costs) -> None:
        super().__init__([drafter])
        self.chooser = chooser
        self.costs = costs

    def play(self, pair: TokenPair) -> Outcome:
        """Say one answer."""
        return replay(self.drafters, self.chooser, self.costs, SequenceStart(0, pair.prompt), pair.answer)


class ServerPlayer(_Timed):
    """Drafters as the server asks them, with its gate and ledger: engine/drafting.py and engine/planning.py.

    Of the planning it is what concerns one row alone, all of whose tokens are in its cache. What all requests
    taught the gate is never forgotten, as a server does not.
    """

    def __init__(
        self, drafters: Sequence[Drafter], settings: Settings, costs: Costs, line_ends: frozenset[int]
    ) -> None:
        super().__init__(drafters)
        sources = DraftSources({timed.name: timed for timed in self.drafters}, repetition_score)
        self.drafting = Proposers(sources, settings, line_ends=line_ends)
        self.limit = settings.num_draft_tokens
        self.costs = [costs.cost(max(1, width)) for width in range(self.limit + 2)]
        self.widths = sorted({w for w in WIDTHS if w <= self.limit} | {self.limit + 1})
        self.least_tokens = MIN_GAIN * min(self.costs[width] for width in self.widths) / self.costs[1]

    def play(self, pair: TokenPair) -> Outcome:
        """Say one answer."""
        answer, costs, outcome = pair.answer, self.costs, Outcome()
        plain = costs[1]
        # The server does not know where the answer ends.
        most = len(answer) + self.limit + 1
        drafts = self.drafting.begin(GenerationRequest("replay", pair.prompt, most, Sampling(0)))
        slowdown_budget = drafts.slowdown_budget
        at = 0
        while at < len(answer):
            estimate = drafts.propose(self.limit, self.least_tokens, self._is_worth)
            offered = 0
            if estimate.is_worth:
                offered = (
                    self._choose(estimate, lambda w: slowdown_budget.allows(costs[w], plain, has_draft=True))
                    - 1
                )
            follows = answer[at : at + offered + 1]
            accepted = count_accepted(estimate.draft.tokens[:offered], follows)
            said = follows[: accepted + 1]
            cost = costs[1 + offered]
            outcome.add_step(offered, accepted, len(said), cost)
            slowdown_budget.charge(cost, plain, len(said))
            drafts.observe(said, estimate.draft if offered else NO_DRAFT, offered)
            at += len(said)
        drafts.close()
        return outcome

    def _is_worth(self, estimate: DraftEstimate) -> bool:
        return self._choose(estimate, lambda _: True) > 1

    def _choose(self, estimate: DraftEstimate, is_allowed: Callable[[int], bool]) -> int:
        widest = 1 + estimate.num_tokens
        stops = {1 + stop for stop in estimate.stops}
        widths = sorted({w for w in (*self.widths, *stops) if 1 < w < widest} | {widest} - {1})
        return choose_width([estimate], widths, self.costs.__getitem__, is_allowed)
