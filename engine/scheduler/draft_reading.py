"""Let the draft model read the texts of rows that decode, slice by slice, at the expense of slowdown budgets.

A row decodes from its first token on, whatever the draft model has read. It reads only while no prompt is
prefilled and every row has its first token. Every slice delays all rows, so the budget of each must allow it.
Once the draft model has read a row's text, it may draft for it.
"""

import logging
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from time import perf_counter

from engine.memory.budget import MemoryBudget
from engine.scheduler.prefix_lookup import num_shared
from engine.sequence.sequence import Sequence
from engine.speculative.draft_model.prefixes import DraftPrefixes
from engine.speculative.draft_model.reader import Reader
from engine.speculative.heads.drafter import HeadDrafter, RowDrafter
from engine.speculative.planning.planner import Planner
from engine.speculative.proposers import Proposers

log = logging.getLogger("reprise.engine")

MIN_SLICE_TOKENS = 16
"""Minimum tokens in a slice, if as many are left, once that many were tried: fewer take as long."""

PACE_RATE = 0.5
"""How fast the time per token follows a measured slice, as a share of the difference."""

GROWING_SLICES = 6
"""The first slices are small and take longer per token: each replaces what was expected before."""

RESERVED_STEPS = 1.0
"""Plain steps of a slowdown budget that reading leaves for the first draft, besides the budget's reserve."""

READ_IN_ANSWERS = 4
"""A text is read if this many answers like this one could pay for it: the next turn continues from there."""

ALL_TEXT = 2**20
"""Maximum tokens of a text to look up in the prefix cache at once."""


class Pace:
    """How many tokens to read at once, so that it takes about as long as it may, by what earlier slices took.

    The first slice has one token, and each next one at most twice as many as the one before it.

    max_tokens: of one slice. token_s: seconds per token; those of the first one are a guess.
    """

    def __init__(self, max_tokens: int, token_s: float = 0.0) -> None:
        self._max_tokens = max_tokens
        self.num_tokens = 1
        self.token_s = token_s
        self._num_observed = 0

    @property
    def is_known(self) -> bool:
        """Whether enough slices were measured to expect what a text takes."""
        return self._num_observed >= GROWING_SLICES

    def slice_s(self, num_left: int) -> float:
        """Return the expected seconds of a slice of a text of which num_left tokens are left."""
        return min(self.num_tokens, max(num_left, MIN_SLICE_TOKENS)) * self.token_s

    def observe(self, num_tokens: int, taken_s: float, limit_s: float) -> None:
        """Learn what a slice took. A short one, at the end of a text, would teach too much per token.

        limit_s: how long one may take.
        """
        if 2 * num_tokens < self.num_tokens:
            return
        rate = PACE_RATE if self.is_known else 1.0
        self.token_s += rate * (taken_s / num_tokens - self.token_s)
        self._num_observed += 1
        fitting = int(limit_s / max(self.token_s, 1e-12))
        self.num_tokens = min(max(fitting, MIN_SLICE_TOKENS), 2 * self.num_tokens, self._max_tokens)


class DraftReading:
    """Chooses which texts the draft model reads, and when. Used by the engine's thread only.

    A fault ends only the draft model's part: the answer needs the target model alone.
    prefixes: what the draft model has read before.
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
        self._pace = Pace(memory_budget.chunk_tokens, planner.model.seconds(1, 1, 0))
        self._lookup_pace = Pace(ALL_TEXT)

    def choose(self, sequence: Sequence) -> None:
        """Choose whether to draft for a sequence whose drafters were just opened.

        Its prompt is not computed yet: to take a head's states out of the target costs time, too.
        """
        if sequence.drafts and sequence.drafts.uses_model:
            try:
                sequence.drafts.uses_model = self._is_wanted()
                sequence.drafts.counts.is_model_left_out = not sequence.drafts.uses_model
                sequence.drafts.counts.token_steps = self._planner.model.token_steps(1)
            except Exception as fault:
                sequence.give_up_draft_model(fault)

    def begin(self, sequence: Sequence) -> Reader | None:
        """Make a reader for a sequence that joins the rows; None if nothing is to be drafted for it."""
        drafts, reader = sequence.drafts, None
        if drafts is None:
            return None
        drafts.forecast.is_ready = False
        try:
            if drafts.uses_model:
                reader = self._make_reader(sequence)
        except Exception as fault:
            sequence.give_up_draft_model(fault)
        drafts.uses_model = reader is not None
        return reader

    def _make_reader(self, sequence: Sequence) -> Reader | None:
        if isinstance(self._draft_model, HeadDrafter):
            prefill = sequence.prefill
            head_reader = self._draft_model.make_reader(prefill.states, prefill.num_computed)
            # Where a text like this one may continue.
            head_reader.keep_at = {self.prefixes.opening(sequence.tokens), prefill.num_computed}
            return head_reader
        opening = self.prefixes.opening(sequence.tokens)
        reader = self._draft_model.make_reader(len(sequence.tokens), sequence.give_up_draft_model, opening)
        if reader and sequence.drafts:
            strategy = self._draft_model.translation.strategy
            sequence.drafts.counts.track_translation(reader.translator, strategy)
        return reader

    def _is_wanted(self) -> bool:
        proposers = self._proposers
        pays = self._planner.model.pays(proposers.new_forecast(), proposers.limit)
        return proposers.prompt_gate.should_read(pays)

    def begun(self, members: SequenceOf[Sequence]) -> list[Sequence]:
        """Return the rows whose text is being read, in caches that are not theirs yet."""
        return [members[row] for row, reader in self._draft_model.unread() if reader.caches]

    def stop(self, members: SequenceOf[Sequence]) -> bool:
        """Stop reading these texts for good, to free memory; return whether there are any."""
        rows = [row for row, reader in self._draft_model.unread() if reader.caches]
        for row in rows:
            self._drop(members[row], row)
        return bool(rows)

    def _drop(self, sequence: Sequence, row: int) -> None:
        self._draft_model.drop_reader(row)
        if sequence.drafts:
            sequence.drafts.uses_model = False

    def keep_row(self, sequence: Sequence, row: int) -> None:
        """Keep the part of a row's text that was read, before the row is removed, if memory allows a copy."""
        try:
            if self._may_copy(sequence):
                self._draft_model.keep_row(row, sequence.tokens, self.prefixes)
        # No request depends on this copy.
        except Exception:
            log.warning("a prefix of the draft model could not be cached", exc_info=True)

    def is_due(self, members: SequenceOf[Sequence]) -> bool:
        """Whether a slice may be read now. Drops readers first that are of no use any more."""
        self._drop_hopeless(members)
        return self._choose(members) is not None

    def run(self, members: SequenceOf[Sequence]) -> None:
        """Read at least one slice, if one is due, and more while all take no longer than they may.

        They may take a plain step or, within the shares of prefill time, as long as a prompt's chunk.
        """
        start, has_read = perf_counter(), False
        while (chosen := self._choose(members)) is not None:
            row, reader, plain_s = chosen
            share_s = min(s.drafts.slowdown_budget.share_to_read_s for s in members if s.drafts)
            limit_s = max(plain_s, min(self._proposers.settings.max_stall_ms / 1000, share_s))
            if has_read and perf_counter() - start + self._slice_s(members[row], reader) > limit_s:
                return
            self._read_slice(members, row, reader, limit_s)
            self._drop_hopeless(members)
            has_read = True

    def _drop_hopeless(self, members: SequenceOf[Sequence]) -> None:
        """Drop texts that take longer to read than their answers can pay for, and heads idle for long."""
        if isinstance(self._draft_model, HeadDrafter):
            for row in self._draft_model.idle_rows():
                self._drop(members[row], row)
        plain_s = self._plain_s(members)
        for row, reader in self._draft_model.unread() if plain_s else ():
            if reader.has_begun and not self._is_payable(members[row], reader, plain_s or 0.0):
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

    def _choose(self, members: SequenceOf[Sequence]) -> tuple[int, Reader, float] | None:
        """Return the row to read next, the one with the least left to read; None if none may be read.

        Returns the row, its reader, and the seconds of a plain step.
        """
        unread = [
            (row, reader)
            for row, reader in self._draft_model.unread()
            if (drafts := members[row].drafts) and drafts.uses_model and not reader.is_waiting
        ]
        if not unread or (plain_s := self._plain_s(members)) is None:
            return None
        budgets = [s.drafts.slowdown_budget for s in members if s.drafts]
        left_s = min(budget.left_to_read_s(plain_s) for budget in budgets) - (1 + RESERVED_STEPS) * plain_s
        unread.sort(key=lambda one: one[1].count_left(len(members[one[0]].tokens)))
        texts = [(members[row], reader) for row, reader in unread]
        for row, reader in unread:
            is_affordable = self._slice_s(members[row], reader) <= left_s
            if is_affordable and not self._awaits(members[row], reader, texts):
                return row, reader, plain_s
        return None

    def _awaits(self, sequence: Sequence, reader: Reader, others: Iterable[tuple[Sequence, Reader]]) -> bool:
        """Whether another text that begins like this one is read first, and then this one knows more."""
        if reader.has_begun or not reader.num_before:
            return False
        return any(
            other.num_before < reader.num_before and num_shared(sequence, of) >= reader.num_before
            for of, other in others
        )

    def _pace_of(self, reader: Reader) -> Pace:
        return self._pace if reader.has_begun else self._lookup_pace

    def _slice_s(self, sequence: Sequence, reader: Reader) -> float:
        """Return the expected seconds of the next slice of a sequence's text."""
        return self._pace_of(reader).slice_s(reader.count_left(len(sequence.tokens)))

    def _is_payable(self, sequence: Sequence, reader: Reader, plain_s: float) -> bool:
        """Whether the sequence's budget can pay its part of what is left to read until its answer is over."""
        if not self._pace.is_known or sequence.drafts is None:
            return True
        budget = sequence.drafts.slowdown_budget
        num_left = sequence.request.max_tokens - sequence.num_answered
        read_s = reader.spent_s + reader.count_left(len(sequence.tokens)) * self._pace.token_s
        if self.prefixes.cache:
            read_s /= READ_IN_ANSWERS
        # Each token of the answer earns a share of a step, and has to be read too.
        earned_s = num_left * max(0.0, budget.overhead * plain_s - self._pace.token_s)
        payable_s = budget.left_to_read_s(plain_s) - (1 + RESERVED_STEPS) * plain_s + earned_s
        return num_left > 1 and read_s <= reader.spent_s + payable_s

    def _read_slice(self, members: SequenceOf[Sequence], row: int, reader: Reader, limit_s: float) -> None:
        """Read a slice of a row's text, and charge its time to all rows."""
        sequence, start = members[row], perf_counter()
        try:
            read = self._compute if reader.has_begun else self._look_up
            read(sequence, row, reader, limit_s)
        except Exception as fault:
            self._draft_model.drop_reader(row)
            sequence.give_up_draft_model(fault)
        taken_s = perf_counter() - start
        reader.spent_s += taken_s
        for other in members:
            if other.drafts:
                other.drafts.slowdown_budget.charge_reading(taken_s)
        if sequence.drafts:
            sequence.drafts.counts.drafter_s += taken_s

    def _look_up(self, sequence: Sequence, row: int, reader: Reader, limit_s: float) -> None:
        """Read a part of a text to find out how much of it the draft model has read before."""
        start, tokens = perf_counter(), sequence.tokens
        num_read = self.prefixes.look_up(reader, tokens, self._lookup_pace.num_tokens)
        self._lookup_pace.observe(num_read, perf_counter() - start, limit_s)
        if reader.caches and not self._memory_budget.reserve_reading(len(tokens)):
            self._drop(sequence, row)

    def _compute(self, sequence: Sequence, row: int, reader: Reader, limit_s: float) -> None:
        """Feed the draft model a part of a text; after the last one it may draft."""
        start, tokens = perf_counter(), sequence.tokens
        num_computed = reader.compute(self._draft_model.model, tokens, self._pace.num_tokens)
        self._pace.observe(num_computed, perf_counter() - start, limit_s)
        is_complete = reader.count_left(len(tokens)) == 0
        # A request that comes meanwhile may share this text.
        if (is_complete or reader.num_computed in reader.keep_at) and self._may_copy(sequence):
            self.prefixes.keep(reader, tokens)
        if is_complete and sequence.drafts:
            self._draft_model.start_drafting(row)
            sequence.drafts.forecast.begin()

    def _may_copy(self, sequence: Sequence) -> bool:
        return self.prefixes.cache is not None and self._memory_budget.may_copy(len(sequence.tokens), -1)
