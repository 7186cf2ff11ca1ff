"""Which drafters a sequence has, what they offer now, and what was learned from what came true."""

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
from engine.speculative.draft_length import DraftEstimate, expected_tokens
from engine.speculative.draft_model.draft_length import MODEL, DraftLength, PromptGate, TokenYield
from engine.speculative.draft_stats import DraftCounts
from engine.speculative.slowdown_budget import SlowdownBudget

if TYPE_CHECKING:
    # The command line composes drafters before it knows that it can listen; this would load transformers.
    from engine.sampling.grammar import Matcher

log = logging.getLogger("reprise.engine")

LOOKUPS = {
    "auto": ("suffix", "ngram-mod"),
    "ngram-simple": ("ngram-simple",),
    "ngram-mod": ("ngram-mod",),
    "suffix": ("suffix",),
}
"""Draft type -> the drafters that look text up, in the order in which they are asked."""

GRAMMAR = "grammar"
GRAMMAR_PRIOR = 0.97

DOUBT = 2.0
"""The power to which prior chances are taken where the prompt does not repeat itself."""


@dataclass(frozen=True)
class DraftSources:
    """What the command line composes: drafters by name, and the score that judges a prompt."""

    drafters: Mapping[str, Drafter]
    repetition_score: Callable[[Sequence[int]], float]


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the gate made of a request before its first token.

    decision: "lookup", "draft-model" or "plain". score: of the prompt's repetition, None if nobody asked.
    doubt: >= 1, see Acceptance.
    """

    decision: str
    reason: str
    score: float | None = None
    doubt: float = 1.0


SWITCHED_OFF = GateDecision("plain", "drafting is switched off")


class Proposers:
    """The drafters of a server, and what all requests have taught about them.

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
        self.everyone = AcceptanceCounts(GLOBAL_DECAY)
        self.carried = TokenYield()
        self.trials = PromptGate()
        self._numbers = itertools.count()

    def begin(self, request: GenerationRequest, matcher: "Matcher | None" = None) -> "SequenceDrafts":
        """Choose a sequence's drafters and open them. A drafter that raises is left out."""
        s = self.settings
        verdict, names = self._choose(request)
        drafters = [self.sources.drafters[name] for name in names if name in self.sources.drafters]
        limit = self.limit
        if request.draft.max_tokens is not None:
            limit = min(limit, request.draft.max_tokens)
        acceptance = Acceptance(self.everyone, verdict.doubt, self.line_ends)
        length, slowdown_budget = (
            DraftLength(acceptance, TokenYield(self.carried)),
            SlowdownBudget(s.draft_overhead),
        )
        drafts = SequenceDrafts(
            next(self._numbers), limit, verdict, acceptance, length, slowdown_budget, drafters
        )
        drafts.uses_model = self.has_model and MODEL in names
        if self.can_draft and verdict is not SWITCHED_OFF:
            drafts.matcher = matcher
        drafts.open(request)
        return drafts

    def may_ask_model(self, request: GenerationRequest) -> bool:
        """Whether the draft model has to read the prompt, because it may come to draft."""
        draft_type = request.draft.type or self.settings.draft_type
        return self.has_model and draft_type in ("auto", MODEL) and request.draft.max_tokens != 0

    @property
    def limit(self) -> int:
        """Most tokens of one draft, unless a request says less."""
        return self.settings.num_draft_tokens

    def new_length(self) -> DraftLength:
        """What a request that is still to come may expect of the draft model."""
        return DraftLength(Acceptance(self.everyone), TokenYield(self.carried))

    def _choose(self, request: GenerationRequest) -> tuple[GateDecision, tuple[str, ...]]:
        """The verdict and the names of the drafters to ask, first come first asked."""
        s = self.settings
        draft_type = request.draft.type or s.draft_type
        if draft_type == "none" or request.draft.max_tokens == 0:
            return SWITCHED_OFF, ()
        first = ("prediction",) if request.prediction else ()
        if draft_type == MODEL:
            return GateDecision(MODEL, "asked for by name"), (*first, MODEL)
        lookups = LOOKUPS[draft_type]
        if draft_type != "auto":
            return GateDecision("lookup", "asked for by name"), (*first, *lookups)
        everything = (*first, *lookups, MODEL)
        if s.gate == "off":
            return GateDecision("lookup", "the gate is off"), everything
        score = self.sources.repetition_score(request.prompt)
        compared = f"repetition {score:.3f}, threshold {s.gate_threshold:g}"
        if score >= s.gate_threshold:
            return GateDecision("lookup", compared, score), everything
        if s.gate == "on":
            return GateDecision(MODEL if self.has_model else "plain", compared, score), (*first, MODEL)
        if self.has_model:
            return GateDecision(MODEL, compared, score, DOUBT), everything
        return GateDecision("plain", f"{compared}; opens if drafts come true", score, DOUBT), everything


@dataclass
class SequenceDrafts:
    """One sequence's drafters, ledger and counts.

    seq: its number with the drafters. limit: most tokens of one draft.
    length: what to expect of the draft model.
    uses_model: whether that may draft where the drafters have nothing worth its cost.
    matcher: of the answer's grammar. Drafts keep to it, and what it leaves no choice about is a draft itself.
    """

    seq: int
    limit: int
    verdict: GateDecision
    acceptance: Acceptance
    length: DraftLength
    slowdown_budget: SlowdownBudget
    drafters: list[Drafter]
    uses_model: bool = False
    matcher: "Matcher | None" = None
    request_id: str = ""
    counts: DraftCounts = field(default_factory=DraftCounts)
    _shown: list[Draft] = field(default_factory=list)

    def open(self, request: GenerationRequest) -> None:
        """Tell the drafters of the sequence."""
        self.request_id = request.id
        opening = SequenceStart(self.seq, request.prompt, request.prediction, request.tenant)
        for drafter in list(self.drafters):
            self._guard(drafter, partial(drafter.open, opening))
        self.counts.open_s, self.counts.drafter_s = self.counts.drafter_s, 0.0

    def propose(
        self, limit: int, min_tokens: float, is_worth: Callable[[DraftEstimate], bool]
    ) -> DraftEstimate:
        """An offer of the first draft that is worth its cost, else of the one most likely right.

        limit: most tokens wanted, >= 1. least_tokens: what a step with drafts must bring on average, whatever
        its width. is_worth: whether an offer that may bring so many is.
        """
        self._shown = []
        best, best_rate = NO_DRAFT, 0.0
        for draft in self._drafts(min(limit, self.limit)):
            self._shown.append(draft)
            rate = self.acceptance.rate(draft)
            # Most drafts fail already at this.
            if expected_tokens(rate, len(draft.tokens)) >= min_tokens:
                estimate = self.acceptance.estimate(draft, rate)
                if is_worth(estimate):
                    return replace(estimate, is_worth=True)
            if rate > best_rate:
                best, best_rate = draft, rate
        return self.acceptance.estimate(best, best_rate)

    def _drafts(self, limit: int) -> Iterator[Draft]:
        """All drafts there are now, in the order of preference; those of the drafters keep to the grammar."""
        forced = self.matcher.forced()[:limit] if self.matcher else []
        ask = DraftQuery(self.seq, limit)
        for drafter in list(self.drafters):
            draft = self._guard(drafter, partial(drafter.propose, ask))
            if draft is None:
                continue
            tokens = draft.tokens
            if self.matcher:
                tokens = list(tokens[: self.matcher.count_allowed(tokens)])
                # One that goes on behind what must come is better than just that; another is worse.
                if tokens[: len(forced)] != forced or len(tokens) == len(forced):
                    continue
                draft = replace(draft, tokens=tokens)
            if tokens:
                yield draft
        if forced:
            yield Draft(forced, GRAMMAR, 0, GRAMMAR_PRIOR)

    def observe(self, tokens: Sequence[int], verified: Draft = NO_DRAFT, num_verified: int = 0) -> None:
        """These tokens were committed; learn from every draft that was shown before them.

        verified: the draft that the step checked, if any, and how many of its tokens.
        """
        for draft in self._shown:
            if draft is not verified:
                self.acceptance.learn(draft, 1, int(draft.tokens[0] == tokens[0]))
        self._shown = []
        num_accepted = count_accepted(verified.tokens[:num_verified], tokens)
        # An answer that ended within the draft says nothing of what came after its end.
        num_judged = num_verified if num_accepted < len(tokens) else num_accepted
        if num_judged:
            self.acceptance.learn(verified, num_judged, num_accepted)
        self.acceptance.pass_over(tokens)
        self.length.observe(len(tokens), num_judged, num_accepted)
        self.counts.num_forwards += 1
        self.counts.add_tokens(verified.source, num_accepted, len(tokens))
        if num_verified:
            self.counts.add_draft(verified.source, num_verified, num_accepted)
        for drafter in list(self.drafters):
            self._guard(drafter, partial(drafter.observe, self.seq, tokens))
            if num_judged and drafter.name == verified.source and drafter in self.drafters:
                self._guard(drafter, partial(drafter.record_verified, self.seq, num_judged, num_accepted))

    def close(self) -> None:
        """The sequence ended, or is to have no more drafts. Its counts can still be read."""
        self.uses_model, self.matcher = False, None
        for drafter in list(self.drafters):
            self._guard(drafter, partial(drafter.close, self.seq), is_closing=True)
        self.drafters.clear()

    def report(self) -> DraftingReport:
        """Counts up to now, and what the gate decided."""
        return self.counts.report(self.verdict.score, self.verdict.decision, self.verdict.reason)

    def _guard(
        self, drafter: Drafter, call: Callable[[], Draft | None], is_closing: bool = False
    ) -> Draft | None:
        """Drafts are a bonus: a drafter that raises is closed and left out, and the answer goes on."""
        start = perf_counter()
        try:
            return call()
        except Exception:
            told = "drafter %s failed; request %s goes on without it"
            log.error(told, drafter.name, self.request_id, exc_info=True)
            if not is_closing:
                self.drafters.remove(drafter)
                self._guard(drafter, partial(drafter.close, self.seq), is_closing=True)
            return None
        finally:
            self.counts.drafter_s += perf_counter() - start
