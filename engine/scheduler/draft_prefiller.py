"""Draft prefill: the draft model computes decoding rows' texts in slices, charged to slowdown budgets.

A row decodes before its draft prefill is complete; only then may the draft model draft for it. A slice is
computed only while no prompt is prefilled and every row has its first token. It delays all rows, so every
row's budget must allow it.
"""

import logging
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from time import perf_counter

from reprise.engine.batch.sequence import Prefill, Sequence
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.memory.prefill_plan import MAX_STALL_MS
from reprise.engine.scheduler.prefixes import num_shared
from reprise.engine.speculative.draft_model.draft_prefill import DraftPrefixes, TextPrefill
from reprise.engine.speculative.heads.head import States
from reprise.engine.speculative.heads.head_drafter import HeadDrafter, RowDrafter
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import Proposers

log = logging.getLogger("reprise.engine")

MIN_SLICE_TOKENS = 16
"""Minimum tokens in a slice, if as many are left, once that many were tried: fewer take as long."""

PACE_RATE = 0.5
"""How fast the time per token follows a measured slice, as a share of the difference."""

GROWING_SLICES = 6
"""The first slices are small and take longer per token: each replaces what was expected before."""

RESERVED_STEPS = 1.0
"""Plain steps of a slowdown budget that are left for the first draft, besides the budget's reserve."""

PREFILL_IN_ANSWERS = 4
"""A text is prefilled if this many answers like this one could pay for it: the next turn continues there."""

ALL_TEXT = 2**20
"""Maximum tokens of a text to look up in the prefix cache at once."""


class Pace:
    """Chooses the tokens of the next slice by the seconds of earlier ones, so that it stays within a limit.

    The first slice has one token, and each next one at most twice as many as the one before it.

    max_tokens: maximum tokens of a slice. token_s: seconds per token; 0 until a slice was observed.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self.num_tokens = 1
        self.token_s = 0.0
        self._num_observed = 0

    @property
    def is_known(self) -> bool:
        """Whether enough slices were observed to estimate the seconds of a text's draft prefill."""
        return self._num_observed >= GROWING_SLICES

    def slice_s(self, num_left: int) -> float:
        """Return the expected seconds of the next slice of a text that has num_left tokens left."""
        return min(self.num_tokens, max(num_left, MIN_SLICE_TOKENS)) * self.token_s

    def observe(self, num_tokens: int, taken_s: float, limit_s: float) -> None:
        """Learn from a slice's seconds, unless the text's end cut it short, which makes tokens dearer.

        limit_s: maximum seconds of a slice.
        """
        if 2 * num_tokens < self.num_tokens:
            return
        rate = PACE_RATE if self.is_known else 1.0
        self.token_s += rate * (taken_s / num_tokens - self.token_s)
        self._num_observed += 1
        fitting = int(limit_s / max(self.token_s, 1e-12))
        self.num_tokens = min(max(fitting, MIN_SLICE_TOKENS), 2 * self.num_tokens, self._max_tokens)


class DraftPrefiller:
    """Chooses which texts the draft model prefills, and when. Used by the engine's thread only.

    An error ends only the draft model's part: the answer needs the target model alone.
    prefixes: the draft model's prefix cache.
    """

    def __init__(
        self,
        draft_model: RowDrafter,
        proposers: Proposers,
        planner: Planner,
        memory_budget: MemoryBudget,
        prefixes: DraftPrefixes,
    ) -> None:
        self.prefixes = prefixes
        self._draft_model = draft_model
        self._proposers = proposers
        self._planner = planner
        self._memory_budget = memory_budget
        # No slice is larger than the chunks for which memory is reserved.
        self._pace = Pace(memory_budget.chunk_tokens)
        self._lookup_pace = Pace(ALL_TEXT)

    def choose(self, sequence: Sequence) -> None:
        """Choose whether the draft model or head drafts for a sequence whose drafters were just opened.

        The choice precedes prefill, because collecting a head's states from the target costs time.
        """
        if sequence.drafts and sequence.drafts.uses_model:
            try:
                sequence.drafts.uses_model = self._is_wanted()
                sequence.drafts.counts.is_model_left_out = not sequence.drafts.uses_model
                source = sequence.drafts.forecast.source
                sequence.drafts.counts.token_steps = self._planner.token_steps(1, source)
            except Exception as fault:
                sequence.give_up_draft_model(fault)

    def begin(self, sequence: Sequence) -> TextPrefill | None:
        """Make the draft prefill of a sequence that joins the rows; None if no model drafts for it."""
        drafts, prefill = sequence.drafts, None
        if drafts is None:
            return None
        drafts.forecast.is_ready = False
        try:
            if drafts.uses_model:
                prefill = self._make_prefill(sequence)
        except Exception as fault:
            sequence.give_up_draft_model(fault)
        drafts.uses_model = prefill is not None
        if prefill and prefill.is_ready:
            drafts.forecast.begin()
        return prefill

    def _make_prefill(self, sequence: Sequence) -> TextPrefill | None:
        if isinstance(self._draft_model, HeadDrafter):
            of_target = sequence.prefill
            head_prefill = self._draft_model.make_prefill(of_target.states, of_target.num_computed)
            # Where a text like this one may continue.
            head_prefill.keep_at = {self.prefixes.opening(sequence.tokens), of_target.num_computed}
            return head_prefill
        opening = self.prefixes.opening(sequence.tokens)
        prefill = self._draft_model.make_prefill(len(sequence.tokens), sequence.give_up_draft_model, opening)
        if prefill and sequence.drafts:
            strategy = self._draft_model.translation.strategy
            sequence.drafts.counts.track_translation(prefill.translator, strategy)
        return prefill

    def _is_wanted(self) -> bool:
        proposers = self._proposers
        pays = self._planner.model_pays(proposers.new_forecast(), proposers.settings.num_draft_tokens)
        # What is fed nothing costs nothing until it drafts.
        return not proposers.is_fed or proposers.prompt_gate.should_prefill(pays)

    def begun(self, members: SequenceOf[Sequence]) -> list[Sequence]:
        """Return the sequences whose draft prefill is under way, in caches that no row owns yet."""
        return [members[row] for row, prefill in self._draft_model.awaiting_prefill() if prefill.caches]

    def stop(self, members: SequenceOf[Sequence]) -> bool:
        """End all draft prefill that is under way, to free memory; return whether there was any."""
        rows = [row for row, prefill in self._draft_model.awaiting_prefill() if prefill.caches]
        for row in rows:
            self._drop(members[row], row)
        return bool(rows)

    def _drop(self, sequence: Sequence, row: int) -> None:
        self._draft_model.drop_prefill(row)
        if sequence.drafts:
            sequence.drafts.uses_model = False

    def keep_row(self, sequence: Sequence, row: int) -> None:
        """Cache the draft model's part of a row before the row is removed, if memory allows a copy."""
        try:
            if self._may_copy(sequence):
                self._draft_model.keep_row(row, sequence.tokens, self.prefixes)
        # No request depends on this copy.
        except Exception:
            log.warning("a prefix of the draft model could not be cached", exc_info=True)

    def begin_to_read(self, sequence: Sequence) -> None:
        """Let a head read a prompt that is read ahead: its states cannot be had later."""
        is_head = isinstance(self._draft_model, HeadDrafter)
        sequence.prefill.keeps_states = is_head and self.prefixes.cache is not None

    def read(self, sequence: Sequence) -> None:
        """Feed the head what was computed of a prompt that is read ahead."""
        of_target, drafter = sequence.prefill, self._draft_model
        if not of_target.states.num or not isinstance(drafter, HeadDrafter):
            return
        try:
            prefill = of_target.of_head or drafter.make_prefill(of_target.states, of_target.num_computed)
            of_target.of_head = prefill
            if not prefill.has_begun and not prefill.is_waiting:
                self.prefixes.look_up(prefill, sequence.tokens, ALL_TEXT)
            bounds = drafter.head.bounds
            if prefill.num_skipped or (bounds and prefill.num_computed + prefill.states.num > bounds.most):
                # Of a text without its middle nothing is cached.
                _read_no_more(of_target)
                return
            while prefill.has_begun and prefill.count_left(len(sequence.tokens)):
                prefill.compute(drafter.model, sequence.tokens, self._memory_budget.chunk_tokens)
        # The prompt is useful without it.
        except Exception:
            log.warning("a head cannot read ahead", exc_info=True)
            _read_no_more(of_target)

    def keep_read(self, sequence: Sequence) -> None:
        """Cache what a head has read of a prompt that is read ahead, if memory allows a copy."""
        prefill = sequence.prefill.of_head
        if prefill and prefill.has_begun and self._may_copy(sequence):
            self.prefixes.keep(prefill, sequence.tokens)

    def is_due(self, members: SequenceOf[Sequence]) -> bool:
        """Whether a slice may be computed now. First drops draft prefills that are no longer useful."""
        self._drop_hopeless(members)
        return self._choose(members) is not None

    def run(self, members: SequenceOf[Sequence]) -> None:
        """Compute a slice, if one is due, and more slices while all of them stay within a limit.

        The limit is the seconds of a plain step or, within the share of prefill time, of a prompt's chunk.
        """
        start, has_computed = perf_counter(), False
        while (chosen := self._choose(members)) is not None:
            row, prefill, plain_s = chosen
            share_s = min(s.drafts.slowdown_budget.share_to_prefill_s for s in members if s.drafts)
            limit_s = max(plain_s, min(MAX_STALL_MS / 1000, share_s))
            if has_computed and perf_counter() - start + self._slice_s(members[row], prefill) > limit_s:
                return
            self._run_slice(members, row, prefill, limit_s)
            self._drop_hopeless(members)
            has_computed = True

    def _drop_hopeless(self, members: SequenceOf[Sequence]) -> None:
        """Drop texts whose prefill costs more than their answers can pay for, and long-idle heads."""
        if isinstance(self._draft_model, HeadDrafter):
            for row in self._draft_model.idle_rows():
                self._drop(members[row], row)
        plain_s = self._plain_s(members)
        for row, prefill in self._draft_model.awaiting_prefill() if plain_s else ():
            if prefill.has_begun and not self._is_payable(members[row], prefill, plain_s or 0.0):
                # Another turn may continue here.
                self.keep_row(members[row], row)
                self._drop(members[row], row)
                if drafts := members[row].drafts:
                    drafts.counts.is_model_dropped = True

    def _plain_s(self, members: SequenceOf[Sequence]) -> float | None:
        """Return the seconds of a plain step; None if they are not known, or a row has no token yet."""
        # A slice must not delay a first token.
        if not members or not all(s.num_answered for s in members):
            return None
        return self._planner.costs.least_plain_s(len(members), self._planner.conditions(members))

    def _choose(self, members: SequenceOf[Sequence]) -> tuple[int, TextPrefill, float] | None:
        """Choose the row to prefill next, the one with the least left; None if none may be prefilled.

        Returns the row, its draft prefill, and the seconds of a plain step.
        """
        awaiting = [
            (row, prefill)
            for row, prefill in self._draft_model.awaiting_prefill()
            if (drafts := members[row].drafts) and drafts.uses_model and not prefill.is_waiting
        ]
        if not awaiting or (plain_s := self._plain_s(members)) is None:
            return None
        if not self._pace.token_s and (costs := self._planner.model_costs):
            self._pace.token_s = costs.seconds(1, 1, 0, self._planner.conditions(members))
        budgets = [s.drafts.slowdown_budget for s in members if s.drafts]
        left_s = min(budget.left_to_prefill_s(plain_s) for budget in budgets) - (1 + RESERVED_STEPS) * plain_s
        awaiting.sort(key=lambda one: one[1].count_left(len(members[one[0]].tokens)))
        texts = [(members[row], prefill) for row, prefill in awaiting]
        for row, prefill in awaiting:
            is_affordable = self._slice_s(members[row], prefill) <= left_s
            if is_affordable and not self._awaits(members[row], prefill, texts):
                return row, prefill, plain_s
        return None

    def _awaits(
        self, sequence: Sequence, prefill: TextPrefill, others: Iterable[tuple[Sequence, TextPrefill]]
    ) -> bool:
        """Whether to wait for another text with a shared prefix, after which this one has less left."""
        if prefill.has_begun or not prefill.num_before:
            return False
        return any(
            other.num_before < prefill.num_before and num_shared(sequence, of) >= prefill.num_before
            for of, other in others
        )

    def _slice_s(self, sequence: Sequence, prefill: TextPrefill) -> float:
        pace = self._pace if prefill.has_begun else self._lookup_pace
        return pace.slice_s(prefill.count_left(len(sequence.tokens)))

    def _is_payable(self, sequence: Sequence, prefill: TextPrefill, plain_s: float) -> bool:
        """Whether the sequence's budget can pay for the rest of its draft prefill before its answer ends."""
        if not self._pace.is_known or sequence.drafts is None:
            return True
        budget = sequence.drafts.slowdown_budget
        num_left = sequence.request.max_tokens - sequence.num_answered
        prefill_s = prefill.spent_s + prefill.count_left(len(sequence.tokens)) * self._pace.token_s
        if self.prefixes.cache:
            prefill_s /= PREFILL_IN_ANSWERS
        # Each token of the answer earns a part of a step, and has to be prefilled too.
        earned_s = num_left * max(0.0, budget.overhead * plain_s - self._pace.token_s)
        payable_s = budget.left_to_prefill_s(plain_s) - (1 + RESERVED_STEPS) * plain_s + earned_s
        return num_left > 1 and prefill_s <= prefill.spent_s + payable_s

    def _run_slice(
        self, members: SequenceOf[Sequence], row: int, prefill: TextPrefill, limit_s: float
    ) -> None:
        """Compute a slice of a row's text, or look it up, and charge its time to all rows."""
        sequence, start = members[row], perf_counter()
        try:
            run = self._compute if prefill.has_begun else self._look_up
            run(sequence, row, prefill, limit_s)
        except Exception as fault:
            self._draft_model.drop_prefill(row)
            sequence.give_up_draft_model(fault)
        taken_s = perf_counter() - start
        prefill.spent_s += taken_s
        for other in members:
            if other.drafts:
                other.drafts.slowdown_budget.charge_draft_prefill(taken_s)
        if sequence.drafts:
            sequence.drafts.counts.drafter_s += taken_s

    def _look_up(self, sequence: Sequence, row: int, prefill: TextPrefill, limit_s: float) -> None:
        """Look up a part of a text in the draft model's prefix cache."""
        start, tokens = perf_counter(), sequence.tokens
        num_tokens = self.prefixes.look_up(prefill, tokens, self._lookup_pace.num_tokens)
        self._lookup_pace.observe(num_tokens, perf_counter() - start, limit_s)
        if prefill.caches and not self._memory_budget.reserve_draft_prefill(len(tokens)):
            self._drop(sequence, row)

    def _compute(self, sequence: Sequence, row: int, prefill: TextPrefill, limit_s: float) -> None:
        """Feed the draft model a part of a text; after the last one it may draft."""
        start, tokens = perf_counter(), sequence.tokens
        num_computed = prefill.compute(self._draft_model.model, tokens, self._pace.num_tokens)
        self._pace.observe(num_computed, perf_counter() - start, limit_s)
        is_complete = prefill.count_left(len(tokens)) == 0
        # A request that comes meanwhile may share this text.
        if (is_complete or prefill.num_computed in prefill.keep_at) and self._may_copy(sequence):
            self.prefixes.keep(prefill, tokens)
        if is_complete and sequence.drafts:
            self._draft_model.start_drafting(row)
            sequence.drafts.forecast.begin()

    def _may_copy(self, sequence: Sequence) -> bool:
        return self.prefixes.cache is not None and self._memory_budget.may_copy(len(sequence.tokens), -1)


def _read_no_more(of_target: Prefill) -> None:
    of_target.keeps_states, of_target.of_head, of_target.states = False, None, States()
