"""The verification step: let the draft model draft, verify all drafts, and account for the time it took.

    draft -> verify -> account -> commit

The worker does the last part for the outcomes that run() returns, as it does after a plain step.
"""

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import mlx.core as mx

from drafters.base import NO_DRAFT
from engine.batch import Batch
from engine.scheduler.speculation import Planner
from engine.scheduler.step_clock import StepClock
from engine.sequence import Sequence
from engine.speculative import verify
from engine.speculative.draft_model.costs import DraftWork
from engine.speculative.verify import Outcome, RowInput
from engine.stations import station
from engine.step_error import StepError


class VerificationStep:
    """Runs verification steps over the rows of a batch.

    clock: times the steps.
    """

    def __init__(self, batch: Batch, planner: Planner, clock: StepClock) -> None:
        self._batch = batch
        self._planner = planner
        self._clock = clock
        self._chunk_s = 0.0

    def run(self, inputs: SequenceOf[RowInput]) -> list[tuple[Sequence, Outcome]]:
        """Verify drafts in one forward pass with one wait; returns what each row is to commit.

        inputs: one for each row. After the step every row holds all of its tokens but the newest.
        Raises StepError. If any row had a draft, it names no suspects, and rows with drafts stop drafting.
        """
        started_at, self._chunk_s, members = time.perf_counter(), 0.0, list(self._batch.members)
        for sequence in members:
            sequence.count_for_penalties()
        inputs = list(inputs)
        if any(row.num_wanted for row in inputs):
            # The draft model's tokens are waited for, and so is what was dispatched before.
            self._wait_for_chunk()
        try:
            work, drafting_s = self._draft(inputs)
            inputs = self._planner.without_inexact(inputs)
            inputs = [_apply_grammar(s, row) for s, row in zip(members, inputs, strict=True)]
            outcomes = self._verify(inputs)
        except StepError:
            raise
        except Exception as fault:
            raise StepError(_stop_drafting(members, inputs, fault), fault) from fault
        for sequence, outcome in zip(members, outcomes, strict=True):
            if outcome.predicted and sequence.drafts and sequence.drafts.masks:
                bonus = outcome.tokens[-1]
                sequence.drafts.masks.receive(outcome.predicted, outcome.entropies, bonus)
        self._account(outcomes, work, drafting_s, started_at + self._chunk_s)
        return list(zip(members, outcomes, strict=True))

    def _wait_for_chunk(self) -> None:
        """Wait for a prompt's chunk in flight, whose time is not part of the step's."""
        start = time.perf_counter()
        self._clock.settle()
        self._chunk_s += time.perf_counter() - start

    @station("draft_model")
    def _draft(self, inputs: list[RowInput]) -> tuple[DraftWork | None, float]:
        """Fill in the draft model's drafts where inputs want one; return its work and the seconds taken."""
        model, members = self._batch.draft_model, self._batch.members
        if model is None:
            return None, 0.0
        start = time.perf_counter()
        work = model.fill_in(inputs, [s.tokens for s in members], self._batch.sampler)
        if work is None:
            return None, 0.0
        taken_s = time.perf_counter() - start
        asking = [s.drafts for s, row in zip(members, inputs, strict=True) if row.num_wanted and s.drafts]
        for drafts in asking:
            drafts.counts.drafter_s += taken_s / len(asking)
        for row, sequence in enumerate(members):
            if sequence.drafts:
                sequence.drafts.forecast.record_work(work, row)
        return work, taken_s

    def _verify(self, inputs: SequenceOf[RowInput]) -> list[Outcome]:
        """Run the forward pass, and roll every row back to what it is to commit."""
        rows = self._batch.rows
        held = list(rows.lengths)
        wanted = [s.request.top_logprobs for s in self._batch.members]
        # A chunk in flight is waited for once this step is ready, so that their times can be told apart.
        with self._batch.recording() as recorded:
            outcomes = verify.verify_drafts(rows, self._batch.sampler, inputs, wanted, self._wait_for_chunk)
        # Now, as they hold what all rows were fed.
        mx.async_eval(self._batch.hand_over(recorded, [outcome.num_final for outcome in outcomes]))
        for row, outcome in enumerate(outcomes):
            rows.roll_back(row, held[row] + outcome.num_final)
        return outcomes

    def _account(
        self, outcomes: SequenceOf[Outcome], work: DraftWork | None, drafting_s: float, started_at: float
    ) -> None:
        """Teach the costs what the step took, and charge it to every row's slowdown budget."""
        lap_s, members = self._clock.lap(), self._batch.members
        least_widths = [outcome.verified.width if outcome.window else 1 for outcome in outcomes]
        if not any(outcome.window for outcome in outcomes):
            least_widths = []
        self._planner.accounts.charge_verification(
            [s.drafts.slowdown_budget if s.drafts and not s.window else None for s in members],
            self._planner.conditions(members),
            [outcome.verified.width for outcome in outcomes],
            [len(outcome.tokens) for outcome in outcomes],
            lap_s if lap_s is not None else time.perf_counter() - started_at,
            drafting_s,
            work,
            least_widths,
        )


def _apply_grammar(sequence: Sequence, row: RowInput) -> RowInput:
    """Add the grammar's masks to an input, and cut its draft before the first token without a mask.

    A fault in the grammar ends this sequence only.
    """
    if not sequence.matcher or sequence.ended:
        return row
    try:
        masks = sequence.matcher.masks(row.draft[: sequence.matcher.count_allowed(row.draft)])
        return replace(row, draft=row.draft[: len(masks) - 1], masks=masks)
    except Exception as fault:
        sequence.fail_with(fault)
        return replace(row, draft=(), source=NO_DRAFT)


def _stop_drafting(
    members: SequenceOf[Sequence], inputs: SequenceOf[RowInput], fault: Exception
) -> list[Sequence]:
    """End drafting for the rows that had drafts in a failed step; returns the suspects if none had."""
    drafted = [
        s for s, row in zip(members, inputs, strict=True) if row.source is not NO_DRAFT or row.mask_tokens
    ]
    for sequence in drafted:
        sequence.give_up_drafts(fault)
    return [] if drafted else list(members)
