"""The worker: one turn after another on the thread that owns MLX.

A turn is: retire ended rows, admit waiting requests, decode, then prefill within the budget. Where no
draft is worth its cost, decoding means to dispatch a plain step and to read the one that the last turn
dispatched: the device computes step n + 1 while step n is detokenised and sent. Where one is, it means
to read that step first, draft from what it brought, and run a wide step (drafted_step.py).
Without prompts to prefill or prefixes to keep, one read is the only wait of a turn.
"""

import logging
import time
from dataclasses import replace

import mlx.core as mx

from config.settings import Settings
from drafters.base import NO_DRAFT, Draft
from engine.batch import Batch, Step
from engine.faults.recovery import Recovery, fail
from engine.kv_cache.rows import Rows
from engine.model.loading import LoadedModel
from engine.request import Failed
from engine.sampling.logprobs import Likelihood
from engine.scheduler.memory_budget import MemoryBudget
from engine.scheduler.prefix_lookup import PrefixLookup
from engine.scheduler.request_queue import RequestQueue
from engine.scheduler.speculation import Planner
from engine.sequence import Sequence
from engine.speculative import verify as drafted_step
from engine.speculative.draft_model.costs import DraftWork
from engine.speculative.draft_model.model import DraftModel
from engine.speculative.proposers import Proposers
from engine.speculative.step_costs import StepClock
from engine.speculative.verify import RowInput
from engine.stats import EngineStats

log = logging.getLogger("reprise.engine")

CLEAR_EVERY_STEPS = 256
PREFIX_SHARE = 4
"""Of the memory that weights leave, the prefix cache may take one part in so many."""

LARGEST_STEP = 2.0
"""A step is charged at most so many times its cost: a pause of the machine is nobody's debt."""


class Worker:
    """All sequences in the engine and the device state behind them. Used by one thread only.

    num_progressed: grows with every committed token and every prompt chunk; any thread may look at it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: Settings,
        batched: bool,
        memory_budget: MemoryBudget,
        drafting: Proposers,
        planner: Planner,
        draft_model: DraftModel | None = None,
    ) -> None:
        self.memory_budget = memory_budget
        self.drafting = drafting
        self.planner = planner
        self.clock = StepClock(planner.costs, batched)
        self.vocab_size = loaded.info.vocab_size
        self.batch = Batch(loaded.model, self.vocab_size, batched, draft_model)
        budget_bytes = settings.prefix_cache_bytes
        if budget_bytes is None:
            budget_bytes = memory_budget.room_bytes // PREFIX_SHARE
        self.prefix_lookup = PrefixLookup(
            loaded.model, settings, budget_bytes, loaded.tokenizer.answer_opening
        )
        self.request_queue = RequestQueue(
            loaded.model,
            settings,
            memory_budget,
            self.prefix_lookup,
            draft_model,
            self._may_ask_model,
            fail,
        )
        self.stats = EngineStats()
        self.num_steps = 0
        self.num_progressed = 0
        self.recovery = Recovery(self.batch, self.request_queue, self.prefix_lookup, self.stats)

    @property
    def members(self) -> list[Sequence]:
        """Those that decode, in the order of their rows."""
        return self.batch.members

    @property
    def rows(self) -> Rows:
        """What the model holds of them."""
        return self.batch.rows

    @property
    def live(self) -> list[Sequence]:
        """Every sequence that has not had its terminal event."""
        return [
            s
            for s in (*self.members, *self.request_queue.prefilling, *self.request_queue.waiting)
            if not s.ended
        ]

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self.members or self.request_queue.prefilling or self.request_queue.waiting)

    def _may_ask_model(self, sequence: Sequence) -> bool:
        """Whether the draft model has to read a prompt, because it may come to draft and that may pay."""
        drafting = self.drafting
        has_begun = sequence.drafts is not None and not sequence.drafts.uses_model
        if has_begun or not drafting.may_ask_model(sequence.request):
            return False
        return drafting.trials.should_read(self.planner.model_pays(drafting.new_length(), drafting.limit))

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for admission."""
        self.request_queue.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence wherever it is; its row is freed by the next turn."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                if sequence in self.request_queue.prefilling:
                    self.prefix_lookup.keep_prefilled(sequence)
                sequence.fail(Failed("cancelled", "the client left"))

    def step(self) -> None:
        """Advance everything by one step. What is raised here ends at most the request that caused it."""
        try:
            self._advance()
        # Wherever it came from, nothing on the device is trusted now.
        except Exception as fault:
            began = [*self.members, *self.request_queue.prefilling]
            suspects = began or list(self.request_queue.waiting)[:1]
            if not suspects:
                raise
            self.recovery.start_over(suspects, fault)

    def _advance(self) -> None:
        self._retire()
        self.recovery.go_on()
        self.request_queue.admit(self.members, self.rows)
        if not self._make_room():
            return
        inputs = self._plan()
        if inputs and (previous := self.batch.take_in_flight()):
            # The draft was made without the token that is still on its way: read it and look again.
            if not self._read(previous):
                return
            self._retire()
            inputs = self._plan()
        if not (self._run_wide(inputs) if inputs else self._run_plain()):
            return
        if self.request_queue.prefill(len(self.members), self._join):
            self.clock.reset()
            self.num_progressed += 1
        self.num_steps += 1
        if self.num_steps % CLEAR_EVERY_STEPS == 0:
            mx.clear_cache()

    def _run_plain(self) -> bool:
        """Dispatch the next step and read the one before; False if either failed."""
        previous = self.batch.take_in_flight()
        fault: Exception | None = None
        try:
            self.batch.dispatch()
        except Exception as raised:
            fault = raised
        # Even then the step that is still unread is good: its tokens are kept before the rows start over.
        if previous is not None and not self._read(previous):
            return False
        if fault is not None:
            self.recovery.start_over(list(self.members), fault)
        return fault is None

    def _retire(self) -> None:
        """Free the rows of ended sequences and forget those that ended before they had one."""
        self.request_queue.drop_ended()
        if not any(s.ended for s in self.members):
            return
        for row, sequence in enumerate(self.members):
            if sequence.ended and self.memory_budget.may_copy(len(sequence.tokens), self.prefix_lookup.cache):
                self.prefix_lookup.keep_row(sequence, row, self.rows)
        self._free([row for row, sequence in enumerate(self.members) if sequence.ended])

    def _free(self, leaving: list[int]) -> None:
        self.batch.free(leaving)
        self.clock.reset()

    def _make_room(self) -> bool:
        """Put the youngest back into the queue until the next step fits; False if the last one failed."""
        prefixes = self.prefix_lookup.cache
        while not self.memory_budget.make_room(
            self.members, self.request_queue.prefilling, self.batch.parts, prefixes
        ):
            running = [*self.members, *self.request_queue.prefilling]
            if len(running) < 2:
                break
            if previous := self.batch.take_in_flight():
                # Its tokens are good, and may end rows.
                if not self._read(previous):
                    return False
                self._retire()
                continue
            youngest = max(running, key=lambda s: s.submitted_at)
            log.info("request %s makes room and starts over later", youngest.request.id)
            self.stats.num_preemptions += 1
            if youngest in self.request_queue.prefilling:
                self.request_queue.prefilling.remove(youngest)
            else:
                self._free([self.members.index(youngest)])
            self.request_queue.put_back([youngest])
        return True

    def _plan(self) -> list[RowInput]:
        """What a wide step would feed, empty if a plain one is better.

        A grammar has to know a token before it can say which may be next: with one among the rows no step
        is dispatched before the last one was read.
        """
        if not self.members:
            return []
        try:
            inputs = self.planner.plan(self.members, self.rows.lengths)
        # Nobody's answer depends on drafts.
        except Exception as fault:
            for sequence in self.members:
                sequence.give_up_drafts(fault)
            return self.planner.without_drafts(self.members, self.rows.lengths)
        if not inputs and any(s.matcher for s in self.members):
            return self.planner.without_drafts(self.members, self.rows.lengths)
        return inputs

    def _run_wide(self, inputs: list[RowInput]) -> bool:
        """Verify drafts: one forward, one wait, commit, roll back; False if it failed."""
        members = list(self.members)
        for sequence in members:
            sequence.count_for_penalties()
        held = list(self.rows.lengths)
        try:
            work, drafting_s = self._draft(inputs)
            inputs = self.planner.without_inexact(inputs)
            inputs = [self._masked(s, row_input) for s, row_input in zip(members, inputs, strict=True)]
            wanted = [s.request.top_logprobs for s in members]
            committed = drafted_step.run(self.rows, self.batch.sampler, inputs, wanted)
            for row, (row_input, (tokens, _)) in enumerate(zip(inputs, committed, strict=True)):
                self.rows.roll_back(row, held[row] + len(row_input.pending) + len(tokens) - 1)
        except Exception as fault:
            self.recovery.start_over(self._without_drafts(inputs, fault), fault)
            return False
        widths = [row_input.width for row_input in inputs]
        plain_s = self.planner.plain_s(len(members))
        expected_s = self.planner.step_s(widths) + self.planner.work_s(len(members), work)
        # Unlike plain steps, one of width 1 was not dispatched ahead.
        is_teaching = max(widths) > 1 and (work is None or self.planner.learns_work)
        lap_s = self.clock.lap((len(members), max(widths)) if is_teaching else None, drafting_s)
        taken_s = min(lap_s or expected_s, LARGEST_STEP * expected_s)
        if work and lap_s:
            self.planner.learn_work(len(members), work, drafting_s)
        elif work is None and max(widths) == 1:
            # It is here for a grammar's sake.
            taken_s = plain_s
        for sequence, row_input, (tokens, likelihoods) in zip(members, inputs, committed, strict=True):
            if sequence.drafts:
                sequence.drafts.slowdown_budget.charge(taken_s, plain_s, len(tokens))
            self._commit(sequence, tokens, likelihoods, row_input.source, len(row_input.draft))
            sequence.num_dispatched = sequence.num_answered
        self.batch.next_tokens = mx.array([s.tokens[-1] for s in members])
        return True

    def _draft(self, inputs: list[RowInput]) -> tuple[DraftWork | None, float]:
        """Let the draft model make the drafts that feeds want; returns what it did, and the seconds taken."""
        if self.batch.draft_model is None:
            return None, 0.0
        start = time.perf_counter()
        work = self.batch.draft_model.fill_in(inputs, [s.tokens for s in self.members], self.batch.sampler)
        if work is None:
            return None, 0.0
        taken_s = time.perf_counter() - start
        asked = [s.drafts for s, f in zip(self.members, inputs, strict=True) if f.num_wanted and s.drafts]
        for drafts in asked:
            drafts.counts.drafter_s += taken_s / len(asked)
        for row, sequence in enumerate(self.members):
            if sequence.drafts:
                sequence.drafts.length.record_work(work, row)
        return work, taken_s

    def _masked(self, sequence: Sequence, row_input: RowInput) -> RowInput:
        """The feed with its grammar's masks, without what the grammar forbids. A fault there is its own."""
        if sequence.matcher is None or sequence.ended:
            return row_input
        try:
            draft = row_input.draft[: sequence.matcher.count_allowed(row_input.draft)]
            return replace(row_input, draft=draft, masks=sequence.matcher.masks(draft))
        except Exception as fault:
            fail(sequence, fault)
            return replace(row_input, draft=(), source=NO_DRAFT)

    def _without_drafts(self, inputs: list[RowInput], fault: Exception) -> list[Sequence]:
        """End drafting for those who had drafts in a failed step; returns whom to suspect, if none had."""
        drafted = [
            s for s, row_input in zip(self.members, inputs, strict=True) if row_input.source is not NO_DRAFT
        ]
        for sequence in drafted:
            sequence.give_up_drafts(fault)
        return [] if drafted else list(self.members)

    def _commit(
        self,
        sequence: Sequence,
        tokens: list[int],
        likelihoods: list[Likelihood | None],
        draft: Draft = NO_DRAFT,
        num_verified: int = 0,
    ) -> None:
        if sequence.ended:
            return
        num_before = sequence.num_answered
        try:
            sequence.commit(tokens, likelihoods, draft, num_verified)
            num_added = sequence.num_answered - num_before
            sequence.last_token_at = self.stats.add_tokens(num_added, sequence.last_token_at)
            self.num_progressed += 1
        except Exception as fault:
            fail(sequence, fault)

    def _join(self, sequence: Sequence) -> None:
        """A prefilled sequence becomes the last row; its last token is fed by the next step."""
        sequence.make_penalties(self.vocab_size)
        sequence.drafts = sequence.drafts or self.drafting.begin(sequence.request, sequence.matcher)
        sequence.emit_prompt_logprobs()
        try:
            self.batch.join(sequence)
        except Exception as fault:
            self.recovery.start_over([sequence], fault)
            return
        sequence.joined_at = sequence.joined_at or time.perf_counter()
        self.clock.reset()

    def _read(self, step: Step) -> bool:
        """Wait for a step's tokens and commit them; False if the step turns out to have failed."""
        try:
            tokens: list[int] = step.tokens.tolist()  # type: ignore[assignment]
            likelihoods = step.measured.read() if step.measured else [None] * len(tokens)
        except Exception as fault:
            self.recovery.start_over(step.members, fault)
            return False
        self.clock.lap((len(step.members), 1))
        plain_s = self.planner.plain_s(len(step.members))
        for sequence, token, likelihood in zip(step.members, tokens, likelihoods, strict=True):
            if sequence.drafts:
                sequence.drafts.slowdown_budget.charge(plain_s, plain_s, 1)
            self._commit(sequence, [token], [likelihood])
        return True
