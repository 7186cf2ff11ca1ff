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
from engine.scheduler.memory_budget import Admission
from engine.scheduler.prefix_lookup import Beginnings
from engine.scheduler.request_queue import Intake
from engine.scheduler.speculation import Planner
from engine.sequence import Sequence
from engine.speculative import verify as drafted_step
from engine.speculative.draft_model.costs import DraftWork
from engine.speculative.draft_model.model import DraftModel
from engine.speculative.proposers import Drafting
from engine.speculative.step_costs import StepClock
from engine.speculative.verify import Feed
from engine.stats import Tally

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
        admission: Admission,
        drafting: Drafting,
        planner: Planner,
        draft_model: DraftModel | None = None,
    ) -> None:
        self.admission = admission
        self.drafting = drafting
        self.planner = planner
        self.clock = StepClock(planner.costs, batched)
        self.vocab_size = loaded.info.vocab_size
        self.batch = Batch(loaded.model, self.vocab_size, batched, draft_model)
        budget_bytes = settings.prefix_cache_bytes
        if budget_bytes is None:
            budget_bytes = admission.room_bytes // PREFIX_SHARE
        self.beginnings = Beginnings(loaded.model, settings, budget_bytes, loaded.tokenizer.answer_opening)
        self.intake = Intake(
            loaded.model,
            settings,
            admission,
            self.beginnings,
            draft_model,
            self._may_ask_model,
            fail,
        )
        self.tally = Tally()
        self.num_steps = 0
        self.num_progressed = 0
        self.recovery = Recovery(self.batch, self.intake, self.beginnings, self.tally)

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
        return [s for s in (*self.members, *self.intake.prefilling, *self.intake.waiting) if not s.ended]

    @property
    def has_work(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self.members or self.intake.prefilling or self.intake.waiting)

    def _may_ask_model(self, sequence: Sequence) -> bool:
        """Whether the draft model has to read a prompt, because it may come to draft and that may pay."""
        drafting = self.drafting
        has_begun = sequence.drafts is not None and not sequence.drafts.uses_model
        if has_begun or not drafting.may_ask_model(sequence.request):
            return False
        return drafting.trials.is_next(self.planner.model_pays(drafting.new_length(), drafting.limit))

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for admission."""
        self.intake.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence wherever it is; its row is freed by the next turn."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                if sequence in self.intake.prefilling:
                    self.beginnings.keep_prefilled(sequence)
                sequence.fail(Failed("cancelled", "the client left"))

    def turn(self) -> None:
        """Advance everything by one step. What is raised here ends at most the request that caused it."""
        try:
            self._advance()
        # Wherever it came from, nothing on the device is trusted now.
        except Exception as fault:
            began = [*self.members, *self.intake.prefilling]
            suspects = began or list(self.intake.waiting)[:1]
            if not suspects:
                raise
            self.recovery.start_over(suspects, fault)

    def _advance(self) -> None:
        self._retire()
        self.recovery.go_on()
        self.intake.admit(self.members, self.rows)
        if not self._make_room():
            return
        feeds = self._plan()
        if feeds and (previous := self.batch.take_unread()):
            # The draft was made without the token that is still on its way: read it and look again.
            if not self._read(previous):
                return
            self._retire()
            feeds = self._plan()
        if not (self._run_wide(feeds) if feeds else self._run_plain()):
            return
        if self.intake.prefill(len(self.members), self._join):
            self.clock.reset()
            self.num_progressed += 1
        self.num_steps += 1
        if self.num_steps % CLEAR_EVERY_STEPS == 0:
            mx.clear_cache()

    def _run_plain(self) -> bool:
        """Dispatch the next step and read the one before; False if either failed."""
        previous = self.batch.take_unread()
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
        self.intake.drop_ended()
        if not any(s.ended for s in self.members):
            return
        for row, sequence in enumerate(self.members):
            if sequence.ended and self.admission.may_copy(len(sequence.tokens), self.beginnings.cache):
                self.beginnings.keep_row(sequence, row, self.rows)
        self._free([row for row, sequence in enumerate(self.members) if sequence.ended])

    def _free(self, leaving: list[int]) -> None:
        self.batch.free(leaving)
        self.clock.reset()

    def _make_room(self) -> bool:
        """Put the youngest back into the queue until the next step fits; False if the last one failed."""
        prefixes = self.beginnings.cache
        while not self.admission.make_room(self.members, self.intake.prefilling, self.batch.parts, prefixes):
            running = [*self.members, *self.intake.prefilling]
            if len(running) < 2:
                break
            if previous := self.batch.take_unread():
                # Its tokens are good, and may end rows.
                if not self._read(previous):
                    return False
                self._retire()
                continue
            youngest = max(running, key=lambda s: s.submitted_at)
            log.info("request %s makes room and starts over later", youngest.request.id)
            self.tally.num_preemptions += 1
            if youngest in self.intake.prefilling:
                self.intake.prefilling.remove(youngest)
            else:
                self._free([self.members.index(youngest)])
            self.intake.put_back([youngest])
        return True

    def _plan(self) -> list[Feed]:
        """What a wide step would feed, empty if a plain one is better.

        A grammar has to know a token before it can say which may be next: with one among the rows no step
        is dispatched before the last one was read.
        """
        if not self.members:
            return []
        try:
            feeds = self.planner.plan(self.members, self.rows.lengths)
        # Nobody's answer depends on drafts.
        except Exception as fault:
            for sequence in self.members:
                sequence.give_up_drafts(fault)
            return self.planner.without_drafts(self.members, self.rows.lengths)
        if not feeds and any(s.matcher for s in self.members):
            return self.planner.without_drafts(self.members, self.rows.lengths)
        return feeds

    def _run_wide(self, feeds: list[Feed]) -> bool:
        """Verify drafts: one forward, one wait, commit, roll back; False if it failed."""
        members = list(self.members)
        for sequence in members:
            sequence.count_for_penalties()
        held = list(self.rows.lengths)
        try:
            work, drafting_s = self._draft(feeds)
            feeds = self.planner.without_inexact(feeds)
            feeds = [self._masked(s, feed) for s, feed in zip(members, feeds, strict=True)]
            wanted = [s.request.top_logprobs for s in members]
            committed = drafted_step.run(self.rows, self.batch.sampler, feeds, wanted)
            for row, (feed, (tokens, _)) in enumerate(zip(feeds, committed, strict=True)):
                self.rows.roll_back(row, held[row] + len(feed.pending) + len(tokens) - 1)
        except Exception as fault:
            self.recovery.start_over(self._without_drafts(feeds, fault), fault)
            return False
        widths = [feed.width for feed in feeds]
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
        for sequence, feed, (tokens, likelihoods) in zip(members, feeds, committed, strict=True):
            if sequence.drafts:
                sequence.drafts.ledger.charge(taken_s, plain_s, len(tokens))
            self._commit(sequence, tokens, likelihoods, feed.source, len(feed.draft))
            sequence.num_dispatched = sequence.num_answered
        self.batch.feed = mx.array([s.tokens[-1] for s in members])
        return True

    def _draft(self, feeds: list[Feed]) -> tuple[DraftWork | None, float]:
        """Let the draft model make the drafts that feeds want; returns what it did, and the seconds taken."""
        if self.batch.draft_model is None:
            return None, 0.0
        start = time.perf_counter()
        work = self.batch.draft_model.fill_in(feeds, [s.tokens for s in self.members], self.batch.sampler)
        if work is None:
            return None, 0.0
        taken_s = time.perf_counter() - start
        asked = [s.drafts for s, f in zip(self.members, feeds, strict=True) if f.num_wanted and s.drafts]
        for drafts in asked:
            drafts.counts.drafter_s += taken_s / len(asked)
        for row, sequence in enumerate(self.members):
            if sequence.drafts:
                sequence.drafts.length.settle(work, row)
        return work, taken_s

    def _masked(self, sequence: Sequence, feed: Feed) -> Feed:
        """The feed with its grammar's masks, without what the grammar forbids. A fault there is its own."""
        if sequence.matcher is None or sequence.ended:
            return feed
        try:
            draft = feed.draft[: sequence.matcher.count_allowed(feed.draft)]
            return replace(feed, draft=draft, masks=sequence.matcher.masks(draft))
        except Exception as fault:
            fail(sequence, fault)
            return replace(feed, draft=(), source=NO_DRAFT)

    def _without_drafts(self, feeds: list[Feed], fault: Exception) -> list[Sequence]:
        """End drafting for those who had drafts in a failed step; returns whom to suspect, if none had."""
        drafted = [s for s, feed in zip(self.members, feeds, strict=True) if feed.source is not NO_DRAFT]
        for sequence in drafted:
            sequence.give_up_drafts(fault)
        return [] if drafted else list(self.members)

    def _commit(
        self,
        sequence: Sequence,
        tokens: list[int],
        likelihoods: list[Likelihood | None],
        draft: Draft = NO_DRAFT,
        num_offered: int = 0,
    ) -> None:
        if sequence.ended:
            return
        num_before = sequence.num_answered
        try:
            sequence.commit(tokens, likelihoods, draft, num_offered)
            num_added = sequence.num_answered - num_before
            sequence.last_token_at = self.tally.add_tokens(num_added, sequence.last_token_at)
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
                sequence.drafts.ledger.charge(plain_s, plain_s, 1)
            self._commit(sequence, [token], [likelihood])
        return True
