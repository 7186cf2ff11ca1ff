"""The step: every row gets its next token, or in a verification step several.

    plan -> dispatch the next plain step, fetch the one in flight -> account -> commit
        \\-> draft -> cut -> verify -> accept -> roll back -> account -> commit

Plain steps are pipelined: the device computes step n + 1 while step n is detokenized and sent. A verification
step needs the newest tokens first, so the step in flight is fetched before it (worker.py), and the plan is
made again.
"""

import time
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import mlx.core as mx

from reprise.drafters.base import NO_DRAFT, Draft
from reprise.engine.batch.batch import Batch, EngineStats, Step
from reprise.engine.batch.sequence import Sequence, StepError
from reprise.engine.interface.spans import span
from reprise.engine.sampling.logits import Likelihood, measure
from reprise.engine.sampling.matchers import triggered_matcher
from reprise.engine.sampling.sampler import Draw
from reprise.engine.speculative import verify
from reprise.engine.speculative.costs.cost_table import MASKED
from reprise.engine.speculative.draft_model.forecast import DraftWork
from reprise.engine.speculative.planner import Planner, window_input, without_drafts
from reprise.engine.speculative.verify import Outcome, RowInput
from reprise.engine.speculative.window import WindowOutcome


class Decoder:
    """Advances all rows of a batch, one step at a time.

    num_commits: grows with every row's step; any thread may read it.
    has_drafted: whether drafts were verified, or draft prefill was done, since the last plain step.
    """

    def __init__(self, batch: Batch, planner: Planner, stats: EngineStats) -> None:
        self._batch = batch
        self._device = batch.device
        self._planner = planner
        self._stats = stats
        self.num_commits = 0
        self.has_drafted = False
        # Seconds of plans that no step was charged with.
        self._planning_s = 0.0

    @span("planning")
    def plan(self) -> SequenceOf[RowInput]:
        """Return what each row feeds in a verification step; nothing if a plain step comes next.

        A grammar must see a token before it can mask the next one, so with a grammar in the batch every step
        is fetched before the next: a verification step, perhaps without drafts. A grammar of
        calls alone needs that only within a call. While a row decodes in windows, every step is a
        verification step too.
        """
        members, start = self._batch.members, time.perf_counter()
        drafting = [s for s in members if not s.window]
        inputs: SequenceOf[RowInput] = ()
        try:
            inputs = self._planner.plan(drafting) if drafting else ()
        # No answer depends on drafts.
        except Exception as fault:
            for sequence in drafting:
                sequence.give_up_drafts(fault)
        self._planning_s += time.perf_counter() - start
        has_windows = len(drafting) < len(members)
        if not inputs:
            if not has_windows and all(s.sampling != MASKED for s in drafting):
                return ()
            inputs = without_drafts(drafting)
        if has_windows:
            rest, held = iter(inputs), self._batch.rows.lengths
            inputs = [
                window_input(s, num_held) if s.window else next(rest)
                for s, num_held in zip(members, held, strict=True)
            ]
        return inputs

    def decode(self) -> None:
        """Dispatch the next plain step, then fetch the one that was in flight. Raises StepError."""
        previous = self._device.step
        try:
            self._dispatch(previous)
        except StepError:
            raise
        except Exception as fault:
            # The step in flight is still valid: commit its tokens before the rows restart.
            if previous := self._device.take_step():
                self.fetch(previous)
            raise StepError(self._batch.members, fault) from fault
        if previous:
            self.fetch(previous)

    @span("dispatch")
    def _dispatch(self, previous: Step | None) -> None:
        """Dispatch one token for every row without waiting for it. previous: the step in flight."""
        batch = self._batch
        if not batch.members:
            self._device.step = None
            return
        sampler = batch.sampler
        ahead = {s: row for row, s in enumerate(previous.members)} if previous else {}
        newest = self._newest_tokens(previous, ahead)
        for row, penalties in enumerate(sampler.penalties):
            if penalties is None:
                continue
            if (sequence := batch.members[row]) in ahead:
                # Its newest token is on the device only.
                penalties.observe(newest[row : row + 1])
            else:
                sequence.count_for_penalties()
        with batch.tapping() as tapped:
            logits = batch.rows.forward(newest[:, None])[:, -1]
        states = batch.hand_over(tapped, [1] * len(batch.members))
        draws = _draws_ahead(newest, batch.members, ahead)
        tokens = sampler.sample(logits, [len(s.tokens) + (s in ahead) for s in batch.members], draws)
        measured = measure(logits, tokens, [s.request.top_logprobs for s in batch.members])
        self._device.dispatch_step(Step(list(batch.members), tokens, measured, self.has_drafted), states)
        self.has_drafted = False

    def _newest_tokens(self, previous: Step | None, ahead: dict[Sequence, int]) -> mx.array:
        """(rows,) the last token of every row.

        ahead: the rows of the step in flight, by sequence; their newest tokens are on the device only.
        """
        members = self._batch.members
        if previous is None:
            return mx.array([s.tokens[-1] for s in members])
        if previous.members == members:
            return previous.tokens
        known = mx.array([s.tokens[-1] for s in members], previous.tokens.dtype)
        places = [ahead.get(s, len(ahead) + row) for row, s in enumerate(members)]
        return mx.concatenate([previous.tokens, known])[mx.array(places)]

    def fetch(self, step: Step) -> None:
        """Wait for a plain step's tokens, account for its time and commit them. Raises StepError."""
        planning_s, self._planning_s = self._planning_s, 0.0
        tokens, likelihoods = self._device.fetch(step)
        self._planner.charge_plain(
            [s.drafts.slowdown_budget if s.drafts else None for s in step.members],
            self._planner.conditions(step.members),
            step.taken_s,
            step.is_steady,
            step.follows_drafts,
            # If the device was busy longer than the engine's thread, planning took none of its time.
            0.0 if step.was_awaited else planning_s,
        )
        with span("commit"):
            for sequence, token, likelihood in zip(step.members, tokens, likelihoods, strict=True):
                if sequence.drafts:
                    sequence.drafts.counts.num_fed += 1
                self._commit(sequence, [token], [likelihood])

    def verify(self, inputs: SequenceOf[RowInput]) -> None:
        """Verify drafts in one forward pass with one wait, and commit what the target model chooses.

        inputs: one for each row. After the step every row holds all of its tokens but the newest.
        Raises StepError. If any row had a draft, it names no suspects, and rows with drafts stop drafting.
        """
        members, start, settled_s = list(self._batch.members), time.perf_counter(), self._device.settled_s
        inputs = list(inputs)
        for sequence in members:
            sequence.count_for_penalties()
        try:
            work, drafting_s = self._draft(members, inputs)
            inputs = self._planner.widths.without_inexact(inputs)
            inputs = [_cut_by_grammar(s, row_input) for s, row_input in zip(members, inputs, strict=True)]
            outcomes = self._accept(members, inputs)
        except StepError:
            raise
        except Exception as fault:
            raise StepError(_stop_drafting(members, inputs, fault), fault) from fault
        # Waiting for a prompt's chunk is no part of the step.
        waited_s = self._device.settled_s - settled_s
        self._account(members, outcomes, work, drafting_s, start + waited_s)
        with span("commit"):
            for sequence, outcome in zip(members, outcomes, strict=True):
                self._take(sequence, outcome)

    @span("draft_model")
    def _draft(self, members: list[Sequence], inputs: list[RowInput]) -> tuple[DraftWork | None, float]:
        """Draft with the draft model or head for the inputs that want it; return its work and seconds."""
        model = self._batch.draft_model
        if model is None or not any(row.num_wanted for row in inputs):
            return None, 0.0
        # Waiting for its tokens includes all earlier work.
        self._device.settle()
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
                sequence.drafts.forecast.note_work(work, row)
        return work, taken_s

    def _accept(self, members: list[Sequence], inputs: SequenceOf[RowInput]) -> list[Outcome]:
        """Run the forward pass, and roll every row back to its accepted tokens."""
        batch, rows = self._batch, self._batch.rows
        held = list(rows.lengths)
        with batch.tapping() as tapped:
            asked = verify.feed_drafts(rows, batch.sampler, inputs, [s.request.top_logprobs for s in members])
            self._device.compute(asked.arrays)
        outcomes = asked.outcomes()
        # Drop them now: they hold what all rows were fed.
        mx.async_eval(batch.hand_over(tapped, [outcome.num_final for outcome in outcomes]))
        for row, outcome in enumerate(outcomes):
            rows.roll_back(row, held[row] + outcome.num_final)
        return outcomes

    def _account(
        self,
        members: list[Sequence],
        outcomes: SequenceOf[Outcome],
        work: DraftWork | None,
        drafting_s: float,
        started_at: float,
    ) -> None:
        """Teach the costs what the step took, and charge it to every row's slowdown budget."""
        lap_s = self._device.lap()
        self._planner.charge_verification(
            [s.drafts.slowdown_budget if s.drafts and not s.window else None for s in members],
            self._planner.conditions(members),
            outcomes,
            lap_s if lap_s is not None else time.perf_counter() - started_at,
            drafting_s,
            work,
        )
        # The step waited for it, so its time is already charged.
        self._planning_s, self.has_drafted = 0.0, True

    def _take(self, sequence: Sequence, outcome: Outcome) -> None:
        """Commit a row's tokens of a verification step, and keep its predictions beyond them."""
        fed, drafts = outcome.verified, sequence.drafts
        if isinstance(outcome, WindowOutcome):
            sequence.window = outcome.window
        if drafts and drafts.masks and outcome.predicted:
            drafts.masks.receive(outcome.predicted, outcome.entropies, outcome.tokens[-1])
        if drafts:
            drafts.counts.num_fed += fed.width
        self._commit(sequence, outcome.tokens, outcome.likelihoods, fed.source, len(fed.draft))

    def _commit(
        self,
        sequence: Sequence,
        tokens: list[int],
        likelihoods: SequenceOf[Likelihood | None],
        draft: Draft = NO_DRAFT,
        num_verified: int = 0,
    ) -> None:
        if sequence.ended:
            return
        num_before = len(sequence.tokens)
        try:
            sequence.commit(tokens, likelihoods, draft, num_verified)
            num_added, timing = len(sequence.tokens) - num_before, sequence.timing
            if num_added:
                timing.last_token_at = self._stats.add_tokens(num_added, timing.last_token_at)
            self.num_commits += 1
        except Exception as fault:
            sequence.fail_with(fault)


def _draws_ahead(
    newest: mx.array, members: SequenceOf[Sequence], ahead: Collection[Sequence]
) -> list[Draw] | None:
    """Return the draws after the tokens in flight. A draw after the beginning of a call is limited.

    newest: (rows,) the last tokens. ahead: the sequences whose last token is in flight.
    Returns None if there is nothing to limit. An error in a grammar ends its sequence only.
    """
    masks: dict[int, mx.array] = {}
    for row, sequence in enumerate(members):
        if sequence not in ahead or sequence.ended:
            continue
        matcher = triggered_matcher(sequence.matcher)
        if matcher is None or not matcher.tokens or not matcher.may_run_ahead:
            continue
        try:
            masks[row] = matcher.mask_behind(newest[row])
        except Exception as fault:
            sequence.fail_with(fault)
    return [Draw(row, mask=masks.get(row)) for row in range(len(members))] if masks else None


def _cut_by_grammar(sequence: Sequence, row_input: RowInput) -> RowInput:
    """Add the grammar's masks to an input, and cut its draft before the first token without a mask.

    An error in the grammar ends this sequence only.
    """
    if not sequence.matcher or sequence.ended:
        return row_input
    try:
        draft = row_input.draft
        masks = sequence.matcher.masks(draft[: sequence.matcher.count_allowed(draft)])
        return replace(row_input, draft=draft[: len(masks) - 1], masks=masks)
    except Exception as fault:
        sequence.fail_with(fault)
        return replace(row_input, draft=(), source=NO_DRAFT)


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
