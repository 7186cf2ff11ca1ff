"""Replay known answers: drafters draft, a rule chooses how much is verified, and costs are added up.

Players play pairs one after the other, with drafters and what they keep between pairs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import thread_time_ns
from typing import Any, Protocol

from bench.cost_curves import Curve
from bench.replay.pairs import TokenPair
from bench.statistics import ratio
from config.settings import Settings
from drafters.base import NO_DRAFT, Draft, Drafter, DraftQuery, SequenceStart, finish
from drafters.ngram_mod import NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.ngram_simple import NgramSimpleDrafter
from drafters.repetition import score_in_slices
from drafters.suffix import SuffixDrafter
from engine.request import GenerationRequest, Sampling
from engine.speculative.acceptance import count_accepted
from engine.speculative.costs.step_costs import StepCosts
from engine.speculative.draft_length import MIN_GAIN, DraftEstimate, choose_width
from engine.speculative.proposers import DraftSources, Proposers

LIMIT = 31
"""Maximum draft length in tokens: with the token before it, a full tile of 32."""


class Costs(Protocol):
    """The cost of a step by its width."""

    def cost(self, width: int) -> float:
        """Return the cost of a step of this width, in plain steps or any other unit."""


@dataclass
class Outcome:
    """The counts of a replay of one answer or several.

    cost: in plain steps. steps: number of forward passes by their (verified, accepted) draft tokens.
    slowest: the lowest speedup of an answer. drafter_ns, open_ns: processor time of the drafters, for answers
    and for prompts.
    """

    num_tokens: int = 0
    cost: float = 0.0
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    num_pairs: int = 0
    num_prompt_tokens: int = 0
    drafter_ns: int = 0
    open_ns: int = 0
    slowest: float = float("inf")

    @property
    def num_forwards(self) -> int:
        """The number of forward passes."""
        return self.steps.total()

    @property
    def num_drafting(self) -> int:
        """The number of forward passes that verified a draft."""
        return sum(count for (verified, _), count in self.steps.items() if verified)

    @property
    def num_drafted(self) -> int:
        """The number of drafted tokens that were verified."""
        return sum(verified * count for (verified, _), count in self.steps.items())

    @property
    def num_accepted(self) -> int:
        """The number of drafted tokens that were accepted."""
        return sum(accepted * count for (_, accepted), count in self.steps.items())

    @property
    def by_position(self) -> list[list[int]]:
        """For each position in a draft, [times verified, times accepted]."""
        longest = max((verified for verified, _ in self.steps), default=0)
        return [
            [sum(count for step, count in self.steps.items() if step[which] > at) for which in (0, 1)]
            for at in range(longest)
        ]

    def add_step(self, num_verified: int, num_accepted: int, num_committed: int, cost: float) -> None:
        """Count one forward pass."""
        self.num_tokens += num_committed
        self.cost += cost
        self.steps[num_verified, num_accepted] += 1

    def add(self, other: "Outcome") -> None:
        """Add the counts of another answer."""
        self.slowest = min(self.slowest, other.slowest)
        for name in vars(other).keys() - {"slowest"}:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def figures(self) -> dict[str, Any]:
        """Return the figures that rows of replays and sweeps have. speedup: according to the cost curve."""
        return {
            "tokens": self.num_tokens, "speedup": ratio(self.num_tokens, self.cost),
            "tokens_per_forward": ratio(self.num_tokens, self.num_forwards),
            "acceptance": ratio(self.num_accepted, self.num_drafted),
            "drafted_share": ratio(self.num_accepted, self.num_tokens),
            "acceptance_by_position": [ratio(right, drafted) for drafted, right in self.by_position],
        }  # fmt: skip

    def cost_on(self, costs: Costs) -> float:
        """Return what these forward passes would cost with other step costs."""
        return sum(count * costs.cost(1 + verified) for (verified, _), count in self.steps.items())


def total(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the counts of several outcomes together."""
    found = Outcome()
    for outcome in outcomes:
        found.add(outcome)
    return found


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


WIDTHS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Widths that the gate considers, besides the draft's own stops: those that a server measures, and 10."""


class TimedDrafter:
    """A drafter whose processor time is measured: open_ns for prompts, drafter_ns for the rest."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.name = drafter, drafter.name
        self.drafter_ns = self.open_ns = 0
        self.propose, self.observe = self._timed(drafter.propose), self._timed(drafter.observe)
        self.record_verified = self._timed(drafter.record_verified)
        # Not timed, because no token waits for it.
        self.close = drafter.close

    def open(self, start: SequenceStart) -> None:
        """Open the sequence and read its prompt, timed."""
        start_ns = thread_time_ns()
        finish(self.drafter.open(start))
        self.open_ns += thread_time_ns() - start_ns

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start_ns = thread_time_ns()
            found = call(*arguments)
            self.drafter_ns += thread_time_ns() - start_ns
            return found

        return timed


class Player:
    """Replays known answers as a server with one rule would."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = [TimedDrafter(drafter) for drafter in drafters]

    def play(self, pair: TokenPair) -> Outcome:
        """Replay one answer, without what only play_all() counts."""
        raise NotImplementedError

    def play_all(
        self, pairs: Iterable[TokenPair], is_cold: bool = True
    ) -> Iterator[tuple[TokenPair, Outcome]]:
        """Replay all answers, and yield those that are measured, with their counts.

        is_cold: drafters forget earlier chats; what the gate learned is kept, as on a server.
        """
        chat = ""
        for pair in pairs:
            if is_cold and (not pair.chat or pair.chat != chat):
                self._forget()
            chat = pair.chat
            before = self._spent_ns()
            outcome = self.play(pair)
            outcome.num_pairs, outcome.num_prompt_tokens = 1, len(pair.prompt)
            outcome.slowest = outcome.num_tokens / outcome.cost
            spent = zip(self._spent_ns(), before, strict=True)
            outcome.drafter_ns, outcome.open_ns = (after - earlier for after, earlier in spent)
            if pair.is_measured:
                yield pair, outcome

    def _forget(self) -> None:
        for timed in self.drafters:
            if (reset := getattr(timed.drafter, "reset", None)) is not None:
                reset()

    def _spent_ns(self) -> tuple[int, int]:
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
