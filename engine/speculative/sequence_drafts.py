"""The drafters of one sequence: ask them for drafts, and learn from the outcome."""

import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from reprise.drafters.base import (
    NO_DRAFT,
    Draft,
    Drafter,
    DraftQuery,
    IndexesViews,
    SequenceStart,
    Slices,
    View,
)
from reprise.engine.interface.events import DraftingReport
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.interface.spans import spend
from reprise.engine.speculative.acceptance import Acceptance, count_accepted
from reprise.engine.speculative.costs.slowdown_budget import SlowdownBudget
from reprise.engine.speculative.draft_length import DrafterWork, DraftEstimate, expected_tokens
from reprise.engine.speculative.draft_model.forecast import DraftForecast
from reprise.engine.speculative.draft_stats import PLAIN, DraftCounts
from reprise.engine.speculative.gate import GateDecision
from reprise.engine.speculative.mask_drafts import MaskDrafts
from reprise.engine.vision.keys import without_images

if TYPE_CHECKING:
    # Not at run time: it loads transformers, and the command line imports this before it binds its port.
    from reprise.engine.sampling.grammar import Matcher

log = logging.getLogger("reprise.engine")

T = TypeVar("T")

GRAMMAR = "grammar"
GRAMMAR_PRIOR = 0.97


@dataclass
class SequenceDrafts:
    """One sequence's drafters, slowdown budget and counts.

    seq: the number by which the drafters know it. limit: maximum tokens of one draft.
    drafters: the open ones. work: queues their slices of work.
    forecast: what to expect of the draft model.
    uses_model: whether the draft model may draft once its prefill is complete, when no drafter's draft is
        worth its cost.
    masks: the target's own mask drafts, if it can make any.
    matcher: the state of the answer's grammar, if it has one. Drafts obey it, and the tokens that it forces
        are drafted too.
    vocab_size: see Proposers.
    asked_s: seconds that drafters took for the last proposal; the caller counts them.
    best, best_rate: the likeliest draft that the last proposal found not worth its cost, and its acceptance
        rate; NO_DRAFT if there is none.
    """

    seq: int
    limit: int
    gate: GateDecision
    acceptance: Acceptance
    forecast: DraftForecast
    slowdown_budget: SlowdownBudget
    drafters: list[Drafter]
    work: DrafterWork
    uses_model: bool = False
    masks: MaskDrafts | None = None
    matcher: "Matcher | None" = None
    request_id: str = ""
    vocab_size: int | None = None
    counts: DraftCounts = field(default_factory=DraftCounts)
    asked_s: float = 0.0
    _views: Sequence[View] = ()
    _num_views: int = 0
    best: Draft = NO_DRAFT
    best_rate: float = 0.0
    _proposed: list[Draft] = field(default_factory=list)

    def open(
        self,
        request: GenerationRequest,
        score: Callable[[Sequence[int]], Generator[int, None, float]],
        decide_by_score: Callable[[float], GateDecision],
    ) -> None:
        """Open the sequence's drafters. They index the prompt later, and may be asked before that.

        score: starts to compute a prompt's score; see DraftSources. decide_by_score: returns the gate's final
            decision for a score. Both are used only if the gate's decision is not final.
        """
        began, self.request_id = perf_counter(), request.id
        start = SequenceStart(self.seq, request.prompt, request.prediction, request.tenant)
        indexing: list[Slices] = [
            self._index(drafter, slices)
            for drafter in self.drafters[:]
            if (slices := self._guard(drafter, partial(drafter.open, start)))
        ]
        self._views = request.views
        if not self.gate.is_final:
            indexing.insert(0, self._score(partial(score, request.prompt), decide_by_score))
        if indexing or self._views:
            self.work.index(
                self.seq, _alternate(itertools.chain.from_iterable(indexing), self._index_views())
            )
        self.counts.open_s = perf_counter() - began

    def _index_views(self) -> Slices:
        """Let drafters index new views."""
        while self._num_views < len(self._views):
            view = self._views[self._num_views]
            self._num_views += 1
            for drafter in self.drafters[:]:
                if isinstance(drafter, IndexesViews):
                    slices = self._guard(drafter, partial(drafter.add_view, self.seq, view))
                    yield from self._index(drafter, slices or iter(()))
            # A view that is empty, or for which there is no room, takes no slice of its own.
            yield 0

    def _score(
        self,
        score: Callable[[], Generator[int, None, float]],
        decide_by_score: Callable[[float], GateDecision],
    ) -> Slices:
        """Compute the prompt's score; then make the gate's final decision."""
        try:
            found = yield from self._timed(score())
        # An answer needs no drafts.
        except Exception:
            log.error("the prompt of request %s cannot be scored", self.request_id, exc_info=True)
            found = 0.0
        self.gate = decide_by_score(found)
        self.acceptance.doubt = self.gate.doubt
        for drafter in self.drafters[:]:
            if drafter.name not in self.gate.drafters:
                self.drafters.remove(drafter)
                self._guard(drafter, partial(drafter.close, self.seq))

    def _index(self, drafter: Drafter, slices: Slices) -> Slices:
        """Let a drafter index the prompt, unless it is closed first."""
        while drafter in self.drafters:
            start = perf_counter()
            num_tokens = self._guard(drafter, partial(next, slices, None))
            self.counts.open_s += perf_counter() - start
            if num_tokens is None:
                return
            yield num_tokens

    def _timed(self, score: Generator[int, None, float]) -> Generator[int, None, float]:
        """Do the work of a score, and count the seconds that it takes."""
        while True:
            start = perf_counter()
            try:
                num_tokens = next(score)
            except StopIteration as end:
                return float(end.value)
            finally:
                self.counts.open_s += perf_counter() - start
            yield num_tokens

    @property
    def can_draft(self) -> bool:
        """Whether any drafter may draft for the sequence, now or later. Once False, it stays False."""
        return bool(self.drafters or self.uses_model or self.masks or self.matcher)

    @property
    def can_ask_model(self) -> bool:
        """Whether the draft model may draft now."""
        return self.uses_model and self.forecast.is_ready

    def propose(
        self, limit: int, min_tokens: float, is_worth: Callable[[DraftEstimate], bool]
    ) -> DraftEstimate:
        """Estimate the first draft that is worth its cost; an estimate without tokens if none is.

        limit: maximum tokens wanted, >= 1.
        min_tokens: mean tokens that a step with drafts must yield to pay at any width.
        is_worth: returns whether a draft with this estimate pays; called only where it may.
        """
        self._proposed = []
        self.best, self.best_rate = NO_DRAFT, 0.0
        self.asked_s = 0.0
        for draft in self._drafts(min(limit, self.limit)):
            self._proposed.append(draft)
            rate = self.acceptance.rate(draft)
            # This cheap test rejects most drafts. Support may raise the rate.
            if draft.support or expected_tokens(rate, len(draft.tokens)) >= min_tokens:
                estimate = self.acceptance.estimate(draft, rate)
                estimate.is_worth = is_worth(estimate)
                if estimate.is_worth:
                    self.best = NO_DRAFT
                    return estimate
            if rate > self.best_rate and not draft.is_guess:
                self.best, self.best_rate = draft, rate
        return DraftEstimate()

    def estimate_predicted(self, limit: int) -> DraftEstimate:
        """Estimate the draft that the last step's masks predict; an estimate without tokens if there is none.

        limit: maximum tokens wanted. Called after propose().
        """
        if self.masks is None or not self.masks.draft.tokens:
            return DraftEstimate()
        draft = self.masks.draft
        draft = replace(draft, tokens=draft.tokens[: min(limit, self.limit)])
        if self.matcher:
            draft = _cut(draft, self.matcher, self.matcher.forced_tokens()[:limit])
        if not draft.tokens:
            return DraftEstimate()
        self._proposed.append(draft)
        return self.acceptance.estimate(draft, 0.0)

    def _drafts(self, limit: int) -> Iterator[Draft]:
        """Yield the drafts there are now, in the order of preference. All of them obey the grammar."""
        forced = self.matcher.forced_tokens()[:limit] if self.matcher else []
        query = DraftQuery(self.seq, limit)
        # Reading the clock can take longer than a drafter that has nothing, so all such are timed together.
        start = perf_counter()
        guesses: list[Draft] = []
        for drafter in self.drafters[:]:
            if drafter.name in self.gate.later:
                continue
            try:
                draft = drafter.propose(query)
            except Exception as fault:
                self._drop(drafter, fault)
                continue
            if draft.tokens and self.vocab_size:
                draft = without_images(draft, self.vocab_size)
            if draft.tokens:
                self._note_asked(start)
                if self.matcher:
                    draft = _cut(draft, self.matcher, forced)
                if draft.is_guess:
                    guesses.append(draft)
                elif draft.tokens:
                    yield draft
                start = perf_counter()
        self._note_asked(start)
        if forced:
            yield Draft(forced, GRAMMAR, 0, GRAMMAR_PRIOR)
        if not self.masks:
            yield from guesses

    def observe(self, tokens: Sequence[int], verified: Draft = NO_DRAFT, num_verified: int = 0) -> None:
        """Pass one step's committed tokens to the drafters, and learn from every draft proposed for it.

        Views that arrived meanwhile are indexed in later steps.
        verified, num_verified: the draft that the step verified, if any, and how many of its tokens.
        """
        self.counts.num_forwards += 1
        if not (self._proposed or num_verified or self.can_draft):
            self.counts.add_tokens(PLAIN, 0, len(tokens))
            return
        for draft in self._proposed:
            if draft is not verified:
                self.acceptance.learn(draft, 1, int(draft.tokens[0] == tokens[0]))
        self._proposed, self.best = [], NO_DRAFT
        num_accepted = count_accepted(verified.tokens[:num_verified], tokens)
        # If the answer ended within the draft, the drafted tokens after its end are not judged.
        num_judged = num_verified if num_accepted < len(tokens) else num_accepted
        if num_judged:
            self.acceptance.learn(verified, num_judged, num_accepted)
        if self.masks:
            self.masks.observe(tokens)
        self.acceptance.count_lines(tokens)
        self.forecast.observe(len(tokens), num_judged, num_accepted)
        self.counts.add_tokens(verified.source, num_accepted, len(tokens))
        if num_verified:
            self.counts.add_draft(verified.source, num_verified, num_accepted)
        if self._num_views < len(self._views) and not self.work.is_indexing(self.seq):
            self.work.index(self.seq, self._index_views())
        start = perf_counter()
        for drafter in self.drafters[:]:
            try:
                drafter.observe(self.seq, tokens)
                if num_judged and drafter.name == verified.source:
                    drafter.note_verified(self.seq, num_judged, num_accepted)
            except Exception as fault:
                self._drop(drafter, fault)
        taken_s = perf_counter() - start
        self.counts.drafter_s += taken_s
        spend("drafters", taken_s)

    def close(self) -> None:
        """Close the drafters: the sequence ended or gets no more drafts. Its counts stay readable.

        They learn its text in later steps.
        """
        self.uses_model, self.masks, self.matcher = False, None, None
        drafters, self.drafters = self.drafters, []
        learning = [
            self._learn(drafter, slices)
            for drafter in drafters
            if (slices := self._guard(drafter, partial(drafter.close, self.seq)))
        ]
        self.work.close(self.seq, itertools.chain.from_iterable(learning))

    def _learn(self, drafter: Drafter, slices: Slices) -> Slices:
        """Let a drafter learn the text of the sequence, which has ended."""
        while (num_tokens := self._guard(drafter, partial(next, slices, None))) is not None:
            yield num_tokens

    def report(self, *, has_origins: bool = True) -> DraftingReport:
        """Report the counts so far and the gate's decision. has_origins: see DraftCounts.report()."""
        gate, budget = self.gate, self.slowdown_budget
        found = self.counts.report(gate.score, gate.decision, gate.reason, has_origins=has_origins)
        return replace(found, charged_s=budget.spent_s, charged_plain_s=budget.plain_s)

    def _note_asked(self, start: float) -> None:
        """Count the seconds since start as the drafters', but not in the thread's spans."""
        taken_s = perf_counter() - start
        self.counts.drafter_s += taken_s
        self.asked_s += taken_s

    def _guard(self, drafter: Drafter, call: Callable[[], T]) -> T | None:
        """Call a drafter. If it raises, drop it and return None: an answer needs no drafts."""
        try:
            return call()
        except Exception as fault:
            self._drop(drafter, fault)
            return None

    def _drop(self, drafter: Drafter, fault: Exception) -> None:
        """Log a drafter's exception, and close and drop the drafter unless that was done."""
        message = "drafter %s failed; request %s continues without it"
        log.error(message, drafter.name, self.request_id, exc_info=fault)
        if drafter in self.drafters:
            self.drafters.remove(drafter)
            self._guard(drafter, partial(drafter.close, self.seq))


def _alternate(*works: Slices) -> Slices:
    """Alternate between slices of several pieces of work until all are done."""
    left = list(works)
    while left:
        for slices in left[:]:
            if (num_tokens := next(slices, None)) is None:
                left.remove(slices)
            else:
                yield num_tokens


def _cut(draft: Draft, matcher: "Matcher", forced: list[int]) -> Draft:
    """Cut a draft to what the grammar allows. Returns NO_DRAFT if the forced tokens are no worse."""
    tokens = list(draft.tokens[: matcher.count_allowed(draft.tokens)])
    # Only a draft that begins with the forced tokens and continues after them is better.
    if tokens[: len(forced)] != forced or len(tokens) == len(forced):
        return NO_DRAFT
    # Forced tokens are accepted whatever their support says, so nothing is learned from it.
    return replace(draft, tokens=tokens, support=() if forced else draft.support)
