"""The drafters of each sequence: choose them, ask them for drafts, and learn from the outcome."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from config.settings import Settings
from drafters.base import NO_DRAFT, Draft, Drafter, DraftQuery, SequenceStart
from engine.request import DraftingReport, GenerationRequest
from engine.speculative.acceptance import GLOBAL_DECAY, Acceptance, AcceptanceCounts, count_accepted
from engine.speculative.costs.slowdown_budget import SlowdownBudget
from engine.speculative.draft_length import DraftEstimate, expected_tokens
from engine.speculative.draft_model.forecast import MODEL, DraftForecast, PromptGate, TokenYield
from engine.speculative.draft_stats import DraftCounts
from engine.speculative.gate import SWITCHED_OFF, GateDecision, decide
from engine.stations import spend

if TYPE_CHECKING:
    # Not at run time: it loads transformers, and the command line imports this before it binds its port.
    from engine.sampling.grammar import Matcher

log = logging.getLogger("reprise.engine")

GRAMMAR = "grammar"
GRAMMAR_PRIOR = 0.97


@dataclass(frozen=True)
class DraftSources:
    """The drafters by name, as the command line makes them, and the score by which the gate rates prompts."""

    drafters: Mapping[str, Drafter]
    repetition_score: Callable[[Sequence[int]], float]


class Proposers:
    """The server's drafters, and the acceptance learned over all requests.

    has_model: whether a draft model is loaded beside them.
    line_ends: tokens of the vocabulary that end a line.
    """

    def __init__(
        self,
        sources: DraftSources | None,
        settings: Settings,
        has_model: bool = False,
        line_ends: frozenset[int] = frozenset(),
    ) -> None:
        self.can_draft = sources is not None
        self.sources = sources or DraftSources({}, lambda _: 0.0)
        self.settings = settings
        self.has_model = has_model
        self.line_ends = line_ends
        self.global_counts = AcceptanceCounts(GLOBAL_DECAY)
        self.token_yield = TokenYield()
        self.prompt_gate = PromptGate()
        self._numbers = itertools.count()

    def begin(self, request: GenerationRequest, matcher: "Matcher | None" = None) -> "SequenceDrafts":
        """Choose a sequence's drafters and open them. A drafter that raises is left out."""
        gate = decide(request, self.settings, self.has_model, self.sources.repetition_score)
        acceptance = Acceptance(self.global_counts, gate.doubt, self.line_ends)
        limit = self.limit
        if request.draft.max_tokens is not None:
            limit = min(limit, request.draft.max_tokens)
        drafts = SequenceDrafts(
            next(self._numbers),
            limit,
            gate,
            acceptance,
            DraftForecast(acceptance, TokenYield(self.token_yield)),
            SlowdownBudget(self.settings.draft_overhead),
            [self.sources.drafters[name] for name in gate.drafters if name in self.sources.drafters],
        )
        drafts.uses_model = self.has_model and MODEL in gate.drafters
        if self.can_draft and gate is not SWITCHED_OFF:
            drafts.matcher = matcher
        drafts.open(request)
        return drafts

    @property
    def limit(self) -> int:
        """Maximum tokens of one draft; a request may ask for fewer."""
        return self.settings.num_draft_tokens

    def new_forecast(self) -> DraftForecast:
        """Return what a new request may expect of the draft model."""
        return DraftForecast(Acceptance(self.global_counts), TokenYield(self.token_yield))


@dataclass
class SequenceDrafts:
    """One sequence's drafters, slowdown budget and counts.

    seq: the number by which the drafters know it. limit: maximum tokens of one draft.
    forecast: what to expect of the draft model.
    uses_model: whether the draft model may draft when no drafter has a draft worth its cost, once it has read
        the text.
    matcher: the state of the answer's grammar, if it has one. Drafts obey it, and tokens that it forces are
        a draft of their own.
    """

    seq: int
    limit: int
    gate: GateDecision
    acceptance: Acceptance
    forecast: DraftForecast
    slowdown_budget: SlowdownBudget
    drafters: list[Drafter]
    uses_model: bool = False
    matcher: "Matcher | None" = None
    request_id: str = ""
    counts: DraftCounts = field(default_factory=DraftCounts)
    _proposed: list[Draft] = field(default_factory=list)
    _best: Draft = NO_DRAFT
    _best_rate: float = 0.0

    def open(self, request: GenerationRequest) -> None:
        """Open the sequence's drafters."""
        self.request_id = request.id
        start = SequenceStart(self.seq, request.prompt, request.prediction, request.tenant)
        for drafter in list(self.drafters):
            self._guard(drafter, partial(drafter.open, start))
        self.counts.open_s, self.counts.drafter_s = self.counts.drafter_s, 0.0

    @property
    def can_ask_model(self) -> bool:
        """Whether the draft model may draft now."""
        return self.uses_model and self.forecast.is_ready

    def propose(
        self, limit: int, min_tokens: float, is_worth: Callable[[DraftEstimate], bool]
    ) -> DraftEstimate:
        """Estimate the first draft that is worth its cost; an estimate without tokens if none is.

        limit: maximum tokens wanted, >= 1.
        min_tokens: tokens that a step with drafts must bring on average to pay at any width.
        is_worth: returns whether a draft with this estimate pays; called only above min_tokens.
        """
        self._proposed = []
        self._best, self._best_rate = NO_DRAFT, 0.0
        for draft in self._drafts(min(limit, self.limit)):
            self._proposed.append(draft)
            rate = self.acceptance.rate(draft)
            # This cheap test rejects most drafts.
            if expected_tokens(rate, len(draft.tokens)) >= min_tokens:
                estimate = self.acceptance.estimate(draft, rate)
                estimate.is_worth = is_worth(estimate)
                if estimate.is_worth:
                    self._best = NO_DRAFT
                    return estimate
            if rate > self._best_rate:
                self._best, self._best_rate = draft, rate
        return DraftEstimate()

    @property
    def has_best(self) -> bool:
        """Whether propose() found any draft not worth its cost, and none that is."""
        return self._best is not NO_DRAFT

    def estimate_best(self) -> DraftEstimate:
        """Estimate the likeliest of the drafts that propose() found not worth their cost."""
        return self.acceptance.estimate(self._best, self._best_rate)

    def _drafts(self, limit: int) -> Iterator[Draft]:
        """Yield the drafts there are now, in the order of preference. All of them obey the grammar."""
        forced = self.matcher.forced_tokens()[:limit] if self.matcher else []
        query = DraftQuery(self.seq, limit)
        for drafter in list(self.drafters):
            draft = self._guard(drafter, partial(drafter.propose, query))
            if draft is None:
                continue
            tokens = draft.tokens
            if self.matcher:
                tokens = list(tokens[: self.matcher.count_allowed(tokens)])
                # Only a draft that begins with the forced tokens and continues after them is better.
                if tokens[: len(forced)] != forced or len(tokens) == len(forced):
                    continue
                draft = replace(draft, tokens=tokens)
            if tokens:
                yield draft
        if forced:
            yield Draft(forced, GRAMMAR, 0, GRAMMAR_PRIOR)

    def observe(self, tokens: Sequence[int], verified: Draft = NO_DRAFT, num_verified: int = 0) -> None:
        """Pass the committed tokens of one step to the drafters, and learn from every draft proposed for it.

        verified, num_verified: the draft that the step verified, if any, and how many of its tokens.
        """
        for draft in self._proposed:
            if draft is not verified:
                self.acceptance.learn(draft, 1, int(draft.tokens[0] == tokens[0]))
        self._proposed, self._best = [], NO_DRAFT
        num_accepted = count_accepted(verified.tokens[:num_verified], tokens)
        # If the answer ended within the draft, the drafted tokens after its end are not judged.
        num_judged = num_verified if num_accepted < len(tokens) else num_accepted
        if num_judged:
            self.acceptance.learn(verified, num_judged, num_accepted)
        self.acceptance.count_lines(tokens)
        self.forecast.observe(len(tokens), num_judged, num_accepted)
        self.counts.num_forwards += 1
        self.counts.add_tokens(verified.source, num_accepted, len(tokens))
        if num_verified:
            self.counts.add_draft(verified.source, num_verified, num_accepted)
        for drafter in list(self.drafters):
            self._guard(drafter, partial(drafter.observe, self.seq, tokens))
            if num_judged and drafter.name == verified.source and drafter in self.drafters:
                self._guard(drafter, partial(drafter.record_verified, self.seq, num_judged, num_accepted))

    def close(self) -> None:
        """Close the drafters: the sequence ended or gets no more drafts. Its counts stay readable."""
        self.uses_model, self.matcher = False, None
        for drafter in list(self.drafters):
            self._guard(drafter, partial(drafter.close, self.seq), is_closing=True)
        self.drafters.clear()

    def report(self) -> DraftingReport:
        """Return the counts up to now, and what the gate decided."""
        return self.counts.report(self.gate.score, self.gate.decision, self.gate.reason)

    def _guard(
        self, drafter: Drafter, call: Callable[[], Draft | None], is_closing: bool = False
    ) -> Draft | None:
        """Call a drafter and time it. If it raises it is closed and left out: an answer needs no drafts."""
        start = perf_counter()
        try:
            return call()
        except Exception:
            message = "drafter %s failed; request %s continues without it"
            log.error(message, drafter.name, self.request_id, exc_info=True)
            if not is_closing:
                self.drafters.remove(drafter)
                self._guard(drafter, partial(drafter.close, self.seq), is_closing=True)
            return None
        finally:
            taken_s = perf_counter() - start
            self.counts.drafter_s += taken_s
            spend("drafters", taken_s)
