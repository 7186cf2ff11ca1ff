"""Play pairs one after the other by a rule, with its drafters and what they keep between pairs."""

from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any

from bench.replay.pairs import TokenPair
from bench.replay.policies import Choose, Costs, Outcome, replay
from config.settings import Settings
from drafters.base import NO_DRAFT, Draft, Drafter, DraftQuery, SequenceStart, Slices, finish
from drafters.repetition import score_in_slices
from engine.request import GenerationRequest, Sampling
from engine.speculative.acceptance import count_accepted
from engine.speculative.draft_length import MIN_GAIN, DraftEstimate, choose_width
from engine.speculative.proposers import DraftSources, Proposers

WIDTHS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Widths that the gate considers, besides the draft's own stops: those that a server measures, and 10."""


class TimedDrafter:
    """A drafter whose processor time is measured: open_ns for prompts, drafter_ns for the rest."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.name = drafter.name
        self.drafter_ns = self.open_ns = 0

    def open(self, start: SequenceStart) -> None:
        """Open the sequence and read its prompt, timed."""
        start_ns = thread_time_ns()
        finish(self.drafter.open(start))
        self.open_ns += thread_time_ns() - start_ns

    def propose(self, query: DraftQuery) -> Draft:
        """Propose, timed."""
        draft: Draft = self._timed(self.drafter.propose, query)
        return draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Observe, timed."""
        self._timed(self.drafter.observe, seq, tokens)

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Record the result, timed."""
        self._timed(self.drafter.record_verified, seq, num_verified, num_accepted)

    def close(self, seq: int) -> Slices | None:
        """Close the sequence. Not timed, because no token waits for it."""
        return self.drafter.close(seq)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        start_ns = thread_time_ns()
        found = call(*arguments)
        self.drafter_ns += thread_time_ns() - start_ns
        return found


class Player:
    """Replays known answers as a server with one rule would."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = [TimedDrafter(drafter) for drafter in drafters]

    def play(self, pair: TokenPair) -> Outcome:
        """Replay one answer."""
        raise NotImplementedError

    def forget(self) -> None:
        """Make the drafters forget earlier pairs."""
        for timed in self.drafters:
            if (reset := getattr(timed.drafter, "reset", None)) is not None:
                reset()

    def spent_ns(self) -> tuple[int, int]:
        """Return the drafters' processor time so far, for answers and for prompts."""
        return sum(one.drafter_ns for one in self.drafters), sum(one.open_ns for one in self.drafters)


class FixedPlayer(Player):
    """One drafter with drafts of a fixed length or a fixed rule for it, without the server's gate."""

    def __init__(self, drafter: Drafter, choose: Choose, limit: int, costs: Costs) -> None:
        super().__init__([drafter])
        self._how = choose, limit, costs

    def play(self, pair: TokenPair) -> Outcome:
        """Replay one answer."""
        return replay(self.drafters, *self._how, SequenceStart(0, pair.prompt), pair.answer)


class ServerPlayer(Player):
    """Drafters with the server's gate and slowdown budget.

    It does what engine/speculative/proposers.py and engine/scheduler/speculation.py do for a single row whose
    tokens are all in the cache. As in a server, the acceptance rates learned from all requests are never
    forgotten.
    """

    def __init__(
        self, drafters: Sequence[Drafter], settings: Settings, costs: Costs, line_ends: frozenset[int]
    ) -> None:
        super().__init__(drafters)
        sources = DraftSources({timed.name: timed for timed in self.drafters}, score_in_slices)
        self.proposers = Proposers(sources, settings, line_ends=line_ends)
        self.limit = settings.num_draft_tokens
        self.costs = [costs.cost(max(1, width)) for width in range(self.limit + 2)]
        self.widths = sorted({w for w in WIDTHS if w <= self.limit} | {self.limit + 1})
        self.min_tokens = MIN_GAIN * min(self.costs[width] for width in self.widths) / self.costs[1]

    def play(self, pair: TokenPair) -> Outcome:
        """Replay one answer."""
        answer, costs, outcome = pair.answer, self.costs, Outcome()
        plain = costs[1]
        # Leave room for a draft beyond the answer: a server does not know where the answer ends.
        max_tokens = len(answer) + self.limit + 1
        drafts = self.proposers.begin(GenerationRequest("replay", pair.prompt, max_tokens, Sampling(0)))
        self.proposers.work.finish()
        slowdown_budget = drafts.slowdown_budget
        at, was_plain = 0, False
        while at < len(answer):
            draft, num_verified = NO_DRAFT, 0
            if not slowdown_budget.wants_plain(plain):
                estimate = drafts.propose(self.limit, self.min_tokens, self._is_worth)
                if estimate.is_worth:
                    num_verified = (
                        self._choose(estimate, lambda w: costs[w] <= slowdown_budget.left_s(plain)) - 1
                    )
                    draft = estimate.draft if num_verified else NO_DRAFT
            follows = answer[at : at + num_verified + 1]
            num_accepted = count_accepted(draft.tokens[:num_verified], follows)
            committed = follows[: num_accepted + 1]
            cost = costs[1 + num_verified]
            outcome.add_step(num_verified, num_accepted, len(committed), cost)
            slowdown_budget.charge(cost, plain, len(committed))
            drafts.observe(committed, draft, num_verified)
            # Only the second of two plain steps shows what plain steps cost: see StepAccounts.
            if num_verified == 0 and was_plain:
                slowdown_budget.num_unseen = 0
            was_plain = num_verified == 0
            at += len(committed)
        drafts.close()
        self.proposers.work.finish()
        return outcome

    def _is_worth(self, estimate: DraftEstimate) -> bool:
        return self._choose(estimate, lambda _: True) > 1

    def _choose(self, estimate: DraftEstimate, is_allowed: Callable[[int], bool]) -> int:
        widest = 1 + estimate.num_tokens
        stops = {1 + stop for stop in estimate.stops}
        widths = sorted({w for w in (*self.widths, *stops) if 1 < w < widest} | {widest} - {1})
        return choose_width([estimate], widths, self.costs.__getitem__, is_allowed)
