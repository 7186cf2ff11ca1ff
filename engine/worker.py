"""The worker: one step after another, on the thread that owns MLX.

    retire -> admit -> make room -> plan -> dispatch the next plain step, read the one in flight -> prefill
                                       \\-> or: read the step in flight, plan again, verify drafts -> prefill

Plain steps are pipelined: the device computes step n + 1 while step n is detokenized and sent. A verification
step needs the newest token first, so the step in flight is read before it. While no prompt is prefilled and
no prefix is kept, reading a step is the only wait.
"""

import logging
import time
from collections.abc import Sequence as SequenceOf

import mlx.core as mx

from drafters.base import NO_DRAFT, Draft
from engine.batch import Batch, Step
from engine.faults.recovery import Recovery
from engine.kv_cache.rows import Rows
from engine.request import Failed
from engine.sampling.logprobs import Likelihood
from engine.scheduler.request_queue import RequestQueue
from engine.scheduler.speculation import Planner
from engine.scheduler.step_clock import StepClock
from engine.sequence import Sequence
from engine.speculative.proposers import Proposers
from engine.speculative.verify import RowInput
from engine.stats import EngineStats
from engine.step_error import StepError
from engine.verification_step import VerificationStep

log = logging.getLogger("reprise.engine")

CLEAR_EVERY_STEPS = 256
"""Number of steps after which MLX's cache of free buffers is cleared."""


class Worker:
    """All sequences in the engine, and the steps that advance them. Used by one thread only.

    batch: the sequences that decode. queue: those that wait; queue.prefiller has those that prefill.
    num_progressed: grows with every committed token and every prompt chunk; any thread may read it.
    """

    def __init__(self, batch: Batch, queue: RequestQueue, planner: Planner, proposers: Proposers) -> None:
        self.batch = batch
        self.queue = queue
        self.planner = planner
        self.proposers = proposers
        self.stats = EngineStats()
        self.num_progressed = 0
        self._clock = StepClock()
        self._verification = VerificationStep(batch, planner, self._clock)
        self._recovery = Recovery(batch, queue, self.stats)
        self._num_steps = 0

    @property
    def members(self) -> list[Sequence]:
        """The sequences that decode, in the order of their rows."""
        return self.batch.members

    @property
    def rows(self) -> Rows:
        """The target model's rows."""
        return self.batch.rows

    @property
    def prefilling(self) -> list[Sequence]:
        """The sequences whose prompts are being computed."""
        return self.queue.prefiller.prefilling

    @property
    def running(self) -> list[Sequence]:
        """The sequences that decode and those that prefill."""
        return [*self.members, *self.prefilling]

    @property
    def live(self) -> list[Sequence]:
        """Every sequence that has not had its terminal event."""
        return [s for s in (*self.running, *self.queue.waiting) if not s.ended]

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.members or self.prefilling or self.queue.waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for admission."""
        self.queue.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence wherever it is; the next step frees its row."""
        for sequence in self.live:
            if sequence.request.id == request_id:
                if sequence in self.prefilling:
                    self.queue.prefix_lookup.keep_prefilled(sequence)
                sequence.fail(Failed("cancelled", "the client left"))

    def step(self) -> None:
        """Advance every sequence by one step. A fault in it ends at most the request that caused it."""
        try:
            self._advance()
        except StepError as failed:
            self._restart(failed)
        # Whatever raised this, the device's state cannot be trusted any more.
        except Exception as fault:
            suspects = self.running or list(self.queue.waiting)[:1]
            if not suspects:
                raise
            self._restart(StepError(suspects, fault))

    def _restart(self, failed: StepError) -> None:
        self._recovery.restart(failed)
        self._clock.reset()

    def _advance(self) -> None:
        self._retire()
        self._recovery.advance()
        self.queue.admit(self.members, self.rows)
        self._make_room()
        inputs = self._plan()
        if inputs and self.batch.in_flight:
            # The plan was made without the token in flight: read it and plan again.
            self._read_in_flight()
            inputs = self._plan()
        if inputs:
            self._verify(inputs)
        else:
            self._decode()
        self._prefill()
        self._num_steps += 1
        if self._num_steps % CLEAR_EVERY_STEPS == 0:
            mx.clear_cache()

    def _retire(self) -> None:
        """Free the rows of sequences that ended, after keeping their prefixes if memory allows."""
        self.queue.drop_ended()
        ended = [row for row, sequence in enumerate(self.members) if sequence.ended]
        for row in ended:
            self.queue.prefix_lookup.keep_row(self.members[row], row, self.rows)
        if ended:
            self._free(ended)

    def _free(self, leaving: list[int]) -> None:
        self.batch.free(leaving)
        self._clock.reset()

    def _make_room(self) -> None:
        """Preempt the youngest sequences until the next step fits into memory."""
        budget, prefixes = self.queue.memory_budget, self.queue.prefix_lookup.cache
        while not budget.make_room(self.members, self.prefilling, self.batch.rows_by_model, prefixes):
            if len(self.running) < 2:
                return
            if self.batch.in_flight:
                # Its tokens are valid, and may end sequences.
                self._read_in_flight()
            else:
                self._preempt(max(self.running, key=lambda s: s.timing.submitted_at))

    def _preempt(self, sequence: Sequence) -> None:
        """Put a running sequence back into the queue; it restarts once there is memory for it."""
        log.info("request %s is preempted and restarts when memory allows", sequence.request.id)
        self.stats.num_preemptions += 1
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
        else:
            self._free([self.members.index(sequence)])
        self.queue.put_back([sequence])

    def _plan(self) -> list[RowInput]:
        """Return the rows' inputs for a verification step; empty if a plain step is better.

        A grammar must see a token before it can mask the next one, so with a grammar in the batch every step
        is read before the next: a verification step, though it may have no drafts to verify.
        """
        if not self.members:
            return []
        lengths = self.rows.lengths
        try:
            inputs = self.planner.plan(self.members, lengths)
        # No answer depends on drafts.
        except Exception as fault:
            for sequence in self.members:
                sequence.give_up_drafts(fault)
            return self.planner.without_drafts(self.members, lengths)
        if not inputs and any(s.matcher for s in self.members):
            return self.planner.without_drafts(self.members, lengths)
        return inputs

    def _verify(self, inputs: list[RowInput]) -> None:
        """Run a verification step and commit its outcomes."""
        for sequence, outcome in self._verification.run(inputs):
            row = outcome.verified
            self._commit(sequence, outcome.tokens, outcome.likelihoods, row.source, len(row.draft))

    def _decode(self) -> None:
        """Dispatch the next plain step, then read the one that was in flight."""
        try:
            previous = self.batch.dispatch()
        except Exception as fault:
            # The step in flight is still valid: commit its tokens before the rows restart.
            if previous := self.batch.take_in_flight():
                self._read(previous)
            raise StepError(self.members, fault) from fault
        if previous:
            self._read(previous)

    def _read_in_flight(self) -> None:
        """Read the step in flight, and free the rows of sequences that it ended."""
        if step := self.batch.take_in_flight():
            self._read(step)
            self._retire()

    def _read(self, step: Step) -> None:
        """Wait for a step's tokens, account for its time and commit them."""
        try:
            tokens: list[int] = step.tokens.tolist()  # type: ignore[assignment]
            likelihoods = step.measured.read() if step.measured else [None] * len(tokens)
        except Exception as fault:
            raise StepError(step.members, fault) from fault
        self.planner.observe(len(step.members), 1, self._clock.lap())
        plain_s = self.planner.plain_s(len(step.members))
        for sequence, token, likelihood in zip(step.members, tokens, likelihoods, strict=True):
            if sequence.drafts:
                sequence.drafts.slowdown_budget.charge(plain_s, plain_s, 1)
            self._commit(sequence, [token], [likelihood])

    def _commit(
        self,
        sequence: Sequence,
        tokens: list[int],
        likelihoods: SequenceOf[Likelihood | None],
        draft: Draft = NO_DRAFT,
        num_verified: int = 0,
    ) -> None:
        """Commit one step's tokens to a sequence. See Sequence.commit()."""
        if sequence.ended:
            return
        num_before = sequence.num_answered
        try:
            sequence.commit(tokens, likelihoods, draft, num_verified)
            num_added, timing = sequence.num_answered - num_before, sequence.timing
            timing.last_token_at = self.stats.add_tokens(num_added, timing.last_token_at)
            self.num_progressed += 1
        except Exception as fault:
            sequence.fail_with(fault)

    def _prefill(self) -> None:
        """Feed prompts within this step's budget; sequences whose prompts are complete join the rows."""
        if self.queue.prefiller.run(len(self.members), self._join):
            self._clock.reset()
            self.num_progressed += 1

    def _join(self, sequence: Sequence) -> None:
        """Make a prefilled sequence the last row; the next step feeds its last token."""
        sequence.make_penalties(self.batch.vocab_size)
        sequence.drafts = sequence.drafts or self.proposers.begin(sequence.request, sequence.matcher)
        sequence.emit_prompt_logprobs()
        try:
            self.batch.join(sequence)
        except Exception as fault:
            raise StepError([sequence], fault) from fault
        sequence.timing.joined_at = sequence.timing.joined_at or time.perf_counter()
        self._clock.reset()
